"""MDA: the mean of the clients that lie closest together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedseca import ops
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import WEIGHT, Aggregation
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates

_MOST = 16
"""The largest B: the search for the subset takes up to 2^B steps, some seconds."""


@register("mda")
@dataclass(frozen=True, kw_only=True)
class MinimumDiameterAveraging(OrderedAggregator):
    """The mean of the K−B clients whose farthest two are closest to each other.

    g̃ = 1/(K−B)·Σ_{k∈S} g_k with S the subset of K−B clients of least max_{i,k∈S} ‖g_i − g_k‖; of several such subsets
    the first in the order of the clients' ids (El Mhamdi et al. 2020). Public programs try all subsets; here pairs that
    are too far apart are resolved one by one, which finds the same subset. Cost: O(K²·D), and up to 2^B·log K steps of
    the search.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # B are left out, however alike the clients are
    diagnostics = (WEIGHT, diagnostic("farthest", help="its distance to the farthest of those that are averaged"))

    num_byzantine: int = param(1, ge=0, le=_MOST, help="B: clients assumed malicious")

    def min_clients(self) -> int:
        return self.num_byzantine + 1

    def tolerates(self, num_clients: int) -> int:
        # The honest clients are such a subset, and every such subset has an honest client in it.
        return self.num_byzantine if 2 * self.num_byzantine < num_clients else 0

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        distances = ops.squared_distances(updates).sqrt()
        kept = smallest_subset(ops.ranks(distances.flatten()).numpy().reshape(distances.shape), self.num_byzantine)
        weight = torch.zeros(len(updates), dtype=torch.float64)
        weight[kept] = 1 / len(kept)
        said = {"weight": weight, "farthest": distances[:, kept].amax(dim=1)}
        return Aggregation(ops.weighted_sum(updates, weight), said)


def smallest_subset(among: NDArray[np.int64], leave_out: int) -> list[int]:
    """The first subset of all but so many with the least largest distance, of the ranks of all distances."""
    ranks = np.unique(among)
    low, high = 0, len(ranks) - 1  # with all distances allowed there is one
    while low < high:
        middle = (low + high) // 2
        if _first_within(_apart(among > ranks[middle]), leave_out) is None:
            low = middle + 1
        else:
            high = middle
    found = _first_within(_apart(among > ranks[low]), leave_out)
    assert found is not None
    return found[: len(among) - leave_out]


def _apart(too_far: NDArray[np.bool_]) -> list[int]:
    """For each client, as the bits of a number, with which later ones it must not be together."""
    packed = np.packbits(np.triu(too_far), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def _first_within(apart: Sequence[int], leave_out: int, client: int = 0, dropped: int = 0) -> list[int] | None:
    """The first subset of all but so many of which no two are too far apart; None if there is none.

    Client by client: one that is near to all is kept. Else it is kept and those that are far from it are dropped, or
    it is dropped itself: each way drops one at least, so that there are 2^B ways at most.
    """
    kept: list[int] = []
    for k in range(client, len(apart)):
        if dropped >> k & 1:
            continue
        far = apart[k] & ~dropped
        if far:
            for more, own in ((far, [k]), (1 << k, [])):
                now = dropped | more
                rest = _first_within(apart, leave_out, k + 1, now) if now.bit_count() <= leave_out else None
                if rest is not None:
                    return [*kept, *own, *rest]
            return None
        kept.append(k)
    return kept
