"""The coordinate-wise median."""

from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("cwmed")
@dataclass(frozen=True, kw_only=True)
class CoordinatewiseMedian(Aggregator):
    """The median of each coordinate.

    g̃^j = median_k g_k^j (Yin et al. 2018). Of an even K the lower of the two middle values is taken, as torch does; or
    their mean, as NumPy does. Cost: O(K·log K·D), one read.
    """

    even: str = param(
        "lower",
        choices=("lower", "mean"),
        later=True,
        help="of an even number of clients: the lower middle value, or the mean of both",
    )

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        averaged = self.even == "mean" and len(updates) % 2 == 0
        chosen = ops.trimmed_mean(updates, len(updates) // 2 - 1) if averaged else ops.median(updates)
        return Aggregation(chosen.update, {"weight": chosen.share})
