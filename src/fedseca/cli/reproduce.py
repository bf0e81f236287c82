"""`fedseca reproduce`: a table or figure of the paper on data that fits the machine, beside the paper's numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedseca.cli.data import DataDir
from fedseca.cli.grid import interruptible, live_grid
from fedseca.cli.tables import wide_console
from fedseca.declare import unknown
from fedseca.errors import InputError, UnknownName, printable
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import PRESETS, Experiment, Score
from fedseca.experiments.outputs import outputs
from fedseca.experiments.paper import verdict
from fedseca.experiments.plots import require_matplotlib
from fedseca.experiments.runner import check, run_grid
from fedseca.experiments.store import Store
from fedseca.experiments.workers import Processes
from fedseca.files import write_atomically

_STYLES = {
    "collapsed": "white on red",
    "severe": "black on dark_orange",
    "noticeable": "black on light_yellow3",
    "fine": "",
}


def reproduce(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(EXPERIMENTS)}.", show_default=False)],
    preset: Annotated[str, typer.Option(help=f"What it runs on: {', '.join(PRESETS)}.")] = "digits",
    seeds: Annotated[str, typer.Option(help="One or more, with commas between them.")] = "0",
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Of each run, to try it out with fewer than the preset has.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder; runs/<name>-<preset> if not given.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="N", help="Runs at once; the number of cores if not given.")
    ] = None,
    threads: Annotated[int, typer.Option(metavar="N", help="Torch's threads in each run.")] = 1,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run a table or figure of the paper and show it next to the paper's numbers.

    Writes the table as CSV and PNG, the course of every run as PNG, and the runs. Stopped and started again it goes on.
    """
    if name not in EXPERIMENTS:
        raise UnknownName(unknown("experiment", name, EXPERIMENTS))
    experiment = EXPERIMENTS[name]
    cells = experiment.cells(preset, _seeds(seeds), {} if rounds is None else {"rounds": rounds})
    runs = experiment.runs(cells)
    folder = output or Path("runs") / f"{name}-{preset}"
    store = Store(folder)
    check(runs, store, data_dir, threads)
    require_matplotlib()
    workers = Processes((os.cpu_count() or 1) if jobs is None else jobs)
    with interruptible(folder), live_grid(len(runs), store) as show_progress:
        progress = run_grid(runs, store, workers, data_dir=data_dir, threads=threads, on_change=show_progress)
    scores = experiment.scores(cells, store)
    files = outputs(experiment, cells, scores, store, data_dir)
    for file, content in files.items():
        write_atomically(folder / file, content)
    if as_json:
        rows = [{"row": s.row, "column": s.column, "values": s.values, "paper": s.paper} for s in scores]
        typer.echo(json.dumps({"experiment": name, "folder": str(folder), "scores": rows}, indent=1))
    else:
        console = wide_console()
        console.print(_table(experiment, scores))
        for run in progress.failed:
            text = f"{run.title} failed: {printable(store.error(run)['error'])}"
            console.print(Text(text, style="red"), soft_wrap=True)
        console.print(Text(f"{', '.join(files)} and the runs are in {printable(str(folder))}"), soft_wrap=True)
    if progress.failed:
        raise typer.Exit(1)


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds takes whole numbers with commas between them; found {text!r}") from None
    return list(dict.fromkeys(seeds))


def _table(experiment: Experiment, scores: list[Score]) -> Table:
    """Ours over the paper's, in the paper's colours."""
    table = Table(title=f"{experiment.title}: {experiment.metric}, in brackets the paper's", title_justify="left")
    table.add_column(experiment.row_name.replace("_", " "), style="bold", no_wrap=True)
    for column in experiment.columns:
        table.add_column(column, justify="right", no_wrap=True)
    best = max((score.mean for score in scores if score.mean is not None), default=1.0)
    found = {(score.row, score.column): score for score in scores}
    for row in experiment.rows:
        table.add_row(row, *(_cell(found[row, column], best) for column in experiment.columns))
    return table


def _cell(score: Score, best: float) -> Text:
    if score.mean is None:
        return Text("–")
    text = Text(f"{score.mean:.2f}", style=_STYLES[verdict(score.mean, best)])
    return text.append(f"\n({score.paper:.2f})", style="dim") if score.paper is not None else text
