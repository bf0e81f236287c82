"""A result of the paper as a table of runs: what varies down, what varies across, and the paper's number for each."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

from fedseca.declare import unknown
from fedseca.errors import UnknownName
from fedseca.experiments.store import Store
from fedseca.federation import Scenario

Changes = Mapping[str, Any]
"""Fields of a scenario and their values."""

PRESETS: dict[str, Changes] = {
    "digits": {},
    "fashion_mnist": {"dataset": "fashion_mnist", "train_images": 10_000, "rounds": 15, "batch_size": 32},
    "cifar10": {"dataset": "cifar10", "rounds": 30, "batch_size": 64, "model": {"name": "cnn", "width": 32}},
}
"""What the experiments run on: minutes, an hour, and more."""

ATTACKS: dict[str, Changes] = {
    name: {"attack": name} for name in ("alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax", "none")
}
"""In the order of the paper's tables."""


@dataclass(frozen=True)
class Cell:
    """One place of the table, run once for each seed."""

    row: str
    column: str
    scenarios: tuple[Scenario, ...]


@dataclass(frozen=True)
class Score:
    """What was measured at one place of the table."""

    row: str
    column: str
    values: tuple[float, ...]
    """One for each seed that is done."""
    paper: float | None

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper."""

    name: str
    title: str
    row_name: str
    column_name: str
    rows: Mapping[str, Changes]
    columns: Mapping[str, Changes]
    base: Changes = field(default_factory=dict)
    """What all its runs have in common, over the preset."""
    metric: str = "f1"
    shows: Literal["table", "trust", "similarity"] = "table"
    """Its picture: the table, the trust in every client over the rounds, or how alike updates look after its runs."""
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def cells(self, preset: str = "digits", seeds: Sequence[int] = (0,), changes: Changes | None = None) -> list[Cell]:
        """Its places with their runs; `changes` are put over the preset."""
        if preset not in PRESETS:
            raise UnknownName(unknown("preset", preset, PRESETS))
        return [
            Cell(
                row,
                column,
                tuple(
                    Scenario.of({**PRESETS[preset], **self.base, **down, **across, **(changes or {}), "seed": seed})
                    for seed in seeds
                ),
            )
            for row, down in self.rows.items()
            for column, across in self.columns.items()
        ]

    def runs(self, cells: Sequence[Cell]) -> list[Scenario]:
        """Every run once: the whole table with the first seed, then with the next."""
        by_seed = zip(*(cell.scenarios for cell in cells), strict=True)
        return list({run.id: run for runs in by_seed for run in runs}.values())

    def scores(self, cells: Sequence[Cell], store: Store) -> list[Score]:
        """What the runs that are done gave."""
        return [
            Score(
                cell.row,
                cell.column,
                tuple(store.history(run).last(self.metric) for run in cell.scenarios if store.state(run) == "done"),
                self.paper.get((cell.row, cell.column)),
            )
            for cell in cells
        ]

    def as_csv(self, scores: Sequence[Score]) -> str:
        """One line for each place of the table, the paper's number beside ours."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([self.row_name, self.column_name, self.metric, "std", "seeds", "paper"])
        for score in scores:
            numbers = ["" if value is None else f"{value:.4f}" for value in (score.mean, score.std)]
            paper = "" if score.paper is None else f"{score.paper:.4g}"
            writer.writerow([score.row, score.column, *numbers, len(score.values), paper])
        return out.getvalue()
