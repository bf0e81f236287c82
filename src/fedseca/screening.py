"""Who is admitted to a round, and why the others are not.

A malicious client is bad input. Whatever it sends, the round goes on with the others, and the reason why it was left
out is a sentence that a person can read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedseca.errors import InputError, Rejection
from fedseca.layout import Arrays, BufferPolicy, Layout, Malformed
from fedseca.updates import BLOCK_ELEMENTS, Client, Row, Updates, identify, read_before, read_clients

LARGEST_NORM = 1e150
"""Beyond it a squared distance overflows float64, and one client could turn every distance into infinity."""


@dataclass(frozen=True)
class Screening:
    """The admitted clients' updates, their norms, and who was rejected."""

    updates: Updates
    norms: Tensor
    rejected: tuple[Rejection, ...]
    is_numpy: bool
    """Whether the admitted clients sent NumPy arrays, so that the answer is one too."""
    before: Arrays | None


def screen(
    source: Any,
    client_ids: Sequence[object] | None = None,
    *,
    before: Any = None,
    weights: Sequence[float] | None = None,
    buffers: BufferPolicy = "median",
) -> Screening:
    """Admit each client of `source` or reject it with a reason.

    The arrays that are expected are those of `before`, or else those that most clients sent.
    """
    clients = read_clients(source)
    ids = identify(clients, client_ids)
    if weights is not None and len(weights) != len(clients):
        raise InputError(f"{len(clients)} updates but {len(weights)} weights")
    reference = None if before is None else read_before(before)
    layout = _expected_layout(clients, reference, buffers)

    reasons: dict[int, str] = {}
    fitting: list[int] = []
    for index, client in enumerate(clients):
        weight = None if weights is None else weights[index]
        reason = _form(client, layout) or _weight(weight) or _duplicate(ids, index)
        if reason is None:
            fitting.append(index)
        else:
            reasons[index] = reason

    states = [_arrays(clients[i]) for i in fitting]
    chosen = None if weights is None else [weights[i] for i in fitting]
    candidates = Updates.build(states, [ids[i] for i in fitting], layout, before=reference, weights=chosen)
    norms: list[float] = []
    admitted: list[int] = []
    for position, index in enumerate(fitting):
        norm, reason = _measure(candidates.rows[position], candidates)
        reason = reason or _beside(states[position], layout)
        if reason is None:
            admitted.append(position)
            norms.append(norm)
        else:
            reasons[index] = reason
    return Screening(
        updates=candidates.select(admitted),
        norms=torch.tensor(norms, dtype=torch.float64),
        rejected=tuple(Rejection(ids[index], _readable(reasons[index])) for index in sorted(reasons)),
        is_numpy=bool(admitted) and all(clients[fitting[p]].is_numpy for p in admitted),
        before=reference,
    )


def _readable(reason: str, limit: int = 200) -> str:
    """A reason may quote what a client sent: one line, nothing that a terminal would obey, and not without end."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in reason)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _expected_layout(clients: Sequence[Client], before: Arrays | None, buffers: BufferPolicy) -> Layout:
    if before is not None:
        return Layout.of(before, buffers)
    well_formed = [c.arrays for c in clients if not isinstance(c.arrays, Malformed)]
    return Layout.elect(well_formed, buffers)


def _arrays(client: Client) -> Arrays:
    assert not isinstance(client.arrays, Malformed)
    return client.arrays


def _form(client: Client, layout: Layout) -> str | None:
    if isinstance(client.arrays, Malformed):
        return str(client.arrays)
    return layout.mismatch(client.arrays, ordered=client.ordered)


def _weight(weight: float | None) -> str | None:
    # A weight may be what a client declared, so it is screened like the rest of what the client sent.
    if weight is None or (math.isfinite(weight) and weight > 0):
        return None
    return f"weight {weight}, expected a finite number above 0"


def _duplicate(ids: Sequence[str], index: int) -> str | None:
    return "duplicate id, the first is kept" if ids[index] in ids[:index] else None


def _measure(row: Row, updates: Updates) -> tuple[float, str | None]:
    """The norm of a row, and why it cannot be used: one pass, and a second one only to tell what is wrong."""
    squares, fits = 0.0, True
    for start in range(0, updates.dim, BLOCK_ELEMENTS):
        piece = row.read(start, min(start + BLOCK_ELEMENTS, updates.dim))
        squares += float(piece.norm() if piece.device.type == "mps" else piece.double().norm()) ** 2
        # NaN and Inf fail this too; so does what is finite here but not in the dtype of the result
        fits = fits and float(piece.abs().max()) <= torch.finfo(updates.dtype).max
    norm = math.sqrt(squares)
    if not fits:
        return norm, _not_finite(row, updates)
    if norm > LARGEST_NORM:
        return norm, f"norm {norm:.3g} is too large to compute with (allowed: up to {LARGEST_NORM:.0e})"
    return norm, None


def _not_finite(row: Row, updates: Updates) -> str:
    nans, infinities, first = 0, 0, None
    for start in range(0, updates.dim, BLOCK_ELEMENTS):
        piece = row.read(start, min(start + BLOCK_ELEMENTS, updates.dim)).to(updates.dtype)
        nan, bad = piece.isnan(), ~piece.isfinite()
        nans += int(nan.sum())
        infinities += int((bad & ~nan).sum())
        if first is None and bool(bad.any()):
            first = start + int(bad.int().argmax())
    assert first is not None
    return _counts(nans, infinities, updates.layout.locate(first))


def _counts(nans: int, infinities: int, where: str) -> str:
    counts = [f"{number} {what}" for number, what in ((nans, "NaN"), (infinities, "Inf")) if number]
    return f"{' and '.join(counts)}, first at {where}"


def _beside(state: Arrays, layout: Layout) -> str | None:
    """What is wrong with a client's running statistics."""
    for entry in layout.beside:
        value = state[entry.name].to(entry.dtype)
        bad = ~torch.isfinite(value)
        if bool(bad.any()):
            alone = Layout((replace(entry, name=f"buffer {entry.name}"),), "aggregate")
            first = alone.locate(int(bad.reshape(-1).int().argmax()))
            return _counts(int(value.isnan().sum()), int(value.isinf().sum()), first)
    return None
