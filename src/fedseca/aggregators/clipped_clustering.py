"""Clipped clustering: the larger of two groups of directions, none of them longer than was usual so far."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances, larger_group
from fedseca.aggregators._ordered import in_order
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.aggregators.clustering import LINKAGES, Linkage
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates

NORMS = "norms"


@register("clipped_clustering")
@dataclass(frozen=True, kw_only=True)
class ClippedClustering(Aggregator):
    """The mean of the larger of two groups of directions, after clipping to the median of all norms so far.

    g_k·min[1, τ/‖g_k‖] with τ = median of the norms of all clients in all rounds, this one included; agglomerative
    clustering of 1 − cos(g_i, g_j) into two groups by average linkage; the larger group is averaged, of equal ones that
    with the first id (Li et al. 2023; Blades bounds τ by 1e5 as well). Clipping bounds the result, whoever is in the
    group: a minority does not move τ beyond the norms of the others. Remembers a number for each client and round.
    Cost: O(K²·D). Needs scikit-learn.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # somebody is always in the smaller group
    diagnostics = (WEIGHT, CLIP_FACTOR)

    linkage: Linkage = param("average", choices=LINKAGES, help="which distance of two clients is that of two groups")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def init(self, dim: int) -> State:
        return {NORMS: torch.zeros(0, 1, dtype=torch.float64)}

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        ordered, places = in_order(updates)
        norms = ops.norms(ordered)
        history = torch.cat([state[NORMS], norms[:, None]])
        factor = ops.clip_factors(float(history.median()), norms)
        # Clipping changes no angle.
        kept = larger_group(cosine_distances(ordered), self.linkage, self.name).double()
        weight = kept / kept.sum() * factor
        said = {"weight": weight[places], "clip_factor": factor[places]}
        return Aggregation(ops.weighted_sum(ordered, weight), said, {NORMS: history})
