"""`Server`: a rule with its memory over the rounds, and `aggregate`, one round of it without any."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedseca.aggregators import Aggregation, Aggregator, State, make_aggregator, make_alone
from fedseca.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint, whole_number, write_checkpoint
from fedseca.declare import Diagnostic, diagnostic
from fedseca.errors import (
    InputError,
    LooksLikeModels,
    NotEnoughClients,
    NotEnoughRows,
    NotFinite,
    Rejection,
    StateError,
)
from fedseca.layout import BufferPolicy, Layout, Malformed, is_finite
from fedseca.reading import Form
from fedseca.screening import Screening, look_like_models, screen
from fedseca.suspicion import suspicion
from fedseca.verdict import OWN_FIELDS, USED, Verdict

_LOG = logging.getLogger("fedseca")

NORM = diagnostic("norm", help="the length of its update")
"""What the server itself says of each client."""


def diagnostics_of(rule: Aggregator) -> dict[str, Diagnostic]:
    """What is said of each client under a rule, by name: its norm, then what the rule declares."""
    return {each.name: each for each in (NORM, *rule.diagnostics)}


_MODELS = (
    "these look like models, not updates: the clients' rows share a part that is many times longer than what tells "
    "them apart, and no rule can see an attack then; give the global model they started from (before=, --global)"
)
_MOST_SHOWN = 20
"""Clients in the text of a round."""
_SERVER = "server"
_SAVED = "server.safetensors"
_OUTDATED = "server.json"
"""What an earlier version wrote in its place."""


@dataclass(frozen=True, repr=False)
class Round:
    """What came of one round."""

    _make_update: Callable[[], Any]
    """Makes `update` when it is first asked for: beside a new `model` most callers never ask."""
    model: Any
    """The new global model, complete; None unless the model before the round was given."""
    client_ids: tuple[str, ...]
    """The admitted clients, in the order of the diagnostics."""
    diagnostics: Mapping[str, Tensor]
    """What is said of the admitted clients, by name: one number for each (K), or for each pair (K × K)."""
    rejected: tuple[Rejection, ...]
    suspicions: Mapping[str, str] = field(default_factory=dict)
    """The admitted clients that stand out, each with the reason (`fedseca.suspicion`)."""
    assumed_byzantine: int | None = None
    """How many of the admitted clients the rule took for Byzantine at most, if that is fewer than it was told: the
    others are those that were left out."""

    def __repr__(self) -> str:
        """The table of its clients."""
        counts = f"{len(self.client_ids)} admitted ({len(self.suspects)} suspect), {len(self.rejected)} left out"
        if self.assumed_byzantine is not None:
            counts += f"; of those admitted at most {self.assumed_byzantine} assumed Byzantine"
        columns = [name for name, values in self.diagnostics.items() if values.ndim == 1]
        lines = [["client", "verdict", *columns]]
        for record in self.records()[:_MOST_SHOWN]:
            numbers = ["–" if record.get(name) is None else f"{record[name]:.4g}" for name in columns]
            lines.append([record["client"], record["verdict"], *numbers])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        more = len(self.answers) - _MOST_SHOWN
        return "\n".join([f"Round: {counts}", *shown, *([f"… and {more} more"] if more > 0 else [])])

    @cached_property
    def update(self) -> Any:
        """The aggregated update, in the form the clients' came in: a vector, or a state dict."""
        return self._make_update()

    @property
    def clients(self) -> Mapping[str, Tensor]:
        """The diagnostics, by the name that they had before."""
        return self.diagnostics

    @property
    def suspects(self) -> tuple[str, ...]:
        """The admitted clients that stand out: next to no weight, far too long, or called malicious by the rule."""
        return tuple(self.suspicions)

    @property
    def answers(self) -> list[tuple[str, Verdict]]:
        """(client, what became of its answer): the admitted ones in their order, then those that were left out."""
        admitted = [
            (i, Verdict("suspect", self.suspicions[i]) if i in self.suspicions else USED) for i in self.client_ids
        ]
        return admitted + [(r.client_id, Verdict("left out", r.reason)) for r in self.rejected]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """What became of each client; of one that answered twice, of the answer that was admitted, or else the last."""
        return dict(reversed(self.answers))

    def numbers(self) -> dict[str, dict[str, float | None]]:
        """The diagnostics of each admitted client, ready for JSON: what is not finite is None."""
        columns = {name: values.tolist() for name, values in self.diagnostics.items() if values.ndim == 1}
        return {
            client_id: {name: values[k] if np.isfinite(values[k]) else None for name, values in columns.items()}
            for k, client_id in enumerate(self.client_ids)
        }

    def records(self) -> list[dict[str, Any]]:
        """One flat record for each client, those left out included: `client`, `verdict`, `reason`, its numbers."""
        numbers = self.numbers()
        return [record_of(i, verdict, numbers[i] if verdict.admitted else {}) for i, verdict in self.answers]


