"""The loops behind `cpu.py`, compiled by Numba when they are first called and cached on disk from then on.

Each kernel takes the addresses of K rows of numbers, their length, and `one`: a 1 of the kind of the numbers, float32
or float64, for which the kernel is compiled. Rows need not lie next to each other, so nothing is ever stacked; what
does not lie there as such numbers is brought into a buffer first, a piece at a time (`gather`). Magnitudes are compared
by their bits: for numbers of one sign the order of the bits is the order of the numbers, and comparisons of integers
vectorise where those of numbers do not. No kernel starts threads; `cpu.py` calls them from its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray as _carray
from numba import njit

from fedseca.ops import intrinsics, network
from fedseca.ops.intrinsics import (
    BLOCK,
    TILE,
    bits,
    both,
    differ,
    exchange,
    fetch,
    fit,
    flag,
    from_half,
    integers_at,
    magnitude,
    mask,
    minus,
    number,
    numbers_at,
    per_line,
    plus,
    popcount,
    products,
    sign_bit,
    sign_mask,
    words_at,
)  # fmt: skip
from fedseca.ops.network import FOLD_EIGHT, FOLD_FOUR, KEEP_LOWER, MERGE_EIGHT, MERGE_FOUR, PAIR, PATTERNS

LANES = 64
GROUP = 32 * LANES
"""Coordinates whose signs fill one word of 32 bits in each of 64 lanes."""
_CHUNK = 8
"""Groups whose signs are packed before pairs are counted: what was counted is read and written once for them."""
_NEAR, _KEPT = 8, 32
"""Rows that stay in the cache while others come and go: packed signs in the first level, numbers in the second."""
EIGHTH = np.float32(0.125)
FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = range(4)
"""How the numbers of an array are written."""


_BUILT_FROM = hashlib.sha256(b"".join(Path(each.__file__).read_bytes() for each in (intrinsics, network))).hexdigest()
"""What is compiled into the kernels from other files. Numba looks only at this file to tell if what it kept is of use:
the names of the kernels, under which they are kept, have to tell the rest."""


def _compiled(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function.__qualname__ += f"_{_BUILT_FROM[:8]}"
        settings = {"nogil": True, "error_model": "numpy", "boundscheck": False} | options
        try:
            return njit(cache=True, **settings)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # nowhere to write the cache: compile once for each process instead
            return njit(**settings)(function)  # type: ignore[no-any-return]

    return decorate


_sums = _compiled(fastmath={"reassoc", "contract", "nsz"})  # sums may be split over lanes
_in_turn = _compiled(fastmath={"contract", "nsz"})  # what is added one after the other stays so
_rounded_sums = _compiled(fastmath={"reassoc", "nsz"})  # and no product is left unrounded: copies have no distance
_exact = _compiled()


# Rows that do not lie in memory as they are worked on


@_exact
def gather(table, kinds, native, origin, origin_kinds, relative, offsets, start, stop, one, buffer, addresses):
    """The addresses of coordinates start … stop of all rows; what is not there as numbers of this kind is loaded.

    table[k, s] is where array s of row k lies and kinds[k, s] how its numbers are written; `native` is the kind that
    needs no loading. Array s holds the coordinates offsets[s] … offsets[s + 1]. With an `origin` (one more such row,
    empty if there is none) the rows that are `relative` to it are origin − row. Row k is loaded into buffer[k], the
    origin into the last row.
    """
    first = np.searchsorted(offsets, start, side="right") - 1
    alone = stop <= offsets[first + 1]
    size, clients = stop - start, table.shape[0]
    base = np.int64(0)
    if origin.size:
        base = _found(origin, origin_kinds, native, offsets, first, alone, start, size, buffer[clients])
    for k in range(clients):
        addresses[k] = _found(table[k], kinds[k], native, offsets, first, alone, start, size, buffer[k])
        if relative[k]:
            _subtract(base, addresses[k], size, one, buffer[k])
            addresses[k] = np.int64(buffer[k].ctypes.data)


@_exact
def _found(segments, kinds, native, offsets, first, alone, start, size, buffer):
    """Where a piece of a row lies: in the row's own array, or in the buffer, into which it was loaded."""
    if alone and kinds[first] == native:
        return segments[first] + (start - offsets[first]) * np.int64(buffer.itemsize)
    done, s = 0, first
    while done < size:
        skipped = start + done - offsets[s]
        count = min(size - done, offsets[s + 1] - offsets[s] - skipped)
        _load(segments[s], kinds[s], skipped, buffer[done : done + count])
        done, s = done + count, s + 1
    return np.int64(buffer.ctypes.data)


