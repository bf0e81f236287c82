"""ROP, relocated orthogonal perturbation: beside where the server came from, at a right angle to its way."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks._directions import unit
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("rop")
@dataclass(frozen=True, kw_only=True)
class ROP(Attack):
    """The server's last step, pushed aside at a right angle: clipping around that step does not see it.

    m = w_before last round − w_before now, which is the attack's estimate of the server's momentum; 0 at first
        r = λ·m + (1 − λ)·μ          what to be orthogonal to; μ at first
        p = 1 − (1ᵀr/rᵀr)·r          a vector of ones without its part along r, then at length 1
        g_b = π·m + (1 − π)·μ + z·ℓ·(sin θ·p + cos θ·r/‖r‖)
    with ℓ = 1/H·Σ_k ‖g_k‖ (Özfatura et al. 2023). The authors' program has z·1 for z·ℓ: its momenta have about unit
    length, updates have any.
    """

    needs: ClassVar[tuple[str, ...]] = ("model",)

    strength: float = param(1.0, gt=0, help="z: how far aside, in lengths of an honest update")
    location: float = param(1.0, ge=0, le=1, help="π: 1 beside the server's last step, 0 beside the honest mean")
    reference: float = param(0.9, ge=0, le=1, help="λ: share of the last step in what it is orthogonal to")
    angle: float = param(90.0, ge=0, le=360, help="θ in degrees: 90 is orthogonal, 180 backwards")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean, model = honest.mean(dim=0), knowledge.model.clone()
        momentum = (state["model"] - model).to(mean) if state else torch.zeros_like(mean)
        along = unit(self.reference * momentum + (1 - self.reference) * mean if state else mean)
        aside = unit(1 - along.sum() * along)
        turned = math.sin(math.radians(self.angle)) * aside + math.cos(math.radians(self.angle)) * along
        length = self.strength * honest.norm(dim=1).mean()
        row = self.location * momentum + (1 - self.location) * mean + length * turned
        return copies(row, knowledge), {"model": model}
