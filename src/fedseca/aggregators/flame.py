"""FLAME: the densest majority of directions, clipped, with noise if asked for."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation
from fedseca.declare import param
from fedseca.errors import MissingDependency
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("flame")
@dataclass(frozen=True, kw_only=True)
class Flame(OrderedAggregator):
    """The mean of the densest majority of directions, each clipped to the median norm, and noise if it is asked for.

    HDBSCAN of 1 − cos(g_i, g_j) with clusters of at least ⌊K/2⌋ + 1 clients leaves one; g_k·min[1, S/‖g_k‖] is averaged
    over it, S the median norm of all clients; then N(0, (λ·S)²) is added to each coordinate (Nguyen et al. 2022). The
    paper takes the angles between the clients' models; here, as in other programs, they are those between updates. Its
    λ is 0.001 for images; some programs multiply λ·S by the deviation of the weights too. Clipping bounds the result,
    whoever is in the cluster. Cost: O(K²·D). Needs scikit-learn.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # the majority is the least one, so somebody is always left out
    diagnostics = (WEIGHT, CLIP_FACTOR)

    noise: float = param(0.0, ge=0, help="λ: deviation of the noise in each coordinate, in median norms")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "returns_identical", self.noise == 0)

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        norms = ops.norms(updates)
        usual = float(norms.median())
        factor = ops.clip_factors(usual, norms)
        kept = majority(cosine_distances(updates)).double()
        weight = kept / kept.sum() * factor
        update = ops.weighted_sum(updates, weight)
        if self.noise > 0:
            drawn = torch.randn(updates.dim, generator=rng, device="cpu", dtype=torch.float64)
            update += (self.noise * usual * drawn).to(update)
        return Aggregation(update, {"weight": weight, "clip_factor": factor})


def majority(distances: Tensor) -> Tensor:
    """Who is in the one cluster that HDBSCAN finds if clusters must hold more than half of the clients."""
    count = len(distances)
    if count < 3:  # more than half of them are all of them
        return torch.ones(count, dtype=torch.bool)
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError:
        raise MissingDependency("flame needs scikit-learn: pip install 'fedseca[detectors]'") from None
    found = HDBSCAN(
        min_cluster_size=count // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    )
    # Densities are 1/distance: of equal directions it must be finite, and what rounding put between them is nothing.
    labels = found.fit(distances.clamp(min=1e-12).fill_diagonal_(0).numpy()).labels_
    return torch.from_numpy(labels == 0)
