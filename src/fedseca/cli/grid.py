"""`fedseca grid`: many runs, side by side; stopped and started again, it goes on where it was."""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedseca.cli.data import DataDir
from fedseca.cli.live import SILENCE
from fedseca.cli.options import Device, with_scenario_options
from fedseca.cli.run import read_config
from fedseca.cli.settings import split_setting
from fedseca.cli.tables import score, wide_console
from fedseca.errors import InputError, printable
from fedseca.experiments.axes import Axis, place, scenarios
from fedseca.experiments.machine import Machine
from fedseca.experiments.runner import Progress, check, run_grid
from fedseca.experiments.store import Store
from fedseca.experiments.workers import Processes, RayCluster, Workers
from fedseca.federation import Scenario
from fedseca.federation.history import in_words
from fedseca.federation.scenario import GRAMMAR


@with_scenario_options
def grid(
    config: Annotated[Path | None, typer.Option(help="A scenario in TOML that all cells have in common.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            "--set",
            metavar="NAME=V1,V2,…",
            help="Something else to vary, a hyperparameter too: sparsity=0.5,0.9 or attack.strength=1,2.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the grid.")] = Path("runs/grid"),
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            help="Cells at once, at most; if not given: as many as cores, one on a GPU.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on a Ray cluster that sees the same folder; local: on a Ray of its own."
        ),
    ] = None,
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(metavar="N", help="Torch's threads in each cell.")] = 1,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    **options: str | None,
) -> None:
    """Run every combination: each option of a scenario takes several values, with commas between them.

    A cell is a run like any other (`fedseca run`), in a folder named after its config. Killed and started again, the
    grid goes on where it was, in the middle of a cell too. A cell that fails is written down and stops no other.

    Exit code: 0 if all cells are done, 1 if some failed, 2 for bad input, 130 if stopped by Ctrl-C or SIGTERM.
    """
    base = {} if config is None else read_config(config)
    axes = make_axes(base, options, vary or [])
    cells = scenarios(base, axes)
    store = Store(output)
    if ray is not None and device != "cpu":
        raise InputError(f"--device {device} is one of this machine; with --ray the clients train on CPUs")
    machine = Machine(data_dir, device, threads)
    check(cells, store, machine)
    workers: Workers = RayCluster(ray, threads, jobs) if ray is not None else Processes(machine.jobs_or(jobs))
    with interruptible(output), live_grid(len(cells), store) as show_progress:
        progress = run_grid(cells, store, workers, machine, on_change=show_progress)
    if as_json:
        typer.echo(json.dumps(_report(progress, store, output), indent=2, ensure_ascii=False))
    else:
        _show(wide_console(), cells, axes, progress, store, output)
    if progress.failed:
        raise typer.Exit(1)


def make_axes(base: Mapping[str, Any], options: Mapping[str, str | None], vary: Sequence[str]) -> list[Axis]:
    """What is varied: the options with their values, then what `--vary` names."""
    axes = [Axis(name, _values(text)) for name, text in options.items() if text is not None]
    named = [split_setting(setting, "NAME=V1,V2,…", option="--vary") for setting in vary]
    # Rules and attacks first: where a hyperparameter belongs depends on them.
    for name, text in sorted(named, key=lambda pair: pair[0] not in Scenario.hyperparameters()):
        axes.append(Axis(place(name, base, axes), _values(text)))
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is varied twice; give all its values at once")
        if GRAMMAR.takes_back.get(name) in names:
            raise InputError(f"{GRAMMAR.takes_back[name]} says how many already: leave out {name}")
    return axes


def _values(text: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(","))
    if not all(values):
        raise InputError(f"values stand with commas between them; found {text!r}")
    return values