@_exact
def _subtract(base, at, size, one, result):
    origin, values = _carray(numbers_at(base, 0, one), (size,)), _carray(numbers_at(at, 0, one), (size,))
    for i in range(size):
        result[i] = origin[i] - values[i]


@_exact
def _load(address, kind, start, out):
    """Numbers of any kind, as those of `out`."""
    if kind == FLOAT32:
        singles = _carray(numbers_at(address, start, np.float32(1)), (out.size,))
        for i in range(out.size):
            out[i] = singles[i]
    elif kind == FLOAT64:
        doubles = _carray(numbers_at(address, start, np.float64(1)), (out.size,))
        for i in range(out.size):
            out[i] = doubles[i]
    elif kind == BFLOAT16:
        upper = _carray(words_at(address, start), (out.size,))
        for i in range(out.size):
            out[i] = number(np.int32(np.int32(upper[i]) << np.int32(16)))
    else:
        halves = _carray(words_at(address, start), (out.size,))
        for i in range(out.size):
            out[i] = from_half(halves[i])


@_exact
def sample(table, kinds, origin, origin_kinds, relative, offsets, step, scratch, sampled):
    """sampled[k, m] = coordinate m·step of row k; `scratch` is a row of one number."""
    for k in range(table.shape[0]):
        s = 0
        for m in range(sampled.shape[1]):
            place = m * step
            while place >= offsets[s + 1]:
                s += 1
            _load(table[k, s], kinds[k, s], place - offsets[s], scratch)
            value = scratch[0]
            if relative[k]:
                _load(origin[s], origin_kinds[s], place - offsets[s], scratch)
                value = scratch[0] - value
            sampled[k, m] = value


# What the rules are made of


@_exact
def _fill(array, value):
    for i in range(array.size):  # compiled in a fraction of the time that an assignment to a slice takes
        array[i] = value


@_exact
def _fetch(address, start, size, one):
    """Ask for a piece of a row that is worked on next: rows are read in turns, which the processor does not foresee."""
    for place in range(start, start + size, per_line(one)):
        fetch(address, place, one)


