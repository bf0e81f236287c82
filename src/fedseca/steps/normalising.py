"""Normalising: all clients are equally long, so that only their directions differ."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.parts import register
from fedseca.steps.base import Mix, StepBefore
from fedseca.steps.clipping import SCALE
from fedseca.updates import State, Updates


@register("normalising")
@dataclass(frozen=True, kw_only=True)
class Normalising(StepBefore):
    """Every row is brought to exactly the median norm, shorter ones made longer too.

    h_k = g_k·τ/‖g_k‖ with τ = median_k ‖g_k‖, the lower middle value; a zero row stays zero. A bound for any rule
    behind it, as for `clipping`. Cost: O(K·D), one read.
    """

    diagnostics = (SCALE,)

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        return max(behind(num_clients), (num_clients - 1) // 2)

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        norms = ops.norms(updates)
        length = norms.median().clamp(max=torch.finfo(updates.compute_dtype).max)  # no number of a row is longer
        # In float64, where the factor of a float32 row never overflows; that of a float64 row is bounded.
        scale = torch.where(norms > 0, length / norms, 1.0).clamp(max=torch.finfo(torch.float64).max)
        return Mix.scaled(updates, scale, scale=scale)
