"""Sorting networks that are cut down to the ranks one wants.

A network sorts K rows with a fixed list of comparisons, so that each comparison runs over whole rows at once, SIMD
across coordinates. What costs time is not to compare but to read and write the rows: so comparisons are taken together
to steps that read up to eight rows, compare them in registers, and write them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Comparison = tuple[int, int]
"""Two rows, of which the first gets the lesser numbers."""

_HALVES = ((0, 2), (1, 3), (4, 6), (5, 7))
_NEIGHBOURS = ((0, 1), (2, 3), (4, 5), (6, 7))
PATTERNS: tuple[tuple[Comparison, ...], ...] = (
    _NEIGHBOURS[:1],
    (*_HALVES[:2], *_NEIGHBOURS[:2]),
    ((0, 4), (1, 5), (2, 6), (3, 7), *_HALVES, *_NEIGHBOURS),
    ((0, 3), (1, 2), *_NEIGHBOURS[:2]),
    ((0, 7), (1, 6), (2, 5), (3, 4), *_HALVES, *_NEIGHBOURS),
    (
        *(*_NEIGHBOURS, *_HALVES, (1, 2), (5, 6), (0, 4), (3, 7)),
        *((1, 5), (2, 6), (1, 4), (3, 6), (2, 4), (3, 5), (3, 4)),
    ),
)
"""What a step can do to the rows it names: go on with a merge, begin one (fold), or sort eight."""
PAIR, MERGE_FOUR, MERGE_EIGHT, FOLD_FOUR, FOLD_EIGHT, SORT_EIGHT = range(6)
ROWS = tuple(1 + max(upper for _, upper in pattern) for pattern in PATTERNS)
MOST_ROWS = max(ROWS)
KEEP_LOWER, KEEP_UPPER = 1, 2

Step = tuple[int, tuple[int, ...]]
"""A pattern, and the rows that it is applied to."""


@lru_cache(maxsize=256)
def selection_network(count: int, first: int, last: int) -> NDArray[np.int32]:
    """The steps that ranks first … last of `count` need: pattern, which results of a pair are needed, the rows."""
    wide = _needed(_in_bounds(_merge_sort(count), count), first, last)
    narrow = _needed(((PAIR, pair) for pair in _merge_exchange(count)), first, last)
    return min(wide, narrow, key=_cost)


def comparisons(step: Sequence[int]) -> list[Comparison]:
    """What a step compares, in order."""
    kind, _, *rows = step
    return [(rows[lower], rows[upper]) for lower, upper in PATTERNS[kind]]


def _cost(steps: Iterable[Sequence[int]]) -> float:
    """Rows read and written, and a little for each comparison."""
    return sum(ROWS[step[0]] + len(PATTERNS[step[0]]) / 3 for step in steps)


def _needed(steps: Iterable[Step], first: int, last: int) -> NDArray[np.int32]:
    """The steps on which ranks first … last depend."""
    needed = set(range(first, last + 1))
    kept: list[list[int]] = []
    for kind, rows in reversed(list(steps)):
        singly: list[list[int]] = []
        for lower, upper in reversed([(rows[a], rows[b]) for a, b in PATTERNS[kind]]):
            if results := KEEP_LOWER * (lower in needed) | KEEP_UPPER * (upper in needed):
                singly.append([PAIR, results, lower, upper, *[0] * (MOST_ROWS - 2)])
                needed |= {lower, upper}
        whole = [[kind, KEEP_LOWER | KEEP_UPPER, *rows, *[0] * (MOST_ROWS - len(rows))]]
        kept += singly if kind == PAIR or _cost(singly) < _cost(whole) else whole
    return np.array(kept[::-1], dtype=np.int32).reshape(-1, 2 + MOST_ROWS)


def _pairs(kind: int, rows: tuple[int, ...]) -> Iterator[Step]:
    return ((PAIR, (rows[lower], rows[upper])) for lower, upper in PATTERNS[kind])


def _in_bounds(steps: Iterable[Step], count: int) -> Iterator[Step]:
    """Rows beyond the last stand for numbers that exceed all others: they stay where they are."""
    for kind, rows in steps:
        if max(rows) < count:
            yield kind, rows
        else:
            yield from (pair for pair in _pairs(kind, rows) if max(pair[1]) < count)


def _merge_sort(count: int) -> Iterator[Step]:
    """Eight rows at a time are sorted, then sorted runs are merged, two at a time (Batcher's bitonic merge)."""
    size = 1 << max(3, (count - 1).bit_length())
    yield from ((SORT_EIGHT, tuple(range(start, start + 8))) for start in range(0, size, 8))
    run = 16
    while run <= size:
        for start in range(0, size, run):
            yield from _merge(range(start, start + run))
        run *= 2


def _merge(rows: range) -> Iterator[Step]:
    """Two sorted halves: the second is folded onto the first, then halves of halves are compared, two or three rounds
    of it in a step."""
    begun, kinds = False, {False: {2: FOLD_FOUR, 3: FOLD_EIGHT}, True: {1: PAIR, 2: MERGE_FOUR, 3: MERGE_EIGHT}}
    left = len(rows).bit_length() - 1
    while left > 0:
        rounds = 2 if left in (2, 4) else min(left, 3)
        gap = 1 << (left - rounds)  # between the rows of a step
        for start in range(0, len(rows), 1 << left):
            part = rows[start : start + (1 << left)]
            for i in range(gap):
                chosen = tuple(part[i::gap])
                if not begun:  # the upper half is mirrored: the last row stands for the first
                    half = chosen[: len(chosen) // 2]
                    chosen = (*half, *(part[0] + part[-1] - row for row in reversed(half)))
                yield kinds[begun][rounds], chosen
        begun, left = True, left - rounds


def _merge_exchange(count: int) -> Iterator[Comparison]:
    """Batcher's odd-even merge sort for any count (Knuth, The Art of Computer Programming 3, 5.2.2 M)."""
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            for i in range(count - d):
                if i & p == r:
                    yield i, i + d
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
