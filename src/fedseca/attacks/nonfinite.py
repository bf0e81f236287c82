"""Nonfinite: NaN and Inf, which a server must not let near its model."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("nonfinite")
@dataclass(frozen=True, kw_only=True)
class NonFinite(Attack):
    """The honest mean with a few coordinates, drawn at random, replaced by NaN or Inf.

    A mean over all clients is not finite any more. Screening leaves these clients out.
    """

    finite: ClassVar[bool] = False

    value: str = param("mixed", choices=("nan", "inf", "-inf", "mixed"), help="what is sent in place of a number")
    count: int = param(3, ge=1, help="how many coordinates of each update are replaced")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        rows = copies(honest.mean(dim=0), knowledge)
        values = ("nan", "inf", "-inf") if self.value == "mixed" else (self.value,)
        count = min(self.count, honest.shape[1])
        bad = torch.tensor([float(values[i % len(values)]) for i in range(count)]).to(honest)
        for row in rows:
            row[torch.randperm(len(row), generator=rng)[:count].to(row.device)] = bad
        return rows, state
