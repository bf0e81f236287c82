"""The folder of a grid: a run for each cell, and what went wrong with those that failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from fedseca.errors import InputError, ParameterError, UnknownName
from fedseca.federation import History, Scenario, read_history
from fedseca.federation.folder import CONFIG, LINES, RESULT
from fedseca.files import locked, read_regular, remove_leftovers, write_atomically

Status = Literal["done", "failed", "waiting"]
_PLAN = "grid.json"
_ERRORS = "errors"
_LOCK = ".lock"
_ERROR_FILES = r".+-[0-9a-f]{10}\.json"  # named after their cells, whose ids end the titles


class Store:
    """Where the cells of a grid lie. What has become of a cell is read off its files, so it survives everything."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def plan(self, cells: Iterable[Scenario]) -> None:
        """Write down which cells there are, beside those of earlier calls."""
        self.check_usable()
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / _LOCK):  # two grids may be started at once
            remove_leftovers(self.path, re.escape(_PLAN))
            known = {json.dumps(values, sort_keys=True): values for values in self.planned()}
            known |= {json.dumps(cell.values(), sort_keys=True): cell.values() for cell in cells}
            content = json.dumps({"cells": list(known.values())}, indent=1, ensure_ascii=False)
            write_atomically(self.path / _PLAN, content.encode())
        if (errors := self.path / _ERRORS).is_dir():
            with locked(errors / _LOCK):
                remove_leftovers(errors, _ERROR_FILES)

    def check_usable(self) -> None:
        """Whether a grid may be written there; changes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; a grid is a folder")
        found = self.path.iterdir() if self.path.exists() else ()
        strangers = sorted(entry.name for entry in found if not entry.name.startswith("."))
        # Looked for last: another grid that starts at this moment writes its plan before anything else.
        if strangers and not (self.path / _PLAN).exists():
            raise InputError(f"{self.path}: holds other files ({strangers[0]}) and no grid; choose a new folder")
        self.planned()

    def planned(self) -> list[dict[str, Any]]:
        """The configs of all cells that were ever planned here, as they were written."""
        try:
            planned = json.loads(read_regular(self.path / _PLAN))["cells"]
            if not isinstance(planned, list) or not all(isinstance(values, dict) for values in planned):
                raise TypeError("it lists no cells")
            return planned
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise InputError(f"{self.path / _PLAN}: cannot be read ({problem!r}); choose another folder") from None

    def cells(self) -> list[Scenario]:
        """All that were ever planned here."""
        try:
            return [Scenario.of(values) for values in self.planned()]
        except (ParameterError, UnknownName, TypeError) as problem:
            raise InputError(f"{self.path / _PLAN}: cannot be read ({problem}); is a plugin missing?") from None

    def folder(self, cell: Scenario) -> Path:
        return self.path / "runs" / cell.title

    def error_file(self, cell: Scenario) -> Path:
        return self.path / _ERRORS / f"{cell.title}.json"

    def done(self, cell: Scenario) -> History | None:
        """The history of a cell that is finished and whole."""
        if not (self.folder(cell) / RESULT).exists():
            return None
        try:
            return read_history(self.folder(cell))
        except InputError:  # damaged: it is run again
            return None

    def state(self, cell: Scenario) -> Status:
        if self.done(cell) is not None:
            return "done"
        return "failed" if self.error_file(cell).exists() else "waiting"

    def data_of(self, cell: Scenario) -> str | None:
        """The fingerprint of the data that a cell was run on; None if it was not begun."""
        try:
            found = json.loads(read_regular(self.folder(cell) / CONFIG))["data"]
            return str(found)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def rounds(self, cell: Scenario) -> int:
        """How many rounds are written down."""
        try:
            return (self.folder(cell) / LINES["rounds"]).read_bytes().count(b"\n")
        except OSError:
            return 0

    def error(self, cell: Scenario) -> dict[str, Any]:
        """What went wrong: the `error` in one line, and the `traceback`."""
        try:
            found = json.loads(read_regular(self.error_file(cell)))
            return {"error": str(found["error"]), "traceback": str(found["traceback"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {"error": "unknown", "traceback": ""}


def record_failure(error_file: Path, error: str, trace: str = "") -> None:
    """Write down what went wrong with a cell."""
    error_file.parent.mkdir(parents=True, exist_ok=True)
    content = {"error": " ".join(error.split()), "traceback": trace}
    with locked(error_file.parent / _LOCK):  # what is found half-written under the lock was left by a killed process
        write_atomically(error_file, json.dumps(content, indent=1, ensure_ascii=False).encode())
