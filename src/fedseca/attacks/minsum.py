"""MinSum: no farther from all honest clients together than one honest client is from the others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks._directions import DIRECTIONS, direction, squared_distances
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("minsum")
@dataclass(frozen=True, kw_only=True)
class MinSum(Attack):
    """The honest mean, pushed as far as the largest sum of squared distances of an honest client allows.

    g_b = μ + γ·p with the largest γ for which Σ_i ‖g_b − g_i‖² ≤ max_i Σ_j ‖g_i − g_j‖² (Shejwalkar & Houmansadr
    2021). Since Σ_i (μ − g_i) = 0 the left side is H·γ²·‖p‖² + Σ_i ‖μ − g_i‖², so γ follows at once. Knows no rule.
    """

    direction: str = param("std", choices=DIRECTIONS, help="p: −μ/‖μ‖, −sgn(μ) or −σ")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean, push = honest.mean(dim=0), direction(self.direction, honest)
        allowed = squared_distances(honest).sum(dim=1).max()
        used = torch.stack([(mean - row).square().sum() for row in honest]).sum()
        room = (allowed - used).clamp(min=0)
        length = len(honest) * push.square().sum()
        gamma = (room / length).sqrt() if length > 0 else room.new_zeros(())
        return copies(mean + gamma * push, knowledge), state
