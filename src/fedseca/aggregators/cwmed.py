"""The coordinate-wise median."""

from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("cwmed")
@dataclass(frozen=True, kw_only=True)
class CoordinatewiseMedian(Aggregator):
    """The median of each coordinate.

    g̃^j = median_k g_k^j, the lower middle value for an even K (Yin et al. 2018). Cost: O(K·log K·D), one read.
    """

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        chosen = ops.median(updates)
        return Aggregation(chosen.update, {"weight": chosen.share})
