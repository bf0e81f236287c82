"""Clustering: the larger of two groups of directions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances, larger_group
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import Aggregation
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates

Linkage = Literal["complete", "average", "single"]
LINKAGES = ("complete", "average", "single")


@register("clustering")
@dataclass(frozen=True, kw_only=True)
class Clustering(OrderedAggregator):
    """The mean of the larger of the two groups into which the directions of the clients fall.

    Agglomerative clustering of 1 − cos(g_i, g_j) splits the clients in two; the larger group is averaged, of equal ones
    that with the first id (Sattler et al. 2020). Their equation, the split of least max cos(g_i, g_j) across, is
    exactly `single` linkage; their program has `complete`, as most others. Blades takes cosines for distances.
    Lengths are not looked at, so there is no bound. Cost: O(K²·D). Needs scikit-learn.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # somebody is always in the smaller group

    linkage: Linkage = param("single", choices=LINKAGES, help="which distance of two clients is that of two groups")

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        kept = larger_group(cosine_distances(updates), self.linkage, self.name).double()
        weight = kept / kept.sum()
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight})