@contextmanager
def interruptible(output: Path) -> Iterator[None]:
    """Ctrl-C and a polite kill end the grid, not its folder."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def end(number: int, frame: object) -> None:
        for each in signals:  # one is enough: a second must not disturb it in ending its processes
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.getsignal(each) for each in signals}
    for each, handler in before.items():
        if handler != signal.SIG_IGN:  # as it is where a script runs this in the background
            signal.signal(each, end)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on from {printable(str(output))}", err=True)
        raise typer.Exit(130) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def live_grid(total: int, store: Store, console: Console | None = None) -> Iterator[Callable[[Progress], None]]:
    """A table of what is done, runs, failed and waits, with the time that is left; into a file a line now and then."""
    console = console or Console(stderr=True)
    start, before, told = time.monotonic(), None, time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as painted:

        def show(progress: Progress) -> None:
            nonlocal before, told
            done = len(progress.done) + len(progress.failed)
            before = done if before is None else before
            spent, finished = time.monotonic() - start, done - before
            left = f"about {_clock(spent / finished * (total - done))} left" if finished else "…"
            counts = (
                f"{len(progress.done)} of {total} done, {len(progress.running)} running, {len(progress.failed)} failed"
            )
            line = Text(f"{counts}, {_clock(spent)} so far, {left}")
            if console.is_terminal:
                painted.update(Group(line, _running(progress, store)), refresh=True)
            elif time.monotonic() - told > SILENCE:
                told = time.monotonic()
                console.print(line, soft_wrap=True)

        yield show


def _running(progress: Progress, store: Store) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for cell in progress.running.values():
        rounds = store.rounds(cell)
        bar = ProgressBar(total=cell.rounds, completed=rounds, width=30)
        table.add_row(Text(cell.title), bar, Text(f"{rounds}/{cell.rounds}"))
    return table


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _report(progress: Progress, store: Store, output: Path) -> dict[str, Any]:
    found = [(cell, history) for cell in progress.done if (history := store.done(cell)) is not None]
    return {
        "folder": str(output),
        "done": [
            {**history.result(), "folder": str(store.folder(cell)), "scenario": cell.values()}
            for cell, history in found
        ],
        "failed": [{"id": cell.id, **store.error(cell), "scenario": cell.values()} for cell in progress.failed],
    }


def _show(
    console: Console, cells: list[Scenario], axes: list[Axis], progress: Progress, store: Store, output: Path
) -> None:
    if progress.done:
        console.print(f"{_metrics(progress.done, store)}, mean over the seeds", style="italic")
        done_ids = {cell.id for cell in progress.done}  # in the order in which they ended
        console.print(score_table([cell for cell in cells if cell.id in done_ids], axes, store))
    for cell in progress.failed:
        console.print(
            Text(f"{cell.title} failed: {printable(store.error(cell)['error'])}", style="red"), soft_wrap=True
        )
    done = f"{len(progress.done)} of {len(cells)} cells are done"
    console.print(Text(f"{done}, written to {printable(str(output))}"), soft_wrap=True)


def _metrics(cells: Sequence[Scenario], store: Store) -> str:
    """By what the cells are judged."""
    found = {in_words(history.metric): None for cell in cells if (history := store.done(cell)) is not None}
    return ", ".join(found)


def score_table(cells: Sequence[Scenario], axes: Sequence[Axis], store: Store) -> Table:
    """Rules and whatever else is varied × attacks: the score of the last five rounds, the mean over the seeds."""
    varied = [axis.name for axis in axes if len(axis.values) > 1 and axis.name not in ("aggregator", "attack", "seed")]
    scores: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        row = (cell.aggregator.name, *(GRAMMAR.shown(cell, name) for name in varied))
        if (history := store.done(cell)) is not None:
            scores[row][cell.attack.name].append(history.score)
    attacks = list(dict.fromkeys(cell.attack.name for cell in cells))
    table = Table()
    for heading in ("rule", *varied):
        table.add_column(heading, style="bold" if heading == "rule" else None)
    for attack in attacks:
        table.add_column(attack, justify="right")
    for row, by_attack in scores.items():
        means = (score(fmean(by_attack[attack])) if by_attack[attack] else Text("–") for attack in attacks)
        table.add_row(*map(Text, row), *means)
    return table
