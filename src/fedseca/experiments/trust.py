"""The say of every client in the election of signs, over the rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedseca.experiments.experiment import Cell, OnStep, Request, TableOfRuns
from fedseca.experiments.plots import trust
from fedseca.experiments.results import Outcome, ResultTable, Score, as_csv
from fedseca.experiments.store import Store


class TrustOverRounds(TableOfRuns):
    """ρ of the honest clients and of the Byzantine ones under each attack."""

    def outcome(self, request: Request, store: Store, data_dir: Path | None, on_step: OnStep) -> Outcome:
        """ρ of every client in every round as CSV and picture; the table has the means."""
        cells = self.cells(request)
        lines = list(_lines(cells, store))
        files = {f"{self.name}.csv": as_csv(lines), f"{self.name}.png": trust(self.title, list(self.columns), lines)}
        return Outcome(self._means(cells, store, lines), files)

    def _means(self, cells: Sequence[Cell], store: Store, lines: Sequence[dict[str, Any]]) -> ResultTable:
        scores = []
        for truth in (False, True):
            for cell in cells:
                found = [
                    line["rho"]
                    for line in lines
                    if line["attack"] == cell.column and line["byzantine"] is truth and line["rho"] is not None
                ]
                runs = tuple(run.id for run in _first_done(cell, store))
                values = (fmean(found),) if found else ()
                scores.append(Score("Byzantine" if truth else "honest", cell.column, values, runs=runs))
        return ResultTable(
            title=self.title,
            row_name="clients",
            column_name="attack",
            metric="trust ρ",
            scores=scores,
            coloured=False,
        )


def _first_done(cell: Cell, store: Store) -> list[Any]:
    return [run for run in cell.scenarios if store.state(run) == "done"][:1]


def _lines(cells: Sequence[Cell], store: Store) -> Iterator[dict[str, Any]]:
    for cell in cells:
        for run in _first_done(cell, store):
            for line in store.history(run).clients:
                fields = {key: line.get(key) for key in ("round", "client", "byzantine", "rho")}
                yield {"attack": cell.column, **fields}
