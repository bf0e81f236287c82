"""Clipping: no client may be much longer than most."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.steps.base import Mix, StepBefore
from fedseca.updates import State, Updates

SCALE = diagnostic("scale", help="what the step before the rule multiplied its update by")


@register("clipping")
@dataclass(frozen=True, kw_only=True)
class Clipping(StepBefore):
    """Every row is shortened to at most a multiple of the median norm.

    h_k = g_k·min[1, c·τ/‖g_k‖] with τ = median_k ‖g_k‖, the lower middle value. A bound for any rule behind it: no
    row is longer than c·τ, and a minority does not move τ beyond what honest clients have. Cost: O(K·D), one read.
    """

    diagnostics = (SCALE,)

    factor: float = param(1.0, gt=0, help="c: how many median norms a row may have")

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        return max(behind(num_clients), (num_clients - 1) // 2)

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        norms = ops.norms(updates)
        scale = ops.clip_factors(self.factor * float(norms.median()), norms)
        return Mix.scaled(updates, scale, scale=scale)
