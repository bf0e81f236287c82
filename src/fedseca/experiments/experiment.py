"""A result of the paper: the runs it needs, and what is made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from fedseca.aggregators import AGGREGATORS
from fedseca.declare import unknown
from fedseca.errors import InputError, UnknownName
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import heat_map, png, trajectories
from fedseca.experiments.results import (
    About,
    Outcome,
    ResultTable,
    Score,
    as_csv,
    kept_scores,
    read_csv,
    short,
)
from fedseca.experiments.store import Store
from fedseca.federation import History, Scenario
from fedseca.federation.evaluation import SUCCESS
from fedseca.federation.history import in_words
from fedseca.federation.presets import Changes, preset_named
from fedseca.federation.scenario import GRAMMAR

Title = Callable[[Sequence[str], Sequence[str]], str]
"""What is shown, told from the rows and the columns that are."""
Files = Mapping[str, bytes]
"""Contents by the names of the files."""
OnStep = Callable[[str, int, int], None]
"""Told what is done next, how many steps are done, and of how many."""

PAPER = "paper-cifar10"
"""The setting that most of the paper's own numbers are of."""

ATTACKS: dict[str, Changes] = {
    name: {"attack": name} for name in ("alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax", "none")
}
"""In the order of the paper's tables."""


def known_row(row: str, rows: Iterable[str], *, any_rule: bool = False) -> str:
    """A row of the table; or else any rule or chain, where the rows are rules to compare."""
    if row not in rows and any_rule:
        AGGREGATORS.check(row)
    elif row not in rows:
        raise UnknownName(unknown("row", row, rows))
    return row


@dataclass(frozen=True)
class Request:
    """What an experiment is asked for."""

    preset: str = "digits"
    seeds: tuple[int, ...] = (0,)
    changes: Changes = field(default_factory=dict)
    """Put over the preset."""


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """One table or figure of the paper."""

    name: str
    title: Title
    source: str = ""
    """What of the paper it is, `the paper's Figure 3`; nothing if the paper has no such."""

    def at(self, preset: str) -> Experiment:
        """What it is with a preset."""
        return self

    @abstractmethod
    def only(self, rows: Sequence[str]) -> Experiment:
        """A part of it: some rows of its table."""

    def require(self) -> None:  # noqa: B027 (most need nothing)
        """Raise `MissingDependency` for what the outcome needs: better before hours of runs than after."""

    @abstractmethod
    def runs(self, request: Request) -> list[Scenario]:
        """What has to be run before there is an outcome, each once."""

    def waves(self, request: Request, store: Store) -> Iterator[list[Scenario]]:
        """The same runs, in waves: what the next wave is may depend on what those before it gave."""
        yield self.runs(request)

    @abstractmethod
    def outcome(self, request: Request, store: Store, machine: Machine, on_step: OnStep) -> Outcome:
        """What the runs that are done gave."""

    @abstractmethod
    def figures(self, kept: Files) -> dict[str, Any]:
        """The pictures by the names of their files, drawn from nothing but the other files of an outcome."""

    def pictures(self, kept: Files) -> dict[str, bytes]:
        """The figures as PNG."""
        return {file: png(figure) for file, figure in self.figures(kept).items()}

    def finished(self, table: ResultTable, about: About, numbers: Files) -> Outcome:
        """An outcome with its pictures."""
        kept = {f"{self.name}.json": about.written(), **numbers}
        return Outcome(table, {**kept, **self.pictures(kept)})

    def about(self, kept: Files) -> About:
        return About.read(kept[f"{self.name}.json"])

    @property
    def compare(self) -> list[str]:
        """Where the paper has it, as a phrase of the setting."""
        return [f"compare {self.source}"] if self.source else []


@dataclass(frozen=True)
class Cell:
    """One place of a table, run once for each seed."""

    row: str
    column: str
    scenarios: tuple[Scenario, ...]


class Published(NamedTuple):
    """Numbers of the paper by row and column, and what they are of."""

    setting: str
    numbers: Mapping[tuple[str, str], float]


Done = Mapping[tuple[str, str], list[History]]
"""By row and column: the runs that are done, one for each seed."""


