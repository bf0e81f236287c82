"""What goes into the primitives and comes out of them, beside updates and numbers per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """A coordinate-wise selection, and each client's share of the values that were selected (K, sums to 1)."""

    update: Tensor
    share: Tensor


@dataclass(frozen=True)
class SignSurvey:
    """What one pass over the updates tells of their signs and magnitudes."""

    agreement: Tensor
    """Σ_j sgn(g_i^j)·sgn(g_l^j) (K × K), in whole numbers: D·ω"""
    quantiles: Tensor | None
    """The γ-quantile of each client's magnitudes (K), if it was asked for"""


@dataclass(frozen=True)
class MergePlan:
    """The few numbers per client that `elect_and_merge` needs; a pass over the updates gives them."""

    clip_factor: Tensor
    """min[1, τ/‖g_k‖] (K)"""
    threshold: Tensor | None
    """λ_k (K), what a magnitude must exceed to survive; None: everything survives"""
    ballots: Tensor | None
    """The whole number of votes of each client (K); None: there is no election"""
    shares: Tensor | None = None
    """δ_k (K), the same for every coordinate, where there is no election"""
    clamp: bool = True
    """Whether magnitudes are bounded by μ, their median after clipping"""
    clamp_clipped: bool = True
    """Whether it is the clipped gradient that is clamped and merged, or the raw one"""
    survives_at_threshold: bool = False
    """Whether |g| = λ survives"""
    survivors_vote: bool = False
    """Whether only the coordinates that survive vote"""


@dataclass(frozen=True)
class Merge:
    """What was merged, and how each client took part."""

    update: Tensor
    """g̃ (D) in the dtype of the arithmetic"""
    survived: Tensor
    """How many of its coordinates survived sparsification (K)"""
    adopted: Tensor
    """How many of these entered the result (K)"""
    share: Tensor
    """Its share, with its δ, of all that entered (K); sums to 1 unless nobody did"""

    def adopted_share(self) -> Tensor:
        """Which share of each client's surviving coordinates entered (K); 0 if none survived."""
        return torch.from_numpy(self.adopted.numpy() / np.maximum(self.survived.numpy(), 1))


def share_of(adopted: Tensor, shares: Tensor | None) -> Tensor:
    """Each client's part in all that entered (K): its coordinates, times its δ where that is the same for all."""
    entered = (adopted if shares is None else adopted * shares).numpy()  # of so few numbers NumPy is quicker than torch
    return torch.from_numpy(entered / (entered.sum() or 1))
