"""The primitives for updates in the CPU's memory, compiled, over tasks of coordinates that threads share.

Each is the twin of one in `reference.py`. A task is a fixed range of coordinates, its partial results have a place of
their own and are added up in order: the answer does not depend on the number of threads (`torch.set_num_threads`).
Inside a task the rows are worked on where they lie, or in pieces that were brought into a buffer (`rows.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedseca.ops import kernels, reference
from fedseca.ops.intrinsics import TILE
from fedseca.ops.network import selection_network
from fedseca.ops.plan import Merge, MergePlan, Selection, SignSurvey, share_of
from fedseca.ops.rows import BITS, Rows
from fedseca.updates import Updates

TASK = 1 << 18
"""The most coordinates in a task."""
_CACHED = 1 << 14
"""How many numbers of all rows a kernel works on at a time: they should stay in a core's first-level cache."""
_SHORT = 128
"""Coordinates that are worked on at a time where little is done with each: less would be fetched ahead in one go."""
_LONG = 1024
"""The same where all that is kept is a sum."""
_FEW = 1024
"""Coordinates that are enough for a task where much is done with each, so that threads can share even a few."""
_SAMPLE = 1 << 15
"""How many magnitudes of a client are looked at, at most, to guess where its quantile lies."""

_SAMPLED, _PRODUCTS = "sample", "products"
"""Under these names they are kept beside the rows."""
_MANY = 24
"""Clients from which on distances are made of products."""
_CLOSE = 1e-4
"""Of the terms: a squared distance below it has lost that many of its 16 digits to their cancellation. What is left
must tell apart what `reference.ranks` does."""
_TINY = 1e-200
"""Terms below it may have lost products that are too small for a float64."""
_PARTIAL = 1 << 25
"""Bytes that the partial results of a primitive may take, where they are not few anyway."""
_WORTH_A_THREAD = 1 << 22
"""From how many numbers on threads save more time than they cost."""

T = TypeVar("T")


def takes(updates: Updates) -> bool:
    """Whether these primitives can be used: numbers in the CPU's memory."""
    return updates.device.type == "cpu" and updates.compute_dtype in BITS and len(updates) > 0


