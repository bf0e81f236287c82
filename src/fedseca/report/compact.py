"""One run as columns of short numbers: what the page draws, in few bytes.

The lines of a run folder may quote clients, so nothing in them is taken for what it should be: a value that is no
number becomes a gap, a text is cut and made printable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from fedseca.aggregators import WEIGHT
from fedseca.declare import Diagnostic
from fedseca.errors import printable
from fedseca.federation import History
from fedseca.federation.history import Record, in_words
from fedseca.federation.scenario import Difference
from fedseca.parts import flat
from fedseca.server import NORM, diagnostics_of

LONGEST = 300
"""Characters of a text that is shown."""
_MOST_COLUMNS = 12
_MOST_REASONS = 10
_STATUS = {"left out": "r", "suspect": "s", "used": "a", "round void": "a"}
"""A letter for each verdict of a client that answered."""
_ABSENT = "-"
_IN_THE_TITLE = ("dataset", "aggregator", "attack", "seed")


def compact(history: History, result: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run for the page; `result` is None if it is not finished."""
    scenario, rounds = history.scenario, history.rounds
    table = _by_round(history)
    declared = diagnostics_of(scenario.aggregator)
    columns = _columns(table, _leading(declared))
    pairs = next((each for each in declared.values() if each.pairs), None)
    return {
        "id": scenario.id,
        "finished": result is not None,
        "version": _version(result),
        "config": flat(scenario),
        "differs": [_difference(each) for each in scenario.differences() if each.path not in _IN_THE_TITLE],
        "metric": in_words(history.metric),
        "score": number(history.score),
        "rounds": len(rounds),
        "scores": [number(score) for score in history.scores],
        "beside": {text(in_words(name)): [number(record[name]) for record in rounds] for name in history.metrics[1:]},
        "loss": [number(record["loss"]) for record in rounds],
        "void": [[record["round"], text(record["void"])] for record in rounds if record["void"] is not None],
        "crafts": crafts(history),
        "idle": [record["round"] for record in rounds if record["idle"] is True],
        "byzantine": [int(scenario.is_byzantine(k)) for k in range(scenario.clients)],
        "status": ["".join(_status(record) for record in column) for column in table],
        "columns": columns,
        "headings": {name: _heading(declared.get(name), name) for name in columns},
        "columns_rounds": list(range(1, len(rounds) + 1)),
        "means": {name: [_mean(course) for course in courses] for name, courses in columns.items()},
        "rejected": _rejected(table),
        "pairs": None if pairs is None else _pairs(history, pairs),
        "thinned": [],
    }


def crafts(history: History) -> list[list[Any]]:
    """(what an attack sent that chooses each round anew, in which rounds); the most frequent first."""
    rounds: dict[str, list[int]] = {}
    for record in history.rounds:
        if isinstance(record.get("craft"), str):
            rounds.setdefault(text(record["craft"]), []).append(record["round"])
    return [[craft, found] for craft, found in sorted(rounds.items(), key=lambda each: -len(each[1]))]


def _difference(each: Difference) -> list[Any]:
    """(setting, value, default, help) of a setting that is not the default."""
    return [each.path, each.value, each.default, text(each.help)]


def number(value: Any) -> float | int | None:
    """To four digits; None if it is no number, or not finite."""
    if type(value) not in (int, float) or not abs(value) <= 1e300:
        return None
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def text(value: Any) -> str:
    return printable(value if isinstance(value, str) else repr(value), LONGEST)


def _version(result: Mapping[str, Any] | None) -> str | None:
    versions = (result or {}).get("versions")
    return text(versions.get("fedseca")) if isinstance(versions, dict) else None


def _by_round(history: History) -> list[list[Record | None]]:
    """The audit as a table of clients × rounds; None where nothing is written."""
    place = {client_id: k for k, client_id in enumerate(history.scenario.client_ids)}
    table: list[list[Record | None]] = [[None] * len(history.rounds) for _ in place]
    for record in history.audit:
        client = record["client"]
        if isinstance(client, str) and client in place and 1 <= record["round"] <= len(history.rounds):
            table[place[client]][record["round"] - 1] = record
    return table


