"""Fang: every parameter is pushed against the direction it was going to change in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register, strengths
from fedseca.declare import param
from fedseca.updates import State


@register("fang")
@dataclass(frozen=True, kw_only=True)
class Fang(Attack):
    """A step of the same size in every coordinate, against the direction of the honest mean.

    w_b = w_before − (λ + δ_b)·sgn(mean(w_honest) − w_before), that is g_b = −(λ + δ_b)·sgn(μ) (Fang et al. 2020).
    """

    strength: float = param(0.1, help="λ: the size of the step")
    jitter: float = param(0.05, ge=0, help="δ ~ Uniform(−jitter, jitter) is added, for each client anew")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        return -strengths(self.strength, self.jitter, knowledge, honest, rng) * honest.mean(dim=0).sign(), state
