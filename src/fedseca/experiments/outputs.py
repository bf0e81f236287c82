"""What an experiment leaves behind: tables and pictures by the names of their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from fedseca.experiments.experiment import Cell, Experiment, Score
from fedseca.experiments.plots import heat_map, trajectories, trust
from fedseca.experiments.store import Store


def outputs(experiment: Experiment, cells: Sequence[Cell], scores: Sequence[Score], store: Store) -> dict[str, bytes]:
    """The contents of the files."""
    name = experiment.name
    if experiment.shows_trust:
        lines = list(trust_lines(cells, store))
        return {f"{name}.csv": _csv(lines), f"{name}.png": trust(experiment, lines)}
    return {
        f"{name}.csv": experiment.as_csv(scores).encode(),
        f"{name}.png": heat_map(experiment, scores),
        f"{name}-rounds.png": trajectories(experiment, cells, store),
    }


def trust_lines(cells: Sequence[Cell], store: Store) -> Iterator[dict[str, Any]]:
    """ρ of every client in every round of the first run of each column that is done."""
    for cell in cells:
        for run in [run for run in cell.scenarios if store.state(run) == "done"][:1]:
            for line in store.history(run).clients:
                fields = {key: line.get(key) for key in ("round", "client", "byzantine", "rho")}
                yield {"attack": cell.column, **fields}


def _csv(lines: Sequence[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["attack", "round", "client", "byzantine", "rho"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue().encode()
