"""MeaMed: the mean around the median."""

from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("meamed")
@dataclass(frozen=True, kw_only=True)
class MeanAroundMedian(Aggregator):
    """The mean of each coordinate's values that are nearest to its median.

    g̃^j = 1/(K−B)·Σ_k g_k^j over the K−B values of least |g_k^j − median_l g_l^j|; at the same distance the one below
    the median first (Xie et al. 2018). Of an even K the median is the lower middle value; public programs also take
    the mean of both. Cost: O(K·log K·D), one read.
    """

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")

    def min_clients(self) -> int:
        return self.num_byzantine + 1

    def tolerates(self, num_clients: int) -> int:
        # The median lies among the honest values, and so many of them are no farther from it than the farthest of them.
        return self.num_byzantine if 2 * self.num_byzantine < num_clients else 0

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        chosen = ops.mean_near_median(updates, len(updates) - self.num_byzantine)
        return Aggregation(chosen.update, {"weight": chosen.share})
