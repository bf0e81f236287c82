"""Centered clipping over buckets of dissimilar clients, one after the other."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._centred import CENTRE, clip_around
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.steps.bucketing import BUCKET
from fedseca.updates import State, Updates


@register("cc_seqbucket")
@dataclass(frozen=True, kw_only=True)
class SequentialBuckets(Aggregator):
    """Centered clipping bucket after bucket, each around what the one before it gave.

    The clients are sorted by their cosine with the previous aggregate and cut into S groups of ⌈K/S⌉; each bucket
    draws one client from each group, so that it holds dissimilar ones (Özfatura et al. 2023).
    Cost: O(Q·K·D), Q + 2 reads.
    """

    returns_identical: ClassVar[bool] = False  # only where the rows lie within the radius
    scales: ClassVar[bool] = False
    low_weight_is_distrust: ClassVar[bool] = False  # the later a client's bucket comes, the more it weighs
    diagnostics = (WEIGHT, CLIP_FACTOR, BUCKET)

    radius: float = param(100.0, gt=0, help="τ: how far from the centre a client may pull")
    iterations: int = param(1, ge=1, help="Q: clipping iterations")
    bucket_size: int = param(2, ge=1, help="S: clients in a bucket")

    def tolerates(self, num_clients: int) -> int:
        # A client pulls with 1/(clients in its bucket). As long as the malicious ones, in the smallest buckets, pull
        # with less than half of all, honest clients pull the centre back however far it was carried.
        buckets = math.ceil(num_clients / self.bucket_size)
        sizes = [len(range(index, num_clients, buckets)) for index in range(buckets)]
        pulls = sorted((1 / size for size in sizes for _ in range(size)), reverse=True)
        tolerated = 0
        while sum(pulls[: tolerated + 1]) < buckets / 2 - 1e-9:
            tolerated += 1
        return tolerated

    def init(self, dim: int) -> State:
        return {CENTRE: torch.zeros(dim)}

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        centre = state[CENTRE]
        order = sorted(updates.by_id(), key=_cosine_with(updates, centre).__getitem__)
        num_buckets = math.ceil(len(order) / self.bucket_size)
        groups = [_shuffled(order[i : i + num_buckets], rng) for i in range(0, len(order), num_buckets)]
        weight, factor, bucket_of = torch.zeros(3, len(updates), dtype=torch.float64)
        for index in range(num_buckets):
            bucket = [group[index] for group in groups if index < len(group)]
            centre, clipped = clip_around(updates.select(bucket), centre, self.radius, self.iterations)
            weight *= clipped.centre_weight
            weight[bucket] = clipped.weight
            factor[bucket] = clipped.clip_factor
            bucket_of[bucket] = index
        said = {"weight": weight, "clip_factor": factor, "bucket": bucket_of}
        return Aggregation(centre.to(updates.dtype, copy=True), said, {CENTRE: centre})


def _shuffled(clients: list[int], rng: torch.Generator) -> list[int]:
    order = torch.randperm(len(clients), generator=rng, device="cpu").tolist()
    return [clients[i] for i in order]


def _cosine_with(updates: Updates, vector: Tensor) -> list[float]:
    """cos(g_k, v) for each client; 0 where one of them is zero."""
    other = updates.with_rows([updates.vector_row(vector)], [CENTRE])
    lengths = ops.norms(updates) * ops.norms(other)
    cosine = ops.dots(updates, other)[:, 0] / torch.where(lengths > 0, lengths, 1.0)
    return [round(float(c), 12) for c in cosine]  # of equal rows they are equal, whatever the order they were summed in
