"""The loops behind `cpu.py`, compiled by Numba when they are first called and cached on disk from then on.

Each kernel takes the addresses of K rows of float32 numbers and their length. Rows need not lie next to each other, so
nothing is ever stacked. Magnitudes are compared as int32: for numbers of one sign the order of the bits is the order of
the numbers, and integer comparisons vectorise where floating-point ones do not. No kernel starts threads; `cpu.py`
calls them from its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray as _carray
from numba import njit, types
from numba.extending import intrinsic

MAGNITUDE = np.int32(0x7FFFFFFF)
EIGHTH = np.float32(0.125)
_i32 = np.int32
LANES = 64
GROUP = 32 * LANES
"""Coordinates whose signs fill one word of 32 bits in each of 64 lanes."""


def _compiled(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        settings = {"nogil": True, "error_model": "numpy", "boundscheck": False} | options
        try:
            return njit(cache=True, **settings)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # nowhere to write the cache: compile once for each process instead
            return njit(**settings)(function)  # type: ignore[no-any-return]

    return decorate


_sums = _compiled(fastmath={"reassoc", "contract", "nsz"})  # sums may be split over lanes
_exact = _compiled()


@intrinsic
def _popcount(context: Any, word: Any) -> Any:
    return word(word), lambda ctx, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def _bits(context: Any, number: Any) -> Any:
    """A float32 as the int32 with the same bits."""
    return types.int32(types.float32), lambda ctx, b, signature, arguments: b.bitcast(arguments[0], ir.IntType(32))


@intrinsic
def _number(context: Any, bits: Any) -> Any:
    """An int32 as the float32 with the same bits."""
    return types.float32(types.int32), lambda ctx, b, signature, arguments: b.bitcast(arguments[0], ir.FloatType())


@intrinsic
def _integers_at(context: Any, address: Any) -> Any:
    pointer = types.CPointer(types.int32)
    return pointer(address), lambda c, b, s, arguments: b.inttoptr(arguments[0], ir.IntType(32).as_pointer())


@intrinsic
def _floats_at(context: Any, address: Any) -> Any:
    pointer = types.CPointer(types.float32)
    return pointer(address), lambda c, b, s, arguments: b.inttoptr(arguments[0], ir.FloatType().as_pointer())


@_sums
def measure(addresses, length, squares, largest):
    """‖g_k‖² and the bits of max|g_k| for each row."""
    for k in range(addresses.size):
        bits = _carray(_integers_at(addresses[k]), (length,))
        values = _carray(_floats_at(addresses[k]), (length,))
        square, most = 0.0, _i32(0)
        for start in range(0, length, GROUP):
            stop = min(start + GROUP, length)
            for i in range(start, stop):
                square += np.float64(values[i]) * np.float64(values[i])
            for i in range(start, stop):
                most = max(most, bits[i] & MAGNITUDE)
        squares[k] = square
        largest[k] = most


@_exact
def survey(addresses, length, low, high, count_signs, agreement, at_low, found, candidates):
    """Σ_j sgn·sgn of all pairs, and for each row which magnitudes lie within its bracket.

    Signs are packed 32 to a word, bit j of lane i being coordinate 64·j + i of a group: any order will do for counting.
    at_low[k] = how many magnitudes are ≤ low; candidates[k, :found[k]] = those strictly between low and high.
    """
    clients = addresses.size
    signs = np.zeros((clients, LANES), np.uint32)
    present = np.zeros((clients, LANES), np.uint32)
    inside = np.zeros(LANES, np.uint32)
    tail = np.zeros(GROUP, np.int32)
    for start in range(0, length, GROUP):
        size = min(GROUP, length - start)
        zeros = size < GROUP
        for k in range(clients):
            row = _carray(_integers_at(addresses[k] + 4 * start), (GROUP,))
            if size < GROUP:
                tail[:] = 0
                tail[:size] = row[:size]
                row = tail
            least, beyond = _pack(row, low[k], high[k], signs[k], inside)
            at_low[k] += GROUP - beyond
            if size < GROUP and low[k] >= 0:
                at_low[k] -= GROUP - size  # the zeros that fill up the tail are no coordinates
            if count_signs:
                there = present[k]
                there[:] = np.uint32(0xFFFFFFFF)
                if least == 0:
                    zeros = True
                    _pack_present(row, there)
            found[k] = _collect(row, size, inside, candidates[k], found[k])
        if count_signs:
            _count_agreement(signs, present, zeros, agreement)


@_exact
def _pack(row, low, high, signs, inside):
    """Pack the signs of a group and which magnitudes are within the bracket; the least one, and how many exceed low."""
    least, beyond, none = MAGNITUDE, _i32(0), np.uint32(0)
    signs[:] = 0
    inside[:] = 0
    for j in range(0, 32, 4):
        bit_w, bit_x = np.uint32(1) << np.uint32(j), np.uint32(2) << np.uint32(j)
        bit_y, bit_z = np.uint32(4) << np.uint32(j), np.uint32(8) << np.uint32(j)
        for i in range(LANES):
            w, x = row[j * LANES + i], row[(j + 1) * LANES + i]
            y, z = row[(j + 2) * LANES + i], row[(j + 3) * LANES + i]
            signs[i] |= (bit_w if w < 0 else none) | (bit_x if x < 0 else none)
            signs[i] |= (bit_y if y < 0 else none) | (bit_z if z < 0 else none)
            w, x, y, z = _i32(w & MAGNITUDE), _i32(x & MAGNITUDE), _i32(y & MAGNITUDE), _i32(z & MAGNITUDE)
            inside[i] |= (bit_w if (w > low) & (w < high) else none) | (bit_x if (x > low) & (x < high) else none)
            inside[i] |= (bit_y if (y > low) & (y < high) else none) | (bit_z if (z > low) & (z < high) else none)
            beyond = _i32(beyond + _i32(_i32(w > low) + _i32(x > low)) + _i32(_i32(y > low) + _i32(z > low)))
            least = min(least, min(min(w, x), min(y, z)))
    return least, beyond


@_exact
def _pack_present(row, there):
    """Pack which coordinates of a group are not zero."""
    there[:] = 0
    for j in range(32):
        for i in range(LANES):
            there[i] |= np.uint32((row[j * LANES + i] & MAGNITUDE) != 0) << np.uint32(j)


@_exact
def _collect(row, size, inside, candidates, place):
    """Append the magnitudes that are flagged; they are counted even where there is no room for them."""
    for i in range(LANES):
        word = inside[i]
        while word:
            j = _popcount((word & (~word + np.uint32(1))) - np.uint32(1))
            if np.int64(j) * LANES + i < size:
                if place < candidates.size:
                    candidates[place] = row[np.int64(j) * LANES + i] & MAGNITUDE
                place += 1
            word &= word - np.uint32(1)
    return place


@_exact
def count_magnitudes(addresses, length, low, high, counts):
    """How many magnitudes of each row are < low, ≤ low and ≤ high."""
    for k in range(addresses.size):
        row = _carray(_integers_at(addresses[k]), (length,))
        lower, upper = low[k], high[k]
        for start in range(0, length, GROUP):
            below, at_low, at_high = _i32(0), _i32(0), _i32(0)
            for i in range(start, min(start + GROUP, length)):
                magnitude = row[i] & MAGNITUDE
                below += np.int32(magnitude < lower)
                at_low += np.int32(magnitude <= lower)
                at_high += np.int32(magnitude <= upper)
            counts[k, 0] += below
            counts[k, 1] += at_low
            counts[k, 2] += at_high


@_exact
def _count_agreement(signs, present, zeros, agreement):
    """Agreements less disagreements of every pair: XOR and popcount."""
    clients = signs.shape[0]
    for a in range(clients):
        for b in range(a, clients):
            different, both = np.uint32(0), np.uint32(0)
            if zeros:
                for i in range(LANES):
                    shared = present[a, i] & present[b, i]
                    both += _popcount(shared)
                    different += _popcount((signs[a, i] ^ signs[b, i]) & shared)
            else:
                both = np.uint32(GROUP)
                for i in range(LANES):
                    different += _popcount(signs[a, i] ^ signs[b, i])
            agreement[a, b] += np.int64(both) - 2 * np.int64(different)


@_exact
def _select(network, rows, width):
    """Apply a sorting network to whole rows."""
    for step in range(network.shape[0]):
        lower, upper, wanted = rows[network[step, 0]], rows[network[step, 1]], network[step, 2]
        if wanted == 3:
            for i in range(width):
                x, y = lower[i], upper[i]
                lower[i] = min(x, y)
                upper[i] = max(x, y)
        elif wanted == 1:
            for i in range(width):
                lower[i] = min(lower[i], upper[i])
        else:
            for i in range(width):
                upper[i] = max(lower[i], upper[i])


@_exact
def elect_and_merge(
    addresses, length, width, network, factors, thresholds, takes_part, ballots, clamp, clip_merged, survivors_vote,
    result, survived, adopted,
):  # fmt: skip
    """Vote, clip, clamp, sparsify and merge, a block of `width` coordinates at a time.

    factors[k] are two float32 whose product is the clip factor (a factor may be too small for one of them); a magnitude
    survives if its bits exceed thresholds[k] ≥ 0.
    """
    clients = addresses.size
    middle, half = (clients - 1) // 2, _i32((clients - 1) // 2)
    rows = np.zeros((clients, width), np.int32)
    votes, counted = np.zeros(width, np.int32), np.zeros(width, np.int32)
    absent, eligible = np.zeros(width, np.int32), np.zeros(width, np.int32)
    partial, total = np.zeros(width, np.float32), np.zeros(width, np.float64)
    unbounded, nobody = np.full(width, MAGNITUDE, np.int32), np.zeros(width, np.int32)
    scaled = np.zeros(width, np.int32)
    for start in range(0, length, width):
        size = min(width, length - start)
        votes[:] = 0
        counted[:] = 0
        absent[:] = 0
        total[:] = 0
        for k in range(clients):
            raw = _carray(_integers_at(addresses[k] + 4 * start), (size,))
            if clamp:
                _scale(raw, factors[k, 0], factors[k, 1], rows[k])
            _vote(raw, ballots[k], thresholds[k] if survivors_vote else _i32(0), votes, absent)
        bound = unbounded
        if clamp:
            _select(network, rows, size)
            bound = rows[middle]
        for i in range(size):
            # Nobody was elected, or μ = 0.
            eligible[i] = -np.int32((votes[i] != 0) & ((absent[i] <= half) | (not clamp)))
        for k in range(clients):
            # Eight clients are summed in float32, as eighths so that 3e38 does not overflow, before they are added in
            # float64: less work, and digits to spare.
            if k % 8 == 0:
                partial[:] = 0
            raw = _carray(_integers_at(addresses[k] + 4 * start), (size,))
            if clip_merged:
                _scale(raw, factors[k, 0], factors[k, 1], scaled)
            values = scaled if clip_merged else raw
            if takes_part[k]:
                surviving, entering = _merge(raw, values, thresholds[k], eligible, votes, bound, counted, partial)
            else:  # its clip factor is 0: τ = 0
                surviving, entering = _merge(raw, values, thresholds[k], nobody, votes, bound, counted, partial)
            survived[k] += surviving
            adopted[k] += entering
            if k % 8 == 7 or k == clients - 1:
                for i in range(size):
                    total[i] += np.float64(partial[i]) * 8
        for i in range(size):
            merged = total[i] / np.float64(max(counted[i], np.int32(1)))
            result[start + i] = np.float32(merged) if votes[i] >= 0 else np.float32(-merged)


@_exact
def _merge(raw, values, threshold, eligible, votes, bound, counted, partial):
    """Add min[μ, value] where the raw gradient survives and agrees with the vote; how many survive, how many enter."""
    # Each step is kept in 32 bits: left alone, the compiler would widen to 64 and use half the lanes.
    surviving, entering = _i32(0), _i32(0)
    for i in range(raw.size):
        survives = _i32(-1) if _i32(raw[i] & MAGNITUDE) > threshold else _i32(0)
        agrees = _i32(-1) if _i32(raw[i] ^ votes[i]) >= 0 else _i32(0)
        enters = _i32(_i32(survives & eligible[i]) & agrees)
        surviving = _i32(surviving - survives)
        entering = _i32(entering - enters)
        counted[i] = _i32(counted[i] - enters)
        partial[i] += _number(_i32(min(bound[i], _i32(values[i] & MAGNITUDE)) & enters)) * EIGHTH
    return surviving, entering


@_exact
def _scale(raw, first, second, scaled):
    """The bits of |g|·first·second."""
    if first == np.float32(1):
        for i in range(raw.size):
            scaled[i] = _bits(_number(raw[i] & MAGNITUDE) * second)
    else:
        for i in range(raw.size):
            scaled[i] = _bits(_number(raw[i] & MAGNITUDE) * first * second)


@_exact
def _vote(raw, ballot, least, votes, absent):
    """Add ±ballot where the magnitude exceeds `least`, and count the zeros."""
    for i in range(raw.size):
        magnitude = raw[i] & MAGNITUDE
        negative = raw[i] >> _i32(31)
        votes[i] += ((ballot ^ negative) - negative) & -np.int32(magnitude > least)
        absent[i] += np.int32(magnitude == 0)


@_exact
def select_middle(addresses, length, width, network, trim, result, chosen):
    """The coordinate-wise mean of the ranks trim … K−1−trim (of one rank: that value itself)."""
    clients = addresses.size
    kept = clients - 2 * trim if trim >= 0 else 1
    first = trim if trim >= 0 else (clients - 1) // 2
    rows = np.zeros((clients, width), np.int32)
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        for k in range(clients):
            raw = _carray(_integers_at(addresses[k] + 4 * start), (size,))
            mine = rows[k]
            for i in range(size):
                key = _i32(raw[i] ^ _i32((raw[i] >> _i32(31)) & MAGNITUDE))  # in the order of the numbers
                mine[i] = _i32(key + _i32(key == -1))  # −0.0 is 0.0
        _select(network, rows, size)
        lowest, highest = rows[first], rows[first + kept - 1]
        total[:] = 0
        for rank in range(first, first + kept):
            mine = rows[rank]
            for i in range(size):
                total[i] += np.float64(_number(_i32(mine[i] ^ _i32((mine[i] >> _i32(31)) & MAGNITUDE))))
        for i in range(size):
            result[start + i] = np.float32(total[i] / kept)
        for k in range(clients):
            raw = _carray(_integers_at(addresses[k] + 4 * start), (size,))
            hits = _i32(0)
            for i in range(size):
                key = _i32(raw[i] ^ _i32((raw[i] >> _i32(31)) & MAGNITUDE))
                key = _i32(key + _i32(key == -1))
                hits = _i32(hits + _i32((key >= lowest[i]) & (key <= highest[i])))
            chosen[k] += hits


@_sums
def _combine(addresses, start, size, weights, total):
    """Σ_k w_k·g_k of one block, summed in float64."""
    total[:size] = 0
    for k in range(addresses.size):
        row, weight = _carray(_floats_at(addresses[k] + 4 * start), (size,)), weights[k]
        for i in range(size):
            total[i] += weight * np.float64(row[i])


@_exact
def mix(addresses, length, width, ends, sources, weights, divisors, mixed):
    """mixed[m] = Σ_s w_s·g_s / d over the sources of each mix, in float64 and in their order, a block at a time."""
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        for m in range(ends.size - 1):
            total[:] = 0
            at = ends[m]
            while at + 4 <= ends[m + 1]:  # four at a time: the sum is read and written once for all of them
                one = _carray(_floats_at(addresses[sources[at]] + 4 * start), (size,))
                two = _carray(_floats_at(addresses[sources[at + 1]] + 4 * start), (size,))
                three = _carray(_floats_at(addresses[sources[at + 2]] + 4 * start), (size,))
                four = _carray(_floats_at(addresses[sources[at + 3]] + 4 * start), (size,))
                w1, w2, w3, w4 = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
                for i in range(size):
                    first = (total[i] + w1 * np.float64(one[i])) + w2 * np.float64(two[i])
                    total[i] = (first + w3 * np.float64(three[i])) + w4 * np.float64(four[i])
                at += 4
            while at < ends[m + 1]:
                one, w1 = _carray(_floats_at(addresses[sources[at]] + 4 * start), (size,)), weights[at]
                for i in range(size):
                    total[i] += w1 * np.float64(one[i])
                at += 1
            out = mixed[m]
            for i in range(size):
                out[start + i] = np.float32(total[i] / divisors[m])


@_sums
def weighted_sum(addresses, length, width, weights, result):
    """Σ_k w_k·g_k."""
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _combine(addresses, start, size, weights, total)
        for i in range(size):
            result[start + i] = total[i]


@_sums
def residual_squares(addresses, length, width, weights, squares):
    """‖g_k − Σ_l w_l·g_l‖² of each row, in one read."""
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _combine(addresses, start, size, weights, total)
        for k in range(addresses.size):
            row = _carray(_floats_at(addresses[k] + 4 * start), (size,))
            square = 0.0
            for i in range(size):
                difference = np.float64(row[i]) - total[i]
                square += difference * difference
            squares[k] += square


@_sums
def squared_distances(addresses, length, width, scale, squares):
    """‖s_a·g_a − s_b·g_b‖² of every pair a < b, from the differences, four partners at a time."""
    clients = addresses.size
    rows = np.zeros((clients + 3, width), np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        for k in range(clients):
            row, factor, mine = _carray(_floats_at(addresses[k] + 4 * start), (size,)), scale[k], rows[k]
            for i in range(size):
                mine[i] = np.float64(row[i]) * factor
        for a in range(clients):
            mine = rows[a]
            for b in range(a + 1, clients, 4):
                one, two, three, four = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
                s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0
                for i in range(size):
                    x = mine[i]
                    s1 += (x - one[i]) * (x - one[i])
                    s2 += (x - two[i]) * (x - two[i])
                    s3 += (x - three[i]) * (x - three[i])
                    s4 += (x - four[i]) * (x - four[i])
                squares[a, b] += s1
                squares[a, b + 1] += s2
                squares[a, b + 2] += s3
                squares[a, b + 3] += s4
