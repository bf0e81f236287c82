"""Centered clipping over random buckets."""

from dataclasses import dataclass

import torch

from fedseca.aggregators.base import Aggregation, State, register
from fedseca.aggregators.bucketing import Bucketing, by_id, shuffled
from fedseca.aggregators.cclip import CENTRE, clip_around
from fedseca.updates import MeanRow, Updates


@register("cc_randbucket")
@dataclass(frozen=True, kw_only=True)
class RandomBuckets(Bucketing):
    """Centered clipping of the means of random buckets of clients.

    The clients are shuffled into ⌈K/S⌉ buckets; each bucket's mean enters the clipping as one client
    (Karimireddy et al. 2020). The last bucket may be smaller; it is averaged over its own clients.
    Cost: O(Q·K·D), Q + 1 reads.
    """

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        order = shuffled(by_id(updates), rng)
        buckets = [order[i : i + self.bucket_size] for i in range(0, len(order), self.bucket_size)]
        means = [MeanRow(tuple(updates.rows[k] for k in bucket)) for bucket in buckets]
        mixed = updates.with_rows(means, [str(b) for b in range(len(buckets))])
        centre, clipped = clip_around(mixed, state[CENTRE], self.radius, self.iterations)
        weight, factor, bucket_of = torch.zeros(3, len(updates), dtype=torch.float64)
        for index, bucket in enumerate(buckets):
            weight[bucket] = clipped.weight[index] / len(bucket)
            factor[bucket] = clipped.clip_factor[index]
            bucket_of[bucket] = index
        diagnostics = {"weight": weight, "clip_factor": factor, "bucket": bucket_of}
        return self.answer(updates, centre, diagnostics)
