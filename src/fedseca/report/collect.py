"""Folders → the runs in them, as plain data for the page; and what was left out, with the reason."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedseca.errors import FedsecaError, InputError, printable
from fedseca.experiments.record import read_record, record_files
from fedseca.experiments.store import Store
from fedseca.federation import Scenario, read_history
from fedseca.federation.folder import CONFIG, LINES, RESULT
from fedseca.files import read_regular
from fedseca.report.compact import LONGEST, compact, thinned
from fedseca.report.experiment import experiment_data

_MOST_ENTRIES = 200_000
"""Of all matrices of pairs on a page: about 1.4 MB."""
_MOST_FOLDERS = 20_000
"""That are searched: links may lead anywhere, to the whole disk."""
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
    MemoryError,
)
"""What lies in a folder can be wrong in any way: a reason to leave it out, never one to make no page."""
_RUN_FILES = {CONFIG, RESULT, LINES["rounds"]}
"""A folder with one of these is, or was, a run."""
_WHERE = re.compile(r"(?<![\w.:/])/(?:[^/\s'\"]+/)+")
"""What comes before the last name of a path that begins at the root."""


class LeftOut(NamedTuple):
    """A folder that is not on the page, and why."""

    folder: str
    reason: str
    is_copy: bool = False
    """Whether nothing is missing for it: the same run is on the page."""


@dataclass
class Collection:
    """What a page shows."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    experiments: list[dict[str, Any]] = field(default_factory=list)
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
    """All experiments and runs in these folders and below them, each once; that there is none is an error."""
    found = Collection()
    seen: dict[Path, str] = {}
    runs: set[Path] = set()
    for given in folders:
        if not given.is_dir():
            raise InputError(
                f"{given}: {'is a file; a run is a folder' if given.exists() else 'there is no such folder'}"
            )
        for folder, name, files in _below(given.resolve(), seen, found.left_out):
            if _RUN_FILES & files:
                runs.add(folder)
                _add(found, folder, name)
            for file in record_files(files):
                _add_experiment(found, folder, name, file)
    for folder, name in seen.items():
        _add_missing_cells(found, folder, name, runs)
    _leave_out_copies(found)
    if not found.runs and not found.experiments:
        why = f"; left out: {found.left_out[0].folder} ({found.left_out[0].reason})" if found.left_out else ""
        raise InputError(f"no run to show in {', '.join(map(str, folders))}{why}")
    _thin_pairs(found.runs)
    _thin_columns(found.runs)
    return found


def _below(given: Path, seen: dict[Path, str], left_out: list[LeftOut]) -> Iterator[tuple[Path, str, set[str]]]:
    """The folder and all below it, also through links, with what is in each; `seen` are named, and not seen again.

    A name says nothing of the machine.
    """

    def name_of(path: str | Path) -> str:
        return printable(str(Path(given.name or "/") / Path(path).relative_to(given)), LONGEST)

    def leave_out(problem: OSError) -> None:
        left_out.append(LeftOut(name_of(problem.filename or given), _reason(problem, given)))

    for path, inner, files in os.walk(given, onerror=leave_out, followlinks=True):
        names, place = {*inner, *files}, Path(path).resolve()
        if place in seen:
            inner.clear()
            continue
        if len(seen) >= _MOST_FOLDERS:
            left_out.append(LeftOut(name_of(path), f"not searched: there are more than {_MOST_FOLDERS:,} folders"))
            return
        seen[place] = name_of(path)
        inner[:] = sorted(each for each in inner if not each.startswith("."))
        yield place, seen[place], names


def _add(found: Collection, folder: Path, name: str) -> None:
    try:
        result = _read_result(folder)  # first: a run that ends meanwhile is unfinished, not broken
        history = read_history(folder)
        if not history.rounds:
            raise InputError("no round is written down yet")
        if result is not None and result.get("rounds") != len(history.rounds):
            raise InputError(f"{RESULT} is not of the {len(history.rounds)} rounds in its files")
        found.runs.append({"folder": name, **compact(history, result)})
    except _UNREADABLE as problem:
        found.left_out.append(LeftOut(name, _reason(problem, folder)))