def record_of(client_id: str, verdict: Verdict, numbers: Mapping[str, float | None]) -> dict[str, Any]:
    """A flat record of one client."""
    own = {"client": client_id, **verdict.record()}
    return own | {name: value for name, value in numbers.items() if name not in OWN_FIELDS}


class Server:
    """A rule or a chain of parts, what it remembers between rounds, and the round's number.

    >>> server = Server("fedseca", momentum=0.5)
    >>> out = server.aggregate(torch.randn(3, 100), client_ids=["a", "b", "c"])
    >>> out.update.shape, out.rejected
    (torch.Size([100]), ())
    """

    def __init__(
        self,
        rule: str | Aggregator = "fedseca",
        *,
        learning_rate: float = 1.0,
        buffers: BufferPolicy = "median",
        seed: int = 0,
        in_place: bool = False,
        **hyperparameters: Any,
    ) -> None:
        """`learning_rate` is η in w ← w − η·g̃. `buffers` says what happens to the running statistics of
        normalisation layers: their median over the clients, or "aggregate" like the weights. Files of clients are
        copied before they are read, unless `in_place`: then they must not change, and if one does it is an error."""
        self.rule = make_aggregator(rule, **hyperparameters)
        if buffers not in get_args(BufferPolicy):
            raise InputError(f"buffers must be {' | '.join(get_args(BufferPolicy))}; found {buffers!r}")
        if not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed must be an integer ≥ 0; found {seed!r}")
        if not (np.isfinite(learning_rate) and learning_rate > 0):
            raise InputError(f"learning_rate must be a finite number above 0; found {learning_rate!r}")
        self.learning_rate, self.buffers, self.seed = float(learning_rate), buffers, seed
        self.in_place = in_place
        self.round = 0
        self._state: State = {}
        self._layout: Layout | None = None  # of what is remembered

    def __repr__(self) -> str:
        return f"Server({self.rule}, round {self.round})"

    def aggregate(
        self,
        updates: Any,
        client_ids: Sequence[object] | None = None,
        *,
        before: Any = None,
        weights: Sequence[float] | None = None,
        min_clients: int = 1,
    ) -> Round:
        """One round: screen the clients, aggregate the admitted ones, remember.

        `updates` are pseudo-gradients g_k = w_before − w_k: a (K, D) matrix, K vectors, K state dicts, K lists of
        arrays, K modules, K of Flower's ArrayRecords or K safetensors files. With `before`, the global model that the
        clients started from, they are the clients' models instead, and the answer has the new global `model`. Too few
        admitted clients, for the rule or for `min_clients`: `NotEnoughClients`, and nothing changes.
        Where the rule has a memory, later rounds must have the arrays of the first.
        """
        out, answer, layout = self._play(updates, client_ids, before, weights, min_clients)
        self._state, self._layout = answer.state, layout if answer.state else None
        self.round += 1
        return out

    def rehearse(
        self,
        updates: Any,
        client_ids: Sequence[object] | None = None,
        *,
        before: Any = None,
        weights: Sequence[float] | None = None,
    ) -> Round:
        """What `aggregate` would answer now; nothing is remembered. An attacker who knows the rule does this."""
        return self._play(updates, client_ids, before, weights)[0]

    def screen(
        self,
        updates: Any,
        client_ids: Sequence[object] | None = None,
        *,
        before: Any = None,
        weights: Sequence[float] | None = None,
    ) -> Screening:
        """Who would be admitted to a round now, and why the others would not."""
        return screen(
            updates,
            client_ids,
            before=before,
            weights=weights,
            buffers=self.buffers,
            expected=self._layout,
            in_place=self.in_place,
        )

    def _play(
        self,
        updates: Any,
        client_ids: Sequence[object] | None,
        before: Any,
        weights: Sequence[float] | None,
        min_clients: int = 1,
    ) -> tuple[Round, Aggregation, Layout]:
        if weights is not None and not self.rule.takes_weights:
            raise InputError(f"{self.rule.name} weighs no client by a given number: leave out weights")
        screening = self.screen(updates, client_ids, before=before, weights=weights)
        admitted = screening.updates
        rule = self.rule.after_leaving_out(screening.num_left_out, len(admitted))
        fewest = max(rule.min_clients(), min_clients)
        if len(admitted) < fewest:
            few = len(admitted) < rule.min_clients()  # else it is the caller who asks for more
            way_out = self.rule.way_out(len(admitted)) if few else ""
            raise NotEnoughClients(self.rule.name, fewest, len(admitted), screening.rejected, way_out=way_out)
        if before is None and look_like_models(admitted):
            warnings.warn(LooksLikeModels(_MODELS), stacklevel=_callers_level())
        state = self._state or self.rule.init(admitted.dim)
        try:
            answer = rule.aggregate(admitted, state, self._generator())
        except NotEnoughRows as few:
            raise NotEnoughClients(
                self.rule.name, few.required, len(admitted), screening.rejected, why=str(few)
            ) from None
        if not isinstance(answer, Aggregation) or answer.update.shape != (admitted.dim,):
            raise TypeError(
                f"{self.rule.name}.aggregate must answer an Aggregation whose update has {admitted.dim} numbers"
            )
        assumed = None if rule is self.rule else rule.assumed_byzantine()
        if assumed is not None:
            _LOG.warning(
                "%s: %s of %s clients were left out; of the others at most %s are assumed Byzantine",
                self.rule.name,
                screening.num_left_out,
                screening.num_left_out + len(admitted),
                assumed,
            )
        out = self._finish(screening, answer, assumed)
        screening.check_unchanged()
        return out, answer, admitted.layout

    def _generator(self) -> torch.Generator:
        """A generator of this round's own: a restored server draws what an unbroken one would have drawn."""
        return torch.Generator().manual_seed(_seed_of_round(self.seed, self.round))

    def _finish(self, screening: Screening, answer: Aggregation, assumed: int | None) -> Round:
        updates, layout = screening.updates, screening.updates.layout
        beside = updates.medians_beside()
        model = None
        if screening.before is not None:
            step = answer.update.to(updates.compute_dtype)  # w ← w − η·g̃
            model = layout.stepped(
                screening.before, step if self.learning_rate == 1 else self.learning_rate * step, beside
            )
        for name, value in (*_to_check(answer.update, layout, beside), *(model or {}).items()):
            if not is_finite(value):
                where = f" in {name}" if name else ""
                raise NotFinite(f"the aggregate is not finite{where}", screening.rejected)
        make_update = partial(_update, answer.update, layout, beside, screening.form)
        if model is None:  # then it is the answer, and what it was made from may change later
            make_update = partial(_itself, make_update())
        said = {NORM.name: screening.norms, **answer.diagnostics, NORM.name: screening.norms}
        weight = said["weight"] if answer.row_weight is None else answer.row_weight
        judged = self.rule.low_weight_is_distrust and updates.weights is None
        return Round(
            _make_update=make_update,
            model=None if model is None else _outward(model, layout, screening.form),
            client_ids=updates.client_ids,
            diagnostics=said,
            rejected=screening.rejected,
            suspicions=suspicion(
                updates.client_ids, screening.norms.tolist(), weight.tolist() if judged else None, answer.suspects
            ),
            assumed_byzantine=assumed,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later: whose state it is, the round, and the rule's tensors (copies)."""
        return {
            "rule": self.rule.name,
            "hyperparameters": self.rule.values(),
            "seed": self.seed,
            "buffers": self.buffers,
            "round": self.round,
            "layout": None if self._layout is None else self._layout.describe(),
            "state": {name: value.clone() for name, value in self._state.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state. One of another rule, hyperparameter or seed is refused."""
        ours = {"rule": self.rule.name, "seed": self.seed, "buffers": self.buffers}
        theirs = {key: saved.get(key) for key in ours} | dict(saved.get("hyperparameters") or {})
        for key, value in (ours | self.rule.values()).items():
            if theirs.get(key) != value:
                raise StateError(
                    f"the saved state is of {key}={theirs.get(key)!r}, this server has {key}={value!r}; "
                    f"make the server as it was when it was saved"
                )
        try:
            state = {str(name): value.clone() for name, value in saved["state"].items()}
            described = saved["layout"]
            layout = None if described is None else Layout.from_description(described, self.buffers)
            self._check_state(state, layout)
            self.round, self._layout, self._state = whole_number(saved["round"]), layout, state
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, Malformed) as problem:
            raise StateError(f"the saved state is broken: {problem!r}") from None

    def _check_state(self, state: State, layout: Layout | None) -> None:
        """Whether a state could be this rule's: what it begins with is there, in the sizes it has."""
        for name, begun in self.rule.init(layout.dim).items() if layout is not None else ():
            found = state.get(name)
            if found is None or found.ndim != begun.ndim or found.shape[-1:] != begun.shape[-1:]:
                raise ValueError(f"{name} is missing or of another size")
        if state and layout is None:
            raise ValueError("it does not say which arrays it is of")

    def keep(
        self,
        path: Path,
        manifest: Mapping[str, Any] | None = None,
        parts: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Write a checkpoint: the state, and what else a runtime needs to go on."""
        saved = self.state_dict()
        state = saved.pop("state")
        write_checkpoint(path, {**(manifest or {}), _SERVER: saved}, {**(parts or {}), _SERVER: state})

    def restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint; that of a server that was made otherwise is a `StateError`."""
        try:
            self.load_state_dict({**found.manifest[_SERVER], "state": found.parts.get(_SERVER, {})})
        except (KeyError, TypeError, StateError) as problem:
            raise StateError(f"{found.path}: cannot be resumed ({problem})") from None

    def save(self, folder: str | Path) -> None:
        """Write the state into a folder. Whenever it is cut off, the folder holds the old state or the new one."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise StateError(f"{folder} is a file; a server is saved into a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.keep(folder / _SAVED)

    def load(self, folder: str | Path) -> Server:
        """Go on from what `save` wrote into a folder, or from the checkpoint of a run; returns the server itself."""
        folder = Path(folder)
        found = next((folder / name for name in (_SAVED, CHECKPOINT) if (folder / name).is_file()), None)
        if found is None and (folder / _OUTDATED).is_file():
            raise StateError(
                f"{folder}: was saved by an earlier version of fedseca ({_OUTDATED}); go on with that version, or "
                "begin with a new server"
            )
        if found is None:
            raise StateError(f"{folder}: there is no saved server ({_SAVED})")
        self.restore(read_checkpoint(found))
        return self


@lru_cache(maxsize=1024)  # a call without memory is always the first round
def _seed_of_round(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]) >> 1


def _callers_level() -> int:
    """How many frames above its caller the first one stands that is not ours: whose line a warning names."""
    level, frame = 1, inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        level, frame = level + 1, frame.f_back
    return level


def _to_check(vector: Tensor, layout: Layout, beside: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The arrays that may hold NaN or Inf: the buffers; and the parameters, unless the vector is finite and its dtype
    stays."""
    if is_finite(vector) and all(entry.dtype == vector.dtype for entry in layout.parameters):
        return list(beside.items())
    return list(layout.unflatten(vector, beside).items())


def _itself(value: Any) -> Any:
    return value


def _update(vector: Tensor, layout: Layout, beside: Mapping[str, Tensor], form: Form) -> Any:
    return _outward(layout.unflatten(vector, beside), layout, form)


def _outward(arrays: dict[str, Tensor], layout: Layout, form: Form) -> Any:
    """Arrays in the form the clients' came in."""
    values: dict[str, Any] = dict(arrays)
    if form.numpy:  # which has no bfloat16
        values = {k: (v.float() if v.dtype == torch.bfloat16 else v).cpu().numpy() for k, v in arrays.items()}
    if layout.is_vector:
        return values[""]
    if form.container == "record":
        from flwr.app import Array, ArrayRecord  # whoever has a record has Flower

        return ArrayRecord({name: Array(value) for name, value in values.items()})
    return list(values.values()) if form.container == "list" else values


def aggregate(
    updates: Any,
    rule: str | Aggregator = "fedseca",
    *,
    client_ids: Sequence[object] | None = None,
    before: Any = None,
    weights: Sequence[float] | None = None,
    buffers: BufferPolicy = "median",
    seed: int = 0,
    in_place: bool = False,
    **hyperparameters: Any,
) -> Any:
    """The robust aggregate of K updates, in the form they came in, with no memory of earlier calls.

    `updates`: a (K, D) tensor or array, K vectors, K state dicts, K lists of arrays, K `torch.nn.Module`s (the answer
    is a state dict), K of Flower's `ArrayRecord`s or K safetensors files. They are differences to the global model; if
    they are the clients' models, give the global model `before`, and the answer is the new one.
    Clients that cannot be used are left out; `Server` says who and why. Files are copied before they are read, so that
    nobody can change them meanwhile; `in_place` leaves that out, for files that do not change.

    >>> aggregate(torch.tensor([[1.0, -2.0], [3.0, -4.0], [2.0, 9.0]]), rule="cwmed")
    tensor([ 2., -2.])
    """
    made = make_alone(rule, **hyperparameters)
    server = Server(made, buffers=buffers, seed=seed, in_place=in_place)
    out = server.aggregate(updates, client_ids, before=before, weights=weights)
    return out.update if before is None else out.model
