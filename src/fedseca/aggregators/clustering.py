"""Clustering: the larger of two groups of directions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances, larger_group
from fedseca.aggregators._ordered import in_order
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates

Linkage = Literal["complete", "average", "single"]
LINKAGES = ("complete", "average", "single")


@register("clustering")
@dataclass(frozen=True, kw_only=True)
class Clustering(Aggregator):
    """The mean of the larger of the two groups into which the directions of the clients fall.

    Agglomerative clustering of 1 − cos(g_i, g_j) splits the clients in two; the larger group is averaged, of equal ones
    that with the first id (Sattler et al. 2020). The authors' program has `complete` linkage, as most others; their
    equation, the split of least max cos(g_i, g_j) across, is exactly `single`. Blades takes cosines for distances.
    Lengths are not looked at, so there is no bound. Cost: O(K²·D). Needs scikit-learn.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # somebody is always in the smaller group

    linkage: Linkage = param("complete", choices=LINKAGES, help="which distance of two clients is that of two groups")

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        ordered, places = in_order(updates)
        kept = larger_group(cosine_distances(ordered), self.linkage, self.name).double()
        weight = kept / kept.sum()
        return Aggregation(ops.weighted_sum(ordered, weight), {"weight": weight[places]})