def _add_experiment(found: Collection, folder: Path, name: str, file: str) -> None:
    of_file = printable(f"{name}/{file}", LONGEST)
    try:
        shown = experiment_data(read_record(folder / file), folder, name)
    except _UNREADABLE as problem:
        found.left_out.append(LeftOut(of_file, _reason(problem, folder)))
        return
    same = next((each for each in found.experiments if {**each, "folder": name} == shown), None)
    if same is None:
        found.experiments.append(shown)
    else:
        found.left_out.append(LeftOut(of_file, f"the same experiment as in {same['folder']}", is_copy=True))


def _reason(problem: Exception, folder: Path) -> str:
    """In one line, without paths of this machine."""
    if isinstance(problem, MemoryError):
        return "does not fit into the memory"
    text = (isinstance(problem, OSError) and problem.strerror) or str(problem)
    return _without_paths(text, folder)


def _without_paths(text: str, folder: Path) -> str:
    """Without the folder, whose name stands beside the text, and without where anything lies on the machine."""
    inside = text.removeprefix(f"{folder}: ").replace(f"{folder}/", "").replace(str(folder), folder.name)
    return printable(_WHERE.sub("", inside), LONGEST)


def _read_result(folder: Path) -> dict[str, Any] | None:
    """None if the run is not finished."""
    try:
        result = json.loads(read_regular(folder / RESULT))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{RESULT} cannot be read ({_reason(problem, folder)})") from None
    if not isinstance(result, dict):
        raise InputError(f"{RESULT} is not the result of a run")
    return result


def _add_missing_cells(found: Collection, folder: Path, name: str, runs: set[Path]) -> None:
    """Of a grid: the cells that failed or are not among the `runs`, so that nobody takes the page for all of it."""
    store = Store(folder)
    try:
        planned = store.planned()
    except _UNREADABLE as problem:
        found.left_out.append(LeftOut(name, _reason(problem, folder)))
        return
    for values in planned:
        of_cell = name
        try:
            cell = Scenario.of(values)
            of_cell = f"{name}/{cell.title}"
            if store.error_file(cell).exists() and store.state(cell) == "failed":
                reason = f"failed: {store.error(cell)['error']}"
            elif store.folder(cell).resolve() in runs:
                continue
            elif store.folder(cell).exists():
                reason = "begun, and nothing is written down yet"
            else:
                reason = "planned, and not begun"
        except _UNREADABLE as problem:
            reason = f"a cell that is planned cannot be read: {_reason(problem, folder)}"
        found.left_out.append(LeftOut(of_cell, _without_paths(reason, folder)))


def _leave_out_copies(found: Collection) -> None:
    """Of runs that are alike in all but the folder, keep the first: each counts once."""
    kept: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in found.runs:
        same = next((each for each in kept[run["id"]] if {**each, "folder": run["folder"]} == run), None)
        if same is None:
            kept[run["id"]].append(run)
        else:
            found.left_out.append(LeftOut(run["folder"], f"the same run as {same['folder']}", is_copy=True))
    found.runs = [run for runs in kept.values() for run in runs]


def _thin_pairs(runs: list[dict[str, Any]]) -> None:
    """Keep so many matrices that the page stays small: all of them, or every n-th round's."""
    entries = sum(len(matrix) for run in runs if run["pairs"] for matrix in run["pairs"]["matrices"])
    stride = math.ceil(entries / _MOST_ENTRIES)
    for run in runs:
        if run["pairs"] and stride > 1:
            count = len(run["pairs"]["rounds"])
            run["pairs"] |= {name: thinned(run["pairs"][name], stride) for name in ("rounds", "matrices")}
            run["thinned"].append(["the pairs of clients", len(run["pairs"]["rounds"]), count])


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
