"""Momentum: each round's aggregate is smoothed with those before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.declare import param
from fedseca.parts import register
from fedseca.steps.base import StepAfter
from fedseca.updates import State

AVERAGE = "average"


@register("momentum")
@dataclass(frozen=True, kw_only=True)
class Momentum(StepAfter):
    """The aggregate is averaged with those of the rounds before.

    ğ = β·ğ_before + (1−β)·g̃, from 0: the first round is 1−β of a step. Cost: O(D).
    """

    alone: ClassVar[Mapping[str, object]] = {"beta": 0.0}

    beta: float = param(0.5, ge=0, lt=1, help="β: share of the rounds before")

    def init(self, dim: int) -> State:
        return {AVERAGE: torch.zeros(dim)} if self.beta > 0 else {}

    def apply(self, update: Tensor, state: State) -> tuple[Tensor, State]:
        if self.beta == 0:
            return update, {}
        precise = torch.promote_types(update.dtype, torch.float32)
        previous = state[AVERAGE].to(update.device, precise)
        average = self.beta * previous + (1 - self.beta) * update.to(precise)
        return average.to(update.dtype, copy=True), {AVERAGE: average}
