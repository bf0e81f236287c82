"""Random: noise instead of an update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register
from fedseca.declare import param
from fedseca.updates import State


@register("random")
@dataclass(frozen=True, kw_only=True)
class Random(Attack):
    """Gaussian noise, `factor` times as long as the honest updates are on average.

    g_b ~ N(0, (s·ℓ)²/D · I) with ℓ = 1/H·Σ_k ‖g_k‖ (Blanchard et al. 2017). Easy to see, and enough to ruin a mean.
    """

    factor: float = param(10.0, gt=0, help="s: how many times an honest update's length")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        dim = honest.shape[1]
        noise = torch.randn(knowledge.num_byzantine, dim, generator=rng).to(honest)
        return noise * (self.factor * honest.norm(dim=1).mean() / dim**0.5), state
