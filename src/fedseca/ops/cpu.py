"""The primitives for updates in the CPU's memory, compiled, over tasks of coordinates that threads share.

Each is the twin of one in `reference.py`. A task is a fixed range of coordinates, its partial results have a place of
their own and are added up in order: the answer does not depend on the number of threads (`torch.set_num_threads`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedseca.ops import kernels, reference
from fedseca.ops.network import selection_network
from fedseca.ops.plan import Merge, MergePlan, Selection, SignSurvey, share_of
from fedseca.updates import Recipe, Updates

TASK = 1 << 18
"""The most coordinates in a task."""
_COPIED = 1 << 22
"""The most numbers in a task whose rows have to be copied, since they do not lie in memory as float32."""
_MIXED = 1 << 20
"""The same where rows are mixed: what was mixed should stay in the cache until it is read."""
_CACHED = 1 << 16
"""How many numbers of all rows a kernel works on at a time: they should stay in a core's second-level cache."""
_SAMPLE = 1 << 15
"""How many magnitudes of a client are looked at to guess where its quantile lies."""

_WORTH_A_THREAD = 1 << 22
"""From how many numbers on threads save more time than they cost."""

T = TypeVar("T")


def takes(updates: Updates) -> bool:
    """Whether these primitives can be used: numbers of 32 bits or fewer in the CPU's memory."""
    return updates.device.type == "cpu" and updates.compute_dtype == torch.float32 and len(updates) > 0


