"""Scaling: the right direction, far too long."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("scaling")
@dataclass(frozen=True, kw_only=True)
class Scaling(Attack):
    """The mean of the honest updates, many times over: g_b = ε·μ, which makes the training explode."""

    factor: float = param(10.0, help="ε: how many times the mean")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        return copies(self.factor * honest.mean(dim=0), knowledge), state
