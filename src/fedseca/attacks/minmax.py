"""MinMax, agr-updates: ask the server's own rule how far one may go."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks._directions import DIRECTIONS, direction
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("minmax")
@dataclass(frozen=True, kw_only=True)
class MinMax(Attack):
    """The honest mean, pushed as far as hurts the server's rule most, which the attacker knows and asks.

    g_b = μ + γ·p with the γ for which ‖μ − RAggr(honest ∪ attack)‖ is largest (Shejwalkar & Houmansadr 2021). γ is
    searched by halving steps: up after a γ that did more damage than all before, down otherwise. About
    log₂(start/threshold) questions in each round.
    """

    needs: ClassVar[tuple[str, ...]] = ("probe",)

    direction: str = param("unit", choices=DIRECTIONS, help="p: −μ/‖μ‖, −sgn(μ) or −σ")
    start: float = param(10.0, gt=0, help="γ of the first question")
    threshold: float = param(1e-5, gt=0, help="the search ends when its step is smaller")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean, push = honest.mean(dim=0), direction(self.direction, honest)
        if knowledge.num_byzantine == 0:
            return copies(mean, knowledge), state
        gamma, step = self.start, self.start / 2
        worst, damage = gamma, 0.0
        while step >= self.threshold:
            answer = knowledge.probe(copies(mean + gamma * push, knowledge))
            found = float((mean - answer).norm())
            succeeded = found > damage
            if succeeded:
                worst, damage = gamma, found
            gamma += step if succeeded else -step
            step /= 2
        return copies(mean + worst * push, knowledge), state
