"""What an experiment leaves behind: tables and pictures by the names of their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedseca.experiments.experiment import ATTACKS, Cell, Experiment, Score
from fedseca.experiments.plots import distributions, heat_map, trajectories, trust
from fedseca.experiments.similarity import similarities
from fedseca.experiments.store import Store
from fedseca.federation.folder import read_model


def outputs(
    experiment: Experiment,
    cells: Sequence[Cell],
    scores: Sequence[Score],
    store: Store,
    data_dir: str | Path | None = None,
) -> dict[str, bytes]:
    """The contents of the files."""
    name = experiment.name
    if experiment.shows == "trust":
        lines = list(trust_lines(cells, store))
        return {f"{name}.csv": _csv(lines), f"{name}.png": trust(experiment, lines)}
    if experiment.shows == "similarity":
        run = cells[0].scenarios[0]
        if store.state(run) != "done":
            return {}
        attacks = [attack for attack in ATTACKS if attack != "none"]
        found = list(similarities(run, read_model(store.folder(run)), attacks, data_dir))
        lines = [
            {"attack": each.attack, **{key: round(value, 4) for key, value in each.measures().items()}}
            for each in found
        ]
        return {f"{name}.csv": _csv(lines), f"{name}.png": distributions(experiment, found)}
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
    writer = csv.DictWriter(out, list(lines[0]) if lines else ["attack"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue().encode()
