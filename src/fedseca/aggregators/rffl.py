"""RFFL: a client's say is its reputation, which it earns by agreeing with the aggregate."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._memory import begun, recalled, remembered
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates

REPUTATION = "reputation"
_NOTHING = 1e-10
"""Of Γ: an aggregate that is shorter is what rounding left of clients that cancel out, and points nowhere."""


@register("rffl")
@dataclass(frozen=True, kw_only=True)
class RFFL(Aggregator):
    """The mean of the clients' directions, weighed by how well each has agreed with the aggregate so far.

    g̃ = Σ_k r_k·Γ·g_k/‖g_k‖; then r_k ← α·r_k + (1−α)·cos(g_k, g̃); below β/K a client is out for good, and the
    others' r are scaled to sum to 1 (Xu & Lyu 2021). r begins at 1/K, a new client's later at the mean of the others.
    The paper sets Γ for each data set; if not given it is here the median length. The authors' program scales before it
    compares with β/K, too. If everybody would be out, nobody is. Remembers a number for each client. Cost: O(K·D), two
    reads.
    """

    diagnostics = (
        WEIGHT,
        diagnostic("cosine", help="its cosine with the aggregate"),
        diagnostic("reputation", symbol="r", help="its weight in the next round; 0 once it is out"),
    )

    memory: float = param(0.95, ge=0, lt=1, help="α: share of the old reputation in the new one")
    threshold: float = param(1 / 3, ge=0, lt=1, help="β: a client is out below this share of 1/K")
    norm: float | None = param(None, gt=0, help="Γ: the length that updates are brought to; none: their median")
    forget_after: int = param(1000, ge=1, help="rounds of absence after which a client's reputation is forgotten")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scales", self.norm is None)
        object.__setattr__(self, "returns_identical", self.norm is None)

    def tolerates(self, num_clients: int) -> int:
        # Weights sum to 1, and nobody is longer than the median: the result is no longer than that.
        return (num_clients - 1) // 2

    def init(self, dim: int) -> State:
        return begun()

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        before = _reputations([recalled(state, REPUTATION, c) for c in updates.client_ids])
        norms = ops.norms(updates)
        length = norms.median() if self.norm is None else torch.tensor(self.norm, dtype=torch.float64)
        length = length.clamp(max=torch.finfo(updates.dtype).max)  # no number of the result is larger
        scale = torch.where(norms > 0, length / norms, 0.0)
        update = ops.weighted_sum(updates, before * scale, updates.compute_dtype)

        other = updates.with_rows([updates.vector_row(update)], [REPUTATION])
        own = ops.norms(other)
        cosine = torch.zeros_like(norms)
        if own > _NOTHING * length:
            cosine = ops.dots(updates, other)[:, 0] / torch.where(norms > 0, norms, 1.0) / own
        after = self.judged(before, cosine)
        out = tuple(c for c, r in zip(updates.client_ids, after.tolist(), strict=True) if r == 0)
        kept = {c: r.clone() for c, r in zip(updates.client_ids, after, strict=True)}
        said = {"weight": before, "cosine": cosine, "reputation": after}
        new_state = remembered(state, REPUTATION, kept, self.forget_after)
        return Aggregation(update.to(updates.dtype), said, new_state, out)

    def judged(self, before: Tensor, cosine: Tensor) -> Tensor:
        """The reputations after a round (K), summing to 1; 0 of those that are out."""
        moved = self.memory * before + (1 - self.memory) * cosine
        least = self.threshold / len(before) * (1 - 1e-10)  # what only rounding puts below it is not below it
        stays = (before > 0) & (moved >= least) & (moved > 0)
        if not stays.any():
            return before
        after = torch.where(stays, moved, 0.0)
        return after / after.sum()


def _reputations(known: list[Tensor | None]) -> Tensor:
    """r_k (K), summing to 1 unless all are out; who is not known yet has the mean of those that are."""
    values = [float(r) for r in known if r is not None and r > 0]
    usual = sum(values) / len(values) if values else 1.0
    found = torch.tensor([usual if r is None else float(r) for r in known], dtype=torch.float64)
    total = found.sum()
    return found / total if total > 0 else found
