"""Bulyan: Krum picks clients one after the other, then each coordinate is averaged around its median."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedseca import ops
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import WEIGHT, Aggregation
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("bulyan")
@dataclass(frozen=True, kw_only=True)
class Bulyan(OrderedAggregator):
    """The mean around the median of each coordinate, of the clients that Krum picks one after the other.

    θ = K − 2B times Krum picks one of those left: of K' left, the one of least Σ ‖g_i − g_k‖² over its K'−B−2 nearest
    others (at least one). Then g̃^j is the mean of the θ − 2B values nearest to the median of the picked ones
    (El Mhamdi et al. 2018, who need K ≥ 4B + 3). Many public programs rank once and take the best θ; some average
    several at each pick. Ties by the order of the clients' ids. Cost: O(K²·D + K³).
    """

    low_weight_is_distrust: ClassVar[bool] = False  # 2B are never picked, however alike the clients are
    diagnostics = (WEIGHT, diagnostic("pick", help="when Krum picked it, from 1 on; 0 if it did not"))

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")

    def min_clients(self) -> int:
        return 4 * self.num_byzantine + 3

    def tolerates(self, num_clients: int) -> int:
        return self.num_byzantine if num_clients >= self.min_clients() else 0

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        picked = self.picks(updates)
        chosen = ops.mean_near_median(updates.select(picked), len(picked) - 2 * self.num_byzantine)
        weight, pick = torch.zeros(2, len(updates), dtype=torch.float64)
        weight[picked] = chosen.share
        pick[picked] = torch.arange(1.0, len(picked) + 1, dtype=torch.float64)
        return Aggregation(chosen.update, {"weight": weight, "pick": pick})

    def picks(self, updates: Updates) -> list[int]:
        """The θ clients in the order in which they are picked; of those that tie the first."""
        distances = ops.squared_distances(updates).fill_diagonal_(torch.inf).numpy()
        left = list(range(len(updates)))
        picked: list[int] = []
        while len(picked) < len(updates) - 2 * self.num_byzantine:
            near = max(1, len(left) - self.num_byzantine - 2)
            nearest = np.partition(distances[np.ix_(left, left)], near - 1, axis=1)[:, :near]
            best = int(ops.ranks(torch.from_numpy(nearest.sum(axis=1))).argmin())  # the first of those that tie
            picked.append(left.pop(best))
        return picked
