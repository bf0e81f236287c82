"""MinMax as its authors defined it: no farther from any honest client than two honest clients are apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks._directions import DIRECTIONS, direction, squared_distances
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("minmax_agnostic")
@dataclass(frozen=True, kw_only=True)
class MinMaxAgnostic(Attack):
    """The honest mean, pushed as far as the largest distance between two honest clients allows.

    g_b = μ + γ·p with the largest γ for which max_i ‖g_b − g_i‖ ≤ max_ij ‖g_i − g_j‖ (Shejwalkar & Houmansadr 2021).
    For each i this is γ²·‖p‖² + 2γ·pᵀ(μ−g_i) + ‖μ−g_i‖² ≤ R²: a quadratic, solved exactly. Knows no rule.
    """

    direction: str = param("std", choices=DIRECTIONS, help="p: −μ/‖μ‖, −sgn(μ) or −σ")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean, push = honest.mean(dim=0), direction(self.direction, honest)
        # Client by client: the differences of all of them would be a second matrix.
        used = torch.stack([(mean - row).square().sum() for row in honest])
        half = torch.stack([(mean - row) @ push for row in honest])
        room, square = squared_distances(honest).max() - used, push.square().sum()
        if square == 0:
            return copies(mean, knowledge), state
        # The mean is nowhere farther from a client than two clients are apart, so the discriminant is not negative.
        farthest = (-half + (half.square() + square * room).clamp(min=0).sqrt()) / square
        return copies(mean + farthest.min().clamp(min=0) * push, knowledge), state
