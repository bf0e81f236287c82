"""FedSECA: sign election and coordinate-wise aggregation (Benjamin et al. 2025)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators.base import ADOPTED, CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates

MOMENTUM = "momentum"


RHO = diagnostic("rho", symbol="ρ", heading="trust ρ", help="concordance ratio: its say in the election of signs")
CONCORDANCE = diagnostic(
    "concordance",
    symbol="ω",
    heading="sign concordance ω",
    help="who agrees with whom",
    pairs=True,
    note=(
        "1: the same sign in every coordinate; −1: the opposite one. A coordinate that is exactly zero counts as "
        "neither. So the diagonal, a client with itself, is the share of its coordinates that are not zero: below 1 "
        "where some parameters did not change. No pair exceeds the diagonal."
    ),
)


@register("fedseca")
@dataclass(frozen=True, kw_only=True)
class FedSECA(Aggregator):
    """The sign of each coordinate is elected; then the gradients that agree, made small and sparse, are averaged.

    Plan, one number per client:
        ω_kl = 1/D·Σ_j sgn(g_k^j)·sgn(g_l^j)        sign concordance
        ρ_k  = max[0, 1/K·Σ_l sgn(ω_kl)]            concordance ratio
        τ    = median_k ‖g_k‖                       clip radius
        λ_k  = γ-quantile of |g_k|                  sparsification threshold
    Execute, for each coordinate:
        s^j   = sgn Σ_k ρ_k·sgn(g_k^j)              elected sign
        ĝ_k   = g_k·min[1, τ/‖g_k‖]                 clip
        ḡ_k^j = sgn(ĝ_k^j)·min[μ^j, |ĝ_k^j|]        clamp, μ^j = median_k |ĝ_k^j|
        g̈_k^j = ḡ_k^j·I(|g_k^j| > λ_k)              sparsify
        g̃^j   = Σ_k δ_k^j·g̈_k^j / Σ_k δ_k^j         merge, δ_k^j = I(s^j·g̈_k^j > 0)
    and ğ = β·ğ_before + (1−β)·g̃ over the rounds. Cost: O(K²·D/32) for the concordance (signs
    are counted 32 to a word), O(K·log²K·D) for the medians, two reads.

    `variant="released"` does what the authors' program does: only surviving coordinates vote, the raw gradient is
    clamped, and |g| = λ survives. The switches remove one part each, as in the paper's ablation. What equals its own
    quantile does not exceed it: an update whose magnitudes are all the same has nothing that survives (γ = 0 keeps it).
    """

    returns_identical: ClassVar[bool] = False  # small gradients are dropped

    alone = {"momentum": 0.0}  # noqa: RUF012 (nobody writes to it)
    diagnostics = (
        WEIGHT,
        RHO,
        CLIP_FACTOR,
        ADOPTED,
        CONCORDANCE,
    )

    sparsity: float = param(0.9, ge=0, lt=1, help="γ: share of each client's smallest gradients that is dropped")
    momentum: float = param(0.5, ge=0, lt=1, help="β: share of the previous aggregate in the next")
    variant: str = param("paper", choices=("paper", "released"), help="the paper's equations or the authors' program")
    concordance: bool = param(True, help="weigh votes with ρ; false: ρ = 1")
    coordinatewise: bool = param(True, help="average what agrees with the elected sign; false: δ = ρ")
    election: bool = param(True, help="elect signs at all; false: δ = 1")
    vrs: bool = param(True, help="merge variance-reduced sparse gradients; false: raw ones")
    clip: bool = param(True, help="clip norms to their median; false: τ = ∞")
    clamp: bool = param(True, help="clamp magnitudes to their median; false: μ = ∞")

    def tolerates(self, num_clients: int) -> int:
        # The clamp bounds what is merged; without it the clip radius does, where the clipped gradient is merged.
        bounded = self.clamp or (self.clip and self.variant == "paper")
        return (num_clients - 1) // 2 if self.vrs and bounded else 0

    def init(self, dim: int) -> State:
        return {MOMENTUM: torch.zeros(dim)} if self.momentum > 0 else {}

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        survey = ops.survey(updates, self.sparsity if self.vrs and self.sparsity > 0 else None)
        ballots = self.ballots(survey.agreement)
        plan = self.plan(ballots, self.clip_factor(updates), survey.quantiles)
        merge = ops.elect_and_merge(updates, plan)

        diagnostics = {
            "weight": merge.share,
            "rho": ballots.double() / len(updates),
            "clip_factor": plan.clip_factor,
            "adopted": merge.adopted_share(),
            "concordance": survey.agreement.double() / updates.dim,
        }
        if self.momentum == 0:
            return Aggregation(merge.update.to(updates.dtype), diagnostics)
        # ğ^(t) = β·ğ^(t−1) + (1−β)·g̃^(t)
        previous = state[MOMENTUM].to(updates.device, updates.compute_dtype)
        smoothed = self.momentum * previous + (1 - self.momentum) * merge.update
        return Aggregation(smoothed.to(updates.dtype, copy=True), diagnostics, {MOMENTUM: smoothed})

    def ballots(self, agreement: Tensor) -> Tensor:
        """K·ρ_k = max[0, Σ_l sgn(ω_kl)], a whole number."""
        if not self.concordance:
            return torch.full((len(agreement),), len(agreement))
        return agreement.sign().sum(dim=1).clamp(min=0)

    def clip_factor(self, updates: Updates) -> Tensor:
        """min[1, τ/‖g_k‖] with τ = median_k ‖g_k‖."""
        norms = ops.norms(updates)
        radius = float(norms.median()) if self.clip and self.vrs else torch.inf
        return ops.clip_factors(radius, norms)

    def plan(self, ballots: Tensor, clip_factor: Tensor, threshold: Tensor | None) -> ops.MergePlan:
        """What the second pass needs to know of each client."""
        released = self.variant == "released"
        elects = self.election and self.coordinatewise
        shares = ballots.double() if self.election else torch.ones(len(ballots), dtype=torch.float64)
        return ops.MergePlan(
            clip_factor=clip_factor,
            threshold=threshold,
            ballots=ballots if elects else None,
            shares=None if elects else shares,
            clamp=self.clamp and self.vrs,
            clamp_clipped=not released,
            survives_at_threshold=released,
            survivors_vote=released,
        )
