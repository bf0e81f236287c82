"""Shrink: the right direction, far too short."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("shrink")
@dataclass(frozen=True, kw_only=True)
class Shrink(Attack):
    """The mean of the honest updates, nearly nothing of it: g_b = ε·μ.

    Short updates pull medians of norms and of magnitudes down, and with them what a rule clips or clamps to. Their
    signs are the right ones, so that rules which compare directions trust them: training stands still.
    """

    factor: float = param(1e-3, ge=0, lt=1, help="ε: how many times the mean")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        return copies(self.factor * honest.mean(dim=0), knowledge), state
