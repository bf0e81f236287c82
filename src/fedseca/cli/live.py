"""A run while it runs: a bar with the round, the F1 so far and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedseca.federation import History, Scenario


class LiveRun:
    """What `simulate` calls after each round."""

    def __init__(self, progress: Progress, scenario: Scenario) -> None:
        self._progress = progress
        title = f"{scenario.aggregator.name} under {scenario.attack.name}"
        self._task = progress.add_task(title, total=scenario.rounds, f1="", completed=0)

    def __call__(self, history: History) -> None:
        f1 = f"F1 {history.rounds[-1]['f1']:.3f}" if history.rounds else ""
        self._progress.update(self._task, completed=len(history.rounds), f1=f1)


@contextmanager
def live(console: Console) -> Iterator[Progress]:
    """The bars of one or more runs; they are gone when the runs are done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[bold]{task.fields[f1]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
