"""What one client's update looks like: the names, shapes and dtypes that lead from arrays to a vector and back."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Arrays = Mapping[str, Tensor]
"""One client: its arrays by name. A plain vector is the one array named ''."""

BufferPolicy = Literal["median", "aggregate"]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_RUNNING_STATISTICS = ("running_mean", "running_var")
_VARIANCE = "running_var"


class Malformed(Exception):
    """One client's arrays cannot be used; the message says why. Screening turns it into a rejection."""


def is_finite(array: Tensor) -> bool:
    """Whether there is no NaN and no Inf in it; nothing of its size is allocated."""
    if not array.is_floating_point() or not array.numel():
        return True
    return all(math.isfinite(extreme) for extreme in array.aminmax())  # a NaN is both


def kind_of(dtype: torch.dtype) -> str:
    """The dtype's kind: clients of one kind may differ in precision, never in kind."""
    if dtype in FLOATS:
        return "floating point"
    if dtype in _INTEGERS:
        return "integer"
    allowed = ", ".join(str(d).removeprefix("torch.") for d in FLOATS)
    raise Malformed(f"dtype {str(dtype).removeprefix('torch.')} is not supported (allowed: {allowed})")


@dataclass(frozen=True)
class Entry:
    """One named array of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def structure(self) -> tuple[str, tuple[int, ...], str]:
        """What all clients must agree on."""
        return self.name, self.shape, kind_of(self.dtype)

    @property
    def is_variance(self) -> bool:
        return self.name.rpartition(".")[2] == _VARIANCE


@dataclass(frozen=True)
class Layout:
    """The arrays of one round in order. Parameters make up the vector; buffers and counters stand beside it."""

    entries: tuple[Entry, ...]
    buffers: BufferPolicy = "median"

    @classmethod
    def of(cls, arrays: Arrays, buffers: BufferPolicy = "median") -> Layout:
        """The layout of one client or global model; `Malformed` if there is nothing to aggregate in it."""
        described = tuple((name, tuple(value.shape), value.dtype) for name, value in arrays.items())
        return _layout_of(described, buffers)

    @classmethod
    def checked(cls, entries: tuple[Entry, ...], buffers: BufferPolicy) -> Layout:
        """The layout of these entries; `Malformed` if there is nothing to aggregate in them."""
        layout = cls(entries, buffers)
        for entry in layout.entries:
            kind = entry.structure[2]
            if not entry.name and kind != "floating point":
                raise Malformed(f"dtype {str(entry.dtype).removeprefix('torch.')} is not floating point")
            if not entry.name and len(entry.shape) != 1:
                raise Malformed(f"shape {entry.shape} is not one-dimensional")
        if layout.dim == 0:
            raise Malformed("empty: no floating-point coordinate in it")
        return layout

    @classmethod
    def elect(cls, layouts: Sequence[Layout], buffers: BufferPolicy = "median") -> Layout | None:
        """The layout that more than half of the clients have; None if there is none.

        Names, shapes and kinds are elected first and the precision among those that agree: a majority is not split by
        differing in precision alone.
        """
        if layouts and all(layout is layouts[0] for layout in layouts):
            return replace(layouts[0], buffers=buffers) if layouts[0].buffers != buffers else layouts[0]
        structures = Counter(layout.structure for layout in layouts)
        winner, votes = structures.most_common(1)[0] if structures else ((), 0)
        if 2 * votes <= len(layouts):
            return None
        agreeing = Counter(layout for layout in layouts if layout.structure == winner)
        return replace(agreeing.most_common(1)[0][0], buffers=buffers)

    def in_order_of(self, clients: Sequence[Arrays]) -> Layout:
        """The same entries in the clients' order, if none of them has this one: most of them decide."""
        by_name = {e.name: e for e in self.entries}
        orders = Counter(tuple(arrays) for arrays in clients if arrays.keys() == by_name.keys())
        order = orders.most_common(1)[0][0] if orders and tuple(by_name) not in orders else by_name
        return Layout(tuple(by_name[name] for name in order), self.buffers)

    def mismatch(self, arrays: Arrays, *, ordered: bool = True) -> str | None:
        """Why these arrays do not fit this layout, for people; None if they do."""
        expected = {e.name: e for e in self.entries}
        if missing := [name for name in expected if name not in arrays]:
            return f"missing key {_some(missing)}"
        if extra := [name for name in arrays if name not in expected]:
            return f"extra key {_some(extra)}"
        if ordered and list(expected) != list(arrays):
            first = next(name for name, want in zip(arrays, expected, strict=True) if name != want)
            return f"keys reordered, first at {first!r}"
        for ours in self.entries:
            theirs = Entry(ours.name, tuple(arrays[ours.name].shape), arrays[ours.name].dtype)
            where = f" of {ours.name!r}" if ours.name else ""
            if ours.shape != theirs.shape:
                return f"shape {theirs.shape}{where}, expected {ours.shape}"
            if ours.structure != theirs.structure:
                return f"dtype {str(theirs.dtype).removeprefix('torch.')}{where}, expected {ours.structure[2]}"
        return None

    @cached_property
    def structure(self) -> tuple[Any, ...]:
        """What all clients must agree on."""
        return tuple(entry.structure for entry in self.entries)

    def is_parameter(self, entry: Entry) -> bool:
        """Whether the entry is part of the vector that the rule sees."""
        if kind_of(entry.dtype) != "floating point":
            return False
        statistic = entry.name.rpartition(".")[2] in _RUNNING_STATISTICS
        return self.buffers == "aggregate" or not statistic

    @cached_property
    def parameters(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if self.is_parameter(e))

    @cached_property
    def beside(self) -> tuple[Entry, ...]:
        """Running statistics and counters: part of the model, not of the gradient."""
        return tuple(e for e in self.entries if not self.is_parameter(e))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each parameter starts in the vector, and the end."""
        return tuple(itertools.accumulate((e.size for e in self.parameters), initial=0))

    @cached_property
    def dim(self) -> int:
        return self.offsets[-1]

    @cached_property
    def is_vector(self) -> bool:
        return [e.name for e in self.entries] == [""]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the vector: the input's, or the widest of them."""
        return _widest(e.dtype for e in self.parameters)

    @cached_property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def locate(self, coordinate: int) -> str:
        """The name of a coordinate, for people: `fc.weight[2, 7]`."""
        if self.is_vector:
            return f"coordinate {coordinate}"
        for entry, start in zip(self.parameters, self.offsets, strict=False):
            if start <= coordinate < start + entry.size:
                index = ", ".join(str(i) for i in np.unravel_index(coordinate - start, entry.shape))
                return f"{entry.name}[{index}]" if index else entry.name
        raise IndexError(coordinate)

    def flatten(self, arrays: Arrays, dtype: torch.dtype) -> Tensor:
        """The vector of the arrays' parameters, a copy."""
        return torch.cat([arrays[e.name].reshape(-1).to(dtype) for e in self.parameters])

    def unflatten(self, vector: Tensor, beside: Arrays) -> dict[str, Tensor]:
        """The arrays of a vector, in the layout's order and dtypes."""
        if self.is_vector:
            return {"": vector.to(self.dtype)}
        pieces = dict(beside)
        for entry, start in zip(self.parameters, self.offsets, strict=False):
            piece = vector[start : start + entry.size].reshape(entry.shape)
            pieces[entry.name] = piece.to(entry.dtype, copy=True)
        return {e.name: pieces[e.name] for e in self.entries}

    def stepped(self, before: Arrays, step: Tensor, beside: Arrays) -> dict[str, Tensor]:
        """The model w − step in the dtype of the step, array by array; a variance is never below 0."""
        model = dict(beside)
        for entry, start in zip(self.parameters, self.offsets, strict=False):
            piece = step[start : start + entry.size].reshape(entry.shape)
            value = (before[entry.name].to(step.dtype) - piece).to(entry.dtype)
            model[entry.name] = value.clamp(min=0) if entry.is_variance else value
        return {e.name: model[e.name] for e in self.entries}

    def describe(self) -> list[list[Any]]:
        """The entries as plain data, for JSON."""
        return [[e.name, list(e.shape), str(e.dtype).removeprefix("torch.")] for e in self.entries]

    @classmethod
    def from_description(cls, described: Iterable[Sequence[Any]], buffers: BufferPolicy) -> Layout:
        """The layout that `describe` wrote down."""
        entries = tuple(Entry(name, tuple(shape), getattr(torch, dtype)) for name, shape, dtype in described)
        return cls(entries, buffers)


@lru_cache(maxsize=16)  # clients that send the same arrays have the same layout, round after round
def _layout_of(described: tuple[tuple[str, tuple[int, ...], torch.dtype], ...], buffers: BufferPolicy) -> Layout:
    return Layout.checked(tuple(Entry(*each) for each in described), buffers)


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    widest: torch.dtype | None = None
    for dtype in dtypes:
        widest = dtype if widest is None else torch.promote_types(widest, dtype)
    return widest or torch.float32


def _some(names: list[str]) -> str:
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
