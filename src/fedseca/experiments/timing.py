"""How long the rules take to aggregate, beside the paper's table of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedseca.bench import measure, paper_seconds, plan_measurements
from fedseca.experiments.experiment import PAPER, Experiment, Files, OnStep, Request, known_row
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import Curve, curves
from fedseca.experiments.results import About, Outcome, ResultTable, Score, as_csv, counted, kept_scores, read_csv
from fedseca.experiments.store import Store
from fedseca.federation import Scenario
from fedseca.federation.presets import preset_named

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

    def outcome(self, request: Request, store: Store, machine: Machine, on_step: OnStep) -> Outcome:
        """Seconds as CSV, and as curves over the number of clients."""
        dim = coordinates(request.preset)
        planned = plan_measurements(list(self.rules), [], [dim], list(self.clients))
        upcoming = [f"{each.name}, {each.clients} clients" for each in planned]
        on_step(upcoming[0], 0, len(planned))
        seconds = {}
        for done, found in enumerate(measure(planned, _REPEATS), 1):
            seconds[found.name, found.clients] = found.seconds
            on_step([*upcoming, "pictures"][done], done, len(planned))
        # The paper's times are for its model: beside those of a smaller one they would say nothing.
        paper = paper_seconds() if request.preset == PAPER else {}
        scores = [
            Score(rule, str(count), (seconds[rule, count],), paper.get((rule, count)))
            for rule in self.rules
            for count in self.clients
        ]
        scenario = Scenario.of(preset_named(request.preset)).values()
        model, data = scenario["model"]["name"], scenario["dataset"]["name"]
        about = About(setting={"coordinates": dim, "model": model, "dataset": data, "threads": torch.get_num_threads()})
        table = self.table(about, scores)
        return self.finished(table, about, {f"{self.name}.csv": as_csv(list(table.lines()))})

    def table(self, about: About, scores: Sequence[Score]) -> ResultTable:
        setting = about.setting
        dim, of = f"{setting['coordinates']:,} coordinates", f"{setting['model']} for {setting['dataset']}"
        return ResultTable(
            title=self.title(list({score.row: None for score in scores}), []),
            setting=[f"{dim} ({of})", counted(setting["threads"], "thread"), "seconds, median of the repeats"],
            row_name="aggregator",
            column_name="clients",
            metric="seconds",
            scores=scores,
            coloured=False,
            paper_setting="ResNet18, 8 cores",
        )

    def figures(self, kept: Files) -> dict[str, Any]:
        """Seconds over the number of clients, the paper's dashed."""
        scores = kept_scores(read_csv(kept[f"{self.name}.csv"]), "aggregator", "clients", "seconds")
        table = self.table(self.about(kept), scores)
        lines = []
        for row in table.rows:
            mine = [score for score in scores if score.row == row]
            ours = {int(each.column): each.mean for each in mine if each.mean is not None}
            theirs = {int(each.column): each.paper for each in mine if each.paper is not None}
            lines.append(Curve(row, ours, theirs, bold=row == "fedseca"))
        return {f"{self.name}.png": curves(table.title, table.setting, lines, "seconds", table.paper_setting)}


def coordinates(preset: str) -> int:
    """How many parameters of a preset's model are trained."""
    scenario = Scenario.of(preset_named(preset))
    facts = scenario.dataset.facts
    model = scenario.model
    if "weights" in model.hyperparameters():  # which say nothing of its size
        model = replace(model, weights=None)
    _, trained = model.split(model.build(facts.shape, facts.classes, seed=0))
    return sum(parameter.numel() for parameter in trained.parameters())
