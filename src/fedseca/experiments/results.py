"""What an experiment gives: a table of numbers beside the paper's, and the files that show it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True)
class Score:
    """What was measured at one place of a table."""

    row: str
    column: str
    values: tuple[float, ...]
    """One for each seed that is done."""
    paper: float | None = None
    runs: tuple[str, ...] = ()
    """The ids of the runs that gave the values."""

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Scores by row and column."""

    title: str
    row_name: str
    column_name: str
    metric: str
    scores: Sequence[Score]
    coloured: bool = True
    """Whether the numbers are scores, which the paper's colours judge."""
    paper_setting: str = "CIFAR-10, ResNet18"

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(score.row for score in self.scores))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(score.column for score in self.scores))

    def by_place(self) -> dict[tuple[str, str], Score]:
        return {(score.row, score.column): score for score in self.scores}

    @property
    def best(self) -> float:
        return max((score.mean for score in self.scores if score.mean is not None), default=1.0)

    @property
    def paper_best(self) -> float:
        return max((score.paper for score in self.scores if score.paper is not None), default=1.0)

    @property
    def has_paper(self) -> bool:
        return any(score.paper is not None for score in self.scores)

    def lines(self) -> Iterator[dict[str, Any]]:
        """One for each place, the paper's number beside ours."""
        for score in self.scores:
            yield {
                self.row_name: score.row,
                self.column_name: score.column,
                self.metric: _short(score.mean),
                "std": _short(score.std),
                "count": len(score.values),
                "paper": _short(score.paper),
            }


@dataclass(frozen=True)
class Outcome:
    """An experiment that was run."""

    table: ResultTable
    files: Mapping[str, bytes]
    """The contents by the names of the files: tables as CSV, pictures as PNG."""


def as_csv(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Lines with the same fields, as a table with a heading."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue().encode()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
