"""The one keeper of rounds: the answers of a round in, the new model and one verdict for each client out.

The simulated federation, Flower and every other runtime stand on it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedseca.errors import InputError, MissingDependency, NotEnoughClients, NotFinite, StateError, printable
from fedseca.reading import Unreadable as Unreadable
from fedseca.server import Round, Server, record_of
from fedseca.verdict import Verdict

_LOG = logging.getLogger("fedseca")


@dataclass(frozen=True)
class NoAnswer:
    """Stands for an answer that did not come."""

    reason: str = "none came"


@dataclass(frozen=True)
class Failed:
    """Stands for a client that answered that it could not train.

    Honest clients do so too. Unlike one who sends what cannot be used it is not taken for one of the Byzantine ones:
    the rule would reckon with fewer of them among the others.
    """

    reason: str


Answers = Mapping[str, Any]
"""By client id: a model, or `NoAnswer`, `Failed` or `Unreadable`."""


@dataclass(frozen=True)
class Played:
    """A round that was played."""

    model: Any
    """The new global model; that which the round began with, if it is void."""
    verdicts: Mapping[str, Verdict]
    """One for each client that was asked, in the order of the answers."""
    void: str | None
    """Why the round kept the model that it began with; None if it gave a new one."""
    round: Round | None
    """What the server says of it; None of a void round."""

    @property
    def idle(self) -> bool:
        """Whether the rule took nothing from any client: all have weight 0."""
        return self.round is not None and not bool(self.round.diagnostics["weight"].any())

    def of_kind(self, *kinds: str) -> list[str]:
        """The clients with one of these verdicts."""
        return [client_id for client_id, verdict in self.verdicts.items() if verdict.kind in kinds]

    def records(self) -> list[dict[str, Any]]:
        """One flat record for each client; then, of a void round, one of no client with the reason."""
        numbers = {} if self.round is None else self.round.numbers()
        told = [record_of(i, verdict, numbers.get(printable(i), {})) for i, verdict in self.verdicts.items()]
        return told if self.void is None else [*told, {"client": None, "void": self.void}]


def play_round(
    server: Server,
    answers: Answers,
    before: Any,
    *,
    weights: Mapping[str, Any] | None = None,
    min_clients: int = 1,
    rule_may_fail: bool = True,
) -> Played:
    """Aggregate the answers of a round; nothing that a client sent ends it.

    `before` is the model that the clients were sent. With too few answers, or where the result would not be finite, the
    round is void: it keeps that model, and the server remembers nothing of it. An exception of the rule makes it void
    too, unless the rule must not fail: in a simulation that is a mistake of the rule, which should be seen.
    """
    if len({printable(i) for i in answers if isinstance(i, str)}) < len(answers):
        raise InputError(f"client ids must be texts that look different when printed; found {list(answers)!r:.200}")
    models = {i: answer for i, answer in answers.items() if not isinstance(answer, NoAnswer | Failed)}
    given: list[Any] | None = None
    if weights is not None:
        given = [None if isinstance(answer, Unreadable) else weights[i] for i, answer in models.items()]
    out, void, left_out = None, None, {}
    try:
        out = server.aggregate(
            list(models.values()), list(models), before=before, weights=given, min_clients=min_clients
        )
        left_out = {r.client_id: r.reason for r in out.rejected}
    except NotEnoughClients as problem:
        left_out = {r.client_id: r.reason for r in problem.rejected}
        void = problem.shortage(len(answers))
    except NotFinite as problem:
        left_out = {r.client_id: r.reason for r in problem.rejected}
        void = str(problem)
    except (InputError, StateError, MissingDependency):  # of the server's own side
        raise
    except Exception as problem:  # numbers that a rule could not compute with
        if not rule_may_fail:
            raise
        _LOG.warning("%s failed", server.rule.name, exc_info=True)
        screened = server.screen(list(models.values()), list(models), before=before, weights=given)
        left_out = {r.client_id: r.reason for r in screened.rejected}
        void = f"{server.rule.name} failed: {printable(repr(problem), limit=200)}"
    verdicts = {i: _verdict(i, answer, out, left_out) for i, answer in answers.items()}
    return Played(before if out is None else out.model, verdicts, void, out)


def _verdict(client_id: str, answer: Any, out: Round | None, left_out: Mapping[str, str]) -> Verdict:
    if isinstance(answer, NoAnswer):
        return Verdict("no answer", answer.reason)
    if isinstance(answer, Failed):
        return Verdict("left out", answer.reason)
    shown = printable(client_id)  # as the server names it
    if shown in left_out:
        return Verdict("left out", left_out[shown])
    if out is None:
        return Verdict("round void")
    reason = out.suspicions.get(shown)
    return Verdict("used") if reason is None else Verdict("suspect", reason)
