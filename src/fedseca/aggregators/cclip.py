"""Centered clipping: no client may pull further than a radius."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca.aggregators._centred import CENTRE, clip_around
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("cclip")
@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Aggregator):
    """The mean of the clients after each was pulled to within a radius of the previous aggregate.

    v ← v + 1/K·Σ_k (g_k − v)·min[1, τ/‖g_k − v‖], Q times, from the previous aggregate (Karimireddy et al. 2021).
    Cost: O(Q·K·D), Q + 1 reads.
    """

    returns_identical: ClassVar[bool] = False  # only where the rows lie within the radius
    scales: ClassVar[bool] = False
    diagnostics = (WEIGHT, CLIP_FACTOR)

    radius: float = param(100.0, gt=0, help="τ: how far from the centre a client may pull")
    iterations: int = param(3, ge=1, help="Q: clipping iterations")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def init(self, dim: int) -> State:
        return {CENTRE: torch.zeros(dim)}

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        centre, clipped = clip_around(updates, state[CENTRE], self.radius, self.iterations)
        said = {"weight": clipped.weight, "clip_factor": clipped.clip_factor}
        # The aggregate is also the next round's centre.
        return Aggregation(centre.to(updates.dtype, copy=True), said, {CENTRE: centre})
