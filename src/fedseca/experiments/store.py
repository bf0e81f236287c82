"""The folder of a grid: a run for each cell, and what went wrong with those that failed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from fedseca.errors import InputError
from fedseca.federation import History, Scenario, read_history
from fedseca.federation.folder import LINES, RESULT
from fedseca.files import write_atomically

State = Literal["done", "failed", "waiting"]
_PLAN = "grid.json"


class Store:
    """Where the cells of a grid lie. What has become of a cell is read off its files, so it survives everything."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def plan(self, cells: Iterable[Scenario]) -> None:
        """Write down which cells there are, beside those of earlier calls."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; a grid is a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        known = {cell.id: cell for cell in (*self.cells(), *cells)}
        content = json.dumps({"cells": [cell.values() for cell in known.values()]}, indent=1, ensure_ascii=False)
        write_atomically(self.path / _PLAN, content.encode())

    def cells(self) -> list[Scenario]:
        """All that were ever planned here."""
        try:
            planned = json.loads((self.path / _PLAN).read_text())["cells"]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise InputError(f"{self.path / _PLAN}: cannot be read ({problem!r}); choose another folder") from None
        return [Scenario.of(values) for values in planned]

    def folder(self, cell: Scenario) -> Path:
        return self.path / "runs" / cell.title

    def error_file(self, cell: Scenario) -> Path:
        return self.path / "errors" / f"{cell.title}.json"

    def state(self, cell: Scenario) -> State:
        if (self.folder(cell) / RESULT).exists():
            return "done"
        return "failed" if self.error_file(cell).exists() else "waiting"

    def rounds(self, cell: Scenario) -> int:
        """How many rounds are written down."""
        try:
            return (self.folder(cell) / LINES["rounds"]).read_bytes().count(b"\n")
        except OSError:
            return 0

    def error(self, cell: Scenario) -> dict[str, Any]:
        """What went wrong: the `error` in one line, and the `traceback`."""
        try:
            found = json.loads(self.error_file(cell).read_text())
            return {"error": str(found["error"]), "traceback": str(found["traceback"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {"error": "unknown", "traceback": ""}

    def history(self, cell: Scenario) -> History:
        return read_history(self.folder(cell))