def _status(record: Record | None) -> str:
    return _ABSENT if record is None else _STATUS.get(str(record["verdict"]), _ABSENT)


def _leading(declared: Mapping[str, Diagnostic]) -> list[str]:
    """In the order in which they are offered: what is the rule's own first, then what every rule says."""
    common = (WEIGHT.name, NORM.name)
    return [*(name for name, each in declared.items() if name not in common and not each.pairs), *common]


def _heading(declared: Diagnostic | None, name: str) -> list[str]:
    """(heading, help) of a column."""
    shown = declared or Diagnostic(name, help="")
    return [text(shown.heading), text(shown.help)]


def _columns(table: list[list[Record | None]], leading: list[str]) -> dict[str, list[list[float | int | None]]]:
    """What the rule says of each client, by round; what is declared first."""
    names: dict[str, None] = dict.fromkeys(leading)
    for column in table:
        for record in column:
            names |= dict.fromkeys(record or ())
    columns = {}
    for name in [name for name in names if name != "round"]:
        values = [[number(record.get(name)) if record else None for record in column] for column in table]
        if any(value is not None for column in values for value in column):
            columns[text(name)] = values
    return dict(list(columns.items())[:_MOST_COLUMNS])


def _mean(course: list[float | int | None]) -> float | int | None:
    values = [value for value in course if value is not None]
    return number(fmean(values)) if values else None


def _rejected(table: list[list[Record | None]]) -> list[list[Any]]:
    """Who was left out and why: client, reason (the last of its kind), how often, first round, last round."""
    found: dict[tuple[int, str], list[Any]] = {}
    for client, column in enumerate(table):
        kinds: set[str] = set()
        for record in column:
            if record is None or _status(record) != _STATUS["left out"]:
                continue
            reason = text(record.get("reason"))
            kind = _kind(reason)
            if kind not in kinds and len(kinds) == _MOST_REASONS:
                kind, reason = "", "other reasons"
            else:
                kinds.add(kind)
            entry = found.setdefault((client, kind), [client, reason, 0, record["round"], record["round"]])
            entry[1:] = [reason, entry[2] + 1, entry[3], record["round"]]
    return list(found.values())


def _kind(reason: str) -> str:
    """The reason without the numbers and places that differ from round to round."""
    return re.sub(r"\d+", "0", reason.partition(", first at ")[0])


def _pairs(history: History, declared: Diagnostic) -> dict[str, Any] | None:
    """The matrices of what is said of each pair, row after row; a client that was not admitted has a row of gaps."""
    place = {client_id: k for k, client_id in enumerate(history.scenario.client_ids)}
    rounds, matrices = [], []
    for record in history.pairs:
        matrix = _matrix(record, place, declared.name)
        if matrix is not None and 1 <= record["round"] <= len(history.rounds):
            rounds.append(record["round"])
            matrices.append(matrix)
    heading = f"{declared.help.capitalize()} ({declared.heading})"
    if not rounds:
        return None
    return {"heading": text(heading), "note": text(declared.note), "rounds": rounds, "matrices": matrices}


def _matrix(record: Record, place: Mapping[str, int], name: str) -> list[float | int | None] | None:
    clients, rows = record["clients"], record.get(name)
    if not isinstance(clients, list) or not isinstance(rows, list) or len(rows) != len(clients):
        return None
    at = [place.get(client) if isinstance(client, str) else None for client in clients]
    matrix: list[float | int | None] = [None] * len(place) ** 2
    for i, row in zip(at, rows, strict=True):
        if i is None or not isinstance(row, list) or len(row) != len(at):
            return None
        for j, value in zip(at, row, strict=True):
            if j is not None:
                matrix[i * len(place) + j] = number(value)
    return matrix


def thinned(values: list[Any], stride: int) -> list[Any]:
    """Every `stride`-th, counted back from the last: at most their share, so none where there are fewer."""
    return values[::-1][: len(values) // stride * stride : stride][::-1]
