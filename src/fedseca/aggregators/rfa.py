"""RFA: the geometric median."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("rfa")
@dataclass(frozen=True, kw_only=True)
class RFA(Aggregator):
    """The geometric median, by smoothed Weiszfeld iterations from the mean.

    v ← Σ_k β_k·g_k / Σ_k β_k with β_k = α_k / max[ε, ‖v − g_k‖], R times (Pillutla et al. 2022).
    An outlier's pull shrinks quickly with R, but for a fixed R it has no bound. Cost: O(R·K·D), R + 1 reads.
    """

    takes_weights: ClassVar[bool] = True

    iterations: int = param(3, ge=1, help="R: Weiszfeld iterations")
    smoothing: float = param(1e-6, gt=0, help="ε: least distance that is divided by")

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        alpha = updates.fractions()
        weight = alpha
        for _ in range(self.iterations):
            beta = alpha / ops.residual_norms(updates, weight).clamp(min=self.smoothing)
            weight = beta / beta.sum()
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight})
