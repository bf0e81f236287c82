"""Krum: the client in the densest neighbourhood."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("krum")
@dataclass(frozen=True, kw_only=True)
class Krum(Aggregator):
    """The client that is closest to its nearest neighbours.

    ς_i = Σ_{i→k} ‖g_i − g_k‖² over the K−B−2 nearest others; the `select` clients of least ς are averaged
    (Blanchard et al. 2017). Cost: O(K²·D).
    """

    low_weight_is_distrust: ClassVar[bool] = False
    diagnostics = (WEIGHT, diagnostic("score", symbol="ς", help="sum of the squared distances to its nearest others"))

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")
    select: int = param(1, ge=1, help="m: how many of the best are averaged")

    def min_clients(self) -> int:
        return max(self.num_byzantine + 3, self.select)

    def tolerates(self, num_clients: int) -> int:
        # Blanchard et al. need 2B + 2 < K; and all that are averaged must be honest.
        safe = (
            num_clients >= 2 * self.num_byzantine + 3 and self.chosen(num_clients) <= num_clients - self.num_byzantine
        )
        return self.num_byzantine if safe else 0

    def chosen(self, num_clients: int) -> int:
        """m for K clients."""
        return self.select

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        count = len(updates)
        distances = ops.squared_distances(updates).fill_diagonal_(torch.inf)
        nearest = distances.sort(dim=1).values[:, : count - self.num_byzantine - 2]
        score = nearest.sum(dim=1)
        best = ops.ranks(score).argsort(stable=True)[: self.chosen(count)]
        weight = torch.zeros(count, dtype=torch.float64).index_fill_(0, best, 1 / len(best))
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight, "score": score})
