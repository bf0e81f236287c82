"""What one client's update looks like: the names, shapes and dtypes that lead from arrays to a vector and back."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


def kind_of(dtype: torch.dtype) -> str:
    """The dtype's kind: clients of one kind may differ in precision, never in kind."""
    if dtype in FLOATS:
        return "floating point"
    if dtype in _INTEGERS:
        return "integer"
    allowed = ", ".join(str(d).removeprefix("torch.") for d in FLOATS)
    raise Malformed(f"dtype {str(dtype).removeprefix('torch.')} is not supported (allowed: {allowed})")


def as_tensor(value: Any) -> Tensor:
    """A tensor or NumPy array as a detached tensor on the same memory."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            raise Malformed("is a sparse or data-less tensor, expected a dense one")
        return value.detach()
    if isinstance(value, np.ndarray):
        if any(stride < 0 for stride in value.strides) or not value.dtype.isnative:
            value = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        with warnings.catch_warnings():
            # Read-only arrays are fine: nothing here ever writes to a client's memory.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            try:
                return torch.from_numpy(value)
            except TypeError:
                raise Malformed(f"dtype {value.dtype} is not supported") from None
    raise Malformed(f"is a {type(value).__name__}, expected a tensor or array")


@dataclass(frozen=True)
class Entry:
    """One named array of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

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
        layout = cls(tuple(Entry(name, tuple(value.shape), value.dtype) for name, value in arrays.items()), buffers)
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
    def elect(cls, clients: Sequence[Arrays], buffers: BufferPolicy = "median") -> Layout:
        """The layout that most clients share, so that one malformed client never decides it.

        Names, shapes and kinds are elected first and the precision among those that agree: a round cannot be
        captured by clients that differ from each other in precision alone.
        """
        layouts = [cls.of(arrays, buffers) for arrays in clients]
        structures = Counter(tuple(e.structure for e in layout.entries) for layout in layouts)
        if not structures:
            return cls((), buffers)
        winner = structures.most_common(1)[0][0]
        agreeing = Counter(lay for lay in layouts if tuple(e.structure for e in lay.entries) == winner)
        return agreeing.most_common(1)[0][0]

    def mismatch(self, arrays: Arrays, *, ordered: bool = True) -> str | None:
        """Why these arrays do not fit this layout, for people; None if they do."""
        expected, found = [e.name for e in self.entries], list(arrays)
        if missing := [name for name in expected if name not in arrays]:
            return f"missing key {_some(missing)}"
        if extra := [name for name in found if name not in expected]:
            return f"extra key {_some(extra)}"
        if ordered and expected != found:
            first = next(name for name, want in zip(found, expected, strict=True) if name != want)
            return f"keys reordered, first at {first!r}"
        for ours in self.entries:
            theirs = Entry(ours.name, tuple(arrays[ours.name].shape), arrays[ours.name].dtype)
            where = f" of {ours.name!r}" if ours.name else ""
            if ours.shape != theirs.shape:
                return f"shape {theirs.shape}{where}, expected {ours.shape}"
            if ours.structure != theirs.structure:
                return f"dtype {str(theirs.dtype).removeprefix('torch.')}{where}, expected {ours.structure[2]}"
        return None

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

    @property
    def dim(self) -> int:
        return self.offsets[-1]

    @property
    def is_vector(self) -> bool:
        return [e.name for e in self.entries] == [""]

    @cached_property
    def dtype(self) -> torch.dtype:
        """The dtype of the vector: the input's, or the widest of them."""
        return _widest(e.dtype for e in self.parameters)

    def locate(self, coordinate: int) -> str:
        """The name of a coordinate, for people: `fc.weight[2, 7]`."""
        if self.is_vector:
            return f"coordinate {coordinate}"
        for entry, start in zip(self.parameters, self.offsets, strict=False):
            if start <= coordinate < start + entry.size:
                index = np.unravel_index(coordinate - start, entry.shape)
                return f"{entry.name}[{', '.join(str(i) for i in index)}]"
        raise IndexError(coordinate)

    def flatten(self, arrays: Arrays, dtype: torch.dtype) -> Tensor:
        """The vector of the arrays' parameters, a copy."""
        return torch.cat([arrays[e.name].reshape(-1).to(dtype) for e in self.parameters])

    def unflatten(self, vector: Tensor, beside: Arrays) -> dict[str, Tensor]:
        """The arrays of a vector, in the layout's order and dtypes; variances are never below 0."""
        pieces = dict(beside)
        for entry, start in zip(self.parameters, self.offsets, strict=False):
            piece = vector[start : start + entry.size].reshape(entry.shape)
            pieces[entry.name] = piece.to(entry.dtype, copy=True)
        return {e.name: pieces[e.name].clamp(min=0) if e.is_variance else pieces[e.name] for e in self.entries}


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    widest: torch.dtype | None = None
    for dtype in dtypes:
        widest = dtype if widest is None else torch.promote_types(widest, dtype)
    return widest or torch.float32


def _some(names: list[str]) -> str:
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
