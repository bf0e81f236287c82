"""Folders → the runs in them, as plain data for the page; and what was left out, with the reason."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedseca.errors import FedsecaError, InputError, printable
from fedseca.experiments.store import Store
from fedseca.federation import History, read_history
from fedseca.federation.folder import CONFIG, RESULT
from fedseca.report.compact import LONGEST, compact, number, thinned

_MOST_ENTRIES = 200_000
"""Of all matrices of pairs on a page: about 1.4 MB."""
_MOST_VALUES = 300_000
"""Of all that is said of each client in each round, on a page: about 2 MB."""
_UNREADABLE = (
    FedsecaError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What lies in a folder can be wrong in any way: a reason to leave it out, never one to make no page."""


class LeftOut(NamedTuple):
    """A folder that is not on the page, and why."""

    folder: str
    reason: str


@dataclass
class Collection:
    """What a page shows."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def versions(self) -> list[str]:
        """The versions of fedseca that made these runs."""
        return sorted({run["version"] for run in self.runs if run["version"]})

    def varied(self) -> list[str]:
        """Which settings differ between runs of the same rule, attack and data."""
        values: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for run in self.runs:
            parts = tuple(run["config"][part] for part in ("dataset", "aggregator", "attack"))
            for name, value in run["config"].items():
                values[(name, *parts)].add(repr(value))
        return list(dict.fromkeys(key[0] for key, found in values.items() if len(found) > 1))


def collect(folders: Sequence[Path]) -> Collection:
    """All runs in these folders and below them, each once."""
    found = Collection()
    seen: set[Path] = set()
    for given in folders:
        if not given.is_dir():
            raise InputError(
                f"{given}: {'is a file; a run is a folder' if given.exists() else 'there is no such folder'}"
            )
        for folder, name in _below(given):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            if (folder / CONFIG).exists():
                _add(found, folder, name)
            _add_missing_cells(found, folder, name)
    if not found.runs:
        why = f"; left out: {found.left_out[0].folder} ({found.left_out[0].reason})" if found.left_out else ""
        raise InputError(f"no run to show in {', '.join(map(str, folders))}{why}")
    _thin_pairs(found.runs)
    _thin_columns(found.runs)
    return found


def _below(given: Path) -> Iterator[tuple[Path, str]]:
    """The folder and all below it, each with a name that says nothing of the machine."""
    top = given.resolve().name or "/"
    for path, inner, _ in os.walk(given):
        inner[:] = sorted(each for each in inner if not each.startswith("."))
        relative = Path(path).relative_to(given)
        yield Path(path), printable(str(Path(top) / relative), LONGEST)


def _add(found: Collection, folder: Path, name: str) -> None:
    try:
        result = _read_result(folder)  # first: a run that ends meanwhile is unfinished, not broken
        history = read_history(folder)
        _check(history, result)
        found.runs.append({"folder": name, **compact(history, result)})
    except _UNREADABLE as problem:
        found.left_out.append(LeftOut(name, _reason(problem, folder)))


def _reason(problem: Exception, folder: Path) -> str:
    """Without the folder, whose name stands beside it, and without advice to those who write there."""
    plain = str(problem).removeprefix(f"{folder}/").removeprefix(f"{folder}: ").removesuffix("; choose another folder")
    return printable(plain, LONGEST)


def _read_result(folder: Path) -> dict[str, Any] | None:
    """None if the run is not finished."""
    try:
        result = json.loads((folder / RESULT).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{RESULT} cannot be read ({problem})") from None
    if not isinstance(result, dict) or type(result.get("rounds")) is not int:
        raise InputError(f"{RESULT} is not the result of a run")
    return result


def _check(history: History, result: dict[str, Any] | None) -> None:
    count = len(history.rounds)
    if result is not None and result["rounds"] != count:
        raise InputError(
            f"its files hold {count} of the {result['rounds']} rounds of its result: "
            "they are broken, or written by another version"
        )
    if not count:
        raise InputError("no round is written down yet")
    if [record["round"] for record in history.rounds] != list(range(1, count + 1)):
        raise InputError("rounds are missing from its files")
    if any(number(record["f1"]) is None for record in history.rounds):
        raise InputError("an F1 in its files is not a number")


def _add_missing_cells(found: Collection, folder: Path, name: str) -> None:
    """Of a grid: the cells that failed or wait, so that nobody takes the page for all of it."""
    store = Store(folder)
    try:
        cells = store.cells()
    except _UNREADABLE as problem:
        found.left_out.append(LeftOut(name, _reason(problem, folder)))
        return
    for cell in cells:
        state = store.state(cell)
        if state == "failed":
            reason = f"failed: {store.error(cell)['error']}"
        elif state == "waiting" and not store.folder(cell).exists():
            reason = "planned, and not begun"
        else:
            continue
        found.left_out.append(LeftOut(f"{name}/{cell.title}", printable(reason, LONGEST)))


def _thin_pairs(runs: list[dict[str, Any]]) -> None:
    """Keep so many matrices that the page stays small: all of them, or every n-th round's."""
    entries = sum(len(matrix) for run in runs if run["pairs"] for matrix in run["pairs"]["matrices"])
    stride = math.ceil(entries / _MOST_ENTRIES)
    for run in runs:
        if run["pairs"] and stride > 1:
            count = len(run["pairs"]["rounds"])
            run["pairs"] = {name: thinned(values, stride) for name, values in run["pairs"].items()}
            run["thinned"].append(["the concordances", len(run["pairs"]["rounds"]), count])


def _thin_columns(runs: list[dict[str, Any]]) -> None:
    """The same for what the rule says of each client; the means over all rounds stay."""
    values = sum(len(course) for run in runs for courses in run["columns"].values() for course in courses)
    stride = math.ceil(values / _MOST_VALUES)
    for run in runs:
        if run["columns"] and stride > 1:
            run["columns_rounds"] = thinned(run["columns_rounds"], stride)
            for name, courses in run["columns"].items():
                run["columns"][name] = [thinned(course, stride) for course in courses]
            run["thinned"].append(["the courses of the clients", len(run["columns_rounds"]), run["rounds"]])
