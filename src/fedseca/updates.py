"""`Updates`: the updates of K clients as one K×D matrix that is never built."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedseca.errors import InputError
from fedseca.layout import Arrays, BufferPolicy, Layout, Malformed, as_tensor

BLOCK_ELEMENTS = 1 << 20
"""How many numbers a block of all clients holds: what bounds the memory of the reference primitives."""


class Row(Protocol):
    """One client's vector, read piece by piece."""

    def read(self, start: int, stop: int) -> Tensor:
        """Coordinates start … stop in the dtype of the arithmetic. May be a view: never write to it."""
        ...


@dataclass(frozen=True)
class ArrayRow:
    """A vector that lies in one or more flat arrays; with `before`, the pseudo-gradient before − arrays."""

    segments: tuple[Tensor, ...]
    offsets: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    before: ArrayRow | None = None

    def read(self, start: int, stop: int) -> Tensor:
        pieces = []
        index = bisect.bisect_right(self.offsets, start) - 1
        while index < len(self.segments) and self.offsets[index] < stop:
            offset = self.offsets[index]
            piece = self.segments[index][max(start - offset, 0) : stop - offset]
            pieces.append(piece.to(self.device, self.dtype))
            index += 1
        values = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return values if self.before is None else self.before.read(start, stop) - values


@dataclass(frozen=True)
class MeanRow:
    """The mean of several rows, read as if it were one."""

    rows: tuple[Row, ...]

    def read(self, start: int, stop: int) -> Tensor:
        total = self.rows[0].read(start, stop) / len(self.rows)
        for row in self.rows[1:]:
            total = total + row.read(start, stop) / len(self.rows)
        return total


@dataclass(frozen=True, eq=False)
class Updates:
    """K clients × D coordinates, with the clients' ids. Rows are read in blocks, never stacked as a whole.

    Make one with `Updates.collect`, which takes every form an update comes in. The arithmetic is done in
    `compute_dtype` (float32, or float64 for float64 updates); results are in `dtype` on `device`.
    """

    rows: tuple[Row, ...]
    client_ids: tuple[str, ...]
    layout: Layout
    device: torch.device
    weights: Tensor | None = None
    """What the caller asked to weigh the clients with; None: all the same."""
    states: tuple[Arrays, ...] = ()
    """The clients' own arrays, for what stands beside the vector."""

    @classmethod
    def collect(
        cls,
        source: Any,
        client_ids: Sequence[object] | None = None,
        *,
        before: Any = None,
        weights: Sequence[float] | None = None,
        buffers: BufferPolicy = "median",
    ) -> Updates:
        """The updates in `source`; the first client that does not fit is an `InputError`.

        Use `fedseca.screening.screen` to leave such clients out instead.
        """
        clients = read_clients(source)
        ids = identify(clients, client_ids)
        states = []
        for client, client_id in zip(clients, ids, strict=True):
            if isinstance(client.arrays, Malformed):
                raise InputError(f"client {client_id}: {client.arrays}")
            states.append(client.arrays)
        reference = None if before is None else read_before(before)
        try:
            layout = Layout.elect(states, buffers) if reference is None else Layout.of(reference, buffers)
        except Malformed as problem:
            raise InputError(f"the updates cannot be aggregated: {problem}") from None
        for client, state, client_id in zip(clients, states, ids, strict=True):
            if reason := layout.mismatch(state, ordered=client.ordered):
                raise InputError(f"client {client_id}: {reason}")
        return cls.build(states, ids, layout, before=reference, weights=weights)

    @classmethod
    def build(
        cls,
        states: Sequence[Arrays],
        client_ids: Sequence[str],
        layout: Layout,
        *,
        before: Arrays | None = None,
        weights: Sequence[float] | None = None,
    ) -> Updates:
        """The updates of clients whose arrays are known to fit the layout."""
        anchor = before if before is not None else (states[0] if states else {})
        device = next((anchor[e.name].device for e in layout.parameters if e.name in anchor), torch.device("cpu"))
        dtype = torch.float64 if layout.dtype == torch.float64 else torch.float32

        def row(arrays: Arrays, origin: ArrayRow | None) -> ArrayRow:
            segments = tuple(arrays[e.name].reshape(-1) for e in layout.parameters)
            return ArrayRow(segments, layout.offsets, dtype, device, origin)

        origin = None if before is None else row(before, None)
        rows = tuple(row(state, origin) for state in states)
        given = None if weights is None else torch.tensor([float(w) for w in weights], dtype=torch.float64)
        return cls(rows, tuple(client_ids), layout, device, given, tuple(states))

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.client_ids):
            raise InputError(f"{len(self.rows)} updates but {len(self.client_ids)} client ids")

    def __repr__(self) -> str:
        return f"Updates({len(self)} clients × {self.dim} coordinates, {self.dtype}, {self.device})"

    def __len__(self) -> int:
        """K, the number of clients."""
        return len(self.rows)

    @property
    def dim(self) -> int:
        """D, the number of coordinates."""
        return self.layout.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of results."""
        return self.layout.dtype

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def blocks(self, elements: int = BLOCK_ELEMENTS) -> Iterator[tuple[slice, Tensor]]:
        """(coordinates, K×b matrix) block by block, about `elements` numbers each, in the dtype of the arithmetic."""
        width = max(1, elements // max(1, len(self)))
        for start in range(0, self.dim, width):
            stop = min(start + width, self.dim)
            yield slice(start, stop), torch.stack([row.read(start, stop) for row in self.rows])

    def row(self, index: int) -> Tensor:
        """One client's vector in the dtype of the arithmetic. May be a view: never write to it."""
        return self.rows[index].read(0, self.dim)

    def fractions(self) -> Tensor:
        """α: what each client weighs, summing to 1; 1/K unless weights were asked for."""
        if self.weights is None:
            return torch.full((len(self),), 1 / len(self), dtype=torch.float64)
        scaled = self.weights / self.weights.max()  # the sum of huge weights must not overflow
        return scaled / scaled.sum()

    def select(self, indices: Sequence[int]) -> Updates:
        """The same updates, of these clients only."""
        return replace(
            self,
            rows=tuple(self.rows[i] for i in indices),
            client_ids=tuple(self.client_ids[i] for i in indices),
            weights=None if self.weights is None else self.weights[list(indices)],
            states=tuple(self.states[i] for i in indices) if self.states else (),
        )

    def with_rows(self, rows: Sequence[Row], client_ids: Sequence[str]) -> Updates:
        """Other rows of the same layout: a bucket of clients, a centre, what was remembered."""
        return replace(self, rows=tuple(rows), client_ids=tuple(client_ids), weights=None, states=())

    def vector_row(self, vector: Tensor) -> ArrayRow:
        """A vector of this layout (a previous aggregate, say) as a row beside the clients'."""
        return ArrayRow((vector.reshape(-1),), (0, self.dim), self.compute_dtype, self.device)

    def medians_beside(self) -> dict[str, Tensor]:
        """The median over the clients of what stands beside the vector: running statistics and counters."""
        medians = {}
        for entry in self.layout.beside:
            values = torch.stack([state[entry.name].to(self.device, entry.dtype) for state in self.states])
            exact = values if values.is_floating_point() else values.to(torch.int64)
            medians[entry.name] = exact.median(dim=0).values.to(entry.dtype)
        return medians