def _tasks(updates: Updates, least: int = 1 << 14) -> tuple[tuple[int, int], ...]:
    """Ranges of coordinates: large arrays are cut, small neighbours are taken together."""
    # Enough of them for threads to share, few enough to be cheap.
    return _cut(updates.layout.offsets, min(TASK, max(least, updates.dim // 16)))


@lru_cache(maxsize=64)
def _cut(offsets: tuple[int, ...], most: int) -> tuple[tuple[int, int], ...]:
    tasks, start = [], 0
    for stop in offsets[1:]:
        while stop - start >= most:
            tasks.append((start, start + most))
            start += most
        if stop - start >= most // 4:
            tasks.append((start, stop))
            start = stop
    if start < offsets[-1]:
        tasks.append((start, offsets[-1]))
    return tuple(tasks)


def _run(
    updates: Updates,
    work: Callable[[int, NDArray[np.int64], int, int], None],
    tasks: Sequence[tuple[int, int]] | None = None,
    places: int | None = None,
) -> None:
    """Call work(place, addresses of the rows, start, stop) for the pieces of each task from as many threads as torch
    has. Each place has tasks of its own, which are done one after the other; if not said, each task has a place."""
    rows, tasks = Rows.of(updates), _tasks(updates) if tasks is None else tasks
    places = places or len(tasks)

    def one(place: int) -> None:
        for start, stop in tasks[place::places]:
            for addresses, first, last in rows.pieces(start, stop):
                work(place, addresses, first, last)

    if places == 1:  # what is small is done at once
        one(0)
    else:
        _spread(one, range(places), len(updates) * updates.dim)


def _places(tasks: Sequence[tuple[int, int]], size: int, least: int = 4) -> int:
    """For how many partial results of so many bytes there is room: as many as tasks, or fewer where they are large."""
    return min(len(tasks), max(least, _PARTIAL // size))


def _whole(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The sum of partial results of all pairs, of which only those above the diagonal were computed; in place."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    kernels.mirror(total)
    return total


def _total(parts: NDArray[Any]) -> NDArray[Any]:
    """The sum of what the tasks found, in their order."""
    return parts[0] if len(parts) == 1 else parts.sum(axis=0)  # type: ignore[no-any-return]


def _spread(work: Callable[[Any], T], items: Sequence[Any], numbers: int) -> list[T]:
    """work(item) for every item, from as many threads as torch has where there are many numbers to work on."""
    threads = min(torch.get_num_threads(), len(items))
    if threads <= 1 or numbers < _WORTH_A_THREAD:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def _count(updates: Updates) -> int:
    return len(_tasks(updates))


def _width(updates: Updates) -> int:
    """Coordinates in a block whose rows stay in the cache; long enough to be read from memory in one go."""
    return max(_SHORT, min(512, _CACHED // len(updates) // 32 * 32))


def extent(updates: Updates, *, exactly: bool = True) -> tuple[Tensor, Tensor]:
    tasks, (whole, one), step = _tasks(updates), BITS[updates.compute_dtype], _step(updates.dim)
    squares = np.zeros((len(tasks), len(updates)))
    largest = np.zeros((len(tasks), len(updates)), whole)
    sampled = np.empty((len(updates), -(-updates.dim // step)), one.dtype)

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.measure(addresses, start, stop - start, one, squares[task], exactly, largest[task], step, sampled)

    _run(updates, work, tasks)
    updates.memo[_SAMPLED] = sampled
    norms = torch.from_numpy(np.sqrt(_total(squares)))
    if not exactly:
        return norms, norms
    return norms, torch.from_numpy(largest.max(axis=0).view(one.dtype).astype(np.float64))


def _norms(updates: Updates) -> Tensor:
    return extent(updates, exactly=False)[0]


def weighted_sum(updates: Updates, weights: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    given = _array(weights)
    weighty = np.flatnonzero(given)
    chosen: NDArray[np.int64] | None = None
    if 0 < weighty.size < given.size:
        given = given[weighty]
        if Rows.of(updates).plain:
            chosen = weighty
        else:  # to bring a row into a buffer is work
            updates = updates.select(weighty.tolist())
    dtype = dtype or updates.dtype
    direct = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    result, one = torch.empty(updates.dim, dtype=direct), BITS[updates.compute_dtype].one
    out = result.numpy()

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        used = addresses if chosen is None else addresses[chosen]
        kernels.weighted_sum(used, stop - start, one, _LONG, given, out[start:stop])

    _run(updates, work)
    return result.to(dtype)


def residual_norms(updates: Updates, weights: Tensor) -> Tensor:
    squares, given, width = np.zeros((_count(updates), len(updates))), _array(weights), _width(updates)
    one = BITS[updates.compute_dtype].one

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.residual_squares(addresses, stop - start, one, width, given, squares[task])

    _run(updates, work)
    return torch.from_numpy(np.sqrt(_total(squares)))


def squared_distances(updates: Updates, scale: Tensor | None = None) -> Tensor:
    """From products, which are cheaper than differences where there are many clients; and from the differences of
    those pairs that are so close that the products would not tell how close."""
    factors = np.ones(len(updates)) if scale is None else _array(scale)
    if len(updates) < _MANY:
        return _from_differences(updates, factors)
    distances, close = _from_products(_products(updates), factors)
    pairs = np.argwhere(np.triu(close))
    if len(pairs):
        exact = _of_pairs(updates, factors, pairs)
        distances[pairs[:, 0], pairs[:, 1]] = distances[pairs[:, 1], pairs[:, 0]] = exact
    return torch.from_numpy(distances)


def _products(updates: Updates) -> NDArray[np.float64]:
    """⟨c_a, c_b⟩ of all pairs of c_k = g_k − m, and of m itself, which is the last row: computed once, kept.

    m is the mean of the rows clipped to the median norm: what all clients share leaves no trace in c_k, and a client
    that is far too long does not either.
    """
    if _PRODUCTS not in updates.memo:
        clients, one = len(updates), BITS[updates.compute_dtype].one
        norms = updates.norms if updates.norms is not None and updates.norms.isfinite().all() else _norms(updates)
        shares = _array(reference.clip_factors(float(norms.median()), norms)) / clients
        tasks, padded = _tasks(updates, _FEW), -(-(clients + 1) // TILE) * TILE
        places = _places(tasks, padded * padded * 8)
        sums = [np.zeros((padded, padded)) for _ in range(places)]

        def work(place: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
            kernels.gram(addresses, stop - start, one, 4 * _SHORT, shares, sums[place])

        _run(updates, work, tasks, places)
        updates.memo[_PRODUCTS] = _whole(sums)[: clients + 1, : clients + 1]
    found: NDArray[np.float64] = updates.memo[_PRODUCTS]
    return found


def _from_products(
    products: NDArray[np.float64], factors: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """‖s_a·g_a − s_b·g_b‖² of all pairs, and for which of them too many digits cancel out.

    With g_k = c_k + m and t = s_a − s_b it is
    ‖s_a·c_a‖² + ‖s_b·c_b‖² − 2·⟨s_a·c_a, s_b·c_b⟩ + 2·t·(⟨s_a·c_a, m⟩ − ⟨s_b·c_b, m⟩) + t²·‖m‖².
    """
    own, beside, middle = products[:-1, :-1], factors * products[:-1, -1], products[-1, -1]
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = factors**2 * np.diag(own)
        terms = lengths[:, None] + lengths
        distances = terms - 2 * factors[:, None] * factors * own
        apart = factors[:, None] - factors
        if apart.any():
            shifted = 2 * apart * (beside[:, None] - beside) + apart**2 * middle
            distances, terms = distances + shifted, terms + np.abs(shifted)
        close = ~((distances >= _CLOSE * terms) & (terms >= _TINY))
    np.fill_diagonal(distances, 0)
    np.fill_diagonal(close, False)
    return distances, close


def _from_differences(updates: Updates, factors: NDArray[np.float64]) -> Tensor:
    clients = len(updates)
    squares = np.zeros((_count(updates), clients, clients + 3))
    width = max(64, min(128, _CACHED // clients))  # the rows are kept in float64, and each is read K times
    one = BITS[updates.compute_dtype].one

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.squared_distances(addresses, stop - start, one, width, factors, squares[task])

    _run(updates, work)
    distances = np.ascontiguousarray(_total(squares)[:, :clients])
    kernels.mirror(distances)
    return torch.from_numpy(distances)


def _of_pairs(updates: Updates, factors: NDArray[np.float64], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """‖s_a·g_a − s_b·g_b‖² of some pairs (a, b), from the differences."""
    tasks, one = _tasks(updates, kernels.GROUP), BITS[updates.compute_dtype].one
    squares = np.zeros((_places(tasks, 8 * len(pairs)), len(pairs)))

    def work(place: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.squares_of_pairs(addresses, stop - start, one, _SHORT, factors, pairs, squares[place])

    _run(updates, work, tasks, len(squares))
    total: NDArray[np.float64] = squares.sum(axis=0)
    return total


def median(updates: Updates) -> Selection:
    middle = (len(updates) - 1) // 2
    return _select(updates, kernels.select_middle, -1, selection_network(len(updates), middle, middle))


def trimmed_mean(updates: Updates, trim: int) -> Selection:
    network = selection_network(len(updates), trim, len(updates) - 1 - trim)
    return _select(updates, kernels.select_middle, trim, network)


def mean_near_median(updates: Updates, keep: int) -> Selection:
    return _select(updates, kernels.near_median, keep, selection_network(len(updates), 0, len(updates) - 1))


def _select(updates: Updates, kernel: Callable[..., None], number: int, network: NDArray[np.int32]) -> Selection:
    """What a kernel selects among the sorted values: `number` says how many it drops or keeps."""
    chosen = np.zeros((_count(updates), len(updates)), np.int64)
    result = torch.empty(updates.dim, dtype=updates.compute_dtype)
    out, (whole, one) = result.numpy(), BITS[updates.compute_dtype]
    kind = np.empty(0, whole)

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernel(addresses, stop - start, one, _SHORT, network, number, out[start:stop], chosen[task], kind)

    _run(updates, work)
    hits = _total(chosen)
    return Selection(result.to(updates.dtype), torch.from_numpy(hits / hits.sum()))


def survey(updates: Updates, quantile: float | None, *, signs: bool = True) -> SignSurvey:
    """One read for the sign agreement and the quantiles both; none for what is known already."""
    signs, quantiles = signs and updates.agreement is None, None
    if quantile is not None and _step(updates.dim) == 1:  # the sample is all there is
        quantiles, quantile = _of_all(_sampled(updates), quantile), None
    if quantile is None and not signs:
        return SignSurvey(_nobody() if updates.agreement is None else updates.agreement, quantiles)
    clients, (whole, one) = len(updates), BITS[updates.compute_dtype]
    # Whole numbers: their sum does not depend on how it is split.
    tasks = _tasks(updates)
    places = _places(tasks, 8 * clients * clients, least=torch.get_num_threads())
    low, high = np.zeros((2, clients), whole)
    share = 0.0
    if quantile is not None:
        low, high, within = _brackets(updates, quantile)
        share = max(1 / 16, 2 * within)  # they may lie close together
    size = clients if signs else 0
    agreement = [np.zeros((size, size), np.int64) for _ in range(places)]
    at_low, found = np.zeros((2, places, clients), np.int64)
    # Room for more than will be found: memory is taken when it is written to. From torch, which leaves that to pages of
    # the usual size: NumPy asks the system for huge ones, and then all of the room is taken.
    room = [int(share * sum(stop - start for start, stop in tasks[place::places])) + 64 for place in range(places)]
    kind = torch.from_numpy(np.empty(0, whole)).dtype
    inside = [torch.empty((clients, each if quantile is not None else 0), dtype=kind).numpy() for each in room]

    def work(place: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.survey(
            addresses, stop - start, one, low, high, signs, agreement[place], at_low[place], found[place], inside[place]
        )

    _run(updates, work, tasks, places)
    if quantile is not None:
        first, number = at_low.sum(axis=0), found.sum(axis=0)
        brackets = [
            _Bracket(low[k], high[k], [part[k, :count] for part, count in zip(inside, found[:, k], strict=True)])
            for k in range(clients)
        ]
        # One after the other: threads would spend more on handing over to each other, client by client, than they save.
        exact = [_quantile(updates, k, quantile, brackets[k], first[k], number[k]) for k in range(clients)]
        quantiles = torch.tensor(exact, dtype=torch.float64)
    if updates.agreement is not None:
        return SignSurvey(updates.agreement, quantiles)
    return SignSurvey(torch.from_numpy(_whole(agreement)), quantiles)


def _nobody() -> Tensor:
    """The agreement of pairs that nobody asked for."""
    return torch.zeros(0, 0, dtype=torch.int64)


def _of_all(values: NDArray[Any], quantile: float) -> Tensor:
    """The quantile of each row of magnitudes, sorted out of all of them."""
    first, second, fraction = reference.quantile_ranks(quantile, values.shape[1])
    ordered = np.sort(np.abs(values), axis=1)[:, [first, second]].astype(np.float64)
    exact = [reference.interpolate(low, high, fraction) for low, high in ordered.tolist()]
    return torch.tensor(exact, dtype=torch.float64)


def sign_agreement(updates: Updates) -> Tensor:
    return survey(updates, None).agreement


def magnitude_quantiles(updates: Updates, quantile: float) -> Tensor:
    quantiles = survey(updates, quantile, signs=False).quantiles
    assert quantiles is not None
    return quantiles


def _step(dim: int) -> int:
    """How far apart the numbers of a sample are."""
    # A larger sample takes longer to sort, and leaves fewer candidates: a hundredth of all is enough of it.
    return max(1, dim // min(_SAMPLE, max(_SAMPLE // 32, dim // 100)))


def _sampled(updates: Updates) -> NDArray[Any]:
    """Every so many coordinates of each row: kept while the rows were measured, or else read now."""
    found: NDArray[Any] | None = updates.memo.get(_SAMPLED)
    return Rows.of(updates).sample(_step(updates.dim)) if found is None else found


def _brackets(updates: Updates, quantile: float) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Bits of magnitudes just below and above where a sample says each client's quantile is, and which share of all
    magnitudes should lie between them."""
    whole = BITS[updates.compute_dtype].whole
    low, high = np.zeros((2, len(updates)), whole)
    sampled = _sampled(updates)
    size = sampled.shape[1]
    middle, slack = quantile * (size - 1), 4 * math.sqrt(quantile * (1 - quantile) * size) + 2
    lower, upper = math.floor(middle - slack), math.ceil(middle + slack)

    for k in range(len(updates)):
        ordered = np.sort(np.abs(sampled[k]).view(whole))
        low[k] = ordered[lower] if lower >= 0 else -1
        high[k] = ordered[upper] if upper < size else np.iinfo(whole).max
    return low, high, (upper - lower) / size


@dataclass(frozen=True)
class _Bracket:
    """Two magnitudes, as bits, and those strictly between them that were collected."""

    low: int
    high: int
    parts: list[NDArray[Any]]


def _quantile(updates: Updates, client: int, quantile: float, bracket: _Bracket, at_low: int, number: int) -> float:
    """The exact quantile of one client, from the values within its bracket where they hold it."""
    *ranks, fraction = reference.quantile_ranks(quantile, updates.dim)
    whole, one = BITS[updates.compute_dtype]
    between = np.concatenate(bracket.parts)
    wanted = [int(rank - at_low) for rank in ranks]
    if between.size == number and all(0 <= w < number for w in wanted):
        # The two ranks are neighbours, or one. NumPy has a fast way to find one, and a slow way to find two.
        ordered = np.partition(between, wanted[0])
        following = ordered[wanted[0]] if wanted[1] == wanted[0] else ordered[wanted[1] :].min()
        low, high = (float(each.view(one.dtype)) for each in (ordered[wanted[0]], following))
        return reference.interpolate(low, high, fraction)
    # An end of the bracket is a value that many coordinates share, zero perhaps.
    alone = updates.select([client])
    ends = np.array([[bracket.low], [bracket.high]], whole)
    counts = np.zeros((_count(alone), 1, 3), np.int64)

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.count_magnitudes(addresses, stop - start, one, ends[0], ends[1], counts[task])

    _run(alone, work)
    below, up_to_low, up_to_high = counts.sum(axis=0)[0]
    for end, least, most in ((ends[0], below, up_to_low), (ends[1], up_to_low + number, up_to_high)):
        if all(least <= rank < most for rank in ranks):
            return float(end.view(one.dtype)[0])
    # The bracket missed the quantile: use the whole row.
    return float(reference.magnitude_quantiles(alone, quantile)[0])


def elect_and_merge(updates: Updates, plan: MergePlan) -> Merge:
    if plan.ballots is None:  # the ablations without an election
        return NotImplemented  # type: ignore[no-any-return]  # the next backend does it
    clients, tasks, width = len(updates), _count(updates), _width(updates)
    middle = (clients - 1) // 2
    network = selection_network(clients, middle, middle)
    factor = _array(plan.clip_factor)
    whole, one = BITS[updates.compute_dtype]
    factors, thresholds = _split(factor, one.dtype), _threshold_bits(plan, one.dtype).view(whole)
    takes_part = -((factor > 0) | (not plan.clamp_clipped)).astype(np.int32)
    ballots = plan.ballots.numpy().astype(whole)
    survived, adopted = np.zeros((2, tasks, clients), np.int64)
    result = torch.empty(updates.dim, dtype=updates.compute_dtype)
    out = result.numpy()

    def work(task: int, addresses: NDArray[np.int64], start: int, stop: int) -> None:
        kernels.elect_and_merge(
            addresses, stop - start, one, width, network, factors, thresholds, takes_part, ballots,
            plan.clamp, plan.clamp_clipped, plan.survivors_vote, out[start:stop], survived[task], adopted[task],
        )  # fmt: skip

    _run(updates, work)
    entered = torch.from_numpy(_total(adopted))
    return Merge(result, torch.from_numpy(_total(survived)), entered, share_of(entered, None))


def _split(factor: NDArray[np.float64], kind: np.dtype[Any]) -> NDArray[Any]:
    """Each factor as the product of two numbers of a kind: a float32 alone cannot be smaller than 1e-38."""
    split = np.ones((len(factor), 2), kind)
    split[:, 1] = factor
    small = (factor < 2.0**-100) & (kind == np.float32)
    if small.any():
        split[small, 0], split[small, 1] = 2.0**-126, factor[small] * 2.0**126
    return split


def _threshold_bits(plan: MergePlan, kind: np.dtype[Any]) -> NDArray[Any]:
    """T_k such that a magnitude survives if and only if its bits exceed those of T_k. A zero never does."""
    if plan.threshold is None:
        return np.zeros(len(plan.clip_factor), kind)
    exact = _array(plan.threshold)
    nearest = exact.astype(kind)
    if plan.survives_at_threshold:  # |g| ≥ λ: more than the number before the least that is not below λ
        least = np.where(nearest < exact, np.nextafter(nearest, kind.type(np.inf)), nearest)
        below = np.nextafter(least, kind.type(-np.inf))
        return np.maximum(below, kind.type(0))  # type: ignore[no-any-return]
    return np.where(nearest > exact, np.nextafter(nearest, kind.type(0)), nearest)


def _array(values: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(values.numpy(), dtype=np.float64)
