"""IPM, inner product manipulation: push against the mean."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register, strengths
from fedseca.declare import param
from fedseca.updates import State


@register("ipm")
@dataclass(frozen=True, kw_only=True)
class IPM(Attack):
    """The mean of the honest updates, backwards.

    g_b = −(ε + δ_b)·μ, so that the inner product of the aggregate with the true gradient turns negative
    (Xie et al. 2020).
    """

    strength: float = param(1.3, help="ε: how many times the mean")
    jitter: float = param(0.05, ge=0, help="δ ~ Uniform(−jitter, jitter) is added, for each client anew")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        return -strengths(self.strength, self.jitter, knowledge, honest, rng) * honest.mean(dim=0), state
