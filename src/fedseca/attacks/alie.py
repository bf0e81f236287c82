"""ALIE, a little is enough: hide inside the spread of the honest clients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register, strengths
from fedseca.declare import param
from fedseca.updates import State


@register("alie")
@dataclass(frozen=True, kw_only=True)
class ALIE(Attack):
    """Each coordinate is shifted by about one standard deviation of the honest clients.

    g_b = μ − (z + δ_b)·σ, σ² = 1/H·Σ_k (g_k − μ)² (Baruch et al. 2019).
    """

    strength: float = param(1.0, help="z: standard deviations from the mean")
    jitter: float = param(0.05, ge=0, help="δ ~ Uniform(−jitter, jitter) is added, for each client anew")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        shift = strengths(self.strength, self.jitter, knowledge, honest, rng)
        return honest.mean(dim=0) - shift * honest.std(dim=0, correction=0), state