def _tasks(updates: Updates) -> Iterator[tuple[int, int]]:
    """Ranges of coordinates: large arrays are cut, small neighbours are taken together."""
    most = min(TASK, max(1 << 14, updates.dim // 16))  # enough of them for threads to share, few enough to be cheap
    if updates.is_mixed:
        most = min(most, max(1 << 12, _MIXED // len(updates)))
    elif not updates.in_memory:
        most = min(most, max(1 << 12, _COPIED // len(updates)))
    start = 0
    for stop in updates.layout.offsets[1:]:
        while stop - start >= most:
            yield start, start + most
            start += most
        if stop - start >= most // 4:
            yield start, stop
            start = stop
    if start < updates.dim:
        yield start, updates.dim


def _run(updates: Updates, work: Callable[[int, NDArray[np.int64], int, int], None]) -> None:
    """Call work(task, addresses of the rows, start, stop) for each task, from as many threads as torch has."""

    def one(numbered: tuple[int, tuple[int, int]]) -> None:
        task, (start, stop) = numbered
        # Where a row lies in memory as float32, this is a view of it; else a copy of this piece is made.
        pieces = [piece.contiguous() for piece in updates.read(start, stop, combine=_combine)]
        work(task, np.array([piece.data_ptr() for piece in pieces], dtype=np.int64), start, stop)

    _spread(one, list(enumerate(_tasks(updates))), len(updates) * updates.dim)


def _combine(pieces: list[Tensor], recipe: Recipe) -> Sequence[Tensor]:
    """The compiled twin of `combine_rows`."""
    rows = [piece.contiguous() for piece in pieces]
    addresses = np.array([row.data_ptr() for row in rows], dtype=np.int64)
    length = len(rows[0])
    mixed = torch.empty(len(recipe.ends) - 1, length)
    width = max(64, min(512, _CACHED // 4 // len(rows) // 32 * 32))  # the rows of a block are kept in float64
    kernels.mix(addresses, length, width, recipe.ends, recipe.sources, recipe.weights, recipe.divisors, mixed.numpy())
    return list(mixed)


def _spread(work: Callable[[Any], T], items: Sequence[Any], numbers: int) -> list[T]:
    """work(item) for every item, from as many threads as torch has where there are many numbers to work on."""
    threads = min(torch.get_num_threads(), len(items))
    if threads <= 1 or numbers < _WORTH_A_THREAD:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def _count(updates: Updates) -> int:
    return sum(1 for _ in _tasks(updates))


def _width(updates: Updates) -> int:
    """Coordinates in a block whose rows stay in the cache; long enough to be read from memory in one go."""
    return max(128, min(512, _CACHED // len(updates) // 32 * 32))


def extent(updates: Updates) -> tuple[Tensor, Tensor]:
    squares = np.zeros((_count(updates), len(updates)))
    largest = np.zeros((_count(updates), len(updates)), np.int32)

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.measure(addresses, stop - start, squares[task], largest[task])

    _run(updates, work)
    maxima = largest.max(axis=0).view(np.float32).astype(np.float64)
    return torch.from_numpy(squares.sum(axis=0)).sqrt(), torch.from_numpy(maxima)


def weighted_sum(updates: Updates, weights: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    updates, weights = reference.with_weight(updates, weights)
    dtype = dtype or updates.dtype
    direct = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    result, given, width = torch.empty(updates.dim, dtype=direct), _array(weights), _width(updates)
    out = result.numpy()

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.weighted_sum(addresses, stop - start, width, given, out[start:stop])

    _run(updates, work)
    return result.to(dtype)


def residual_norms(updates: Updates, weights: Tensor) -> Tensor:
    squares, given, width = np.zeros((_count(updates), len(updates))), _array(weights), _width(updates)

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.residual_squares(addresses, stop - start, width, given, squares[task])

    _run(updates, work)
    return torch.from_numpy(squares.sum(axis=0)).sqrt()


def squared_distances(updates: Updates, scale: Tensor | None = None) -> Tensor:
    clients = len(updates)
    factors = np.ones(clients) if scale is None else _array(scale)
    squares = np.zeros((_count(updates), clients, clients + 3))
    width = max(64, _width(updates) // 4)  # the rows are kept in float64, and each is read K times

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.squared_distances(addresses, stop - start, width, factors, squares[task])

    _run(updates, work)
    upper = np.triu(squares.sum(axis=0)[:, :clients], 1)
    return torch.from_numpy(upper + upper.T)


def median(updates: Updates) -> Selection:
    middle = (len(updates) - 1) // 2
    return _select_middle(updates, -1, selection_network(len(updates), middle, middle))


def trimmed_mean(updates: Updates, trim: int) -> Selection:
    return _select_middle(updates, trim, selection_network(len(updates), trim, len(updates) - 1 - trim))


def _select_middle(updates: Updates, trim: int, network: NDArray[np.int32]) -> Selection:
    chosen, width = np.zeros((_count(updates), len(updates)), np.int64), _width(updates)
    result = torch.empty(updates.dim, dtype=torch.float32)
    out = result.numpy()

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.select_middle(addresses, stop - start, width, network, trim, out[start:stop], chosen[task])

    _run(updates, work)
    hits = torch.from_numpy(chosen.sum(axis=0)).double()
    return Selection(result.to(updates.dtype), hits / hits.sum())


def survey(updates: Updates, quantile: float | None, *, signs: bool = True) -> SignSurvey:
    """One read for the sign agreement and the quantiles both; none for what is known already."""
    signs = signs and updates.agreement is None
    if quantile is None and updates.agreement is not None:
        return SignSurvey(updates.agreement, None)
    clients, tasks = len(updates), _count(updates)
    low, high = np.zeros((2, clients), np.int32)
    if quantile is not None:
        low, high = _brackets(updates, quantile)
    agreement = np.zeros((tasks, clients, clients), np.int64)
    at_low, found = np.zeros((2, tasks, clients), np.int64)
    inside: list[list[NDArray[np.int32]]] = [[] for _ in range(tasks)]

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        room = (stop - start) // 16 + 64 if quantile is not None else 0
        candidates = np.empty((clients, room), np.int32)
        kernels.survey(
            addresses, stop - start, low, high, signs, agreement[task], at_low[task], found[task], candidates
        )
        inside[task] = [candidates[k, : found[task, k]].copy() for k in range(clients)]

    _run(updates, work)
    quantiles = None
    if quantile is not None:
        brackets = [_Bracket(low[k], high[k], [part[k] for part in inside]) for k in range(clients)]
        first, number = at_low.sum(axis=0), found.sum(axis=0)

        def exactly(k: int) -> float:
            return _quantile(updates, k, quantile, brackets[k], first[k], number[k])

        exact = _spread(exactly, range(clients), clients * updates.dim)
        quantiles = torch.tensor(exact, dtype=torch.float64)
    if updates.agreement is not None:
        return SignSurvey(updates.agreement, quantiles)
    upper = agreement.sum(axis=0)
    return SignSurvey(torch.from_numpy(upper + np.triu(upper, 1).T), quantiles)


def sign_agreement(updates: Updates) -> Tensor:
    return survey(updates, None).agreement


def magnitude_quantiles(updates: Updates, quantile: float) -> Tensor:
    quantiles = survey(updates, quantile, signs=False).quantiles
    assert quantiles is not None
    return quantiles


def _brackets(updates: Updates, quantile: float) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Bits of magnitudes just below and above where a sample says each client's quantile is."""
    step = max(1, updates.dim // _SAMPLE)
    low, high = np.zeros((2, len(updates)), np.int32)

    def read(task: tuple[int, int]) -> list[Tensor]:
        return updates.read(*task, step, _combine)

    sampled = _spread(read, list(_tasks(updates)), len(updates) * updates.dim)

    def bracket(k: int) -> None:
        magnitudes = torch.cat([pieces[k] for pieces in sampled]).abs().numpy().view(np.int32)
        size = magnitudes.size
        middle, slack = quantile * (size - 1), 4 * math.sqrt(quantile * (1 - quantile) * size) + 2
        if step == 1:
            slack = 2.0  # nothing was left to chance
        lower, upper = math.floor(middle - slack), math.ceil(middle + slack)
        ranks = [min(max(rank, 0), size - 1) for rank in (lower, upper)]
        ordered = np.partition(magnitudes, ranks)
        low[k] = ordered[ranks[0]] if lower >= 0 else -1
        high[k] = ordered[ranks[1]] if upper < size else kernels.MAGNITUDE

    _spread(bracket, range(len(updates)), len(updates) * updates.dim)
    return low, high


@dataclass(frozen=True)
class _Bracket:
    """Two magnitudes, as bits, and those strictly between them that were collected."""

    low: int
    high: int
    parts: list[NDArray[np.int32]]


def _quantile(updates: Updates, client: int, quantile: float, bracket: _Bracket, at_low: int, number: int) -> float:
    """The exact quantile of one client, from the values within its bracket where they hold it."""
    *ranks, fraction = reference.quantile_ranks(quantile, updates.dim)
    between = np.concatenate(bracket.parts)
    wanted = [int(rank - at_low) for rank in ranks]
    if between.size == number and all(0 <= w < number for w in wanted):
        ordered = np.partition(between, wanted)
        low, high = (float(ordered[w].view(np.float32)) for w in wanted)
        return reference.interpolate(low, high, fraction)
    # An end of the bracket is a value that many coordinates share, zero perhaps.
    alone = updates.select([client])
    ends = np.array([[bracket.low], [bracket.high]], np.int32)
    counts = np.zeros((_count(alone), 1, 3), np.int64)

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.count_magnitudes(addresses, stop - start, ends[0], ends[1], counts[task])

    _run(alone, work)
    below, up_to_low, up_to_high = counts.sum(axis=0)[0]
    for end, least, most in ((ends[0], below, up_to_low), (ends[1], up_to_low + number, up_to_high)):
        if all(least <= rank < most for rank in ranks):
            return float(end.view(np.float32)[0])
    # The bracket missed the quantile: use the whole row.
    return float(reference.magnitude_quantiles(alone, quantile)[0])


def elect_and_merge(updates: Updates, plan: MergePlan) -> Merge:
    if plan.ballots is None:  # the ablations without an election
        return NotImplemented  # type: ignore[no-any-return]  # the next backend does it
    clients, tasks, width = len(updates), _count(updates), _width(updates)
    middle = (clients - 1) // 2
    network = selection_network(clients, middle, middle)
    factor = _array(plan.clip_factor)
    factors, thresholds = _split(factor), _threshold_bits(plan)
    takes_part = -((factor > 0) | (not plan.clamp_clipped)).astype(np.int32)
    ballots = plan.ballots.to(torch.int32).numpy()
    survived, adopted = np.zeros((2, tasks, clients), np.int64)
    result = torch.empty(updates.dim, dtype=torch.float32)
    out = result.numpy()

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.elect_and_merge(
            addresses, stop - start, width, network, factors, thresholds, takes_part, ballots,
            plan.clamp, plan.clamp_clipped, plan.survivors_vote, out[start:stop], survived[task], adopted[task],
        )  # fmt: skip

    _run(updates, work)
    entered = torch.from_numpy(adopted.sum(axis=0))
    return Merge(result, torch.from_numpy(survived.sum(axis=0)), entered, share_of(entered, None))


def _split(factor: NDArray[np.float64]) -> NDArray[np.float32]:
    """Each factor as the product of two float32: one alone cannot be smaller than 1e-38."""
    small = factor < 2.0**-100
    first = np.where(small, 2.0**-126, 1.0)
    return np.stack([first, np.where(small, factor * 2.0**126, factor)], axis=1).astype(np.float32)


def _threshold_bits(plan: MergePlan) -> NDArray[np.int32]:
    """T_k such that a magnitude survives if and only if its bits exceed T_k. A zero never does."""
    if plan.threshold is None:
        return np.zeros(len(plan.clip_factor), np.int32)
    exact = _array(plan.threshold)
    nearest = exact.astype(np.float32)
    if plan.survives_at_threshold:  # |g| ≥ λ: more than the number before the least float32 that is not below λ
        least = np.where(nearest.astype(np.float64) < exact, np.nextafter(nearest, np.float32(np.inf)), nearest)
        return np.maximum(least.astype(np.float32).view(np.int32) - 1, 0).astype(np.int32)
    most = np.where(nearest.astype(np.float64) > exact, np.nextafter(nearest, np.float32(0)), nearest)
    return np.maximum(most.astype(np.float32).view(np.int32), 0).astype(np.int32)


def _array(values: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(values.numpy(), dtype=np.float64)
