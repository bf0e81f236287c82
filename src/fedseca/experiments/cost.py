"""What a defence costs when nobody attacks, and what is left of it when somebody does: each rule with its best step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from fedseca.experiments.experiment import Done, Files, OnStep, Request, TableOfRuns, success_of
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import heat_map
from fedseca.experiments.results import About, Outcome, ResultTable, Score, as_csv, kept_scores, or_zero, read_csv
from fedseca.experiments.store import Store
from fedseca.federation import History, Scenario
from fedseca.federation.presets import Changes

_NO_ATTACK = "none"
_STEP = "server_learning_rate"
STEPS = (1.0, 1.5, 2.0, 3.0)
"""η: the grid on which every rule is tuned, FedAvg too."""
_MEAN, _PRICE, _WORST, _LEFT = "mean of rounds", "÷ fedavg", "worst", "÷ no attack"


class _Tuned(NamedTuple):
    """How a rule did without an attack with one step."""

    row: str
    step: float
    score: Score


@dataclass(frozen=True, kw_only=True)
class CostOfDefence(TableOfRuns):
    """Rules × attacks, each rule with the step of the server that is best for it where nobody attacks.

    First every rule is run without an attack with every step. The step with the best score is the one that the attacks
    are met with.
    """

    reference: str = "fedavg"
    """The row that the price is counted from. It is always there."""
    long_runs: Mapping[str, Changes] = field(default_factory=dict)
    """The columns where a run takes minutes."""
    short_presets: tuple[str, ...] = ()
    """Presets whose runs take seconds."""

    def at(self, preset: str) -> CostOfDefence:
        return self if preset in self.short_presets else replace(self, columns=self.long_runs)

    def only(self, rows: Sequence[str]) -> TableOfRuns:
        return super().only(list(dict.fromkeys([self.reference, *rows])))

    def runs(self, request: Request) -> list[Scenario]:
        """Those that tell which steps are best; the others depend on them."""
        return [run for step in STEPS for run in TableOfRuns.runs(self._unharmed(step), request)]

    def waves(self, request: Request, store: Store) -> Iterator[list[Scenario]]:
        yield self.runs(request)
        yield TableOfRuns.runs(self._attacked(self._tuned(request, store)), request)

    def outcome(self, request: Request, store: Store, machine: Machine, on_step: OnStep) -> Outcome:
        """The table, and how each rule did with each step, as CSV; and the table as a picture."""
        tuned = self._tuned(request, store)
        attacked = self._attacked(tuned)
        columns = (_NO_ATTACK, _MEAN, _PRICE, _WORST, _LEFT, *(each for each in self.columns if each != _NO_ATTACK))
        missing = [Score(row, column, ()) for row in self.rows if row not in attacked.rows for column in columns]
        scores = self._scores(attacked.done(request, store)) + missing
        about = About.of(TableOfRuns.runs(attacked, request) or self.runs(request), request.seeds)
        steps = replace(self.table(about, [each.score for each in tuned]), column_name=_STEP)
        table = self.table(about, scores)
        numbers = {
            f"{self.name}.csv": as_csv(list(table.lines())),
            f"{self.name}-steps.csv": as_csv(list(steps.lines())),
        }
        return self.finished(table, about, numbers)

    def table(self, about: About, scores: Sequence[Score]) -> ResultTable:
        table = super().table(about, scores)
        said = [
            f"η: of {', '.join(f'{step:g}' for step in STEPS)} the best without an attack",
            f"{_PRICE}: F1 without an attack, beside {self.reference}'s",
            f"{_WORST}: the least under an attack; {_LEFT}: beside the rule's own without one",
        ]
        return replace(table, setting=[*table.setting, *said], shares=(_PRICE, _LEFT))

    def figures(self, kept: Files) -> dict[str, Any]:
        scores = kept_scores(read_csv(kept[f"{self.name}.csv"]), self.row_name, self.column_name, self.metric)
        return {f"{self.name}.png": heat_map(self.table(self.about(kept), scores))}

    def _unharmed(self, step: float) -> CostOfDefence:
        return replace(self, columns={_NO_ATTACK: {"attack": _NO_ATTACK, _STEP: step}})

    def _tuned(self, request: Request, store: Store) -> list[_Tuned]:
        """Of what is done: each rule with each step, all seeds of it."""
        found = []
        for step in STEPS:
            for (row, _), histories in self._unharmed(step).done(request, store).items():
                if len(histories) == len(request.seeds):
                    values = tuple(self._score(history) for history in histories)
                    found.append(_Tuned(row, step, Score(row, f"{step:g}", values)))
        return found

    def _attacked(self, tuned: Sequence[_Tuned]) -> CostOfDefence:
        """Every row with its best step, of equally good ones the shortest; a row without any has none."""
        best: dict[str, _Tuned] = {}
        for each in tuned:
            if each.row not in best or fmean(each.score.values) > fmean(best[each.row].score.values):
                best[each.row] = each
        rows = {row: {**changes, _STEP: best[row].step} for row, changes in self.rows.items() if row in best}
        return replace(self, rows=rows)

    def _scores(self, done: Done) -> list[Score]:
        """By seed: without an attack, as a share of the reference's, the worst, as a share of the rule's own."""
        of_reference = done.get((self.reference, _NO_ATTACK), [])
        found = []
        for row in dict.fromkeys(row for row, _ in done):
            attacked = {column: done[row, column] for _, column in (key for key in done if key[0] == row)}
            unharmed = attacked.pop(_NO_ATTACK)
            label = f"{row}, η = {unharmed[0].scenario.server_learning_rate:g}" if unharmed else row
            own = self._values(unharmed)
            whole = all(len(histories) == len(own) for histories in attacked.values())
            by_seed = zip(*map(self._values, attacked.values()), strict=True) if whole else ()
            worst = tuple(min(values) for values in by_seed)
            means = tuple(fmean(map(or_zero, history.f1)) for history in unharmed)
            found += [
                Score(label, _NO_ATTACK, own, runs=_ids(unharmed)),
                Score(label, _MEAN, means),
                Score(label, _PRICE, _shares(own, self._values(of_reference))),
                Score(label, _WORST, worst),
                Score(label, _LEFT, _shares(worst, own)),
            ]
            found += [
                Score(label, column, self._values(of), runs=_ids(of), success=success_of(of, self.last))
                for column, of in attacked.items()
            ]
        return found

    def _values(self, histories: Sequence[History]) -> tuple[float, ...]:
        return tuple(map(self._score, histories))

    def _score(self, history: History) -> float:
        return or_zero(history.last(self.metric, self.last))


def _shares(values: Sequence[float], of: Sequence[float]) -> tuple[float, ...]:
    """One as a share of the other, seed by seed; nothing while a run is missing."""
    if len(values) != len(of) or not all(of):
        return ()
    return tuple(value / whole for value, whole in zip(values, of, strict=True))


def _ids(histories: Sequence[History]) -> tuple[str, ...]:
    return tuple(history.scenario.id for history in histories)
