"""Sorting networks that are cut down to the ranks one wants.

A network sorts K rows with a fixed list of comparisons, so that each comparison runs over whole rows at once, SIMD
across coordinates. Batcher's merge exchange gives the list; what the wanted ranks do not depend on is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

KEEP_LOWER, KEEP_UPPER = 1, 2


@lru_cache(maxsize=256)
def selection_network(count: int, first: int, last: int) -> NDArray[np.int32]:
    """(lower row, upper row, which results are needed) for each comparison that ranks first … last of `count` need."""
    needed = set(range(first, last + 1))
    kept = []
    for lower, upper in reversed(list(_merge_exchange(count))):
        wanted = KEEP_LOWER * (lower in needed) | KEEP_UPPER * (upper in needed)
        if wanted:
            kept.append((lower, upper, wanted))
            needed |= {lower, upper}
    return np.array(kept[::-1], dtype=np.int32).reshape(-1, 3)


def _merge_exchange(count: int) -> Iterator[tuple[int, int]]:
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
