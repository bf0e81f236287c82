"""Centered clipping: no client may pull further than a radius."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators.base import Aggregation, Aggregator, State, register
from fedseca.declare import param
from fedseca.updates import Updates

CENTRE = "centre"


@dataclass(frozen=True)
class Clipped:
    """v as a combination of the rows and the centre it started from, which are all that is needed to go on."""

    weight: Tensor
    centre_weight: float
    clip_factor: Tensor


def clip_around(updates: Updates, centre: Tensor, radius: float, iterations: int) -> tuple[Tensor, Clipped]:
    """v ← v + 1/K·Σ_k (g_k − v)·min[1, τ/‖g_k − v‖], `iterations` times, from the centre; v in compute dtype."""
    count = len(updates)
    rows = updates.with_rows((*updates.rows, updates.vector_row(centre)), (*updates.client_ids, CENTRE))
    combination = torch.zeros(count + 1, dtype=torch.float64)
    combination[count] = 1
    for _ in range(iterations):
        factor = ops.clip_factors(radius, ops.residual_norms(rows, combination)[:count])
        combination = combination * (1 - factor.mean())
        combination[:count] += factor / count
    clipped = Clipped(combination[:count], float(combination[count]), factor)
    return ops.weighted_sum(rows, combination, updates.compute_dtype), clipped


@dataclass(frozen=True, kw_only=True)
class Clipping(Aggregator):
    """What the rules that clip around a centre share: the radius, and the previous aggregate as that centre."""

    returns_identical: ClassVar[bool] = False  # only where the rows lie within the radius
    scales: ClassVar[bool] = False

    radius: float = param(100.0, gt=0, help="τ: how far from the centre a client may pull")
    iterations: int = param(1, ge=1, help="Q: clipping iterations")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def init(self, dim: int) -> State:
        return {CENTRE: torch.zeros(dim)}

    def answer(self, updates: Updates, centre: Tensor, diagnostics: dict[str, Tensor]) -> Aggregation:
        """The aggregate, which is also the next round's centre."""
        return Aggregation(centre.to(updates.dtype, copy=True), diagnostics, {CENTRE: centre})


@register("cclip")
@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Clipping):
    """The mean of the clients after each was pulled to within a radius of the previous aggregate.

    v ← v + 1/K·Σ_k (g_k − v)·min[1, τ/‖g_k − v‖], Q times, from the previous aggregate (Karimireddy et al. 2021).
    Cost: O(Q·K·D), Q + 1 reads.
    """

    iterations: int = param(3, ge=1, help="Q: clipping iterations")

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        centre, clipped = clip_around(updates, state[CENTRE], self.radius, self.iterations)
        diagnostics = {"weight": clipped.weight, "clip_factor": clipped.clip_factor}
        return self.answer(updates, centre, diagnostics)
