"""How strong to be: the strength after which the server's own rule errs most, from a grid."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, copies
from fedseca.declare import param
from fedseca.updates import State


@dataclass(frozen=True, kw_only=True)
class LineSearch(Attack):
    """g_b = a + z·p with the z of the grid after which ‖μ − RAggr(honest ∪ attack)‖ is largest.

    The grid has equal ratios from `least` to `most`; of equal damage the smallest z is taken.
    """

    needs: ClassVar[tuple[str, ...]] = ("probe",)

    least: float = param(0.1, gt=0, help="the smallest strength that is tried")
    most: float = param(10.0, gt=0, help="the largest strength that is tried")
    questions: int = param(16, ge=1, help="how many strengths are tried in each round; 1: the smallest")

    @abstractmethod
    def line(self, honest: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """a and p: where the row is at strength 0, and where a strength of 1 moves it."""

    def grid(self) -> list[float]:
        """least·(most/least)^(i/(n − 1)) for i = 0 … n − 1."""
        ratio = self.most / self.least
        return [self.least * ratio ** (i / max(self.questions - 1, 1)) for i in range(self.questions)]

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean = honest.mean(dim=0)
        if knowledge.num_byzantine == 0:
            return copies(mean, knowledge), state
        start, push = self.line(honest, mean)
        worst, damage = self.least, -1.0
        for strength in self.grid():
            found = float((mean - knowledge.probe(copies(start + strength * push, knowledge))).norm())
            if found > damage:
                worst, damage = strength, found
        return copies(start + worst * push, knowledge), state
