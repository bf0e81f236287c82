"""`fedseca run`: one federated training, live, then what every client did and where it is written."""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedseca.cli.data import DataDir, partition_table
from fedseca.cli.live import LiveRun, live
from fedseca.cli.settings import split_setting
from fedseca.cli.tables import cell, heading, score, sparkline
from fedseca.declare import Hyperparameter, unknown
from fedseca.errors import InputError, ParameterError, printable
from fedseca.federation import Federation, History, Scenario, simulate
from fedseca.federation.tensorboard import TensorBoard

_MOST_CLIENTS_SHOWN = 30


def _with_scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for everything that a scenario declares, each None unless it is given."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    declared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, _option(name, parameter)],
        )
        for name, parameter in Scenario.hyperparameters().items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + declared
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def _option(name: str, parameter: Hyperparameter) -> Any:
    default = "all" if parameter.default is None else parameter.default
    return typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=parameter.allowed if len(parameter.allowed) < 20 else "NAME",
        help=escape(f"{parameter.help} [{default}]"),
        rich_help_panel="The scenario",
        show_default=False,
    )


@_with_scenario_options
def run(
    config: Annotated[
        Path | None, typer.Option(help="A scenario in TOML; options on the command line come before it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PART.NAME=VALUE",
            help="A hyperparameter of the aggregator, attack, dataset, partition or model: attack.strength=2.",
        ),
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(help="Short for --set partition.alpha=…, of the partition dirichlet.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder of the run; runs/<its name> if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was cut off.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again where a run lies already.")] = False,
    checkpoint_every: Annotated[int, typer.Option(metavar="N", help="Rounds between two checkpoints.")] = 5,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="Where the clients train: cpu, cuda, cuda:1 …")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Torch's threads; one for small models if not given.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard, in the folder too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    **options: str | None,
) -> None:
    """Train a model over honest and Byzantine clients, and see what happened.

    A run is a folder: config.json, rounds.jsonl (metrics), clients.jsonl (the audit: what every client did in every
    round), result.json, and a checkpoint from which --resume goes on.
    """
    if resume and overwrite:
        raise InputError("--resume goes on and --overwrite starts again: give one of them")
    if alpha is not None:
        settings = [*(settings or []), f"partition.alpha={alpha}"]
    scenario = make_scenario(config, options, settings or [])
    folder = output or Path("runs") / scenario.title
    console = Console(highlight=False)
    observers: list[Callable[[History], None]] = []
    if tensorboard:
        observers.append(TensorBoard(folder / "tensorboard"))

    def begin(federation: Federation, history: History) -> None:
        if not as_json:
            _introduce(console, federation, history, folder)
        bar(history)

    def after_round(history: History) -> None:
        for observer in observers:
            observer(history)

    with live(Console(stderr=True)) as progress, _interruptible(console, folder):
        bar = LiveRun(progress, scenario)
        observers.append(bar)
        history = simulate(
            scenario,
            folder=folder,
            resume=resume,
            overwrite=overwrite,
            checkpoint_every=checkpoint_every,
            data_dir=data_dir,
            device=device,
            threads=threads,
            on_start=begin,
            on_round=after_round,
        )
    if as_json:
        report = {**history.result(), "folder": str(folder), "clients": history.by_client()}
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(console, history, folder)


@contextmanager
def _interruptible(console: Console, folder: Path) -> Iterator[None]:
    """Ctrl-C ends the run, not its folder."""
    try:
        yield
    except KeyboardInterrupt:
        if folder.exists():
            text = f"stopped; the same command with --resume goes on from {printable(str(folder))}"
            console.print(Text(text), soft_wrap=True)
        raise typer.Exit(130) from None


def make_scenario(config: Path | None, options: Mapping[str, str | None], settings: list[str]) -> Scenario:
    """The scenario of a config file, with what was given on the command line put over it."""
    values = {} if config is None else read_config(config)
    declared = Scenario.hyperparameters()
    for name, text in options.items():
        if text is not None:
            values[name] = text if declared[name].registry is not None else declared[name].parse(text)
    for setting in settings:
        place, text = split_setting(setting)
        part, _, name = place.partition(".")
        values[part] = _with_setting(values.get(part), part, name, text)
    return Scenario.of(values)


