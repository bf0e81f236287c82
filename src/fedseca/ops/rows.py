"""Where the rows of updates lie in memory, for the kernels: as they are, or brought into a buffer piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedseca.ops import kernels
from fedseca.updates import ArrayRow, Recipe, Row, Updates

_PIECE = 1 << 19
"""How many numbers of all rows are brought into a buffer at a time: they should stay in a cache. Fewer would stay in a
faster one, but each piece is a call."""


class Kind(NamedTuple):
    """Numbers that the kernels work on."""

    whole: type[np.signedinteger[Any]]
    """The integers with as many bits."""
    one: Any
    """A 1 of the kind."""


BITS = {torch.float32: Kind(np.int32, np.float32(1)), torch.float64: Kind(np.int64, np.float64(1))}
_WRITTEN = {
    torch.float32: kernels.FLOAT32,
    torch.float64: kernels.FLOAT64,
    torch.float16: kernels.FLOAT16,
    torch.bfloat16: kernels.BFLOAT16,
}
_NOWHERE = np.zeros(0, np.int64)
_PLACES = "places in memory"


@dataclass(eq=False)  # made anew by every primitive: a frozen one would take three times as long
class Rows:
    """K rows, of which `pieces` gives the addresses."""

    updates: Updates
    one: Any
    table: NDArray[np.int64] | None
    """Where each array of each row that is read lies; None if that is not known: then torch reads them."""
    kinds: NDArray[np.int64]
    origin: NDArray[np.int64]
    """The same of the model that rows are differences to; empty if there is none."""
    origin_kinds: NDArray[np.int64]
    relative: NDArray[np.bool_]
    """Which rows are differences to it."""
    offsets: NDArray[np.int64]
    native: int
    """How the numbers that are worked on are written."""
    plain: bool
    """Whether the rows are worked on where they lie."""

    @classmethod
    def of(cls, updates: Updates) -> Rows:
        one = BITS[updates.compute_dtype].one
        if _PLACES not in updates.memo:
            found = _table(updates.sources) or (None, *(_NOWHERE,) * 5)
            native = kernels.FLOAT32 if one.dtype == np.float32 else kernels.FLOAT64
            plain = found[0] is not None and not found[2].size and bool((found[1] == native).all())
            updates.memo[_PLACES] = (*found, native, plain and updates.recipe is None)
        return cls(updates, one, *updates.memo[_PLACES])

    def pieces(self, start: int, stop: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
        """(addresses of all rows, first, last) for one piece of start … stop after the other.

        An address holds until the next piece is asked for.
        """
        recipe = self.updates.recipe
        if self.table is None:
            yield from self._read_by_torch(start, stop)
            return
        if self.plain:
            if not start and self.table.shape[1] == 1:  # one array from its beginning: nothing to look for
                yield self.table[:, 0], start, stop
                return
            first = int(self.offsets.searchsorted(start, side="right")) - 1
            if stop <= self.offsets[first + 1]:
                yield self.table[:, first] + (start - self.offsets[first]) * self.one.itemsize, start, stop
                return
        sources = len(self.table)
        mixes = 0 if recipe is None else len(recipe.divisors)
        # Whole groups of signs, as many as fit.
        size = max(1, _PIECE // (sources + mixes) // kernels.GROUP) * kernels.GROUP
        size = min(size, stop - start)
        buffer = np.empty((sources + 1, size), self.one.dtype)
        mixed = np.empty((mixes, size), self.one.dtype)
        addresses = np.empty(sources, np.int64)
        for first in range(start, stop, size):
            last = min(first + size, stop)
            kernels.gather(
                self.table, self.kinds, self.native, self.origin, self.origin_kinds, self.relative, self.offsets,
                first, last, self.one, buffer, addresses,
            )  # fmt: skip
            yield self._mixed(addresses, last - first, mixed), first, last

    def _mixed(self, addresses: NDArray[np.int64], length: int, mixed: NDArray[Any]) -> NDArray[np.int64]:
        """The addresses of all rows, those that are mixes of the sources included."""
        recipe = self.updates.recipe
        if recipe is None:
            return addresses
        mix(addresses, length, self.one, recipe, mixed)
        return self._in_order(addresses, np.array([row.ctypes.data for row in mixed], np.int64))

    def _in_order(self, sources: NDArray[np.int64], mixes: NDArray[np.int64]) -> NDArray[np.int64]:
        found, following = np.empty(len(self.updates), np.int64), iter(mixes)
        for k, place in enumerate(self.updates.places):
            found[k] = next(following) if place is None else sources[place]
        return found

    def _read_by_torch(self, start: int, stop: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
        size = max(1 << 12, 4 * _PIECE // len(self.updates))
        for first in range(start, stop, size):
            last = min(first + size, stop)
            rows = [piece.contiguous() for piece in self.updates.read(first, last, combine=combine)]
            yield _addresses(rows), first, last

    def sample(self, step: int) -> NDArray[Any]:
        """Every `step`-th coordinate of each row (K × n)."""
        count, recipe = -(-self.updates.dim // step), self.updates.recipe
        if self.table is None:
            size = max(1, 4 * _PIECE // len(self.updates) // step) * step
            pieces = [
                torch.stack(self.updates.read(at, min(at + size, self.updates.dim), step, combine))
                for at in range(0, self.updates.dim, size)
            ]
            return torch.cat(pieces, dim=1).numpy()
        sampled = np.empty((len(self.table), count), self.one.dtype)
        scratch = np.empty(1, self.one.dtype)
        kernels.sample(
            self.table, self.kinds, self.origin, self.origin_kinds, self.relative, self.offsets, step, scratch, sampled
        )
        if recipe is None:
            return sampled
        mixed = np.empty((len(recipe.divisors), count), self.one.dtype)
        mix(np.array([row.ctypes.data for row in sampled], np.int64), count, self.one, recipe, mixed)
        following = iter(mixed)
        return np.stack([next(following) if place is None else sampled[place] for place in self.updates.places])


def mix(addresses: NDArray[np.int64], length: int, one: Any, recipe: Recipe, mixed: NDArray[Any]) -> None:
    width = max(64, min(512, (1 << 14) // len(addresses) // 32 * 32))  # the rows of a block are kept in float64
    kernels.mix(addresses, length, one, width, recipe.ends, recipe.sources, recipe.weights, recipe.divisors, mixed)


def combine(pieces: list[Tensor], recipe: Recipe) -> Sequence[Tensor]:
    """The compiled twin of `combine_rows`."""
    rows = [piece.contiguous() for piece in pieces]
    mixed = torch.empty(len(recipe.divisors), len(rows[0]), dtype=rows[0].dtype)
    mix(_addresses(rows), len(rows[0]), BITS[rows[0].dtype].one, recipe, mixed.numpy())
    return list(mixed)


def _addresses(rows: Sequence[Tensor]) -> NDArray[np.int64]:
    return np.array([row.data_ptr() for row in rows], np.int64)


def _table(rows: Sequence[Row]) -> tuple[NDArray[Any], ...] | None:
    """Where the arrays of rows lie and how they are written, the same of what some of them are differences to, which
    these are, and where each array begins; None if they do not lie in memory, or are cut into different arrays."""
    every: list[ArrayRow] = []
    origin: ArrayRow | None = None
    offsets: tuple[int, ...] = ()
    for row in rows:
        if not isinstance(row, ArrayRow):
            return None
        every.append(row)
        if len(row.offsets) > len(offsets):
            offsets = row.offsets
        if row.before is not origin and row.before is not None:
            if origin is not None:
                return None
            origin = row.before
    relative = np.array([row.before is not None for row in every])
    if origin is not None:
        every.append(origin)
    places, kinds = [], []
    for row in every:
        if not row.segments_in_memory or (len(row.segments) > 1 and row.offsets != offsets):
            return None
        places.append(_places(row, offsets))
        kinds.append(_kinds(row, offsets))
    table, written, beginnings = np.array(places, np.int64), np.array(kinds, np.int64), np.array(offsets, np.int64)
    if origin is None:
        return table, written, _NOWHERE, _NOWHERE, relative, beginnings
    return table[:-1], written[:-1], table[-1], written[-1], relative, beginnings


def _places(row: ArrayRow, offsets: tuple[int, ...]) -> list[int]:
    """A row that is one array is as well cut into those of the others."""
    if row.offsets == offsets:
        return [segment.data_ptr() for segment in row.segments]
    (whole,) = row.segments
    return [whole.data_ptr() + offset * whole.element_size() for offset in offsets[:-1]]


def _kinds(row: ArrayRow, offsets: tuple[int, ...]) -> list[int]:
    kinds = [_WRITTEN[segment.dtype] for segment in row.segments]
    return kinds if row.offsets == offsets else kinds * (len(offsets) - 1)
