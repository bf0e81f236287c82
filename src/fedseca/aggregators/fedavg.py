"""FedAvg: the mean."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Aggregator):
    """The mean of all clients: no defence at all.

    g̃ = Σ_k α_k·g_k, α_k = 1/K unless weights are given (McMahan et al. 2017). Cost: O(K·D), one read.
    """

    takes_weights: ClassVar[bool] = True
    low_weight_is_distrust: ClassVar[bool] = False

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        weights = updates.fractions()
        return Aggregation(ops.weighted_sum(updates, weights), {"weight": weights})
