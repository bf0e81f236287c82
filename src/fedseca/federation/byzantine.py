"""What the Byzantine clients of a round send."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedseca.aggregators import State
from fedseca.attacks import Knowledge
from fedseca.errors import NotEnoughClients, NotFinite
from fedseca.federation.client import Federation
from fedseca.layout import Layout
from fedseca.server import Round, Server

Model = Mapping[str, Tensor]


def answer(
    server: Server, models: list[dict[str, Tensor]], ids: list[str], before: Model, *, rehearse: bool = False
) -> tuple[Round | None, NotEnoughClients | NotFinite | None]:
    """The server's answer; or none, and why the round is void."""
    try:
        return (server.rehearse if rehearse else server.aggregate)(models, ids, before=before), None
    except (NotEnoughClients, NotFinite) as void:
        return None, void


class _Messages:
    """Models as rows of pseudo-gradients, and back.

    A row holds all floating-point numbers that a client sends. Running statistics too: they are the attacker's to
    choose, whatever the server makes of them.
    """

    def __init__(self, before: Model) -> None:
        self.layout = Layout.of(before, "aggregate")
        self.before = self.layout.flatten(before, self.layout.compute_dtype)

    def row(self, model: Model) -> Tensor:
        return self.before - self.layout.flatten(model, self.before.dtype)

    def rows(self, models: Mapping[int, Model]) -> Tensor:
        return torch.stack([self.row(model) for model in models.values()])

    def model(self, row: Tensor, like: Model) -> dict[str, Tensor]:
        """The model that a row leads to; integer counters are those of another client."""
        return self.layout.unflatten(self.before - row, {entry.name: like[entry.name] for entry in self.layout.beside})


def craft(
    federation: Federation,
    server: Server,
    model: Model,
    state: State,
    number: int,
    honest: Mapping[int, dict[str, Tensor]],
    byzantine: list[int],
    own: Mapping[int, dict[str, Tensor]],
) -> tuple[dict[int, dict[str, Tensor]], State]:
    """What the Byzantine clients send, knowing the round's honest models."""
    scenario, messages = federation.scenario, _Messages(model)
    seen = honest or own
    like = next(iter(seen.values()))

    def sent(rows: Tensor) -> dict[int, dict[str, Tensor]]:
        return {k: messages.model(row, like) for k, row in zip(byzantine, rows, strict=True)}

    def probe(rows: Tensor) -> Tensor:
        models = {**honest, **sent(rows)}
        ids = [scenario.client_ids[k] for k in models]
        out, _ = answer(server, list(models.values()), ids, model, rehearse=True)
        if out is None:  # a void round leaves the model where it is
            return torch.zeros_like(messages.before)
        return messages.row(out.model) / server.learning_rate

    knowledge = Knowledge.of(
        scenario.attack,
        number,
        len(byzantine),
        tuple(scenario.client_ids[k] for k in seen),
        own=messages.rows(own) if own else None,
        model=messages.before,
        probe=probe,
    )
    rng = scenario.generator("attack", number)
    rows, state = scenario.attack.craft(messages.rows(seen), knowledge, state, rng)
    return sent(rows), state
