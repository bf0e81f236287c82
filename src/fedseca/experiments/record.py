"""What an experiment leaves beside its runs: its table as data, so that a report shows it again without the command."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseca.errors import InputError
from fedseca.experiments.results import Outcome, ResultTable, Score
from fedseca.files import read_regular

_SUFFIX = ".experiment.json"
_FORMAT = 1
_TEXTS = ("title", "row_name", "row_label", "column_name", "metric", "paper_setting")
_MOST_BYTES = 20_000_000
_NUMBER = (int, float)


@dataclass(frozen=True)
class ExperimentRecord:
    """A table of an experiment, and how it came about."""

    name: str
    command: str
    """What gives the same numbers anywhere."""
    table: ResultTable
    pictures: tuple[str, ...] = ()
    """The names of its PNG files, which lie beside it."""

    @classmethod
    def of(cls, name: str, command: str, outcome: Outcome) -> ExperimentRecord:
        return cls(name, command, outcome.table, tuple(file for file in outcome.files if file.endswith(".png")))

    @property
    def file(self) -> str:
        """Several experiments may share a folder."""
        return f"{self.name}{_SUFFIX}"

    def content(self) -> bytes:
        scores = [
            # JSON knows no NaN: what could not be measured is null.
            {
                "row": score.row,
                "column": score.column,
                "values": [value if math.isfinite(value) else None for value in score.values],
                "paper": score.paper,
                "runs": score.runs,
                **({} if score.success is None else {"success": score.success}),
                **({"note": score.note} if score.note else {}),
            }
            for score in self.table.scores
        ]
        told = {
            "format": _FORMAT,
            "name": self.name,
            "command": self.command,
            **{name: getattr(self.table, name) for name in _TEXTS},
            "setting": list(self.table.setting),
            "coloured": self.table.coloured,
            "scores": scores,
            "pictures": self.pictures,
        }
        return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False).encode()


def record_files(files: set[str]) -> list[str]:
    """Which of the files of a folder are records of experiments."""
    return sorted(file for file in files if file.endswith(_SUFFIX))


def read_record(file: Path) -> ExperimentRecord:
    """The record in a file, or an `InputError` that says what is wrong with it."""
    if file.stat().st_size > _MOST_BYTES:
        raise InputError(f"{file.name}: is no record of an experiment: it has more than {_MOST_BYTES:,} bytes")
    try:
        told = json.loads(read_regular(file))
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{file.name}: cannot be read ({problem})") from None
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        found = told.get("format") if isinstance(told, dict) else None
        raise InputError(f"{file.name}: was written by another version (format {found!r}; this one reads {_FORMAT})")
    reader = _Reader(file.name)
    table = ResultTable(
        **{name: reader.get(told, name, str) for name in _TEXTS},
        setting=reader.list(told, "setting", str),
        coloured=reader.get(told, "coloured", bool),
        scores=[reader.score(each) for each in reader.list(told, "scores", dict)],
    )
    pictures = tuple(reader.list(told, "pictures", str))
    return ExperimentRecord(reader.get(told, "name", str), reader.get(told, "command", str), table, pictures)


@dataclass(frozen=True)
class _Reader:
    """Takes from a file only what has the type it should have."""

    file: str

    def get(self, values: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
        value = values.get(name)
        # A truth value is a whole number to Python, and no number to us.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.file}: is no record of an experiment: its {name!r} is {str(value)[:80]!r}")
        return value

    def list(self, values: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> list[Any]:
        found: list[Any] = self.get(values, name, list)
        return [self.get({name: each}, name, kind) for each in found]

    def score(self, values: Mapping[str, Any]) -> Score:
        measured = self.list(values, "values", (*_NUMBER, type(None)))
        paper = self.get(values, "paper", (*_NUMBER, type(None)))
        success = self.get(values, "success", (*_NUMBER, type(None)))
        return Score(
            self.get(values, "row", str),
            self.get(values, "column", str),
            tuple(float(value) if _is_real(value) else math.nan for value in measured),
            float(paper) if _is_real(paper) else None,
            tuple(self.list(values, "runs", str)),
            float(success) if _is_real(success) else None,
            self.get({"note": "", **values}, "note", str),
        )


def _is_real(value: float | None) -> bool:
    """Neither null nor NaN, nor a whole number beyond every float."""
    return value is not None and abs(value) <= 1e300
