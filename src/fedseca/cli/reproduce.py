"""`fedseca reproduce`: a table or figure of the paper on data that fits the machine, beside the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars
from rich.table import Table
from rich.text import Text

from fedseca.cli.data import DataDir
from fedseca.cli.grid import interruptible, live_grid
from fedseca.cli.options import Device
from fedseca.cli.settings import put_settings, split_setting
from fedseca.cli.tables import wide_console
from fedseca.declare import unknown
from fedseca.errors import InputError, UnknownName, printable
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import OnStep, Request
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import packed, require_matplotlib
from fedseca.experiments.record import ExperimentRecord
from fedseca.experiments.results import ResultTable, Score
from fedseca.experiments.runner import check, run_grid
from fedseca.experiments.store import Store
from fedseca.experiments.workers import Processes
from fedseca.federation import Scenario
from fedseca.federation.presets import PRESETS, preset_named
from fedseca.files import write_atomically
from fedseca.paper import verdict
from fedseca.report import collect, make_page, require_plotly

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
    only: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS",
            help="Some rows, with commas between; or any other rule or chain.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Something else than the preset has, in all runs: precision=bf16, model.weights=PATH.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder; one of its own in runs/ if not given."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", help="Runs at once; if not given: as many as cores, one on a GPU."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Torch's threads: 1 in each run, all in timing if not given.")
    ] = None,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Run a table or figure of the paper and show it next to the paper's numbers.

    Writes the numbers as CSV, the pictures as PNG, a page to look at, and the runs. Stopped and started again it goes
    on. `fedseca redraw` draws the pictures again from the numbers alone.
    """
    if name not in EXPERIMENTS:
        raise UnknownName(unknown("experiment", name, EXPERIMENTS))
    experiment = EXPERIMENTS[name].at(preset)
    if only is not None:
        experiment = experiment.only(only.split(","))
    changed = [*(settings or []), *([] if rounds is None else [f"rounds={rounds}"])]
    request = Request(preset, _seeds(seeds), _changes(preset, changed))
    runs = experiment.runs(request)
    if not runs and (changed or request.seeds != (0,)):
        raise InputError(f"{name} has no runs: --rounds, --set and --seeds mean nothing to it")
    # What is tried out with fewer rounds, or otherwise, lies beside the real result, not over it.
    folder = output or Path("runs") / "-".join([name, preset, *map(_short, changed)])
    store = Store(folder)
    machine = Machine(data_dir, device, 1 if threads is None else threads)
    for dataset, task in check(runs, store, machine).items():
        if task.num_classes is None:
            raise InputError(f"{name} is about classes, and the labels of {dataset} are none; take fedseca grid")
    require_matplotlib()
    require_plotly()
    experiment.require()
    if runs or threads is not None:
        torch.set_num_threads(machine.threads)
    with interruptible(folder):
        waves = experiment.waves(request, store) if runs else ()
        failed = [run for wave in waves for run in _run(wave, store, jobs, machine)]
        with _steps() as on_step:
            outcome = experiment.outcome(request, store, machine, on_step)
    store.plan(runs)
    record = ExperimentRecord.of(name, _command(name, request, changed, only), outcome)
    files = [*outcome.files, record.file, f"{name}.html"]
    for file, content in {**outcome.files, record.file: record.content()}.items():
        write_atomically(folder / file, content)
    write_atomically(folder / f"{name}.html", make_page(collect([folder])).encode())
    if as_json:
        scores = [
            {"row": s.row, "column": s.column, "values": s.values, "paper": s.paper} for s in outcome.table.scores
        ]
        errors = [{"id": run.id, **store.error(run)} for run in failed]
        told = {"experiment": name, "folder": str(folder), "scores": scores, "failed": errors}
        typer.echo(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        table = _table(outcome.table)
        console = wide_console(table)
        console.print(_heading(outcome.table), soft_wrap=True)
        console.print(table)
        for run in failed:
            text = f"{run.title} failed: {printable(store.error(run)['error'])}"
            console.print(Text(text, style="red"), soft_wrap=True)
        kept = f"{', '.join(files)}{' and the runs' if runs else ''} are in {printable(str(folder))}"
        console.print(Text(kept), soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _run(runs: list[Scenario], store: Store, jobs: int | None, machine: Machine) -> list[Scenario]:
    """Run what is not done yet; those that failed."""
    with live_grid(len(runs), store) as show:
        workers = Processes(machine.jobs_or(jobs))
        return run_grid(runs, store, workers, machine, on_change=show).failed


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds takes whole numbers with commas between them; found {text!r}") from None
    return tuple(dict.fromkeys(seeds))


@contextmanager
def _steps() -> Iterator[OnStep]:
    """A bar for what comes after the runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBars(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("pictures", total=None)
        yield lambda what, done, total: bars.update(bar, description=what, completed=done, total=total)


def _changes(preset: str, settings: Sequence[str]) -> dict[str, Any]:
    """The fields that settings say, put over a preset; what it says itself too, since an experiment may not."""
    values = dict(preset_named(preset))
    said = put_settings(values, settings)
    return {name: value for name, value in values.items() if name in said}


def _short(setting: str) -> str:
    """A setting as part of a folder's name: `precision=bf16`; `5-rounds`; of a path its last part."""
    name, text = split_setting(setting)
    return f"{text}-rounds" if name == "rounds" else f"{name}={Path(text).name}"


def _command(name: str, request: Request, settings: Sequence[str], only: str | None) -> str:
    """What gives the same numbers anywhere."""
    seeds = f" --seeds {','.join(map(str, request.seeds))}" if request.seeds != (0,) else ""
    changes = "".join(
        f" --rounds {setting.removeprefix('rounds=')}" if setting.startswith("rounds=") else f" --set {quote(setting)}"
        for setting in settings
    )
    rows = "" if only is None else f" --only {only}"
    return f"fedseca reproduce {name} --preset {request.preset}{seeds}{changes}{rows}"


def _heading(table: ResultTable) -> Text:
    """What stands above the table: its own title would be folded to its width, and a table may be narrow."""
    beside = [f"below it the paper's ({table.paper_setting})"] if table.has_paper else []
    lines = packed([*table.setting, *beside], lambda line: len(line) < 80)
    return Text.assemble((table.title, "bold"), "\n", ("\n".join(lines), "dim"))


def _table(table: ResultTable) -> Table:
    """Ours over the paper's, in the paper's colours."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    shown.add_column(table.row_name.replace("_", " "), no_wrap=True)
    for column in table.columns:
        shown.add_column(column, justify="right", no_wrap=True)
    places = table.by_place()
    for row, named in zip(table.rows, table.row_labels, strict=True):
        scores = [places[row, column] for column in table.columns]
        label = Text(named, style="bold")
        label.append("\n  ±" if any(score.std is not None for score in scores) else "", style="dim")
        label.append("\n  ASR" if any(score.success is not None for score in scores) else "", style="dim")
        label.append("\n  paper" if any(score.paper is not None for score in scores) else "", style="dim")
        lines = label.plain.split()
        shown.add_row(label, *(_cell(score, table, spread="±" in lines, success="ASR" in lines) for score in scores))
    return shown


def _cell(score: Score, table: ResultTable, spread: bool, success: bool) -> Text:
    """Ours, its deviation and the attack's success if the row has any, and the paper's; ours and the paper's each in
    the colour of its own table."""
    number = "{:.2f}" if table.coloured else "{:.3g}"

    def shown(value: float | None, best: float) -> tuple[str, str]:
        if value is None:
            return "–", ""
        return number.format(value), _STYLES[verdict(value, best)] if table.coloured else ""

    text = Text.assemble(shown(score.mean, table.best))
    if spread:
        text.append("\n" + ("" if score.std is None else number.format(score.std)), style="dim")
    if success:
        text.append("\n" + ("" if score.success is None else f"{score.success:.2f}"), style="dim")
    if score.paper is not None:
        text.append("\n").append(*shown(score.paper, table.paper_best))
    return text


reproduce.__doc__ = f"{reproduce.__doc__}\n\n    NAME is one of: {', '.join(EXPERIMENTS)}."
