"""The primitives in plain torch, on any device, as their equations say.

Blocks come in float32 or better. Whatever is summed over coordinates or clients is summed in float64 (where the device
has it), so that neither 1e±30 nor many coordinates spoil a result. Numbers per client live on the CPU in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedseca.ops.plan import Merge, MergePlan, Selection, SignSurvey, share_of
from fedseca.updates import BLOCK_ELEMENTS, Updates


def takes(updates: Updates) -> bool:
    """Whether these primitives can be used: always."""
    return True


def _precise(values: Tensor, device: torch.device | None = None) -> Tensor:
    """The values in the dtype that sums are made in."""
    device = device or values.device
    return values.to(device, torch.float32 if device.type == "mps" else torch.float64)


def _column(values: Tensor, block: Tensor) -> Tensor:
    """K numbers as a column beside a K×b block, on its device."""
    return _precise(values, block.device)[:, None]


def _empty(updates: Updates) -> Tensor:
    return torch.empty(updates.dim, dtype=updates.dtype, device=updates.device)


def clip_factors(radius: float, norms: Tensor) -> Tensor:
    """min[1, τ/‖x_k‖] (K): what brings each vector within the radius; 1 for a zero vector"""
    given = norms.numpy()  # of so few numbers NumPy is quicker than torch
    return torch.from_numpy(np.divide(radius, given, out=np.ones_like(given), where=given > radius))


def ranks(values: Tensor) -> Tensor:
    """The rank of each value among those of its row; what only rounding tells apart has the same: a tie is a tie"""
    given = values.numpy()
    order = given.argsort(axis=-1, kind="stable")
    places = order if given.ndim == 1 else (np.arange(len(given))[:, None], order)
    ordered, found, steps = given[places], np.empty(given.shape, np.int64), np.zeros(given.shape, np.int64)
    later, earlier = ordered[..., 1:], ordered[..., :-1]
    with np.errstate(invalid="ignore"):  # of two infinities
        np.cumsum(later - earlier > 1e-10 * later, axis=-1, out=steps[..., 1:])
    found[places] = steps
    return torch.from_numpy(found)


def extent(updates: Updates, *, exactly: bool = True) -> tuple[Tensor, Tensor]:
    """‖g_k‖₂ (K) and max_j |g_k^j| (K); if not `exactly`, a bound in the place of the maximum, which is ‖g_k‖₂"""
    squares, largest = torch.zeros(2, len(updates), dtype=torch.float64)
    for _, block in updates.blocks():
        squares += _precise(block).square().sum(dim=1).cpu()
        if exactly:
            largest = torch.maximum(largest, block.abs().amax(dim=1).double().cpu())
    norms = squares.sqrt()
    return norms, largest if exactly else norms


def dots(left: Updates, right: Updates) -> Tensor:
    """⟨a_i, b_j⟩ (K_a × K_b)"""
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    for _, a, b in _together(left, right):
        total += (_precise(a) @ _precise(b).T).cpu()
    return total


def squared_distances(updates: Updates, scale: Tensor | None = None) -> Tensor:
    """‖s_i·g_i − s_j·g_j‖² (K × K), from the differences themselves.

    The expansion ‖x‖² + ‖y‖² − 2⟨x, y⟩ would lose everything where clients are close to each other.
    """
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for _, block in updates.blocks():
        rows = _precise(block)
        if scale is not None:
            rows = rows * _column(scale, rows)
        for k in range(len(updates)):
            squares = (rows[k + 1 :] - rows[k]).square_().sum(dim=1).cpu()
            total[k, k + 1 :] += squares
            total[k + 1 :, k] += squares
    return total


def residual_norms(updates: Updates, weights: Tensor) -> Tensor:
    """‖g_k − Σ_l w_l·g_l‖₂ (K): one read, and the weighted sum is never stored."""
    squares = torch.zeros(len(updates), dtype=torch.float64)
    for _, block in updates.blocks():
        rows = _precise(block)
        centre = (rows * _column(weights, rows)).sum(dim=0)
        squares += (rows - centre).square_().sum(dim=1).cpu()
    return squares.sqrt()


def paired_distances(updates: Updates, others: Updates, shift: Tensor) -> Tensor:
    """‖g_k − (h_k + shift)‖₂ (K)"""
    squares = torch.zeros(len(updates), dtype=torch.float64)
    for where, a, b in _together(updates, others):
        expected = _precise(b) + _precise(shift[where], b.device)
        squares += (_precise(a) - expected).square_().sum(dim=1).cpu()
    return squares.sqrt()


def extreme_distances(updates: Updates) -> tuple[Tensor, Tensor]:
    """‖g_k − max_l g_l‖₂ (K) and ‖g_k − min_l g_l‖₂ (K), the extremes of each coordinate: neither is ever stored."""
    squares = torch.zeros(2, len(updates), dtype=torch.float64)
    for _, block in updates.blocks():
        rows = _precise(block)
        for side, extreme in enumerate((rows.amax(dim=0), rows.amin(dim=0))):
            squares[side] += (rows - extreme).square_().sum(dim=1).cpu()
    to_largest, to_least = squares.sqrt()
    return to_largest, to_least


def with_weight(updates: Updates, weights: Tensor) -> tuple[Updates, Tensor]:
    """The rows whose weight is not 0; all of them if there is none."""
    chosen = [k for k, weight in enumerate(weights.tolist()) if weight != 0]
    return (updates.select(chosen), weights[chosen]) if 0 < len(chosen) < len(updates) else (updates, weights)


def weighted_sum(updates: Updates, weights: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Σ_k w_k·g_k (D), in the updates' dtype unless another is asked for; rows of weight 0 are not read"""
    updates, weights = with_weight(updates, weights)
    result = torch.empty(updates.dim, dtype=dtype or updates.dtype, device=updates.device)
    for where, block in updates.blocks():
        rows = _precise(block)
        result[where] = (rows * _column(weights, rows)).sum(dim=0).to(result.dtype)
    return result


