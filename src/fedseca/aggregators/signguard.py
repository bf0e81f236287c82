"""SignGuard: clients of unusual length or with unusual shares of signs are left out."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._drawn import draw_coordinates
from fedseca.aggregators._mean_shift import largest_cluster
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import BLOCK_ELEMENTS, State, Updates


@register("signguard")
@dataclass(frozen=True, kw_only=True)
class SignGuard(OrderedAggregator):
    """The clipped mean of the clients of usual length whose shares of positive, zero and negative signs are alike.

    S₁ = {k: L·M ≤ ‖g_k‖ ≤ R·M}, M = median ‖g_k‖; S₂ = the largest MeanShift cluster of the shares of positive, zero
    and negative numbers among a random tenth of the coordinates; g_k·min[1, M/‖g_k‖] is averaged over S₁ ∩ S₂, or over
    S₁ if nobody is in both (Xu et al. 2022). The bandwidth is that of the authors' program: the mean distance to the
    ⌊K/2⌋-th nearest, itself the first; with fewer than four clients that is nobody else, and S₁ alone decides. That
    program draws a slice of coordinates and divides each share by its maximum; the paper does not. Clipping bounds the
    result, whoever is in it.
    Cost: O(K·D), two reads, and MeanShift of K points: O(K²) for each of a few steps.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # MeanShift leaves out the edges of every cloud
    diagnostics = (
        WEIGHT,
        CLIP_FACTOR,
        diagnostic("positive", share=True, help="share of positive numbers among the coordinates drawn"),
    )

    lower: float = param(0.1, ge=0, le=1, help="L: least norm, in median norms")
    upper: float = param(3.0, ge=1, help="R: largest norm, in median norms")
    fraction: float = param(0.1, gt=0, le=1, help="share of the coordinates whose signs are counted")
    bandwidth: float = param(
        0.5, gt=0, le=1, help="share of the clients that MeanShift's bandwidth reaches, on average"
    )

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        norms = ops.norms(updates)
        usual = float(norms.median())
        right_length = (norms >= self.lower * usual) & (norms <= self.upper * usual)
        drawn = draw_coordinates(updates.dim, math.ceil(self.fraction * updates.dim - 1e-9), rng)
        shares = sign_shares(updates, drawn)
        both = right_length
        if self.bandwidth * len(updates) > 2 - 1e-9:  # with fewer, each is its own nearest and a cluster alone
            both = right_length & torch.from_numpy(largest_cluster(shares.numpy(), self.bandwidth))
        kept = (both if both.any() else right_length).double()
        factor = ops.clip_factors(usual, norms)
        weight = kept / kept.sum() * factor
        said = {"weight": weight, "clip_factor": factor, "positive": shares[:, 0]}
        return Aggregation(ops.weighted_sum(updates, weight), said)


def sign_shares(updates: Updates, coordinates: Tensor) -> Tensor:
    """The shares of positive, zero and negative numbers among these coordinates (K × 3)."""
    counts = torch.zeros(len(updates), 3, dtype=torch.float64)
    for some in torch.split(coordinates.sort().values, max(1, BLOCK_ELEMENTS // len(updates))):
        signs = ops.columns(updates, some).sign()
        counts += torch.stack([(signs == sign).sum(dim=1) for sign in (1, 0, -1)], dim=1).cpu()
    return counts / len(coordinates)
