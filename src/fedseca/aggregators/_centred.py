"""Clipping around a centre, which several rules do."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca import ops
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
