"""`History`: what happened in a run, round by round and client by client."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedseca.federation.scenario import Scenario
from fedseca.version import __version__

Record = dict[str, Any]
LAST = 5
"""The score of a run is the mean of its last five rounds, as in the paper."""


@dataclass(repr=False)
class History:
    """The rounds of a run so far."""

    scenario: Scenario
    rounds: list[Record] = field(default_factory=list)
    """One record for each round: `round` (from 1 on), the metrics, the score first (`f1`, `accuracy`, `loss`), how many
    were `admitted` and `rejected`, why it was `void` (the model stayed as it was), whether it was `idle` (the rule gave
    every client the weight 0), what became of the server's own update (`root`), and the `seconds` of its
    parts."""
    audit: list[Record] = field(default_factory=list)
    """One record for each round and client: its `verdict` (None if it was not asked), the `reason`, and what is said of
    it by name; of a void round one more, of no client."""
    pairs: list[Record] = field(default_factory=list)
    """What the rule says of each pair of clients, by round: FedSECA's `concordance`."""
    model: dict[str, Tensor] | None = None
    """The global model after the last round."""
    folder: Path | None = None

    def __repr__(self) -> str:
        score = f", {self.metric}_last5={self.score:.3f}" if self.rounds else ""
        return f"History({self.scenario.title}, {len(self.rounds)} of {self.scenario.rounds} rounds{score})"

    def append(self, records: Mapping[str, list[Record]]) -> None:
        """Add a round: its `rounds`, `audit` and `pairs`."""
        for kind, added in records.items():
            getattr(self, kind).extend(added)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What was measured of the models beside the loss, the score first: `f1` and `accuracy` of a classification."""
        return metric_names(self.rounds[0]) if self.rounds else ("f1", "accuracy")

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self.metrics[0]

    @property
    def scores(self) -> list[float]:
        """Of the model after each round."""
        return [_number(record[self.metric]) for record in self.rounds]

    def last(self, metric: str, rounds: int = LAST) -> float:
        """The mean of a metric over the last rounds; NaN if the model had none in one of them."""
        return fmean(_number(record[metric]) for record in self.rounds[-rounds:])

    @property
    def score(self) -> float:
        """Of the run: that of its last five rounds."""
        return self.last(self.metric)

    @property
    def f1(self) -> list[float]:
        return [record["f1"] for record in self.rounds]

    @property
    def f1_last5(self) -> float:
        return self.last("f1")

    @property
    def accuracy_last5(self) -> float:
        return self.last("accuracy")

    def seconds(self) -> dict[str, float]:
        """Where the time went, in all rounds together."""
        spent: dict[str, float] = {}
        for record in self.rounds:
            for part, seconds in record["seconds"].items():
                spent[part] = spent.get(part, 0.0) + seconds
        return {part: round(seconds, 3) for part, seconds in spent.items()}

    def result(self) -> Record:
        """The run in a few numbers."""
        return {
            "id": self.scenario.id,
            **{f"{metric}_last{LAST}": _or_null(self.last(metric)) for metric in self.metrics},
            "rounds": len(self.rounds),
            "void_rounds": sum(record["void"] is not None for record in self.rounds),
            "idle_rounds": sum(record["idle"] for record in self.rounds),
            "seconds": self.seconds(),
            "seed": self.scenario.seed,
            "versions": {
                "fedseca": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    def by_client(self) -> list[Record]:
        """One record for each client: how often it was there, rejected or suspected, and the means of the rest."""
        present: dict[str, list[Record]] = {client_id: [] for client_id in self.scenario.client_ids}
        for record in self.audit:
            if record["client"] is not None and record["verdict"] not in (None, "no answer"):
                present[record["client"]].append(record)
        return [self._of_client(client_id, records) for client_id, records in present.items()]

    def _of_client(self, client_id: str, present: list[Record]) -> Record:
        rejected = [record for record in present if record["verdict"] == "left out"]
        numbers: dict[str, list[float]] = {}
        for record in present:
            for name, value in record.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and name != "round":
                    numbers.setdefault(name, []).append(value)
        return {
            "client": client_id,
            "byzantine": self.scenario.is_byzantine(int(client_id)),
            "present": len(present),
            "rejected": len(rejected),
            "reason": rejected[-1]["reason"] if rejected else None,
            "suspected": sum(record["verdict"] == "suspect" for record in present),
            **{name: fmean(values) for name, values in numbers.items()},
        }


def metric_names(record: Record) -> tuple[str, ...]:
    """Of a round: they stand between its number and the loss."""
    names = list(record)
    return tuple(names[1 : names.index("loss")])


def in_words(metric: str) -> str:
    """How a metric is called before people."""
    return {"f1": "F1", "r2": "R²"}.get(metric, metric.replace("_", " "))


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    """JSON knows no NaN: what could not be measured is null."""
    return math.nan if value is None else value
