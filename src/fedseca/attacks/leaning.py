"""Leaning: as far from the honest mean as one honest client's agreement allows."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("leaning")
@dataclass(frozen=True, kw_only=True)
class Leaning(Attack):
    """Away from the honest mean, just so far that the honest client farthest from that mean still agrees with it.

    With m̂ the direction of the honest mean, û that of the honest client of least cosine with it, ê that of û − ⟨û, m̂⟩·m̂
    and n the median of the honest norms:
        g_b = n·(cos ψ·m̂ + sin ψ·ê),  ψ = min[π, arccos⟨û, m̂⟩ + arccos t]
    So its cosine with that client is t, and with the mean it is as low as it can be then. A rule that is content if a
    client agrees with somebody honest, beside those who attack with it, keeps it. Where all honest clients point the
    same way it is the mean backwards. Made for this package.
    """

    cosine: float = param(0.05, ge=-1, le=1, help="t: its cosine with the honest client that it leans on")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        rows = honest.double()
        norms = rows.norm(dim=1)
        directions = rows / torch.where(norms > 0, norms, 1.0)[:, None]
        mean = _direction(rows.mean(dim=0))
        cosines = directions @ mean
        farthest = int(cosines.argmin())
        apart = directions[farthest] - cosines[farthest] * mean
        aside = _direction(apart) if apart.norm() > 1e-6 else torch.zeros_like(mean)
        angle = math.pi
        if aside.any():
            angle = min(angle, math.acos(min(1.0, max(-1.0, float(cosines[farthest])))) + math.acos(self.cosine))
        row = norms.median() * (math.cos(angle) * mean + math.sin(angle) * aside)
        largest = torch.finfo(honest.dtype).max
        return copies(row.clamp(-largest, largest).to(honest), knowledge), state


def _direction(vector: Tensor) -> Tensor:
    """The vector at length 1; of nothing, nothing."""
    length = vector.norm()
    return vector / length if length > 0 else vector
