"""Who is admitted to a round, and why the others are not.

A malicious client is bad input. Whatever it sends, the round goes on with the others, and the reason why it was left
out is a sentence that a person can read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedseca import ops
from fedseca.errors import InputError, Rejection, printable
from fedseca.layout import Arrays, BufferPolicy, Layout, Malformed
from fedseca.reading import Client, Form, MappedFile, identify, read_before, read_clients
from fedseca.updates import BLOCK_ELEMENTS, Row, Updates

LARGEST_NORM = 1e150
"""Beyond it a squared distance overflows float64, and one client could turn every distance into infinity."""


COMMON_PART = 6.0
"""How many times longer than what tells the clients apart the part that they share is, if they sent models."""


@dataclass(frozen=True)
class Screening:
    """The admitted clients' updates, their norms, and who was left out."""

    updates: Updates
    norms: Tensor
    rejected: tuple[Rejection, ...]
    form: Form
    """That of most admitted clients, in which the answer is handed back."""
    before: Arrays | None
    files: tuple[MappedFile, ...] = ()
    """The admitted clients' files that are read in place."""

    @property
    def num_left_out(self) -> int:
        """Clients of whom nothing was admitted; a client may have answered twice."""
        return len({rejection.client_id for rejection in self.rejected} - {*self.updates.client_ids})

    def check_unchanged(self) -> None:
        """That no file was written to since it was screened: otherwise an `InputError`."""
        for file in self.files:
            if file.changed():
                raise InputError(
                    f"{file.path}: was changed while it was aggregated; nothing is kept of it: aggregate again, or "
                    "without in_place, which reads private copies"
                )


def screen(
    source: Any,
    client_ids: Sequence[object] | None = None,
    *,
    before: Any = None,
    weights: Sequence[Any] | None = None,
    buffers: BufferPolicy = "median",
    expected: Layout | None = None,
    in_place: bool = False,
) -> Screening:
    """Admit each client of `source` or reject it with a reason.

    The arrays must be those that are `expected`, or else those of `before`, or else those that most clients sent.
    With `in_place` files are mapped where they lie: ask `check_unchanged` before the result is used.
    """
    clients, ids = identify(read_clients(source, in_place=in_place), client_ids)
    if weights is not None and len(weights) != len(clients):
        raise InputError(f"{len(clients)} updates but {len(weights)} weights")
    reference = None if before is None else read_before(before)
    layout = _expected_layout(clients, ids, reference, buffers, expected)

    reasons: dict[int, str] = {}
    for index, client in enumerate(clients):
        reason = _form(client, layout) or (None if weights is None else _weight(weights[index]))
        if reason is not None:
            reasons[index] = reason
    fitting = [index for index in range(len(clients)) if index not in reasons]

    chosen = None if weights is None else [float(weights[i]) for i in fitting]
    states = [_arrays(clients[i]) for i in fitting]
    layout = layout or Layout((), buffers)
    candidates = Updates.build(states, [ids[i] for i in fitting], layout, before=reference, weights=chosen)
    limit = min((torch.finfo(dtype).max for dtype in {entry.dtype for entry in layout.parameters}), default=0.0)
    # What is finite where it is computed may not be so in the dtype of the result: then the maximum has to be known.
    norms, largest = ops.extent(candidates, exactly=limit < torch.finfo(layout.compute_dtype).max)
    refused = _refused(candidates, norms.tolist(), largest.tolist(), limit)
    reasons |= {fitting[position]: reason for position, reason in refused.items()}
    admitted = [position for position in range(len(fitting)) if position not in refused]
    return Screening(
        updates=candidates.measured(norms).select(admitted),
        norms=norms[admitted] if reasons else norms,
        rejected=tuple(Rejection(ids[index], printable(reasons[index], limit=200)) for index in sorted(reasons)),
        form=_usual_form([clients[fitting[p]].form for p in admitted]),
        before=reference,
        files=tuple(file for p in admitted if (file := clients[fitting[p]].file) is not None),
    )


