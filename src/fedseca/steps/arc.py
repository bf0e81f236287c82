"""ARC: adaptive robust clipping of the longest rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedseca import ops
from fedseca.declare import param
from fedseca.parts import register
from fedseca.steps.base import Mix, StepBefore
from fedseca.steps.clipping import SCALE
from fedseca.updates import State, Updates


@register("arc")
@dataclass(frozen=True, kw_only=True)
class AdaptiveRobustClipping(StepBefore):
    """The longest rows are shortened to the longest of the others.

    n = ⌊2·B/K·(K − B)⌋; the n largest norms are clipped to the (n+1)-th largest (Allouah et al. 2025). With fewer than
    half malicious, n ≥ B: a bound for any rule behind it. Cost: O(K·D), one read.
    """

    diagnostics = (SCALE,)

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")

    def min_clients(self, rows: int) -> int:
        return max(rows, self.num_byzantine + 1)

    def clipped(self, num_clients: int) -> int:
        """n for K clients, in whole numbers: 2·B·(K − B) // K; never all of them."""
        return min(2 * self.num_byzantine * (num_clients - self.num_byzantine) // num_clients, num_clients - 1)

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        bounded = self.num_byzantine if 2 * self.num_byzantine < num_clients else 0
        return max(behind(num_clients), bounded)

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        norms = ops.norms(updates)
        radius = float(norms.sort(descending=True).values[self.clipped(len(updates))])
        scale = ops.clip_factors(radius, norms)
        return Mix.scaled(updates, scale, scale=scale)
