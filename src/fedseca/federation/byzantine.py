"""What the Byzantine clients of a round send."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedseca.aggregators import State
from fedseca.attacks import Attack, Knowledge
from fedseca.errors import FedsecaError, NotEnoughClients, NotFinite
from fedseca.layout import Layout
from fedseca.server import Round, Server

Model = Mapping[str, Tensor]
Models = Mapping[str, Model]
"""By client id."""


@dataclass(frozen=True)
class Byzantines:
    """The Byzantine clients in one round. They see the honest models, and may ask the server's rule."""

    attack: Attack
    server: Server
    round: int
    before: Model
    """The global model that the round began with."""
    client_ids: tuple[str, ...]
    """Of the Byzantine clients that are there."""
    root: Models = field(default_factory=dict)
    """What the server trained itself, if it did: they do not see it, but the rule that they ask does."""
    loss_of: Callable[[Model], float] | None = None
    """The honest clients' loss of a model, if that can be asked."""

    def craft(self, honest: Models, own: Models, state: State, rng: torch.Generator) -> tuple[dict[str, Model], State]:
        """The models they send, and what their attack remembers.

        `own` are those they trained themselves, if they did. With no honest client in the round they take these for
        what the others would have sent, and remember nothing of it.
        """
        seen = honest or own
        # The rows are what the rule sees. What stands beside them (running statistics, counters) is a client's own, or
        # a copy of an honest client's: the server takes its median.
        rows_of = Rows(Layout.of(self.before, self.server.buffers), self.before)
        spare = next(iter(seen.values()))

        def sent(rows: Tensor) -> dict[str, Model]:
            return {i: rows_of.model(row, own.get(i, spare)) for i, row in zip(self.client_ids, rows, strict=True)}

        def rehearsed(rows: Tensor) -> Round | None:
            models = {**honest, **sent(rows), **self.root}
            try:
                return self.server.rehearse(list(models.values()), list(models), before=self.before)
            except (NotEnoughClients, NotFinite):  # a void round leaves the model where it is
                return None

        def probe(rows: Tensor) -> Tensor:
            out = rehearsed(rows)
            none = torch.zeros_like(rows_of.before)
            return none if out is None else rows_of.layout.flatten(out.update, none.dtype)

        def loss(rows: Tensor) -> float:
            assert self.loss_of is not None
            out = rehearsed(rows)
            found = self.loss_of(self.before if out is None else out.model)
            return math.inf if math.isnan(found) else found

        ids, matrix = rows_of.finite(seen)
        needs = self.attack.needs
        knowledge = Knowledge.of(
            self.attack,
            self.round,
            len(self.client_ids),
            ids,
            own=rows_of.matrix(own) if "own" in needs else None,
            model=rows_of.before.clone() if "model" in needs else None,
            probe=probe,
            loss=None if self.loss_of is None else loss,
        )
        rows, after = self.attack.craft(matrix, knowledge, state, rng)
        _check(self.attack, rows, after, (len(self.client_ids), rows_of.layout.dim))
        return sent(rows), after if honest else state


class Rows:
    """Models as rows of pseudo-gradients, and back."""

    def __init__(self, layout: Layout, before: Model) -> None:
        self.layout = layout
        self.before = layout.flatten(before, layout.compute_dtype)

    def matrix(self, models: Models) -> Tensor:
        # Filled row by row: a list of rows beside their stack would hold every client twice.
        matrix = self.before.new_empty(len(models), self.layout.dim)
        for row, model in zip(matrix, models.values(), strict=True):
            torch.sub(self.before, self.layout.flatten(model, self.before.dtype), out=row)
        return matrix

    def finite(self, models: Models) -> tuple[tuple[str, ...], Tensor]:
        """The clients and rows that an attack can compute with: a client whose training diverged is not one of them.

        If all have diverged they are shown as they are: whatever is sent then, nothing can be aggregated.
        """
        matrix, ids = self.matrix(models), tuple(models)
        usable = [k for k, row in enumerate(matrix) if bool(row.isfinite().all())]
        if len(usable) in (0, len(ids)):
            return ids, matrix
        return tuple(ids[k] for k in usable), matrix[usable]

    def model(self, row: Tensor, spare: Model) -> dict[str, Tensor]:
        """The model that a row leads to; what is not in a row is that of another model."""
        return self.layout.unflatten(self.before - row, {entry.name: spare[entry.name] for entry in self.layout.beside})


def _check(attack: Attack, rows: object, state: object, shape: tuple[int, int]) -> None:
    """An attack may come from anyone: what it answers is checked before it is sent."""
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.shape != shape:
        found = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise FedsecaError(f"{attack.name}.craft must answer a floating-point tensor of shape {shape}; found {found}")
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        raise FedsecaError(f"{attack.name}.craft must answer its state as tensors by name; found {state!r}")
