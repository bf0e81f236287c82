"""Clipped clustering: the larger of two groups of directions, none of them longer than was usual so far."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances, larger_group
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation
from fedseca.aggregators.clustering import LINKAGES, Linkage
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates

NORMS = "norms"
SIZES = "sizes"
"""How many of the norms are of each round."""


@register("clipped_clustering")
@dataclass(frozen=True, kw_only=True)
class ClippedClustering(OrderedAggregator):
    """The mean of the larger of two groups of directions, after clipping to the median of all norms so far.

    g_k·min[1, τ/‖g_k‖] with τ = median of the norms of all clients in all rounds, this one included; agglomerative
    clustering of 1 − cos(g_i, g_j) into two groups by average linkage; the larger group is averaged, of equal ones that
    with the first id (Li et al. 2023; Blades bounds τ by 1e5 as well). Clipping bounds the result, whoever is in the
    group: a minority does not move τ beyond the norms of the others. Remembers a number for each client and round, of
    the last `window` rounds only: a memory of all would grow without end. Cost: O(K²·D). Needs scikit-learn.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # somebody is always in the smaller group
    diagnostics = (WEIGHT, CLIP_FACTOR)

    linkage: Linkage = param("average", choices=LINKAGES, help="which distance of two clients is that of two groups")
    window: int = param(1000, ge=1, later=True, help="rounds whose norms are remembered, this one included")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def init(self, dim: int) -> State:
        return {NORMS: torch.zeros(0, 1, dtype=torch.float64)}

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        norms = ops.norms(updates)
        new_state = self.remembered(state, norms)
        factor = ops.clip_factors(float(new_state[NORMS].median()), norms)
        # Clipping changes no angle.
        kept = larger_group(cosine_distances(updates), self.linkage, self.name).double()
        weight = kept / kept.sum() * factor
        said = {"weight": weight, "clip_factor": factor}
        return Aggregation(ops.weighted_sum(updates, weight), said, new_state)

    def remembered(self, state: State, norms: Tensor) -> State:
        """The norms of the last rounds together with those of this one."""
        earlier = state.get(SIZES, torch.tensor([len(state[NORMS])]))  # at first nobody's; of an older state all as one
        sizes = torch.cat([earlier, torch.tensor([len(norms)])])[-self.window :]
        return {NORMS: torch.cat([state[NORMS], norms[:, None]])[-int(sizes.sum()) :], SIZES: sizes}
