"""A run while it runs: a bar with the round, the score so far and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedseca.federation import History, Scenario
from fedseca.federation.history import in_words

SILENCE = 30.0
"""Seconds after which a run that paints no bar says a word."""


class LiveRun:
    """What `simulate` calls before the first round and after each. The bar is not painted before it is first called."""

    def __init__(self, progress: Progress, scenario: Scenario) -> None:
        self._progress = progress
        title = f"{scenario.aggregator.name} under {scenario.attack.name}"
        self._title, self._told = title, time.monotonic()
        self._task = progress.add_task(title, start=False, total=scenario.rounds, score="", completed=0)

    def __call__(self, history: History) -> None:
        self._progress.start()
        self._progress.start_task(self._task)
        done = len(history.rounds)
        score = f"{in_words(history.metric)} {history.scores[-1]:.3f}" if history.rounds else ""
        self._progress.update(self._task, completed=done, score=score)
        if self._progress.disable and time.monotonic() - self._told > SILENCE:  # into a file, no bar can be painted
            self._told = time.monotonic()
            text = ", ".join(filter(None, (f"{self._title}: round {done} of {history.scenario.rounds}", score)))
            self._progress.console.print(text, markup=False, highlight=False)


@contextmanager
def live(console: Console) -> Iterator[Progress]:
    """The bars of one or more runs; they are gone when the runs are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[bold]{task.fields[score]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    try:
        yield progress
    finally:
        if not progress.disable:  # an older Rich ends with an empty line what it never began
            progress.stop()