def look_like_models(updates: Updates) -> bool:
    """Whether the rows have a long part in common, as models have that were trained from one model.

    ‖c‖ against the median of ‖g_k − c‖, where c is the coordinate-wise median; over some thousand coordinates of at
    most 64 clients. On digits it is 0.8 to 1.8 for updates, and 6.5 to 66 for the models they come from.
    """
    if len(updates) < 3 or updates.layout.is_vector:
        return False
    some = updates.select(range(0, len(updates), -(-len(updates) // 64)))
    width = min(256, some.dim)
    starts = sorted({round(place) for place in torch.linspace(0, some.dim - width, 16).tolist()})
    pieces = [torch.stack(some.read(start, start + width)).double() for start in starts]
    rows = torch.cat(pieces, dim=1)
    centre = rows.median(dim=0).values
    spread = float((rows - centre).norm(dim=1).median())
    return spread > 0 and float(centre.norm()) > COMMON_PART * spread


def _refused(candidates: Updates, norms: Sequence[float], largest: Sequence[float], limit: float) -> dict[int, str]:
    """Whose numbers cannot be used, and why, by place; and who answers again."""
    reasons: dict[int, str] = {}
    taken: set[str] = set()
    for position, (client_id, state) in enumerate(zip(candidates.client_ids, candidates.states, strict=True)):
        reason = _numbers(candidates, position, norms[position], largest[position], limit)
        reason = reason or _beside(state, candidates.layout)
        if reason is None and client_id in taken:
            reason = "duplicate id, the first is kept"
        if reason is None:  # only an update that is admitted takes the id: garbage in a client's name displaces nobody
            taken.add(client_id)
        else:
            reasons[position] = reason
    return reasons


def _expected_layout(
    clients: Sequence[Client],
    ids: Sequence[str],
    before: Arrays | None,
    buffers: BufferPolicy,
    expected: Layout | None,
) -> Layout | None:
    """What the clients' arrays must be: as remembered, as in the global model, or as a majority has them."""
    # One vote for each id: a client does not gain votes by answering often.
    voters = dict(zip(reversed(ids), reversed(clients), strict=True)).values()
    if expected is not None:
        if before is not None and (reason := expected.mismatch(before, ordered=False)):
            raise InputError(f"the global model before the round is not that of earlier rounds: {reason}")
        return expected
    if before is not None:
        return Layout.of(before, buffers).in_order_of([_arrays(c) for c in voters if c.well_formed and c.ordered])
    return Layout.elect([c.layout for c in voters if c.layout is not None and c.well_formed], buffers)


def _usual_form(forms: Sequence[Form]) -> Form:
    """That of most clients; if as many came in another one, the plainer."""
    if forms and forms.count(forms[0]) == len(forms):
        return forms[0]
    return min(set(forms), key=lambda form: (-forms.count(form), form), default=Form())


def _arrays(client: Client) -> Arrays:
    assert not isinstance(client.arrays, Malformed)
    return client.arrays


def _form(client: Client, layout: Layout | None) -> str | None:
    if isinstance(client.arrays, Malformed):
        return str(client.arrays)
    if layout is None:
        return "no majority of the clients sent the same arrays (the global model would tell what is expected)"
    return None if client.layout is layout else layout.mismatch(client.arrays, ordered=client.ordered)


def _weight(weight: Any) -> str | None:
    # A weight may be what a client declared, so it is screened like the rest of what the client sent.
    try:
        if math.isfinite(float(weight)) and float(weight) > 0:
            return None
    except (TypeError, ValueError, OverflowError):
        pass
    return f"weight {printable(repr(weight), limit=40)}, expected a finite number above 0"


def _pieces(updates: Updates) -> Iterator[tuple[int, int, torch.dtype]]:
    """The vector in pieces of bounded length, each within one array, with the dtype that the result will have there."""
    for entry, offset in zip(updates.layout.parameters, updates.layout.offsets, strict=False):
        for start in range(offset, offset + entry.size, BLOCK_ELEMENTS):
            yield start, min(start + BLOCK_ELEMENTS, offset + entry.size), entry.dtype


def _numbers(updates: Updates, position: int, norm: float, largest: float, limit: float) -> str | None:
    """Why a row's numbers cannot be used: they are read again only to tell what is wrong."""
    # NaN and Inf fail this too; so does what is finite here but not in the dtype of the result
    if not largest <= limit:
        reason = _not_finite(updates.rows[position], updates)
        if reason is not None:
            return reason
    if not norm <= LARGEST_NORM:
        return f"norm {norm:.3g} is too large to compute with (allowed: up to {LARGEST_NORM:.0e})"
    return None


def _not_finite(row: Row, updates: Updates) -> str | None:
    nans, infinities, first = 0, 0, None
    for start, stop, dtype in _pieces(updates):
        piece = row.read(start, stop).to(dtype)
        nan, bad = piece.isnan(), ~piece.isfinite()
        nans += int(nan.sum())
        infinities += int((bad & ~nan).sum())
        if first is None and bool(bad.any()):
            first = start + int(bad.int().argmax())
    return None if first is None else _counts(nans, infinities, updates.layout.locate(first))


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
