"""Centered clipping over buckets of dissimilar clients, one after the other."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators.base import Aggregation, State, register
from fedseca.aggregators.bucketing import Bucketing, by_id, shuffled
from fedseca.aggregators.cclip import CENTRE, clip_around
from fedseca.updates import Updates


@register("cc_seqbucket")
@dataclass(frozen=True, kw_only=True)
class SequentialBuckets(Bucketing):
    """Centered clipping bucket after bucket, each around what the one before it gave.

    The clients are sorted by their cosine with the previous aggregate and cut into S groups of ⌈K/S⌉; each bucket
    draws one client from each group, so that it holds dissimilar ones (Özfatura et al. 2023).
    Cost: O(Q·K·D), Q + 2 reads.
    """

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        centre = state[CENTRE]
        order = sorted(by_id(updates), key=_cosine_with(updates, centre).__getitem__)
        num_buckets = math.ceil(len(order) / self.bucket_size)
        groups = [shuffled(order[i : i + num_buckets], rng) for i in range(0, len(order), num_buckets)]
        weight, factor, bucket_of = torch.zeros(3, len(updates), dtype=torch.float64)
        for index in range(num_buckets):
            bucket = [group[index] for group in groups if index < len(group)]
            centre, clipped = clip_around(updates.select(bucket), centre, self.radius, self.iterations)
            weight *= clipped.centre_weight
            weight[bucket] = clipped.weight
            factor[bucket] = clipped.clip_factor
            bucket_of[bucket] = index
        diagnostics = {"weight": weight, "clip_factor": factor, "bucket": bucket_of}
        return self.answer(updates, centre, diagnostics)


def _cosine_with(updates: Updates, vector: Tensor) -> list[float]:
    """cos(g_k, v) for each client; 0 where one of them is zero."""
    other = updates.with_rows([updates.vector_row(vector)], [CENTRE])
    lengths = ops.norms(updates) * ops.norms(other)
    cosine = ops.dots(updates, other)[:, 0] / torch.where(lengths > 0, lengths, 1.0)
    return [float(c) for c in cosine]
