"""The coordinate-wise trimmed mean."""

import math
from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("cwtm")
@dataclass(frozen=True, kw_only=True)
class CoordinatewiseTrimmedMean(Aggregator):
    """The mean of each coordinate without its extremes.

    ⌊β·K⌋ values are dropped at each end, the rest is averaged (Yin et al. 2018). Cost: O(K·log K·D), one read.
    """

    trim: float = param(0.2, ge=0, lt=0.5, help="β: share of clients dropped at each end of a coordinate")

    def trimmed(self, num_clients: int) -> int:
        """⌊β·K⌋, whatever rounding did to the product: 0.29·100 is 29."""
        return math.floor(self.trim * num_clients + 1e-9)

    def tolerates(self, num_clients: int) -> int:
        return self.trimmed(num_clients)

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        chosen = ops.trimmed_mean(updates, self.trimmed(len(updates)))
        return Aggregation(chosen.update, {"weight": chosen.share})
