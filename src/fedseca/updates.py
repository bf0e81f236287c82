"""`Updates`: the updates of K clients as one K×D matrix that is never built."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedseca.errors import InputError
from fedseca.layout import Arrays, BufferPolicy, Entry, Layout, Malformed
from fedseca.reading import identify, read_before, read_clients

BLOCK_ELEMENTS = 1 << 20
"""How many numbers a block of all clients holds: what bounds the memory of the reference primitives."""


_PLAN = "reading plan"
"""Under this name it is kept beside the rows."""

State = Mapping[str, Tensor]
"""What a rule, a step or an attack remembers between rounds: tensors by name. Of a client: `name/client id`."""


class Row(Protocol):
    """One client's vector, read piece by piece."""

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
    def segments_in_memory(self) -> bool:
        """Whether each array lies in the CPU's memory in one piece, whatever its dtype."""
        return all(s.is_cpu and s.is_contiguous() for s in self.segments)

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
class MixedRow:
    """Σ_s w_s·row_s of several rows, read as if it were one row. None of the rows is mixed itself."""

    sources: tuple[Row, ...]
    weights: tuple[float, ...]

    def read(self, start: int, stop: int) -> Tensor:
        recipe = Recipe.of([(range(len(self.sources)), self.weights)])
        step = max(1, BLOCK_ELEMENTS // len(self.sources))  # a whole row must not read all its sources at once
        mixed = [
            combine_rows([row.read(at, min(at + step, stop)) for row in self.sources], recipe)[0]
            for at in range(start, max(stop, start + 1), step)
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


@dataclass(frozen=True)
class Recipe:
    """M mixes as sparse rows of weights: mix m is Σ weights·rows / divisors[m] over the entries ends[m] … ends[m+1]."""

    ends: NDArray[np.int64]
    sources: NDArray[np.int64]
    weights: NDArray[np.float64]
    divisors: NDArray[np.float64]

    @classmethod
    def of(cls, mixes: Sequence[tuple[Sequence[int], Sequence[float]]]) -> Recipe:
        """Of the sources and weights of each mix. A mean is summed before it is divided: what cancels out is 0."""
        divided = [_as_mean(weights) for _, weights in mixes]
        return cls(
            np.cumsum([0, *(len(sources) for sources, _ in mixes)], dtype=np.int64),
            np.array([source for sources, _ in mixes for source in sources], dtype=np.int64),
            np.array([weight for weights, _ in divided for weight in weights], dtype=np.float64),
            np.array([divisor for _, divisor in divided], dtype=np.float64),
        )


def _as_mean(weights: Sequence[float]) -> tuple[Sequence[float], float]:
    """(1, …, 1) and n, if the weights are 1/n each; else the weights and 1."""
    count = round(1 / weights[0]) if weights[0] > 1e-9 else 0
    if count and all(weight == 1 / count for weight in weights):
        return [1.0] * len(weights), float(count)
    return weights, 1.0


Combine = Callable[[list[Tensor], Recipe], Sequence[Tensor]]


def combine_rows(pieces: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """The mixes of rows that were read, summed in float64 in the order of the rows."""
    mixed = []
    precise = torch.float32 if pieces[0].device.type == "mps" else torch.float64
    for (start, stop), divisor in zip(itertools.pairwise(recipe.ends.tolist()), recipe.divisors.tolist(), strict=True):
        total = torch.zeros_like(pieces[0], dtype=precise)
        for source, weight in zip(recipe.sources[start:stop], recipe.weights[start:stop], strict=True):
            total += pieces[source].to(precise) * float(weight)
        mixed.append((total / divisor).to(pieces[0].dtype))
    return mixed


@dataclass(frozen=True)
class _ReadingPlan:
    """Which rows are read, each once; and how the rows that are mixed are made of them."""

    sources: tuple[Row, ...]
    direct: tuple[int | None, ...]
    """For each row: its place among the sources; None if it is the next of the mixes."""
    recipe: Recipe | None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> _ReadingPlan:
        if not any(isinstance(row, MixedRow) for row in rows):
            return cls(tuple(rows), tuple(range(len(rows))), None)
        sources: list[Row] = []
        places: dict[int, int] = {}

        def place(row: Row) -> int:
            if id(row) not in places:
                places[id(row)] = len(sources)
                sources.append(row)
            return places[id(row)]

        direct = tuple(None if isinstance(row, MixedRow) else place(row) for row in rows)
        mixes = [row for row in rows if isinstance(row, MixedRow)]
        recipe = Recipe.of([([place(row) for row in mix.sources], mix.weights) for mix in mixes])
        return cls(tuple(sources), direct, recipe)


def _mixed_row(rows: Sequence[Row], weights: Sequence[float]) -> MixedRow:
    """A mix of rows that may be mixes themselves, over the rows that these are made of."""
    total: dict[int, tuple[Row, float]] = {}
    for row, weight in zip(rows, weights, strict=True):
        inner = zip(row.sources, row.weights, strict=True) if isinstance(row, MixedRow) else [(row, 1.0)]
        for source, share in inner:
            total[id(source)] = (source, total.get(id(source), (source, 0.0))[1] + weight * share)
    return MixedRow(tuple(source for source, _ in total.values()), tuple(share for _, share in total.values()))


@dataclass(frozen=True)
class _PartRow:
    """A row without its first coordinates."""

    row: Row
    skipped: int

    def read(self, start: int, stop: int) -> Tensor:
        return self.row.read(start + self.skipped, stop + self.skipped)


def _part_of(row: Row, start: int, stop: int, cut: Callable[[Row], Row]) -> Row:
    """Coordinates start … stop of a row as a row of the same kind; `cut` does the same to what it is made of."""
    if isinstance(row, MixedRow):
        return MixedRow(tuple(cut(source) for source in row.sources), row.weights)
    if not isinstance(row, ArrayRow):
        return _PartRow(row, start)
    pieces = [
        _flat_slice(segment, max(start - offset, 0), min(stop - offset, segment.numel()))
        for segment, offset in zip(row.segments, row.offsets, strict=False)
        if offset < stop and offset + segment.numel() > start
    ]
    offsets = tuple(itertools.accumulate((piece.numel() for piece in pieces), initial=0))
    before = None if row.before is None else cut(row.before)
    assert before is None or isinstance(before, ArrayRow)
    return ArrayRow(tuple(pieces), offsets, row.dtype, row.device, before)


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
    """The lengths of the rows, if some have been measured already; NaN of those that have not (`ops.norms`)."""
    agreement: Tensor | None = None
    """The sign agreement of each pair of rows (`ops.sign_agreement`), where it has been counted already."""
    states: tuple[Arrays, ...] = ()
    """The clients' own arrays, for what stands beside the vector."""
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """What was found out about these rows, which must not be changed then; of other rows nothing is known."""

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
        clients, ids = identify(read_clients(source), client_ids)
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
        names = [entry.name for entry in layout.parameters]

        def row(arrays: Arrays, origin: ArrayRow | None) -> ArrayRow:
            segments = tuple([arrays[name] for name in names])
            return ArrayRow(segments, layout.offsets, layout.compute_dtype, device, origin)

        origin = None if before is None else row(before, None)
        rows = tuple(row(state, origin) for state in states)
        if len(rows) * layout.dim <= BLOCK_ELEMENTS and (origin is not None or len(layout.parameters) > 1):
            # What fits into a block is read once: gathering a small model from its arrays costs more than the rule.
            rows = tuple(
                ArrayRow((each.read(0, layout.dim),), (0, layout.dim), layout.compute_dtype, device) for each in rows
            )
        given = None if weights is None else torch.tensor([float(w) for w in weights], dtype=torch.float64)
        return cls(rows, tuple(client_ids), layout, device, given, states=tuple(states))

    def __getstate__(self) -> dict[str, Any]:
        """What a copy gets, in another process perhaps: not what holds only where these rows lie."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "memo": {}}

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
            yield slice(start, stop), torch.stack(self.read(start, stop))

    @property
    def _plan(self) -> _ReadingPlan:
        found: _ReadingPlan | None = self.memo.get(_PLAN)
        if found is None:
            found = self.memo[_PLAN] = _ReadingPlan.of(self.rows)
        return found

    def read(self, start: int, stop: int, step: int = 1, combine: Combine = combine_rows) -> list[Tensor]:
        """Coordinates start … stop of each row, or every `step`-th of them. May be views: never write to them.

        Rows that several mixes are made of are read once; `combine` mixes them.
        """
        plan = self._plan
        pieces = [row.read(start, stop) for row in plan.sources]
        if step > 1:
            pieces = [piece[::step].clone() for piece in pieces]  # a view would keep all of a copy that was read
        mixed = iter(() if plan.recipe is None else combine(pieces, plan.recipe))
        return [next(mixed) if place is None else pieces[place] for place in plan.direct]

    @property
    def sources(self) -> tuple[Row, ...]:
        """The rows that are read: these rows, or those that they are mixed of, each once."""
        return self._plan.sources

    @property
    def recipe(self) -> Recipe | None:
        """How the rows that are mixes are made of the sources, if some are."""
        return self._plan.recipe

    @property
    def places(self) -> tuple[int | None, ...]:
        """For each row its place among the sources; None if it is the next of the mixes."""
        return self._plan.direct

    def row(self, index: int) -> Tensor:
        """One client's vector in the dtype of the arithmetic. May be a view: never write to it."""
        return self.rows[index].read(0, self.dim)

    def __iter__(self) -> Iterator[Tensor]:
        """The clients' vectors, one after the other, each as long as it is looked at."""
        return (self.row(index) for index in range(len(self)))

    def matrix(self) -> Tensor:
        """All vectors as one K × D tensor of its own: for rules that want it dense, at the price of its memory."""
        return torch.stack(list(self))

    def by_id(self) -> list[int]:
        """The rows in the order of their ids: one that does not depend on who answered first."""
        return sorted(range(len(self)), key=self.client_ids.__getitem__)

    def fractions(self) -> Tensor:
        """α: what each client weighs, summing to 1; 1/K unless weights were asked for."""
        if self.weights is None:
            return torch.full((len(self),), 1 / len(self), dtype=torch.float64)
        scaled = self.weights / self.weights.max()  # the sum of huge weights must not overflow
        return scaled / scaled.sum()

    def first(self, count: int) -> Updates:
        """The first coordinates only, as plain vectors."""
        layout = Layout((Entry("", (count,), self.dtype),), self.layout.buffers)
        return replace(self, layout=layout, norms=None, agreement=None, states=())

    def part(self, start: int, stop: int) -> Updates:
        """Coordinates start … stop only, as plain vectors; nothing is copied that lies in one piece."""
        if (start, stop) == (0, self.dim):
            return self
        done: dict[int, Row] = {}  # what several rows are made of is cut once, and stays one thing

        def cut(row: Row) -> Row:
            if id(row) not in done:
                done[id(row)] = _part_of(row, start, stop, cut)
            return done[id(row)]

        layout = Layout((Entry("", (stop - start,), self.dtype),), self.layout.buffers)
        rows = tuple(cut(row) for row in self.rows)
        return replace(self, rows=rows, layout=layout, norms=None, agreement=None, states=())

    def measured(self, norms: Tensor) -> Updates:
        """The same updates, whose lengths are known."""
        known = replace(self, norms=norms)
        known.memo.update(self.memo)
        return known

    def select(self, indices: Sequence[int]) -> Updates:
        """The same updates, of these clients only."""
        if list(indices) == list(range(len(self))):
            return self
        return replace(
            self,
            rows=tuple(self.rows[i] for i in indices),
            client_ids=tuple(self.client_ids[i] for i in indices),
            weights=None if self.weights is None else self.weights[list(indices)],
            norms=None if self.norms is None else self.norms[list(indices)],
            agreement=None if self.agreement is None else self.agreement[list(indices)][:, list(indices)],
            states=tuple(self.states[i] for i in indices) if self.states else (),
        )

    def with_rows(self, rows: Sequence[Row], client_ids: Sequence[str]) -> Updates:
        """Other rows of the same layout: a centre, what was remembered."""
        return replace(
            self, rows=tuple(rows), client_ids=tuple(client_ids), weights=None, norms=None, agreement=None, states=()
        )

    def mixed(
        self, members: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], ids: Sequence[str]
    ) -> Updates:
        """M rows that are weighted sums of these rows: row m is Σ_i weights[m][i]·row members[m][i]. Never built."""
        alone = [len(of_mix) == 1 for of_mix in members]
        rows = [
            self.rows[of_mix[0]] if single and shares[0] == 1 else _mixed_row([self.rows[k] for k in of_mix], shares)
            for of_mix, shares, single in zip(members, weights, alone, strict=True)
        ]
        if all(row is mine for row, mine in zip(rows, self.rows, strict=False)) and len(rows) == len(self):
            return replace(self, client_ids=tuple(ids))  # nothing was mixed: what is known of the rows still holds
        mixed = self.with_rows(rows, ids)
        if self.norms is None or not any(alone):
            return mixed
        lengths = [
            abs(shares[0]) * float(self.norms[of_mix[0]]) if single else math.nan
            for of_mix, shares, single in zip(members, weights, alone, strict=True)
        ]
        return replace(mixed, norms=torch.tensor(lengths, dtype=torch.float64))

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
