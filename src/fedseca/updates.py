"""`Updates`: the updates of K clients as one K×D matrix that is never built."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedseca.errors import InputError
from fedseca.layout import Arrays, BufferPolicy, Layout, Malformed
from fedseca.reading import identify, read_before, read_clients

BLOCK_ELEMENTS = 1 << 20
"""How many numbers a block of all clients holds: what bounds the memory of the reference primitives."""


class Row(Protocol):
    """One client's vector, read piece by piece."""

    @property
    def in_memory(self) -> bool:
        """Whether reading is free: the numbers lie there in the dtype of the arithmetic."""
        ...

    def read(self, start: int, stop: int) -> Tensor:
        """Coordinates start … stop in the dtype of the arithmetic. May be a view: never write to it."""
        ...


@dataclass(frozen=True)
class ArrayRow:
    """A vector that lies in one or more arrays; with `before`, the pseudo-gradient before − arrays."""

    segments: tuple[Tensor, ...]
    offsets: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    before: ArrayRow | None = None

    @property
    def in_memory(self) -> bool:
        return self.before is None and all(s.dtype == self.dtype and s.is_contiguous() for s in self.segments)

    def read(self, start: int, stop: int) -> Tensor:
        pieces = []
        index = bisect.bisect_right(self.offsets, start) - 1
        while index < len(self.segments) and self.offsets[index] < stop:
            offset = self.offsets[index]
            segment = self.segments[index]
            piece = _flat_slice(segment, max(start - offset, 0), min(stop - offset, segment.numel()))
            pieces.append(piece.to(self.device, self.dtype))
            index += 1
        values = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return values if self.before is None else self.before.read(start, stop) - values


def _flat_slice(array: Tensor, start: int, stop: int) -> Tensor:
    """`array.reshape(-1)[start:stop]` without copying more of a non-contiguous array than the slice touches."""
    if array.ndim <= 1 or array.is_contiguous():
        return array.reshape(-1)[start:stop]
    inner = array.numel() // array.shape[0]
    first = start // inner
    return array[first : -(-stop // inner)].reshape(-1)[start - first * inner : stop - first * inner]


@dataclass(frozen=True)
class MeanRow:
    """The mean of several rows, read as if it were one."""

    rows: tuple[Row, ...]
    in_memory = False

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
    norms: Tensor | None = None
    """The lengths of the rows, where screening has measured them already."""
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
        if not clients:
            raise InputError("there are no updates")
        states = []
        for client, client_id in zip(clients, ids, strict=True):
            if isinstance(client.arrays, Malformed):
                raise InputError(f"client {client_id}: {client.arrays}")
            states.append(client.arrays)
        reference = None if before is None else read_before(before)
        try:
            layout = Layout.of(states[0] if reference is None else reference, buffers)
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

        def row(arrays: Arrays, origin: ArrayRow | None) -> ArrayRow:
            segments = tuple(arrays[e.name] for e in layout.parameters)
            return ArrayRow(segments, layout.offsets, layout.compute_dtype, device, origin)

        origin = None if before is None else row(before, None)
        rows = tuple(row(state, origin) for state in states)
        if len(rows) * layout.dim <= BLOCK_ELEMENTS:
            # What fits into a block is read once: gathering a small model from its arrays costs more than the rule.
            rows = tuple(
                ArrayRow((each.read(0, layout.dim),), (0, layout.dim), layout.compute_dtype, device) for each in rows
            )
        given = None if weights is None else torch.tensor([float(w) for w in weights], dtype=torch.float64)
        return cls(rows, tuple(client_ids), layout, device, given, states=tuple(states))

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
        return self.layout.compute_dtype

    def blocks(self, elements: int = BLOCK_ELEMENTS) -> Iterator[tuple[slice, Tensor]]:
        """(coordinates, K×b matrix) block by block, about `elements` numbers each, in the dtype of the arithmetic."""
        if not self.rows:
            return
        width = max(1, elements // len(self))
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
            norms=None if self.norms is None else self.norms[list(indices)],
            states=tuple(self.states[i] for i in indices) if self.states else (),
        )

    def with_rows(self, rows: Sequence[Row], client_ids: Sequence[str]) -> Updates:
        """Other rows of the same layout: a bucket of clients, a centre, what was remembered."""
        return replace(self, rows=tuple(rows), client_ids=tuple(client_ids), weights=None, norms=None, states=())

    def vector_row(self, vector: Tensor) -> ArrayRow:
        """A vector of this layout (a previous aggregate, say) as a row beside the clients'."""
        return ArrayRow((vector.reshape(-1),), (0, self.dim), self.compute_dtype, self.device)

    def medians_beside(self) -> dict[str, Tensor]:
        """The median over the clients of what stands beside the vector: running statistics and counters."""
        medians = {}
        for entry in self.layout.beside:
            values = torch.stack([state[entry.name].to(self.device, entry.dtype) for state in self.states])
            exact = values if values.is_floating_point() else values.to(torch.int64)
            middle = exact.median(dim=0).values.to(entry.dtype)
            medians[entry.name] = middle.clamp(min=0) if entry.is_variance else middle
        return medians
