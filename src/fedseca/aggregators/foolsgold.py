"""FoolsGold: clients whose histories point the same way are taken for one attacker with many names."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances
from fedseca.aggregators._memory import begun, recalled, remembered
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates

HISTORY = "history"
_ALIKE = 1e-12
"""1 − cos below it is rounding: the two histories are the same."""
_LARGEST = 1e145
"""To which numbers of a history may grow: with more, the length of a history could overflow."""


@register("foolsgold")
@dataclass(frozen=True, kw_only=True)
class FoolsGold(Aggregator):
    """The mean of the clients, each weighed down by how much the sum of its updates is like another client's.

    H_k = Σ_t g_k^(t), c_kl = cos(H_k, H_l), v_k = max_l c_kl; c_kl ← c_kl·v_k/v_l where v_l > v_k (pardoning);
    a_k = 1 − max_l c_kl, divided by the largest a; α_k = κ·(ln(a_k/(1 − a_k)) + ½), clipped to [0, 1];
    g̃ = 1/K·Σ_k α_k·g_k (Fung et al. 2020). The paper adds up without 1/K; the authors' program for networks divides,
    as here, and looks at the last layer alone (`features`). v is at least 0, as in the programs. If all histories are
    the same, nobody is trusted. Remembers K vectors. It sees clients that are alike, not one that lies alone: no bound.
    Cost: O(K²·D).
    """

    returns_identical: ClassVar[bool] = False  # clients that send the same are the attack it looks for
    diagnostics = (
        WEIGHT,
        diagnostic("similarity", symbol="v", help="largest cosine of its history with another client's"),
    )

    confidence: float = param(1.0, gt=0, help="κ: how steeply weights fall with similarity")
    features: str = param(
        "all", choices=("all", "last"), help="what histories are kept of: all, or the last array of weights"
    )
    forget_after: int = param(50, ge=1, help="rounds of absence after which a client's history is forgotten")

    def init(self, dim: int) -> State:
        return begun()

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        seen = updates if self.features == "all" else updates.part(*_last_weights(updates))
        histories = {c: _longer(seen, k, recalled(state, HISTORY, c)) for k, c in enumerate(seen.client_ids)}
        rows = [seen.vector_row(history) for history in histories.values()]
        distances = cosine_distances(seen.with_rows(rows, seen.client_ids)).fill_diagonal_(1)  # nobody is like itself
        weight = self.trust(distances) / len(updates)
        said = {"weight": weight, "similarity": 1 - distances.amin(dim=1)}
        new_state = remembered(state, HISTORY, histories, self.forget_after)
        return Aggregation(ops.weighted_sum(updates, weight), said, new_state)

    def trust(self, distances: Tensor) -> Tensor:
        """α_k (K) from 1 − c_kl (K × K), whose diagonal is 1."""
        nearest = distances.amin(dim=1)  # 1 − v_k
        # 1 − c_kl·v_k/v_l = (1 − c_kl) + c_kl·(v_l − v_k)/v_l, which keeps the digits of histories that are alike.
        ahead = (nearest[:, None] - nearest).clamp(min=0)  # v_l − v_k, where l is more like others than k is
        pardon = (1 - distances) * ahead / torch.where(nearest < 1, 1 - nearest, 1.0)
        apart = (distances + pardon).amin(dim=1)
        apart = torch.where(apart < _ALIKE, 0.0, apart)
        if not apart.any():
            return apart
        return (self.confidence * (torch.logit(apart / apart.max()) + 0.5)).clamp(0, 1)


def _longer(updates: Updates, k: int, past: Tensor | None) -> Tensor:
    """A client's history with this round's update added; what would overflow stays at the largest number."""
    row = updates.row(k)
    if past is None:
        return row.to(updates.compute_dtype, copy=True)
    largest = min(torch.finfo(updates.compute_dtype).max, _LARGEST)
    return (past.to(row) + row).clamp_(-largest, largest)


def _last_weights(updates: Updates) -> tuple[int, int]:
    """Where the last array of two dimensions or more begins and ends; all there is, if there is none."""
    found = 0, updates.dim
    for entry, start in zip(updates.layout.parameters, updates.layout.offsets, strict=False):
        if len(entry.shape) > 1 and entry.size:
            found = start, start + entry.size
    return found