@dataclass(frozen=True, kw_only=True)
class TableOfRuns(Experiment):
    """Something varies down, something across; each place is a run for each seed."""

    row_name: str
    row_label: str = "{}"
    """How a row is called where its name stands alone."""
    column_name: str
    rows: Mapping[str, Changes]
    columns: Mapping[str, Changes]
    base: Changes = field(default_factory=dict)
    """What all its runs have in common, over the preset."""
    any_rule: bool = False
    """Whether a rule or chain that is no row of the paper's may be asked for: its rows are rules to compare."""
    metric: str = "f1"
    last: int = 5
    """The last rounds, over which the metric is averaged."""
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The paper's own numbers."""
    paper_setting: str = "CIFAR-10, ResNet18"
    other_papers: Mapping[str, Published] = field(default_factory=dict)
    """Those of its other data sets, by name."""
    courses: bool = True
    """Whether the course of every run is kept, too: of a thousand runs nobody can tell the lines apart."""
    in_the_paper: TableOfRuns | None = None
    """What it is with the paper's own preset, if it was made smaller for the others."""

    def at(self, preset: str) -> TableOfRuns:
        return self.in_the_paper if preset == PAPER and self.in_the_paper is not None else self

    def published(self, dataset: str) -> Published:
        """What the paper has beside results on a data set: that data set's numbers, or else CIFAR-10's."""
        return self.other_papers.get(dataset) or Published(self.paper_setting, self.paper)

    def only(self, rows: Sequence[str]) -> TableOfRuns:
        known = [known_row(row.strip(), self.rows, any_rule=self.any_rule) for row in rows]
        return replace(self, rows={row: self.rows.get(row, {"aggregator": row}) for row in known})

    def cells(self, request: Request) -> list[Cell]:
        """Its places with their runs."""
        preset = preset_named(request.preset)
        self._check(request.changes)
        return [
            Cell(
                row,
                column,
                tuple(
                    _scenario(preset, {**self.base, **down, **across, **request.changes, "seed": seed})
                    for seed in request.seeds
                ),
            )
            for row, down in self.rows.items()
            for column, across in self.columns.items()
        ]

    def _check(self, changes: Changes) -> None:
        """That they change nothing that the table is about."""
        varied = {field for each in (*self.rows.values(), *self.columns.values()) for field in each}
        varied |= {taken for field, taken in GRAMMAR.takes_back.items() if field in varied}
        if wrong := [field for field in changes if field in varied]:
            raise InputError(f"{self.name} varies {wrong[0]} itself; run another by fedseca run or grid")

    def runs(self, request: Request) -> list[Scenario]:
        """The whole table with the first seed, then with the next."""
        by_seed = zip(*(cell.scenarios for cell in self.cells(request)), strict=True)
        return list({run.id: run for runs in by_seed for run in runs}.values())

    def done(self, request: Request, store: Store) -> Done:
        """What its runs gave, those that are done."""
        return {
            (cell.row, cell.column): [history for run in cell.scenarios if (history := store.done(run)) is not None]
            for cell in self.cells(request)
        }

    def outcome(self, request: Request, store: Store, machine: Machine, on_step: OnStep) -> Outcome:
        """The table and the course of every run as CSV, and both as pictures."""
        done, runs = self.done(request, store), self.runs(request)
        paper = self.published(runs[0].dataset.name).numbers
        scores = [
            Score(
                row,
                column,
                tuple(history.last(self.metric, self.last) for history in histories),
                paper.get((row, column)),
                tuple(history.scenario.id for history in histories),
                success_of(histories, self.last),
            )
            for (row, column), histories in done.items()
        ]
        courses = [
            {
                self.row_name: row,
                self.column_name: column,
                "seed": history.scenario.seed,
                "round": record["round"],
                self.metric: short(record[self.metric]),
            }
            for (row, column), histories in done.items()
            for history in histories
            for record in history.rounds
            if self.courses
        ]
        about = About.of(runs, request.seeds)
        table = self.table(about, scores)
        numbers = {f"{self.name}.csv": as_csv(list(table.lines()))}
        if self.courses:
            numbers[f"{self.name}-rounds.csv"] = as_csv(courses)
        return self.finished(table, about, numbers)

    def table(self, about: About, scores: Sequence[Score]) -> ResultTable:
        """Scores under a title that says what they are."""
        rounds = about.setting["rounds"]
        measured = f"{in_words(self.metric)}, mean of the last {min(self.last, rounds)} of {rounds} rounds"
        rows, columns = ({score.row: None for score in scores}, {score.column: None for score in scores})
        return ResultTable(
            title=self.title(list(rows), list(columns)),
            setting=[*about.federation, measured, about.seeds_of(scores), *self.compare],
            row_name=self.row_name,
            row_label=self.row_label,
            column_name=self.column_name,
            metric=self.metric,
            scores=scores,
            paper_setting=self.published(about.setting["dataset"]["name"]).setting,
        )

    def figures(self, kept: Files) -> dict[str, Any]:
        """The table; and the courses, where they were kept, with the first of their seeds."""
        about = self.about(kept)
        scores = kept_scores(read_csv(kept[f"{self.name}.csv"]), self.row_name, self.column_name, self.metric)
        table = self.table(about, scores)
        made = {f"{self.name}.png": heat_map(table)}
        lines = read_csv(kept.get(f"{self.name}-rounds.csv", b""))
        if lines:
            seed = lines[0]["seed"]
            courses: dict[tuple[str, str], list[float]] = {}
            for line in lines:
                if line["seed"] == seed:
                    place = (line[self.row_name], line[self.column_name])
                    courses.setdefault(place, []).append(float(line[self.metric]))
            measured = f"{in_words(self.metric)} after each round"
            of_rounds = replace(table, setting=[*about.federation, measured, f"seed {seed}", *self.compare])
            made[f"{self.name}-rounds.png"] = trajectories(of_rounds, courses)
        return made


def success_of(histories: Sequence[History], last: int) -> float | None:
    """How often a targeted attack succeeded, in the mean of some runs."""
    rates = [history.last(SUCCESS, last) for history in histories if SUCCESS in history.metrics]
    return fmean(rates) if rates else None


def _scenario(preset: Changes, changes: Changes) -> Scenario:
    values = dict(preset)
    for name, value in changes.items():
        GRAMMAR.put(values, name, value)
    return Scenario.of(values)
