"""The primitives that every rule is written in. Each streams over blocks of coordinates.

`reference.py` has all of them in plain torch, for any device, reading like the equations. `cpu.py` has compiled twins
of those that read much data; they are taken for updates in the CPU's memory.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from fedseca.ops import reference
from fedseca.ops.plan import Merge, MergePlan, Selection, Survey
from fedseca.ops.reference import clip_factors, dots, paired_distances
from fedseca.updates import Updates

__all__ = [
    "Merge",
    "MergePlan",
    "Selection",
    "Survey",
    "clip_factors",
    "dots",
    "elect_and_merge",
    "extent",
    "magnitude_quantiles",
    "median",
    "norms",
    "paired_distances",
    "residual_norms",
    "sign_agreement",
    "squared_distances",
    "survey",
    "trimmed_mean",
    "weighted_sum",
]


def _best(updates: Updates) -> ModuleType:
    if updates.device.type != "cpu":
        return reference
    from fedseca.ops import cpu  # brings in the compiler, which not every use needs

    return cpu if cpu.takes(updates) else reference


def extent(updates: Updates) -> tuple[Tensor, Tensor]:
    """‖g_k‖₂ (K) and max_j |g_k^j| (K)"""
    return _best(updates).extent(updates)  # type: ignore[no-any-return]


def norms(updates: Updates) -> Tensor:
    """‖g_k‖₂ (K)"""
    return updates.norms if updates.norms is not None else extent(updates)[0]


def squared_distances(updates: Updates, scale: Tensor | None = None) -> Tensor:
    """‖s_i·g_i − s_j·g_j‖² (K × K), from the differences themselves"""
    return _best(updates).squared_distances(updates, scale)  # type: ignore[no-any-return]


def residual_norms(updates: Updates, weights: Tensor) -> Tensor:
    """‖g_k − Σ_l w_l·g_l‖₂ (K): one read, and the weighted sum is never stored"""
    return _best(updates).residual_norms(updates, weights)  # type: ignore[no-any-return]


def weighted_sum(updates: Updates, weights: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Σ_k w_k·g_k (D), in the updates' dtype unless another is asked for; rows of weight 0 are not read"""
    chosen = weights.nonzero().flatten().tolist()
    if 0 < len(chosen) < len(updates):
        updates, weights = updates.select(chosen), weights[chosen]
    return _best(updates).weighted_sum(updates, weights, dtype)  # type: ignore[no-any-return]


def survey(updates: Updates, quantile: float | None) -> Survey:
    """The sign agreement and, for a quantile, the magnitude quantiles: all that FedSECA's plan reads from the data"""
    return _best(updates).survey(updates, quantile)  # type: ignore[no-any-return]


def sign_agreement(updates: Updates) -> Tensor:
    """Σ_j sgn(g_i^j)·sgn(g_l^j) (K × K), in whole numbers: D·ω"""
    return _best(updates).sign_agreement(updates)  # type: ignore[no-any-return]


def magnitude_quantiles(updates: Updates, quantile: float) -> Tensor:
    """The γ-quantile of |g_k^1| … |g_k^D| for each client (K), interpolated linearly, for any D"""
    return _best(updates).magnitude_quantiles(updates, quantile)  # type: ignore[no-any-return]


def median(updates: Updates) -> Selection:
    """The coordinate-wise median, the lower middle value for an even count"""
    return _best(updates).median(updates)  # type: ignore[no-any-return]


def trimmed_mean(updates: Updates, trim: int) -> Selection:
    """The coordinate-wise mean without the `trim` largest and the `trim` smallest values"""
    return _best(updates).trimmed_mean(updates, trim)  # type: ignore[no-any-return]


def elect_and_merge(updates: Updates, plan: MergePlan) -> Merge:
    """Elect the sign of each coordinate and average the variance-reduced sparse gradients that agree with it"""
    return _best(updates).elect_and_merge(updates, plan)  # type: ignore[no-any-return]