@dataclass(frozen=True)
class Client:
    """One client as it arrived: its arrays or what is wrong with them."""

    arrays: Arrays | Malformed
    is_numpy: bool = False
    label: str | None = None
    """The file it came from, if it came from one."""

    @property
    def ordered(self) -> bool:
        """Whether the order of its keys means anything: the safetensors format keeps none."""
        return self.label is None


def read_clients(source: Any) -> list[Client]:
    """The clients in any of the accepted forms. What is wrong with one client is kept in its place."""
    if isinstance(source, np.ndarray | Tensor):
        if source.ndim != 2:
            raise InputError(f"updates must be a (clients, coordinates) matrix; found shape {tuple(source.shape)}")
        return [_read_client(row) for row in source]
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        clients = [_read_client(item) for item in source]
        # A file's stem names the client, unless two files share it.
        stems = [c.label and Path(c.label).stem for c in clients]
        return [
            replace(c, label=stem) if stem and stems.count(stem) == 1 else c
            for c, stem in zip(clients, stems, strict=True)
        ]
    raise InputError(
        f"updates must be a (clients, coordinates) matrix or a sequence of vectors, state dicts or safetensors files; "
        f"found {type(source).__name__}"
    )


def _read_client(item: Any) -> Client:
    label = os.fspath(item) if isinstance(item, str | os.PathLike) else None
    try:
        arrays, is_numpy = _read_arrays(item)
        Layout.of(arrays)
        return Client(arrays, is_numpy, label)
    except Malformed as problem:
        return Client(problem, label=label)


def _read_arrays(item: Any) -> tuple[Arrays, bool]:
    if isinstance(item, str | os.PathLike):
        return read_file(item), False
    if isinstance(item, np.ndarray | Tensor):
        return {"": as_tensor(item)}, isinstance(item, np.ndarray)
    if not hasattr(item, "items"):
        raise Malformed(f"is a {type(item).__name__}, expected a vector, a state dict or a safetensors file")
    arrays: dict[str, Tensor] = {}
    for name, value in item.items():
        if not isinstance(name, str) or not name:
            raise Malformed(f"key {name!r} is not a name")
        try:
            arrays[name] = as_tensor(value)
        except Malformed as problem:
            raise Malformed(f"{name!r} {problem}") from None
    return arrays, all(isinstance(value, np.ndarray) for value in item.values())


def read_file(path: str | os.PathLike[str]) -> Arrays:
    """A safetensors file as tensors on the mapped file: nothing is loaded until it is read."""
    try:
        with safe_open(path, framework="pt") as file:
            # The format keeps no order, so all files are read in the order of the names.
            return {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError) as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise Malformed(f"not a readable safetensors file: {reason}") from None


def read_before(before: Any) -> Arrays:
    """The global model that the clients started from: the caller's own, so a fault in it is an error."""
    client = _read_client(before)
    if isinstance(client.arrays, Malformed):
        raise InputError(f"the global model before the round: {client.arrays}")
    if not all(bool(torch.isfinite(value).all()) for value in client.arrays.values()):
        raise InputError("the global model before the round holds NaN or Inf")
    return client.arrays


def identify(clients: Sequence[Client], client_ids: Sequence[object] | None) -> list[str]:
    """The clients' ids as text: those given, else the file's name, else the position."""
    if client_ids is None:
        return [c.label if c.label is not None else str(index) for index, c in enumerate(clients)]
    if len(client_ids) != len(clients):
        raise InputError(f"{len(clients)} updates but {len(client_ids)} client ids")
    return [str(client_id) for client_id in client_ids]
