"""The say of every client in the election of signs, over the rounds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from fedseca.aggregators.fedseca import RHO
from fedseca.experiments.experiment import OnStep, Request, TableOfRuns
from fedseca.experiments.plots import courses
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
            metric=RHO.heading,
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
            | {key: line.get(key) for key in ("round", "client", "byzantine", RHO.name)}
            for attack, histories in done.items()
            for history in histories
            for line in history.audit
            if line["client"] is not None
        ]
        first = [line for line in lines if line["seed"] == request.seeds[0]]
        files = {f"{self.name}.csv": as_csv(lines), f"{self.name}.png": courses(self.title, list(done), first, RHO)}
        return Outcome(table, files)


def _mean_trust(history: History, byzantine: bool) -> float:
    of_clients = [line for line in history.audit if line.get("byzantine") is byzantine]
    found = [line[RHO.name] for line in of_clients if line.get(RHO.name) is not None]
    return fmean(found) if found else 0.0