def _with_setting(value: Any, part: str, name: str, text: str) -> dict[str, Any]:
    """A part of a scenario, by its name or as a table, with one more hyperparameter."""
    parts = {key: declared for key, declared in Scenario.hyperparameters().items() if declared.registry is not None}
    registry = parts[part].registry if part in parts else None
    if registry is None:
        raise ParameterError(f"--set takes PART.NAME=VALUE; {unknown('part', part, parts)}")
    table = dict(value) if isinstance(value, Mapping) else {"name": parts[part].default if value is None else value}
    return {**table, name: registry[table.get("name", "")].declared(name).parse(text)}


def read_config(path: Path) -> dict[str, Any]:
    """What a TOML file says of a scenario; or the config.json of a run."""
    try:
        content = path.read_text(encoding="utf-8")
        values = json.loads(content)["scenario"] if path.suffix == ".json" else tomllib.loads(content)
    except (ValueError, KeyError, TypeError) as problem:  # broken TOML, JSON and text are all ValueErrors
        raise InputError(f"{path}: cannot be read as a scenario: {problem}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: cannot be read as a scenario: it holds no table")
    return values


def _introduce(console: Console, federation: Federation, history: History, folder: Path) -> None:
    scenario = federation.scenario
    byzantine = [client_id for k, client_id in enumerate(scenario.client_ids) if scenario.is_byzantine(k)]
    who = f"{len(byzantine)} of them Byzantine" + (f" ({', '.join(byzantine)})" if 0 < len(byzantine) <= 10 else "")
    console.print(
        f"[bold]{scenario.aggregator.name}[/] under [bold]{scenario.attack.name}[/] on {scenario.dataset.name}: "
        f"{scenario.clients} clients, {who}, {scenario.rounds} rounds"
    )
    if scenario.clients <= _MOST_CLIENTS_SHOWN:
        console.print(partition_table(federation.who_has_what(), title="who has how many images of each class"))
    if history.rounds:
        console.print(f"going on after round {len(history.rounds)}, from {printable(str(folder))}", markup=False)


def show(console: Console, history: History, folder: Path) -> None:
    """What happened, for people: the clients, the course of the F1, the time, the place."""
    console.print(_client_table(history))
    if history.scenario.clients > _MOST_CLIENTS_SHOWN:
        console.print(f"(the first {_MOST_CLIENTS_SHOWN} of {history.scenario.clients} clients)", style="dim")
    for record in history.by_client():
        if record["rejected"]:
            times = f"{record['rejected']} of {record['present']} rounds"
            text = f"client {record['client']} was rejected in {times}: {record['reason']}"
            console.print(Text(text, style="red"), soft_wrap=True)
    void = [record["void"] for record in history.rounds if record["void"] is not None]
    if void:
        console.print(Text(f"{len(void)} rounds were void, the model stayed: {void[-1]}", style="red"), soft_wrap=True)
    line = Text.assemble("F1 ", sparkline(history.f1), " ", score(history.f1_last5), " (mean of the last five rounds)")
    console.print(line, Text(f"accuracy {history.accuracy_last5:.3f}", style="dim"))
    console.print(Text(_time(history), style="dim"))
    console.print(Text(f"written to {printable(str(folder))}"), soft_wrap=True)


def _client_table(history: History) -> Table:
    records = history.by_client()[:_MOST_CLIENTS_SHOWN]
    fixed = ("client", "byzantine", "present", "rejected", "reason", "suspected")
    columns = list(dict.fromkeys(name for record in records for name in record if name not in fixed))
    suspects = any(record["suspected"] for record in history.by_client())
    table = Table(title="clients, means over the rounds", title_justify="left")
    table.add_column("client", style="bold", justify="right")
    table.add_column("truth")
    table.add_column("rejected", justify="right")
    if suspects:
        table.add_column("suspected", justify="right")
    for name in columns:
        table.add_column(heading(name), justify="right")
    for record in records:
        truth = Text("Byzantine", style="red") if record["byzantine"] else Text("honest", style="green")
        counts = [_times(record["rejected"], record["present"])]
        counts += [_times(record["suspected"], record["present"])] if suspects else []
        table.add_row(record["client"], truth, *counts, *(cell(name, record.get(name)) for name in columns))
    return table


def _times(count: int, rounds: int) -> Text:
    return Text(f"{count}/{rounds}", style="red" if count else "dim")


def _time(history: History) -> str:
    seconds = history.seconds()
    total = sum(seconds.values())
    shares = ", ".join(f"{part} {spent / total:.0%}" for part, spent in seconds.items())
    return f"{total:.1f} s: {shares}"
