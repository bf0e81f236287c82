"""How long the rules take to aggregate, beside the paper's table of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedseca.bench import measure, paper_seconds, plan_measurements
from fedseca.experiments.experiment import PAPER, Experiment, OnStep, Request, known_row, preset_named
from fedseca.experiments.plots import curves
from fedseca.experiments.results import Outcome, ResultTable, Score, as_csv
from fedseca.experiments.store import Store
from fedseca.federation import Scenario

_REPEATS = 4
"""The first one, which touches fresh memory, is left out."""


@dataclass(frozen=True, kw_only=True)
class Timing(Experiment):
    """Rules × numbers of clients, with updates as long as the preset's model. It needs no runs."""

    rules: tuple[str, ...]
    clients: tuple[int, ...]

    def only(self, rows: Sequence[str]) -> Timing:
        return replace(self, rules=tuple(known_row(row.strip(), self.rules, any_rule=True) for row in rows))

    def runs(self, request: Request) -> list[Scenario]:
        preset_named(request.preset)
        return []

    def outcome(self, request: Request, store: Store, data_dir: Path | None, on_step: OnStep) -> Outcome:
        """Seconds as CSV, and as curves over the number of clients."""
        dim = coordinates(request.preset)
        planned = plan_measurements(list(self.rules), [], dim, list(self.clients))
        upcoming = [f"{name}, {count} clients" for name, count, _ in planned]
        on_step(upcoming[0], 0, len(planned))
        seconds = {}
        for done, found in enumerate(measure(planned, dim, _REPEATS), 1):
            seconds[found.name, found.clients] = found.seconds
            on_step([*upcoming, "pictures"][done], done, len(planned))
        # The paper's times are for its model: beside those of a smaller one they would say nothing.
        paper = paper_seconds() if request.preset == PAPER else {}
        table = ResultTable(
            title=f"{self.title}, {dim:,} coordinates, {torch.get_num_threads()} threads",
            row_name="aggregator",
            column_name="clients",
            metric="seconds",
            scores=[
                Score(rule, str(count), (seconds[rule, count],), paper.get((rule, count)))
                for rule in self.rules
                for count in self.clients
            ],
            coloured=False,
            paper_setting="ResNet18, 8 cores",
        )
        files = {f"{self.name}.csv": as_csv(list(table.lines())), f"{self.name}.png": curves(table)}
        return Outcome(table, files)


def coordinates(preset: str) -> int:
    """How many parameters a preset's model has."""
    scenario = Scenario.of(preset_named(preset))
    facts = scenario.dataset.facts
    model = scenario.model.build(facts.shape, facts.classes, seed=0)
    return sum(parameter.numel() for parameter in model.parameters())
