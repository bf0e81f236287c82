"""FoundationFL: the trimmed mean of the clients and of copies of the one that is least extreme."""

import itertools
import math
from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import WEIGHT, Aggregation
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("foundationfl")
@dataclass(frozen=True, kw_only=True)
class FoundationFL(OrderedAggregator):
    """The trimmed mean of the clients together with copies of the one that is farthest from the extremes.

    s_k = min[‖g_k − max_l g_l‖, ‖g_k − min_l g_l‖] with the largest and the least value of each coordinate; M = ⌊σ·K⌋
    copies of the client of largest s_k are added (ties by the order of the clients' ids), and of the K + M values of
    each coordinate the B largest and the B least are dropped before the mean (Fang et al. 2025). A client that is
    extreme upward in some coordinates and downward in others can be the one that is copied: there is a bound only
    where B exceeds M. Cost: O(K·log K·D), two reads.
    """

    diagnostics = (WEIGHT, diagnostic("score", symbol="s", help="its distance to the nearer one of the two extremes"))

    num_byzantine: int = param(1, ge=0, help="B: values dropped at each end of a coordinate")
    synthetic: float = param(0.5, ge=0, le=1, help="σ: copies that are added, as a share of the clients")

    def copies(self, num_clients: int) -> int:
        """⌊σ·K⌋, whatever rounding did to the product."""
        return math.floor(self.synthetic * num_clients + 1e-9)

    def min_clients(self) -> int:
        return next(k for k in itertools.count(1) if k + self.copies(k) > 2 * self.num_byzantine)

    def tolerates(self, num_clients: int) -> int:
        # The copies may be of a malicious client: they have to be dropped with the others.
        copies = self.copies(num_clients)
        return max(0, self.num_byzantine - copies) if num_clients + copies > 2 * self.num_byzantine else 0

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        score = torch.minimum(*ops.extreme_distances(updates))
        copied = int(ops.ranks(score).argmax())  # the first of those that tie
        copies = self.copies(len(updates))
        rows = (*updates.rows, *[updates.rows[copied]] * copies)
        ids = (*updates.client_ids, *(f"copy {m}" for m in range(copies)))
        chosen = ops.trimmed_mean(updates.with_rows(rows, ids), self.num_byzantine)
        weight = chosen.share[: len(updates)].clone()
        weight[copied] += chosen.share[len(updates) :].sum()
        return Aggregation(chosen.update, {"weight": weight, "score": score})
