"""SignFlip: each Byzantine client sends its own training backwards."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register
from fedseca.declare import param
from fedseca.updates import State


@register("signflip")
@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """What the client's own training gave, with the sign turned: g_b = −s·g_b. It needs to see nobody else."""

    needs: ClassVar[tuple[str, ...]] = ("own",)

    factor: float = param(1.0, gt=0, help="s: how many times over")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        return -self.factor * knowledge.own, state