def columns(updates: Updates, indices: Tensor) -> Tensor:
    """g_k^j of these coordinates j alone, in their order (K × n), in the dtype of the arithmetic; no other is kept"""
    found = torch.empty(len(updates), len(indices), dtype=updates.compute_dtype, device=updates.device)
    ordered, places = indices.cpu().sort()
    width, start = max(1, BLOCK_ELEMENTS // max(1, len(updates))), 0
    while start < len(ordered):
        first = int(ordered[start])
        stop = int(torch.searchsorted(ordered, first + width))  # what a block from here on has of them
        chosen = (ordered[start:stop] - first).to(updates.device)
        pieces = updates.read(first, int(ordered[stop - 1]) + 1)
        found[:, places[start:stop].to(updates.device)] = torch.stack([piece[chosen] for piece in pieces])
        start = stop
    return found


def sign_agreement(updates: Updates) -> Tensor:
    """Σ_j sgn(g_i^j)·sgn(g_l^j) (K × K), in whole numbers: D·ω; on the diagonal how many coordinates are not 0"""
    if updates.agreement is not None:
        return updates.agreement
    total = torch.zeros(len(updates), len(updates), dtype=torch.int64)
    for _, block in updates.blocks():
        signs = block.sign().float()  # sums of ±1 are exact in float32 up to 2²⁴, more than a block is wide
        total += (signs @ signs.T).to(torch.int64).cpu()
    return total


def survey(updates: Updates, quantile: float | None) -> SignSurvey:
    """The sign agreement and, for a quantile, the magnitude quantiles: all that FedSECA's plan reads from the data"""
    quantiles = None if quantile is None else magnitude_quantiles(updates, quantile)
    return SignSurvey(sign_agreement(updates), quantiles)


def magnitude_quantiles(updates: Updates, quantile: float) -> Tensor:
    """The γ-quantile of |g_k^1| … |g_k^D| for each client (K), interpolated linearly, for any D."""
    below, above, fraction = quantile_ranks(quantile, updates.dim)
    found = []
    for k in range(len(updates)):
        low, high = _order_statistics(updates.row(k).abs(), below, above)
        found.append(interpolate(low, high, fraction))
    return torch.tensor(found, dtype=torch.float64)


def quantile_ranks(quantile: float, size: int) -> tuple[int, int, float]:
    """The ranks that a quantile of `size` values lies between, and how far from the first to the second."""
    position = quantile * (size - 1)
    below = math.floor(position)
    return below, min(below + 1, size - 1), position - below


def interpolate(low: float, high: float, fraction: float) -> float:
    """low + fraction·(high − low), started from the nearer end, so that both ends are met exactly."""
    gap = high - low
    return low + gap * fraction if fraction < 0.5 else high - gap * (1 - fraction)


def _order_statistics(values: Tensor, *ranks: int) -> list[float]:
    """The values of these ranks. `kthvalue` would take quadratic time on values that a client put in order."""
    if values.device.type == "cpu":
        selected = np.partition(values.numpy(), ranks)
        return [float(selected[rank]) for rank in ranks]
    ordered = values.sort().values
    return [float(ordered[rank]) for rank in ranks]


def median(updates: Updates) -> Selection:
    """The coordinate-wise median, the lower middle value for an even count."""
    result = _empty(updates)
    chosen = torch.zeros(len(updates), dtype=torch.float64)
    for where, block in updates.blocks():
        middle = block.median(dim=0).values
        result[where] = middle.to(result.dtype)
        chosen += (block == middle).sum(dim=1).cpu()
    return Selection(result, chosen / chosen.sum())


def trimmed_mean(updates: Updates, trim: int) -> Selection:
    """The coordinate-wise mean without the `trim` largest and the `trim` smallest values."""
    result = _empty(updates)
    kept = len(updates) - 2 * trim
    chosen = torch.zeros(len(updates), dtype=torch.float64)
    for where, block in updates.blocks():
        inner = block.sort(dim=0).values[trim : trim + kept]
        result[where] = (_precise(inner) / kept).sum(dim=0).to(result.dtype)
        chosen += ((block >= inner[0]) & (block <= inner[-1])).sum(dim=1).cpu()
    return Selection(result, chosen / chosen.sum())


def mean_near_median(updates: Updates, keep: int) -> Selection:
    """The coordinate-wise mean of the `keep` values nearest to the median (the lower middle value for an even count).

    From the median outward; of a value below it and one above it that are equally far, as float64 numbers, the one
    below comes first. So the values are a window of neighbours among the sorted ones: it begins at the number of those
    s for which value s is farther from the median than value s + keep.
    """
    result = _empty(updates)
    chosen = torch.zeros(len(updates), dtype=torch.float64)
    spare = len(updates) - keep
    for where, block in updates.blocks():
        ordered = block.sort(dim=0).values
        exact = _precise(ordered)
        middle = exact[(len(updates) - 1) // 2]
        begin = (middle - exact[:spare] > exact[keep:] - middle).sum(dim=0)
        inner = ordered.gather(0, begin + torch.arange(keep, device=block.device)[:, None])
        result[where] = (_precise(inner) / keep).sum(dim=0).to(result.dtype)
        chosen += ((block >= inner[0]) & (block <= inner[-1])).sum(dim=1).cpu()
    return Selection(result, chosen / chosen.sum())


def elect_and_merge(updates: Updates, plan: MergePlan) -> Merge:
    """Elect the sign of each coordinate and average the variance-reduced sparse gradients that agree with it."""
    result = torch.empty(updates.dim, dtype=updates.compute_dtype, device=updates.device)
    survived = torch.zeros(len(updates), dtype=torch.int64)
    adopted = torch.zeros(len(updates), dtype=torch.int64)
    for where, raw in updates.blocks():
        survives = _survives(raw, plan)
        reduced = _clip_and_clamp(raw, plan)
        present = survives & (raw != 0)
        entering = present & ~_vanishes(raw, plan)
        if plan.ballots is not None:
            # δ_k^j = I(s^j·g̈_k^j > 0)
            entering &= _elected_sign(raw, survives, plan.ballots, plan.survivors_vote) == raw.sign()
            delta = _precise(entering)
        else:
            assert plan.shares is not None
            delta = _column(plan.shares, raw).expand_as(raw)
            entering &= delta > 0
        # g̃^j = Σ_k δ_k^j·g̈_k^j / Σ_k δ_k^j, and 0 where nobody is left
        sparse = torch.where(survives, reduced, 0)
        total = delta.sum(dim=0)
        result[where] = ((delta * sparse).sum(dim=0) / torch.where(total > 0, total, 1)).to(result.dtype)
        survived += present.sum(dim=1).cpu()
        adopted += entering.sum(dim=1).cpu()
    return Merge(result, survived, adopted, share_of(adopted, plan.shares))


def _survives(raw: Tensor, plan: MergePlan) -> Tensor:
    """I(|g_k^j| > λ_k)"""
    if plan.threshold is None:
        return torch.ones_like(raw, dtype=torch.bool)
    magnitudes, threshold = _precise(raw.abs()), _column(plan.threshold, raw)
    return magnitudes >= threshold if plan.survives_at_threshold else magnitudes > threshold


def _clip_and_clamp(raw: Tensor, plan: MergePlan) -> Tensor:
    """ĝ_k = g_k·min[1, τ/‖g_k‖], then ḡ_k^j = sgn(ĝ_k^j)·min[μ^j, |ĝ_k^j|] with μ^j = median_k |ĝ_k^j|"""
    clipped = _precise(raw) * _column(plan.clip_factor, raw)  # a factor for 1e38 may be too small for float32
    values = clipped if plan.clamp_clipped else _precise(raw)
    if not plan.clamp:
        return values
    bound = clipped.abs().median(dim=0).values
    return values.clamp(-bound, bound)


def _vanishes(raw: Tensor, plan: MergePlan) -> Tensor:
    """Where g̈ is exactly 0 although g is not: τ = 0, or μ^j = 0. Told from the raw values: a product may underflow."""
    vanishes = _column(plan.clip_factor, raw).expand_as(raw) == 0 if plan.clamp_clipped else torch.zeros_like(raw) > 0
    if plan.clamp:
        vanishes = vanishes | ((raw == 0).sum(dim=0) > (len(raw) - 1) // 2)
    return vanishes


def _elected_sign(raw: Tensor, survives: Tensor, ballots: Tensor, survivors_vote: bool) -> Tensor:
    """s^j = sgn Σ_k ρ_k·sgn(g_k^j), counted in whole numbers (K·ρ_k is one): a tie is a tie, and elects 0."""
    votes = raw.sign().to(torch.int32) * _column(ballots, raw).to(torch.int32)
    if survivors_vote:
        votes = torch.where(survives, votes, 0)
    return votes.sum(dim=0).sign().to(raw.dtype)


def _together(left: Updates, right: Updates) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The blocks of two sets of updates over the same coordinates."""
    rows = left.with_rows((*left.rows, *right.rows), (*left.client_ids, *right.client_ids))
    for where, block in rows.blocks():
        yield where, block[: len(left)], block[len(left) :]
