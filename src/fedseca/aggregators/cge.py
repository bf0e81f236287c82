"""CGE: the longest updates are left out."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import Aggregation
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("cge")
@dataclass(frozen=True, kw_only=True)
class ComparativeGradientElimination(OrderedAggregator):
    """The mean of all clients but those with the longest updates.

    g̃ = 1/(K−B)·Σ_k g_k over the K−B clients of least ‖g_k‖; ties by the order of the clients' ids (Gupta et al. 2021,
    who take the sum; public programs take the mean). It looks at lengths alone: a short update may point anywhere.
    Cost: O(K·D), a read for the norms, and one of the rows that are kept.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # the longest are left out, however alike the clients are

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")

    def min_clients(self) -> int:
        return self.num_byzantine + 1

    def tolerates(self, num_clients: int) -> int:
        # There are K−B honest ones, so nobody who is kept is longer than the longest of them.
        return self.num_byzantine if 2 * self.num_byzantine < num_clients else 0

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        kept = ops.ranks(ops.norms(updates)).argsort(stable=True)[: len(updates) - self.num_byzantine]
        weight = torch.zeros(len(updates), dtype=torch.float64).index_fill_(0, kept, 1 / len(kept))
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight})