@_exact
def measure(addresses, first, length, one, squares, exactly, largest, step, sampled):
    """Adds ‖g_k‖² of each row; raises the bits of max|g_k|, if it is wanted `exactly`; and keeps what of coordinates
    first … first + length is a multiple of `step`: sampled[k, m] is coordinate m·step."""
    for k in range(addresses.size):
        for start in range(0, length, GROUP):
            size = min(GROUP, length - start)
            values = _carray(numbers_at(addresses[k], start, one), (size,))
            squares[k] += _square(values)
            if exactly:
                largest[k] = _largest(_carray(integers_at(addresses[k], start, one), (size,)), largest[k])
            for m in range((first + start + step - 1) // step, (first + start + size - 1) // step + 1):
                sampled[k, m] = values[m * step - first - start]


@_sums
def _square(values):
    square = 0.0
    for i in range(values.size):
        square += np.float64(values[i]) * np.float64(values[i])
    return square


@_exact
def _largest(row, most):
    for i in range(row.size):
        most = max(most, magnitude(row[i]))
    return most


@_exact
def survey(addresses, length, one, low, high, count_signs, agreement, at_low, found, candidates):
    """Σ_j sgn·sgn of all pairs, and for each row which magnitudes lie within its bracket.

    Signs are packed 32 to a word, bit j of lane i being coordinate 64·j + i of a group: any order will do for counting.
    at_low[k] = how many magnitudes are ≤ low; candidates[k, :found[k]] = those strictly between low and high.
    """
    clients = addresses.size
    signs = np.zeros((clients, _CHUNK * LANES), np.uint32)
    present = np.zeros((clients, _CHUNK * LANES), np.uint32)
    inside = np.zeros(LANES, np.uint32)
    tail = np.zeros(GROUP, low.dtype)
    words, zeros = 0, np.zeros(clients, np.bool_)
    for start in range(0, length, GROUP):
        size = min(GROUP, length - start)
        for k in range(clients):
            row = _carray(integers_at(addresses[k], start, one), (GROUP,))
            if size < GROUP:
                _fill(tail, 0)
                for i in range(size):
                    tail[i] = row[i]
                row = tail
            least, beyond = _pack(row, low[k], high[k], signs[k, words : words + LANES], inside)
            at_low[k] += GROUP - beyond
            if size < GROUP and low[k] >= 0:
                at_low[k] -= GROUP - size  # the zeros that fill up the tail are no coordinates
            if count_signs:
                there = present[k, words : words + LANES]
                _fill(there, np.uint32(0xFFFFFFFF))
                if least == 0:
                    zeros[k] = True
                    _pack_present(row, there)
            found[k] = _collect(row, size, inside, candidates[k], found[k])
        words += LANES
        if words == signs.shape[1] or start + GROUP >= length:
            if count_signs:  # in words of 64 bits, of which processors count the bits three times as fast
                _count_agreement(signs.view(np.uint64), present.view(np.uint64), words // 2, zeros, agreement)
            words = 0
            _fill(zeros, False)


@_exact
def _pack(row, low, high, signs, inside):
    """Pack the signs of a group and which magnitudes are within the bracket; the least one, and how many exceed low."""
    least, none = magnitude(fit(-1, low)), np.uint32(0)
    beyond = fit(0, low)
    _fill(signs, 0)
    _fill(inside, 0)
    for j in range(0, 32, 4):
        bit_w, bit_x = np.uint32(1) << np.uint32(j), np.uint32(2) << np.uint32(j)
        bit_y, bit_z = np.uint32(4) << np.uint32(j), np.uint32(8) << np.uint32(j)
        for i in range(LANES):
            w, x = row[j * LANES + i], row[(j + 1) * LANES + i]
            y, z = row[(j + 2) * LANES + i], row[(j + 3) * LANES + i]
            signs[i] |= (bit_w if w < 0 else none) | (bit_x if x < 0 else none)
            signs[i] |= (bit_y if y < 0 else none) | (bit_z if z < 0 else none)
            w, x, y, z = magnitude(w), magnitude(x), magnitude(y), magnitude(z)
            inside[i] |= (bit_w if (w > low) & (w < high) else none) | (bit_x if (x > low) & (x < high) else none)
            inside[i] |= (bit_y if (y > low) & (y < high) else none) | (bit_z if (z > low) & (z < high) else none)
            more = plus(flag(w > low, low), flag(x > low, low))
            beyond = plus(beyond, plus(more, plus(flag(y > low, low), flag(z > low, low))))
            least = min(least, min(min(w, x), min(y, z)))
    return least, beyond


@_exact
def _pack_present(row, there):
    """Pack which coordinates of a group are not zero."""
    _fill(there, 0)
    for j in range(32):
        for i in range(LANES):
            there[i] |= np.uint32(magnitude(row[j * LANES + i]) != 0) << np.uint32(j)


@_exact
def _collect(row, size, inside, candidates, place):
    """Append the magnitudes that are flagged; they are counted even where there is no room for them."""
    for i in range(LANES):
        word = inside[i]
        while word:
            j = popcount((word & (~word + np.uint32(1))) - np.uint32(1))
            if np.int64(j) * LANES + i < size:
                if place < candidates.size:
                    candidates[place] = magnitude(row[np.int64(j) * LANES + i])
                place += 1
            word &= word - np.uint32(1)
    return place


@_exact
def count_magnitudes(addresses, length, one, low, high, counts):
    """How many magnitudes of each row are < low, ≤ low and ≤ high."""
    for k in range(addresses.size):
        row = _carray(integers_at(addresses[k], 0, one), (length,))
        lower, upper = low[k], high[k]
        for start in range(0, length, GROUP):
            below, at_low, at_high = fit(0, lower), fit(0, lower), fit(0, lower)
            for i in range(start, min(start + GROUP, length)):
                found = magnitude(row[i])
                below = plus(below, flag(found < lower, lower))
                at_low = plus(at_low, flag(found <= lower, lower))
                at_high = plus(at_high, flag(found <= upper, lower))
            counts[k, 0] += below
            counts[k, 1] += at_low
            counts[k, 2] += at_high


@_exact
def _count_agreement(signs, present, words, zeros, agreement):
    """Agreements less disagreements of every pair, over so many words of each row: XOR and popcount, and more of it
    for the rows that have `zeros`."""
    clients, all_of_them = signs.shape[0], np.int64(64 * words)
    for first in range(0, clients, _NEAR):
        for second in range(first, clients, _NEAR):
            last = min(second + _NEAR, clients)
            for a in range(first, min(first + _NEAR, clients)):
                counted = agreement[a]
                b = max(a, second)
                while b < last:
                    if zeros[a] | zeros[b]:
                        shared, different = _count_shared(signs[a], signs[b], present[a], present[b], words)
                        counted[b] += shared - 2 * different
                        b += 1
                    elif b + 4 <= last and not (zeros[b + 1] | zeros[b + 2] | zeros[b + 3]):
                        # Four at a time: the row is read once for all of them.
                        others = signs[b], signs[b + 1], signs[b + 2], signs[b + 3]
                        different_from = _count_different(signs[a], others, words)
                        for i in range(4):
                            counted[b + i] += all_of_them - 2 * np.int64(different_from[i])
                        b += 4
                    else:
                        others = signs[b], signs[b], signs[b], signs[b]
                        counted[b] += all_of_them - 2 * np.int64(_count_different(signs[a], others, words)[0])
                        b += 1


@_exact
def _count_different(mine, others, words):
    """In how many signs a row differs from each of four others."""
    first, second, third, fourth = others
    p, q, r, s = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(words):
        x = mine[i]
        p, q = plus(p, popcount(differ(x, first[i]))), plus(q, popcount(differ(x, second[i])))
        r, s = plus(r, popcount(differ(x, third[i]))), plus(s, popcount(differ(x, fourth[i])))
    return p, q, r, s


@_exact
def _count_shared(one, other, of_one, of_other, words):
    """In how many coordinates neither is zero, and in how many of these they differ."""
    shared, different = np.uint64(0), np.uint64(0)
    for i in range(words):
        both_there = both(of_one[i], of_other[i])
        shared = plus(shared, popcount(both_there))
        different = plus(different, popcount(both(differ(one[i], other[i]), both_there)))
    return np.int64(shared), np.int64(different)


@_exact
def mirror(square):
    """Copies what stands above the diagonal below it, tile by tile: a column at a time would miss the cache."""
    for first in range(0, square.shape[0], _NEAR):
        for second in range(first, square.shape[0], _NEAR):
            for a in range(first, min(first + _NEAR, square.shape[0])):
                for b in range(max(a + 1, second), min(second + _NEAR, square.shape[0])):
                    square[b, a] = square[a, b]


_pair, _merge_four, _merge_eight, _fold_four, _fold_eight, _sort_eight = (exchange(each) for each in PATTERNS)


@_exact
def _select(network, rows, size):
    """Apply a sorting network to whole rows, whose width is a multiple of BLOCK."""
    like, length = rows[0, 0], (size + BLOCK - 1) // BLOCK * BLOCK
    address, row = np.int64(rows.ctypes.data), np.int64(rows.strides[0])
    for s in range(network.shape[0]):
        kind, wanted, step = network[s, 0], network[s, 1], network[s]
        a, b = address + row * step[2], address + row * step[3]
        c, d = address + row * step[4], address + row * step[5]
        e, f = address + row * step[6], address + row * step[7]
        g, h = address + row * step[8], address + row * step[9]
        if kind == PAIR and wanted != 3:
            lower, upper = rows[step[2]], rows[step[3]]
            if wanted == KEEP_LOWER:
                for i in range(length):
                    lower[i] = min(lower[i], upper[i])
            else:
                for i in range(length):
                    upper[i] = max(lower[i], upper[i])
        elif kind == PAIR:
            for i in range(0, length, BLOCK):
                _pair((a, b), i, like)
        elif kind == MERGE_FOUR:
            for i in range(0, length, BLOCK):
                _merge_four((a, b, c, d), i, like)
        elif kind == MERGE_EIGHT:
            for i in range(0, length, BLOCK):
                _merge_eight((a, b, c, d, e, f, g, h), i, like)
        elif kind == FOLD_FOUR:
            for i in range(0, length, BLOCK):
                _fold_four((a, b, c, d), i, like)
        elif kind == FOLD_EIGHT:
            for i in range(0, length, BLOCK):
                _fold_eight((a, b, c, d, e, f, g, h), i, like)
        else:
            for i in range(0, length, BLOCK):
                _sort_eight((a, b, c, d, e, f, g, h), i, like)


@_exact
def elect_and_merge(
    addresses, length, one, width, network, factors, thresholds, takes_part, ballots, clamp, clip_merged,
    survivors_vote, result, survived, adopted,
):  # fmt: skip
    """Vote, clip, clamp, sparsify and merge, a block of `width` coordinates at a time.

    factors[k] are two numbers whose product is the clip factor (it may be too small for one of them); a magnitude
    survives if its bits exceed thresholds[k] ≥ 0.
    """
    clients, whole = addresses.size, thresholds.dtype
    middle = (clients - 1) // 2
    nothing, most = fit(0, thresholds[0]), magnitude(fit(-1, thresholds[0]))
    rows = np.zeros((clients if clamp else 1, width), whole)
    unscaled = np.ones(2, factors.dtype)
    votes, counted, floor = np.zeros(width, whole), np.zeros(width, whole), np.zeros(width, whole)
    partial, total = np.zeros(width, factors.dtype), np.zeros(width, np.float64)
    unbounded, nobody = np.full(width, most, whole), np.full(width, most, whole)
    entering = np.zeros(4, np.int64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _fill(votes, 0)
        _fill(counted, 0)
        _fill(total, 0)
        for k in range(clients):
            _fetch(addresses[k], start + width, width, one)
            if clamp:
                raw = _carray(integers_at(addresses[k], start, one), (size,))
                _scale(raw, factors[k, 0], factors[k, 1], rows[k])
        for k in range(0, clients - 3, 4):  # four at a time: the votes are read and written once for all of them
            a, b, c, d = k, k + 1, k + 2, k + 3
            _vote_four(
                _carray(integers_at(addresses[a], start, one), (size,)),
                _carray(integers_at(addresses[b], start, one), (size,)),
                _carray(integers_at(addresses[c], start, one), (size,)),
                _carray(integers_at(addresses[d], start, one), (size,)),
                ballots[a], ballots[b], ballots[c], ballots[d],
                thresholds[a] if survivors_vote else nothing, thresholds[b] if survivors_vote else nothing,
                thresholds[c] if survivors_vote else nothing, thresholds[d] if survivors_vote else nothing,
                votes,
            )  # fmt: skip
        for k in range(clients - clients % 4, clients):
            raw = _carray(integers_at(addresses[k], start, one), (size,))
            _vote(raw, ballots[k], thresholds[k] if survivors_vote else nothing, votes)
        bound = unbounded
        if clamp:
            _select(network, rows, size)
            bound = rows[middle]
        _close(votes, floor, size)
        if clamp:
            _close_if_most_are_zero(addresses, start, size, one, bound, floor, counted)
        for k in range(clients):
            # Eight clients are summed in their own kind, as eighths so that 3e38 does not overflow, before they are
            # added in float64: less work, and digits to spare.
            if k % 8 == 0:
                _fill(partial, 0)
            if k % 2 == 1:
                continue
            _fill(entering, 0)
            raw = _carray(integers_at(addresses[k], start, one), (size,))
            factor = factors[k] if clip_merged else unscaled
            if k + 1 < clients:
                other = _carray(integers_at(addresses[k + 1], start, one), (size,))
                another = factors[k + 1] if clip_merged else unscaled
                _merge_two(
                    raw, other, factor, another, thresholds[k], thresholds[k + 1],
                    floor if takes_part[k] else nobody, floor if takes_part[k + 1] else nobody,
                    votes, bound, counted, partial, entering,
                )  # fmt: skip
                survived[k + 1] += entering[2]
                adopted[k + 1] += entering[3]
            else:
                here = floor if takes_part[k] else nobody  # its clip factor is 0: τ = 0
                _merge(raw, factor, thresholds[k], here, votes, bound, counted, partial, entering)
            survived[k] += entering[0]
            adopted[k] += entering[1]
            if k % 8 >= 6 or k >= clients - 2:
                for i in range(size):
                    total[i] += np.float64(partial[i]) * 8
        for i in range(size):
            merged = total[i] / np.float64(max(counted[i], fit(1, nothing)))
            result[start + i] = merged if votes[i] >= 0 else -merged


@_exact
def _scale(raw, first, second, scaled):
    """The bits of |g|·first·second."""
    if first == 1:
        for i in range(raw.size):
            scaled[i] = bits(number(magnitude(raw[i])) * second)
    else:
        for i in range(raw.size):
            scaled[i] = bits(number(magnitude(raw[i])) * first * second)


@_exact
def _said(raw, ballot, least):
    """±ballot where the magnitude exceeds `least`, else 0."""
    negative = sign_mask(raw)
    return both(minus(differ(ballot, negative), negative), mask(magnitude(raw) > least, least))


@_exact
def _vote(raw, ballot, least, votes):
    for i in range(raw.size):
        votes[i] = plus(votes[i], _said(raw[i], ballot, least))


@_exact
def _vote_four(a, b, c, d, ballot_a, ballot_b, ballot_c, ballot_d, least_a, least_b, least_c, least_d, votes):
    for i in range(a.size):
        first = plus(_said(a[i], ballot_a, least_a), _said(b[i], ballot_b, least_b))
        second = plus(_said(c[i], ballot_c, least_c), _said(d[i], ballot_d, least_d))
        votes[i] = plus(votes[i], plus(first, second))


@_exact
def _close(votes, floor, size):
    """What a magnitude must exceed to enter: nothing does where nobody was elected."""
    for i in range(size):
        floor[i] = magnitude(mask(votes[i] == 0, votes[i]))


@_exact
def _close_if_most_are_zero(addresses, start, size, one, bound, floor, scratch):
    """Where more than half of the gradients are exactly zero, so is μ, and nothing enters; `scratch` is zero."""
    least = bound[0]
    for i in range(size):
        least = min(least, bound[i])
    if least > 0:  # nowhere
        return
    half = fit((addresses.size - 1) // 2, least)
    for k in range(addresses.size):
        raw = _carray(integers_at(addresses[k], start, one), (size,))
        for i in range(size):
            scratch[i] = plus(scratch[i], flag(magnitude(raw[i]) == 0, half))
    for i in range(size):
        floor[i] = max(floor[i], magnitude(mask(scratch[i] > half, half)))
    _fill(scratch, 0)


@_exact
def _merge(raw, factor, threshold, floor, votes, bound, counted, partial, entering):
    """Adds min[μ, value] where the gradient survives and agrees with the vote; how many survive, how many enter."""
    first, second = factor[0], factor[1]
    surviving, entered = fit(0, threshold), fit(0, threshold)
    for i in range(raw.size):
        survives, enters, value = _taken(raw[i], sign_bit(votes[i]), threshold, floor[i], bound[i], first, second)
        surviving, entered = minus(surviving, survives), minus(entered, enters)
        counted[i] = minus(counted[i], enters)
        partial[i] += value
    entering[0] += surviving
    entering[1] += entered


@_exact
def _merge_two(
    a, b, factor_a, factor_b, threshold_a, threshold_b, floor_a, floor_b, votes, bound, counted, partial, entering
):
    """The same of two rows, one after the other: what is kept per coordinate is read and written once for both."""
    first_a, second_a, first_b, second_b = factor_a[0], factor_a[1], factor_b[0], factor_b[1]
    surviving_a, entered_a = fit(0, threshold_a), fit(0, threshold_a)
    surviving_b, entered_b = fit(0, threshold_a), fit(0, threshold_a)
    for i in range(a.size):
        flip = sign_bit(votes[i])
        survives_a, enters_a, x = _taken(a[i], flip, threshold_a, floor_a[i], bound[i], first_a, second_a)
        survives_b, enters_b, y = _taken(b[i], flip, threshold_b, floor_b[i], bound[i], first_b, second_b)
        surviving_a, entered_a = minus(surviving_a, survives_a), minus(entered_a, enters_a)
        surviving_b, entered_b = minus(surviving_b, survives_b), minus(entered_b, enters_b)
        counted[i] = minus(minus(counted[i], enters_a), enters_b)
        partial[i] = (partial[i] + x) + y
    entering[0] += surviving_a
    entering[1] += entered_a
    entering[2] += surviving_b
    entering[3] += entered_b


@_exact
def _taken(raw, flip, threshold, floor, bound, first, second):
    """Whether a gradient survives, whether it enters (as masks), and an eighth of what enters.

    `flip` is the bit of the elected sign: with it a gradient that agrees is positive, and one that does not negative.
    """
    towards = differ(raw, flip)
    survives = mask(magnitude(raw) > threshold, threshold)
    enters = mask(towards > max(threshold, floor), threshold)
    value = both(min(bound, bits(number(towards) * first * second)), enters)
    return survives, enters, number(value) * EIGHTH


@_exact
def _in_order(bits_of_number):
    """Bits in the order of the numbers, and back."""
    return differ(bits_of_number, magnitude(sign_mask(bits_of_number)))


@_exact
def _key(bits_of_number):
    """The same, where −0.0 is 0.0."""
    key = _in_order(bits_of_number)
    return plus(key, flag(key == -1, key))


@_exact
def _in_ranks(addresses, start, size, one, width, network, rows):
    """A block of all rows as keys, sorted as far as the network does: rows[r] is what has rank r."""
    for k in range(addresses.size):
        raw, mine = _carray(integers_at(addresses[k], start, one), (size,)), rows[k]
        _fetch(addresses[k], start + width, width, one)
        for i in range(size):
            mine[i] = _key(raw[i])
    _select(network, rows, size)


@_exact
def _count_within(addresses, start, size, one, lowest, highest, chosen):
    """Adds how many numbers of each row lie between two keys, which belong to them, coordinate by coordinate."""
    for k in range(addresses.size):
        raw = _carray(integers_at(addresses[k], start, one), (size,))
        hits = fit(0, lowest[0])
        for i in range(size):
            key = _key(raw[i])
            hits = plus(hits, flag((key >= lowest[i]) & (key <= highest[i]), key))
        chosen[k] += hits


@_exact
def select_middle(addresses, length, one, width, network, trim, result, chosen, scratch):
    """The coordinate-wise mean of the ranks trim … K−1−trim (of one rank: that value itself)."""
    clients = addresses.size
    kept = clients - 2 * trim if trim >= 0 else 1
    first = trim if trim >= 0 else (clients - 1) // 2
    rows = np.zeros((clients, width), scratch.dtype)
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _in_ranks(addresses, start, size, one, width, network, rows)
        _fill(total, 0)
        for rank in range(first, first + kept):
            mine = rows[rank]
            for i in range(size):
                total[i] += np.float64(number(_in_order(mine[i])))
        for i in range(size):
            result[start + i] = total[i] / kept
        _count_within(addresses, start, size, one, rows[first], rows[first + kept - 1], chosen)


@_exact
def near_median(addresses, length, one, width, network, keep, result, chosen, scratch):
    """The coordinate-wise mean of the `keep` values nearest to the median, all ranks being sorted.

    They are the ranks begin … begin + keep − 1; `begin` is the number of the ranks s for which the value of rank s is
    farther from the median than that of rank s + keep.
    """
    clients, spare = addresses.size, addresses.size - keep
    rows = np.zeros((clients, width), scratch.dtype)
    begin = np.zeros(width, scratch.dtype)
    lowest, highest = np.zeros(width, scratch.dtype), np.zeros(width, scratch.dtype)
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _in_ranks(addresses, start, size, one, width, network, rows)
        _fill(begin, 0)
        for s in range(spare):
            _count_farther(rows[s], rows[s + keep], rows[(clients - 1) // 2], begin, size)
        for s in range(spare + 1):
            _put_where(begin, fit(s, begin[0]), rows[s], lowest, size)
            _put_where(begin, fit(s, begin[0]), rows[s + keep - 1], highest, size)
        _fill(total, 0)
        for rank in range(clients):
            if spare <= rank < keep:  # wherever the window begins, this rank is in it
                mine = rows[rank]
                for i in range(size):
                    total[i] += np.float64(number(_in_order(mine[i])))
            else:
                _add_where(begin, fit(rank - keep, begin[0]), fit(rank, begin[0]), rows[rank], total, size)
        for i in range(size):
            result[start + i] = total[i] / keep
        _count_within(addresses, start, size, one, lowest, highest, chosen)


@_exact
def _count_farther(lower, upper, middle, count, size):
    """Adds 1 where the lower value is farther from the middle one than the upper value is."""
    for i in range(size):
        centre = np.float64(number(_in_order(middle[i])))
        below = centre - np.float64(number(_in_order(lower[i])))
        above = np.float64(number(_in_order(upper[i]))) - centre
        count[i] = plus(count[i], flag(below > above, count[i]))


@_exact
def _put_where(begin, here, row, result, size):
    """The numbers of a row where the window begins at a rank."""
    for i in range(size):
        there = mask(begin[i] == here, here)
        result[i] = differ(result[i], both(differ(result[i], row[i]), there))


@_exact
def _add_where(begin, before, last, row, total, size):
    """Adds the numbers of a row where the window begins after `before` and not after `last`."""
    for i in range(size):
        inside = mask((begin[i] > before) & (begin[i] <= last), last)
        total[i] += np.float64(number(both(_in_order(row[i]), inside)))


@_in_turn
def _combine(addresses, start, size, one, weights, total):
    """Σ_k w_k·g_k of one block, summed in float64."""
    _fill(total, 0)
    clients = addresses.size
    for k in range(clients):
        _fetch(addresses[k], start + size, size, one)
    for k in range(0, clients - 3, 4):  # four at a time: the sum is read and written once for all of them
        a = _carray(numbers_at(addresses[k], start, one), (size,))
        b = _carray(numbers_at(addresses[k + 1], start, one), (size,))
        c = _carray(numbers_at(addresses[k + 2], start, one), (size,))
        d = _carray(numbers_at(addresses[k + 3], start, one), (size,))
        w1, w2, w3, w4 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for i in range(size):
            two = (total[i] + w1 * np.float64(a[i])) + w2 * np.float64(b[i])
            total[i] = (two + w3 * np.float64(c[i])) + w4 * np.float64(d[i])
    for k in range(clients - clients % 4, clients):
        row, weight = _carray(numbers_at(addresses[k], start, one), (size,)), weights[k]
        for i in range(size):
            total[i] += weight * np.float64(row[i])


@_exact
def mix(addresses, length, one, width, ends, sources, weights, divisors, mixed):
    """mixed[m] = Σ_s w_s·g_s / d over the sources of each mix, in float64 and in their order, a block at a time."""
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        for m in range(ends.size - 1):
            _fill(total, 0)
            at = ends[m]
            while at + 4 <= ends[m + 1]:  # four at a time: the sum is read and written once for all of them
                a = _carray(numbers_at(addresses[sources[at]], start, one), (size,))
                b = _carray(numbers_at(addresses[sources[at + 1]], start, one), (size,))
                c = _carray(numbers_at(addresses[sources[at + 2]], start, one), (size,))
                d = _carray(numbers_at(addresses[sources[at + 3]], start, one), (size,))
                w1, w2, w3, w4 = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
                for i in range(size):
                    first = (total[i] + w1 * np.float64(a[i])) + w2 * np.float64(b[i])
                    total[i] = (first + w3 * np.float64(c[i])) + w4 * np.float64(d[i])
                at += 4
            while at < ends[m + 1]:
                a, w1 = _carray(numbers_at(addresses[sources[at]], start, one), (size,)), weights[at]
                for i in range(size):
                    total[i] += w1 * np.float64(a[i])
                at += 1
            out = mixed[m]
            for i in range(size):
                out[start + i] = total[i] / divisors[m]


@_sums
def weighted_sum(addresses, length, one, width, weights, result):
    """Σ_k w_k·g_k."""
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _combine(addresses, start, size, one, weights, total)
        for i in range(size):
            result[start + i] = total[i]


@_sums
def residual_squares(addresses, length, one, width, weights, squares):
    """‖g_k − Σ_l w_l·g_l‖² of each row, in one read."""
    total = np.zeros(width, np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        _combine(addresses, start, size, one, weights, total)
        for k in range(addresses.size):
            row = _carray(numbers_at(addresses[k], start, one), (size,))
            square = 0.0
            for i in range(size):
                difference = np.float64(row[i]) - total[i]
                square += difference * difference
            squares[k] += square


@_sums
def squared_distances(addresses, length, one, width, scale, squares):
    """‖s_a·g_a − s_b·g_b‖² of every pair a < b, from the differences, four partners at a time."""
    clients = addresses.size
    rows = np.zeros((clients + 3, width), np.float64)
    for start in range(0, length, width):
        size = min(width, length - start)
        for k in range(clients):
            row, factor, mine = _carray(numbers_at(addresses[k], start, one), (size,)), scale[k], rows[k]
            for i in range(size):
                mine[i] = np.float64(row[i]) * factor
        for a in range(clients):
            mine = rows[a]
            for b in range(a + 1, clients, 4):
                first, second, third, fourth = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
                s1, s2, s3, s4 = 0.0, 0.0, 0.0, 0.0
                for i in range(size):
                    x = mine[i]
                    s1 += (x - first[i]) * (x - first[i])
                    s2 += (x - second[i]) * (x - second[i])
                    s3 += (x - third[i]) * (x - third[i])
                    s4 += (x - fourth[i]) * (x - fourth[i])
                squares[a, b] += s1
                squares[a, b + 1] += s2
                squares[a, b + 2] += s3
                squares[a, b + 3] += s4


@_rounded_sums
def squares_of_pairs(addresses, length, one, width, scale, pairs, squares):
    """Adds ‖s_a·g_a − s_b·g_b‖² of each pair, from the differences."""
    for start in range(0, length, width):
        size = min(width, length - start)
        for p in range(pairs.shape[0]):
            a, b = pairs[p, 0], pairs[p, 1]
            mine = _carray(numbers_at(addresses[a], start, one), (size,))
            other = _carray(numbers_at(addresses[b], start, one), (size,))
            square = 0.0
            for i in range(size):
                difference = scale[a] * np.float64(mine[i]) - scale[b] * np.float64(other[i])
                square += difference * difference
            squares[p] += square


@_sums
def gram(addresses, length, one, width, shares, result):
    """Adds ⟨c_a, c_b⟩ of every pair a ≤ b of the rows c_k = g_k − m with m = Σ_k share_k·g_k, and of m, which is one
    more row after them, tile by tile."""
    clients, count = addresses.size, result.shape[0]
    rows = np.zeros((count, width + 8), np.float64)  # a power of two apart, they would push each other out of the cache
    centre = rows[clients]
    first, row, out = np.int64(rows.ctypes.data), np.int64(rows.strides[0]), np.int64(result.ctypes.data)
    for start in range(0, length, width):
        size = min(width, length - start)
        padded = (size + 7) // 8 * 8  # with zeros
        _fill(centre, 0)
        for k in range(clients):
            values, share = _carray(numbers_at(addresses[k], start, one), (size,)), shares[k]
            _fetch(addresses[k], start + width, width, one)
            for i in range(size):
                centre[i] += share * np.float64(values[i])
        for k in range(clients):
            values, mine = _carray(numbers_at(addresses[k], start, one), (size,)), rows[k]
            for i in range(size):
                mine[i] = np.float64(values[i]) - centre[i]
            for i in range(size, padded):
                mine[i] = 0
        for near in range(0, count, _KEPT):
            last = min(near + _KEPT, count)
            for a in range(0, last, TILE):
                some = (first + row * a, first + row * (a + 1), first + row * (a + 2), first + row * (a + 3))
                for b in range(max(a, near), last, TILE):
                    others = (first + row * b, first + row * (b + 1), first + row * (b + 2), first + row * (b + 3))
                    products(some, others, padded, out + (a * count + b) * 8, count)
