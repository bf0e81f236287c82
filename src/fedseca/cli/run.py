"""`fedseca run`: one federated training, live, then what every client did and where it is written."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedseca.cli.data import DataDir
from fedseca.cli.live import LiveRun, live
from fedseca.cli.options import Device, with_scenario_options
from fedseca.cli.outcome import introduce, show
from fedseca.cli.settings import put_settings
from fedseca.cli.tables import wide_console
from fedseca.declare import unknown
from fedseca.errors import InputError, ParameterError, printable
from fedseca.federation import Federation, History, Scenario, simulate
from fedseca.federation.folder import TENSORBOARD, holds_run
from fedseca.federation.presets import PRESETS, preset_named
from fedseca.federation.scenario import GRAMMAR
from fedseca.federation.tensorboard import TensorBoard
from fedseca.models._weights import NAMES_OF_WEIGHTS

_ENGINES = ("loop", "flower")


@with_scenario_options
def run(
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Where to begin: {', '.join(PRESETS)}; options override it.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A scenario in TOML; options on the command line override it.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PART.NAME=VALUE",
            help="A hyperparameter: attack.strength=2, rule.sparsity=0.8, nnm.num_byzantine=1; or sparsity=0.8.",
        ),
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(help="Short for --set partition.alpha=…, of the partition dirichlet.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Short for --set model.weights=…, what the model timm begins with."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder of the run; runs/<its name> if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run was cut off.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start again where a run lies already.")] = False,
    checkpoint_every: Annotated[int, typer.Option(metavar="N", help="Rounds between two checkpoints.")] = 5,
    data_dir: DataDir = None,
    device: Device = "cpu",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Torch's threads; one for small models if not given.")
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, max=64, help="Processes that read samples, where they are not in memory.")
    ] = 0,
    engine: Annotated[
        str,
        typer.Option(
            metavar="|".join(_ENGINES),
            help="Where the clients train: here one after the other, or on the nodes of Flower's simulation runtime.",
        ),
    ] = _ENGINES[0],
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The Ray cluster for --engine flower; one of its own if not given."),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard, in the folder too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    **options: str | None,
) -> None:
    """Train a model over honest and Byzantine clients, and see what happened.

    A run is a folder: config.json, rounds.jsonl (metrics), clients.jsonl (the audit: what every client did in every
    round), pairs.jsonl (what the rule says of each pair of clients), result.json, and a checkpoint from which --resume
    goes on.
    """
    if resume and overwrite:
        raise InputError("--resume goes on and --overwrite starts again: give one of them")
    if alpha is not None:
        settings = [*(settings or []), f"partition.alpha={alpha}"]
    if weights is not None:
        model = make_scenario(preset, config, options, settings or []).model
        if "weights" not in model.hyperparameters():
            raise InputError(f"{model.name} begins with no weights of a file: --weights goes with --model timm")
        # The whole path: nodes of Flower may stand in another folder.
        named = weights if weights in NAMES_OF_WEIGHTS else os.path.abspath(os.path.expanduser(weights))
        settings = [*(settings or []), f"model.weights={named}"]
    play = _engine(engine, ray)
    scenario = make_scenario(preset, config, options, settings or [])
    folder = output or Path("runs") / scenario.title
    console = wide_console()
    observers: list[Callable[[History], None]] = []

    def begin(federation: Federation, history: History) -> None:
        if not as_json:
            introduce(console, federation, history, folder)
        bar(history)

    def after_round(history: History) -> None:
        for observer in observers:
            observer(history)

    with ExitStack() as stack:
        if tensorboard:
            board = TensorBoard(folder / TENSORBOARD)
            stack.callback(board.close)
            observers.append(board)
        progress = stack.enter_context(live(Console(stderr=True)))
        stack.enter_context(_interruptible(folder))
        if resume and not holds_run(folder):
            typer.echo(f"nothing to resume in {printable(str(folder))}: starting anew", err=True)
        bar = LiveRun(progress, scenario)
        observers.append(bar)
        history = play(
            scenario,
            folder=folder,
            resume=resume,
            overwrite=overwrite,
            checkpoint_every=checkpoint_every,
            data_dir=data_dir,
            device=device,
            threads=threads,
            workers=workers,
            on_start=begin,
            on_round=after_round,
        )
    if as_json:
        report = {
            **history.result(),
            "folder": str(folder),
            "scenario": scenario.values(),
            history.metric: history.scores,
        }
        report["clients"] = history.by_client()
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(console, history, folder)


def _engine(name: str, ray: str | None) -> Callable[..., History]:
    if name not in _ENGINES:
        raise ParameterError(unknown("engine", name, _ENGINES))
    if name == _ENGINES[0]:
        if ray is not None:
            raise InputError(f"--ray is for --engine flower alone; found --engine {name}")
        return simulate
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads it when it is imported
    from fedseca.flower.engine import simulate_on_flower

    return partial(simulate_on_flower, ray=ray or "local")


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Ctrl-C ends the run, not its folder."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command with --resume goes on from {printable(str(folder))}", err=True)
        raise typer.Exit(130) from None


def make_scenario(
    preset: str | None, config: Path | None, options: Mapping[str, str | None], settings: list[str]
) -> Scenario:
    """The scenario of a preset or a config file, with what was given on the command line put over it."""
    if preset is not None and config is not None:
        raise InputError("--preset and --config both say where to begin: give one of them")
    values = {} if preset is None else deepcopy(dict(preset_named(preset)))
    if config is not None:
        values = read_config(config)
    for name, text in options.items():
        if text is not None:
            GRAMMAR.put(values, name, text)
    put_settings(values, settings)
    try:
        made = Scenario.of(values)
    except ParameterError as problem:
        if config is not None and str(problem) == _fault_of(read_config(config)):
            raise ParameterError(f"{config}: {problem}") from None
        raise
    if options.get("byzantine_clients") and options.get("byzantine") not in (None, str(made.byzantine)):
        raise InputError(f"--byzantine-clients are {made.byzantine} already: leave out --byzantine")
    return made


def _fault_of(values: dict[str, Any]) -> str | None:
    """What is wrong with a config alone, before anything is put over it."""
    try:
        Scenario.of(values)
    except ParameterError as problem:
        return str(problem)
    return None


def read_config(path: Path) -> dict[str, Any]:
    """What a TOML file says of a scenario; or the config.json of a run."""
    try:
        content = path.read_text(encoding="utf-8")
        values = json.loads(content)["scenario"] if path.suffix == ".json" else tomllib.loads(content)
    except (ValueError, KeyError, TypeError, RecursionError) as problem:  # broken TOML, JSON and text are ValueErrors
        raise InputError(f"{path}: cannot be read as a scenario: {problem}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: cannot be read as a scenario: it holds no table")
    try:
        return GRAMMAR.renamed(values)
    except ParameterError as problem:
        raise ParameterError(f"{path}: {problem}") from None
