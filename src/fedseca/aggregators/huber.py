"""Huber loss minimisation: between the mean and the geometric median."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("huber")
@dataclass(frozen=True, kw_only=True)
class Huber(Aggregator):
    """The minimiser of a multi-dimensional Huber loss: the mean for close clients, the geometric median for far ones.

    c ← Σ_k f_k·g_k / Σ_k f_k with f_k = min[1, τ/‖c − g_k‖], until it rests (Zhao et al. 2024). It starts from 0, the
    model as it was, and not from the mean, which one client alone can carry off. Cost: O(R·K·D), R + 1 reads.
    """

    scales: ClassVar[bool] = False
    diagnostics = (WEIGHT, CLIP_FACTOR)

    threshold: float = param(0.2, gt=0, help="τ: distance from which on a client is weighed down")
    iterations: int = param(100, ge=1, help="R: the most iterations")
    tolerance: float = param(1e-6, ge=0, help="it rests when it moves by less than this share of τ")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        weight = torch.zeros(len(updates), dtype=torch.float64)
        for _ in range(self.iterations):
            distances = ops.residual_norms(updates, weight)
            factor = ops.clip_factors(self.threshold, distances)
            before, weight = weight, factor / factor.sum()
            # ‖Σ_k Δw_k·g_k‖ ≤ Σ_k |Δw_k|·‖g_k − c‖ once the weights sum to 1: how far c moves, without a read
            if before.any() and (weight - before).abs() @ distances <= self.tolerance * self.threshold:
                break
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight, "clip_factor": factor})
