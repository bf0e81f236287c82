"""Centered clipping over random buckets."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca.aggregators._chain import mapped_back
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.aggregators.cclip import CenteredClipping
from fedseca.declare import param
from fedseca.parts import register
from fedseca.steps.bucketing import BUCKET, Bucketing
from fedseca.updates import State, Updates


@register("cc_randbucket")
@dataclass(frozen=True, kw_only=True)
class RandomBuckets(Aggregator):
    """Centered clipping of the means of random buckets of clients.

    The chain `bucketing+cclip` under the name that the paper's tables give it: the mean of each bucket enters the
    clipping as one client (Karimireddy et al. 2022). Cost: O(Q·K·D), Q + 1 reads.
    """

    returns_identical: ClassVar[bool] = False  # only where the rows lie within the radius
    scales: ClassVar[bool] = False
    diagnostics = (WEIGHT, CLIP_FACTOR, BUCKET)

    radius: float = param(100.0, gt=0, help="τ: how far from the centre a bucket may pull")
    iterations: int = param(1, ge=1, help="Q: clipping iterations")
    bucket_size: int = param(2, ge=1, help="S: clients in a bucket")

    @property
    def _buckets(self) -> Bucketing:
        return Bucketing(size=self.bucket_size)

    @property
    def _rule(self) -> CenteredClipping:
        return CenteredClipping(radius=self.radius, iterations=self.iterations)

    def tolerates(self, num_clients: int) -> int:
        return self._buckets.tolerates(num_clients, self._rule.tolerates)

    def init(self, dim: int) -> State:
        return self._rule.init(dim)

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        mix = self._buckets.mix(updates, {}, rng)
        return mapped_back(self._rule.aggregate(mix.rows(updates), state, rng), updates, mix)
