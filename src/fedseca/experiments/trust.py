"""The say of every client in the election of signs, over the rounds."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from fedseca.aggregators.fedseca import RHO
from fedseca.experiments.experiment import Files, OnStep, Request, TableOfRuns
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import trust
from fedseca.experiments.results import About, Outcome, ResultTable, Score, as_csv, read_csv
from fedseca.experiments.store import Store
from fedseca.federation import History


class TrustOverRounds(TableOfRuns):
    """ρ of the honest clients and of the Byzantine ones under each attack."""

    def outcome(self, request: Request, store: Store, machine: Machine, on_step: OnStep) -> Outcome:
        """ρ of every client in every round as CSV, with the first seed as picture; the table has the means."""
        done = {attack: histories for (_, attack), histories in self.done(request, store).items()}
        scores = [
            Score(
                "Byzantine" if byzantine else "honest",
                attack,
                tuple(_mean_trust(history, byzantine) for history in histories),
                runs=tuple(history.scenario.id for history in histories),
            )
            for byzantine in (False, True)
            for attack, histories in done.items()
        ]
        about = About.of(self.runs(request), request.seeds)
        measured = f"mean of the clients and of all {about.setting['rounds']} rounds"
        table = ResultTable(
            title=self.title(["honest", "Byzantine"], list(done)),
            setting=[*about.federation, measured, about.seeds_of(scores)],
            row_name="clients",
            column_name="attack",
            metric=RHO.heading,
            scores=scores,
            coloured=False,
        )
        lines = [
            {"attack": attack, "seed": history.scenario.seed}
            | {key: line.get(key) for key in ("round", "client", "byzantine", RHO.name)}
            for attack, histories in done.items()
            for history in histories
            for line in history.audit
            if line["client"] is not None
        ]
        return self.finished(table, about, {f"{self.name}.csv": as_csv(lines)})

    def figures(self, kept: Files) -> dict[str, Any]:
        """ρ with the first of the seeds."""
        about, lines = self.about(kept), read_csv(kept[f"{self.name}.csv"])
        if not lines:
            return {}
        seed = lines[0]["seed"]
        shown = [line for line in lines if line["seed"] == seed]
        attacks = list(dict.fromkeys(line["attack"] for line in shown))
        setting = [*about.federation, f"{RHO.heading} in each round", f"seed {seed}"]
        return {f"{self.name}.png": trust(self.title(["honest", "Byzantine"], attacks), setting, shown, RHO)}


def _mean_trust(history: History, byzantine: bool) -> float:
    of_clients = [line for line in history.audit if line.get("byzantine") is byzantine]
    found = [line[RHO.name] for line in of_clients if line.get(RHO.name) is not None]
    return fmean(found) if found else 0.0
