"""ALIE, a little is enough: hide inside the spread of the honest clients."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register, strengths
from fedseca.declare import param
from fedseca.updates import State


@register("alie")
@dataclass(frozen=True, kw_only=True)
class ALIE(Attack):
    """Each coordinate is shifted by about one standard deviation of the honest clients.

    g_b = μ − (z + δ_b)·σ, σ² = 1/H·Σ_k (g_k − μ)² (Baruch et al. 2019). Without a strength, z is their z_max for K and
    B (`largest_shift`): what a majority of B attackers and s honest supporters allows.
    """

    strength: float | None = param(1.0, help="z: standard deviations from the mean; none: the paper's z for K and B")
    jitter: float = param(0.05, ge=0, help="δ ~ Uniform(−jitter, jitter) is added, for each client anew")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        z = largest_shift(len(honest), knowledge.num_byzantine) if self.strength is None else self.strength
        shift = strengths(z, self.jitter, knowledge, honest, rng)
        return honest.mean(dim=0) - shift * honest.std(dim=0, correction=0), state


def largest_shift(honest: int, byzantine: int) -> float:
    """z_max = Φ⁻¹((K − B − s)/(K − B)) with s = ⌊K/2 + 1⌋ − B, the honest clients that a majority still needs.

    Some programs divide by K in place of K − B. At least one supporter is asked for, or z would have no bound; for one
    Byzantine client z is 0 or below. With one honest client there is no spread to hide in.
    """
    supporters = max((honest + byzantine) // 2 + 1 - byzantine, 1)
    beyond = (honest - supporters) / honest
    return NormalDist().inv_cdf(beyond) if beyond > 0 else 0.0
