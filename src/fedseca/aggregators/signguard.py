"""SignGuard: clients of unusual length or with unusual shares of signs are left out."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._drawn import draw_coordinates
from fedseca.aggregators._ordered import in_order
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.errors import MissingDependency
from fedseca.parts import register
from fedseca.updates import BLOCK_ELEMENTS, State, Updates


@register("signguard")
@dataclass(frozen=True, kw_only=True)
class SignGuard(Aggregator):
    """The clipped mean of the clients of usual length whose shares of positive, zero and negative signs are alike.

    S₁ = {k: L·M ≤ ‖g_k‖ ≤ R·M}, M = median ‖g_k‖; S₂ = the largest MeanShift cluster of the shares of positive, zero
    and negative numbers among a random tenth of the coordinates; g_k·min[1, M/‖g_k‖] is averaged over S₁ ∩ S₂, or over
    S₁ if nobody is in both (Xu et al. 2022). The bandwidth is that of the authors' program: the mean distance to the
    ⌊K/2⌋-th nearest, itself the first. That program draws a slice of coordinates and divides each share by its maximum;
    the paper does not. Clipping bounds the result, whoever is in it.
    Cost: O(K·D), two reads, and MeanShift of K points. Needs scikit-learn.
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

    def min_clients(self) -> int:
        return math.ceil(2 / self.bandwidth - 1e-9)  # with fewer, each client is its own nearest and a cluster alone

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        ordered, places = in_order(updates)
        norms = ops.norms(ordered)
        usual = float(norms.median())
        right_length = (norms >= self.lower * usual) & (norms <= self.upper * usual)
        drawn = draw_coordinates(updates.dim, math.ceil(self.fraction * updates.dim - 1e-9), rng)
        shares = sign_shares(ordered, drawn)
        both = right_length & torch.from_numpy(largest_cluster(shares.numpy(), self.bandwidth))
        kept = (both if both.any() else right_length).double()
        factor = ops.clip_factors(usual, norms)
        weight = kept / kept.sum() * factor
        said = {"weight": weight, "clip_factor": factor, "positive": shares[:, 0]}
        return Aggregation(ops.weighted_sum(ordered, weight), {name: each[places] for name, each in said.items()})


def sign_shares(updates: Updates, coordinates: Tensor) -> Tensor:
    """The shares of positive, zero and negative numbers among these coordinates (K × 3)."""
    counts = torch.zeros(len(updates), 3, dtype=torch.float64)
    for some in torch.split(coordinates.sort().values, max(1, BLOCK_ELEMENTS // len(updates))):
        signs = ops.columns(updates, some).sign()
        counts += torch.stack([(signs == sign).sum(dim=1) for sign in (1, 0, -1)], dim=1).cpu()
    return counts / len(coordinates)


def largest_cluster(points: NDArray[np.float64], quantile: float) -> NDArray[np.bool_]:
    """Which points are in the largest of MeanShift's clusters; one beyond the bandwidth of every centre is in none."""
    try:
        from sklearn.cluster import MeanShift
    except ImportError:
        raise MissingDependency("signguard needs scikit-learn: pip install 'fedseca[detectors]'") from None
    distances = np.sort(np.linalg.norm(points[:, None] - points, axis=2), axis=1)
    # A point at the very bandwidth is within it, whatever rounding says; so are equal ones, if there is none.
    bandwidth = distances[:, max(1, int(quantile * len(points) + 1e-9)) - 1].mean() + 1e-6
    fitted = MeanShift(bandwidth=bandwidth, seeds=np.unique(points, axis=0), cluster_all=False).fit(points)
    sizes = np.bincount(fitted.labels_[fitted.labels_ >= 0], minlength=1)
    return np.asarray(fitted.labels_ == sizes.argmax())
