"""What an experiment gives: a table of numbers beside the paper's, and the files that show it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from fedseca.federation import Scenario
from fedseca.federation.evaluation import SUCCESS


@dataclass(frozen=True)
class Score:
    """What was measured at one place of a table."""

    row: str
    column: str
    values: tuple[float, ...]
    """One for each seed that is done."""
    paper: float | None = None
    runs: tuple[str, ...] = ()
    """The ids of the runs that gave the values."""
    success: float | None = None
    """How often a targeted attack succeeded, the mean of the seeds."""
    note: str = ""
    """What the number came from, in words."""

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 and all(map(math.isfinite, self.values)) else None

    @property
    def count(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class KeptScore(Score):
    """A score as a CSV has it: without the values that its mean and its deviation came from."""

    kept: tuple[float | None, float | None, int] = (None, None, 0)

    @property
    def mean(self) -> float | None:
        return self.kept[0]

    @property
    def std(self) -> float | None:
        return self.kept[1]

    @property
    def count(self) -> int:
        return self.kept[2]


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Scores by row and column."""

    title: str
    """What is shown, short enough for one line."""
    setting: Sequence[str] = ()
    """On what, with whom, how it was measured: phrases."""
    row_name: str
    column_name: str
    metric: str
    scores: Sequence[Score]
    row_label: str = "{}"
    """How a row is called where its name stands alone: `{} clients`."""
    coloured: bool = True
    """Whether the numbers are scores, which the paper's colours judge."""
    paper_setting: str = ""
    shares: Sequence[str] = ()
    """Columns that are shares of others, and are not the best of the scores."""

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(score.row for score in self.scores))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(score.column for score in self.scores))

    @property
    def row_labels(self) -> list[str]:
        return [self.row_label.format(row) for row in self.rows]

    def by_place(self) -> dict[tuple[str, str], Score]:
        return {(score.row, score.column): score for score in self.scores}

    @property
    def best(self) -> float:
        return max((s.mean for s in self.scores if s.mean is not None and s.column not in self.shares), default=1.0)

    @property
    def paper_best(self) -> float:
        return max((score.paper for score in self.scores if score.paper is not None), default=1.0)

    @property
    def has_paper(self) -> bool:
        return any(score.paper is not None for score in self.scores)

    def lines(self) -> Iterator[dict[str, Any]]:
        """One for each place, the paper's number beside ours; and a targeted attack's success, if there was one."""
        targeted = any(score.success is not None for score in self.scores)
        for score in self.scores:
            yield {
                self.row_name: score.row,
                self.column_name: score.column,
                self.metric: short(score.mean),
                "std": short(score.std),
                "count": score.count,
                "paper": short(score.paper),
                **({SUCCESS: short(score.success)} if targeted else {}),
            }


def kept_scores(lines: Iterable[Mapping[str, str]], row: str, column: str, metric: str) -> list[Score]:
    """What `ResultTable.lines` wrote."""
    return [
        KeptScore(
            line[row],
            line[column],
            (),
            _number(line["paper"]),
            success=_number(line.get(SUCCESS, "")),
            kept=(_number(line[metric]), _number(line["std"]), int(line["count"])),
        )
        for line in lines
    ]


@dataclass(frozen=True)
class Outcome:
    """An experiment that was run."""

    table: ResultTable
    files: Mapping[str, bytes]
    """The contents by the names of the files: numbers as CSV and JSON, pictures as PNG."""


@dataclass(frozen=True)
class About:
    """What an experiment was run on: what the pictures say beside the numbers."""

    seeds: tuple[int, ...] = ()
    setting: Mapping[str, Any] = field(default_factory=dict)
    """What all its runs have in common, by the fields of a scenario; or what else its numbers depend on."""

    @classmethod
    def of(cls, runs: Sequence[Scenario], seeds: tuple[int, ...]) -> About:
        first, *others = (run.values() for run in runs)
        same = {key: value for key, value in first.items() if all(other[key] == value for other in others)}
        same.pop("seed", None)
        return cls(seeds, same)

    @classmethod
    def read(cls, content: bytes) -> About:
        found = json.loads(content)
        return cls(tuple(map(int, found["seeds"])), dict(found["setting"]))

    def written(self) -> bytes:
        content = {"seeds": self.seeds, "setting": self.setting}
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()

    @property
    def federation(self) -> list[str]:
        """The data set, the clients and how it was dealt to them, as far as all runs agree."""
        images = self.setting.get("train_images")
        parts = [f"{self.setting['dataset']['name']}{'' if images is None else f', {images:,} training images'}"]
        clients = [counted(self.setting["clients"], "client")] if "clients" in self.setting else []
        if "byzantine" in self.setting:
            clients.append(f"{self.setting['byzantine'] or 'none'} Byzantine")
        if clients:
            parts.append(", ".join(clients))
        if "partition" in self.setting:
            dealt = dict(self.setting["partition"])
            parts.append(" ".join([dealt.pop("name"), *(f"{key}={_plain(value)}" for key, value in dealt.items())]))
        return parts

    def seeds_of(self, scores: Sequence[Score]) -> str:
        """Of how many seeds there are scores: `seed 0`, `mean ± standard deviation of 3 seeds`."""
        counts = {score.count for score in scores}
        least, most = min(counts, default=0), max(counts, default=0)
        if most == 1 and len(self.seeds) == 1:
            return f"seed {self.seeds[0]}"
        several = counted(most, "seed") if least == most else f"{least} to {most} seeds"
        return f"mean ± standard deviation of {several}" if most > 1 else several


def counted(count: int, what: str) -> str:
    """`1 rule`, `12 rules`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def between(names: Sequence[str]) -> str:
    """From the first to the last of some numbers: `5 to 200`."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def as_csv(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Lines with the same fields, as a table with a heading."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue().encode()


def read_csv(content: bytes) -> list[dict[str, str]]:
    """What `as_csv` wrote, as words."""
    return list(csv.DictReader(io.StringIO(content.decode())))


def or_zero(value: float | None) -> float:
    """What counts of a score: a model that is not finite has 0."""
    return 0.0 if value is None or math.isnan(value) else value


def short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(text: str) -> float | None:
    return float(text) if text else None
