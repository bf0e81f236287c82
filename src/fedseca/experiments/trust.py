"""The say of every client in the election of signs, over the rounds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from fedseca.experiments.experiment import OnStep, Request, TableOfRuns
from fedseca.experiments.plots import trust
from fedseca.experiments.results import Outcome, ResultTable, Score, as_csv
from fedseca.experiments.store import Store
from fedseca.federation import History


class TrustOverRounds(TableOfRuns):
    """ρ of the honest clients and of the Byzantine ones under each attack."""

    def outcome(self, request: Request, store: Store, data_dir: Path | None, on_step: OnStep) -> Outcome:
        """ρ of every client in every round as CSV, with the first seed as picture; the table has the means."""
        done = {attack: histories for (_, attack), histories in self.done(request, store).items()}
        table = ResultTable(
            title=self.title,
            row_name="clients",
            column_name="attack",
            metric="trust ρ",
            scores=[
                Score(
                    "Byzantine" if byzantine else "honest",
                    attack,
                    tuple(_mean_trust(history, byzantine) for history in histories),
                    runs=tuple(history.scenario.id for history in histories),
                )
                for byzantine in (False, True)
                for attack, histories in done.items()
            ],
            coloured=False,
        )
        lines = [
            {"attack": attack, "seed": history.scenario.seed}
            | {key: line.get(key) for key in ("round", "client", "byzantine", "rho")}
            for attack, histories in done.items()
            for history in histories
            for line in history.clients
        ]
        first = [line for line in lines if line["seed"] == request.seeds[0]]
        files = {f"{self.name}.csv": as_csv(lines), f"{self.name}.png": trust(self.title, list(done), first)}
        return Outcome(table, files)


def _mean_trust(history: History, byzantine: bool) -> float:
    found = [line["rho"] for line in history.clients if line["byzantine"] is byzantine and line.get("rho") is not None]
    return fmean(found) if found else 0.0
