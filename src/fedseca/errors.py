"""Everything that fedseca raises on purpose. Each message is one line: what, what was found, what is allowed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple


def printable(text: str, limit: int | None = None) -> str:
    """Text that may quote a client, made safe to show: one line, nothing a terminal would obey, not endless."""
    shown = text if limit is None else text[: limit + 1]  # what is not shown is not made safe: it may be megabytes
    line = shown
    if not shown.isprintable():
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def in_one_line(problem: BaseException, *, where: bool = True) -> str:
    """What an error of somebody else's code says, in one line; with the place of that code, unless it is known."""
    told = printable(" ".join(f"{type(problem).__name__}: {problem}".split()), limit=200)
    last = problem.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not where:
        return told
    return f"{told} ({os.path.basename(last.tb_frame.f_code.co_filename)}, line {last.tb_lineno})"


class FedsecaError(Exception):
    """The base of every error raised on purpose."""


class InputError(FedsecaError, ValueError):
    """The caller handed in something that cannot be used."""


class ParameterError(InputError):
    """A hyperparameter that is unknown, of the wrong type or out of bounds."""


class UnknownName(InputError, KeyError):
    """A name that is not registered."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


class FolderBusy(InputError):
    """Another process is writing there."""


class StateError(FedsecaError, ValueError):
    """A saved state that does not belong to this server, or is broken."""


class LooksLikeModels(UserWarning):
    """What was handed in as updates looks like models: the defence cannot work on them."""


class MissingDependency(FedsecaError, ImportError):
    """An optional library that a rule needs is not installed."""


class Rejection(NamedTuple):
    """One client left out of a round, and why."""

    client_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.client_id} ({self.reason})"


_MOST_NAMED = 10


def by_reason(told: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(client, reason) pairs with each reason once, told of all the clients that it is of."""
    clients: dict[str, list[str]] = {}
    for client, reason in told:
        clients.setdefault(reason, []).append(client)
    return [(_in_words(names), reason) for reason, names in clients.items()]


def _in_words(names: Sequence[str]) -> str:
    """a, b and c."""
    more = len(names) - _MOST_NAMED
    shown = [*names[:_MOST_NAMED], f"{more} more"] if more > 1 else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


class NotFinite(FedsecaError):
    """The result would not be finite: it is not returned, and nothing is remembered of the round."""

    def __init__(self, message: str, rejected: Sequence[Rejection] = ()) -> None:
        self.rejected = tuple(rejected)
        super().__init__(message)


class NotEnoughRows(FedsecaError):
    """A step before the rule left fewer rows than the rule needs."""

    def __init__(self, chain: str, rule: str, required: int, rows: int, clients: int) -> None:
        self.required = required
        super().__init__(f"{chain}: {rule} needs at least {required} rows, {rows} left of {clients} clients")


class NotEnoughClients(FedsecaError):
    """Too few clients were admitted for the rule; `rejected` names the others with the reason."""

    def __init__(
        self,
        rule: str,
        required: int,
        admitted: int,
        rejected: Sequence[Rejection],
        *,
        why: str | None = None,
        way_out: str = "",
    ) -> None:
        self.rule, self.required, self.admitted, self.rejected = rule, required, admitted, tuple(rejected)
        fewest = f"{required} client{'s' * (required != 1)}"
        found = f"{rule} needs at least {fewest}, {admitted} of {admitted + len(self.rejected)} were admitted"
        reasons = "; ".join(f"{clients} ({reason})" for clients, reason in by_reason(self.rejected))
        left_out = f"left out: {reasons}" if reasons else ""
        super().__init__("; ".join(filter(None, (why or found, way_out, left_out))))
        self._why = why

    def shortage(self, asked: int) -> str:
        """The same without the others' reasons, of a round in which so many clients were asked."""
        needed = f"{self.required} answer{'s' * (self.required != 1)}"
        return self._why or f"at least {needed} needed, {self.admitted} usable of {asked} asked"
