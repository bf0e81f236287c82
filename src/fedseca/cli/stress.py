"""`fedseca stress`: a red team for rules."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedseca.cli.data import DataDir
from fedseca.cli.settings import put_settings
from fedseca.cli.tables import wide_console
from fedseca.errors import InputError, printable
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import packed, require_matplotlib
from fedseca.experiments.record import ExperimentRecord
from fedseca.experiments.results import Outcome, ResultTable, counted
from fedseca.experiments.stress import NAME, outcome, recorded
from fedseca.federation import History, Scenario, read_history
from fedseca.federation.folder import read_model
from fedseca.federation.loop import check_threads, torch_threads
from fedseca.federation.presets import PRESETS, preset_named
from fedseca.files import write_atomically
from fedseca.report import collect, make_page, require_plotly
from fedseca.stress import HonestRound, Stress
from fedseca.stress import stress as attack_rule

_PRESET = "digits"
_SMALL = 1 << 22
"""Numbers of all clients in a round: with fewer, threads would only wait for each other."""


def stress(
    aggregator: Annotated[
        str | None,
        typer.Option(
            "--aggregator",
            "--rule",
            "--rules",
            metavar="NAMES",
            help="Rules or chains, with commas between; if not given the run's, or fedseca.",
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(metavar="K", help="How many clients there are.")] = None,
    byzantine: Annotated[int | None, typer.Option(metavar="B", help="How many of them are Byzantine.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Where honest updates come from: {', '.join(PRESETS)}; [{_PRESET}]."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="A run's folder: clients of its scenario go on from its model."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which all crafts are tried.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PART.NAME=VALUE", help="Something else than the preset has.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Of every draw that is made.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder; one of its own in runs/ if not given.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the clients train: cpu, cuda, cuda:1 …")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Torch's threads.")] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Send a red team at rules: hundreds of crafts in real rounds; how far goes the worst?

    Honest clients train for some rounds. In each of them the last ones send every craft of a book instead: the
    registered attacks at several strengths, directions × strengths, copies, shrinking, flips, and refinements of the
    worst. For each rule it tells the worst cosine of the aggregate F with the honest mean x̄, its least and largest
    norm, and the empirical coefficients of ‖F − x̄‖² ≤ κ·Var + ξ·‖x̄‖²: κ̂ is a lower bound of κ where ξ is 0, ξ̂ one of ξ
    where κ is 0, and another craft may be worse. What a rule makes of the same rounds without an attack stands beside
    it. An attack with a memory begins anew in each round. A rule without a bound goes as far as the largest strength.
    """
    require_matplotlib()
    require_plotly()
    check_threads(threads)
    if run is not None and preset is not None:
        raise InputError("--preset and --from: honest updates come from one of them")
    begun = None if run is None else read_history(run)
    values: dict[str, Any] = dict(preset_named(preset or _PRESET)) if begun is None else begun.scenario.values()
    asked = {"clients": clients, "byzantine": byzantine, "seed": seed}
    said = [f"{name}={value}" for name, value in asked.items() if value is not None]
    scenarios = [_scenario(values, rule, [*(settings or ()), *said]) for rule in _rules(aggregator, begun)]
    first = scenarios[0]
    if first.byzantine == 0:
        raise InputError("nobody is Byzantine: a red team needs at least one; give --byzantine 1")
    names = [scenario.aggregator.name for scenario in scenarios]
    told_apart = [*(scenario.id for scenario in scenarios), rounds, "" if run is None else str(run.resolve())]
    digest = hashlib.sha256(repr(told_apart).encode()).hexdigest()[:10]
    folder = output or Path("runs") / "-".join([NAME, *names[:3], digest])
    with _bars() as bars:
        told = bars.add_task("honest rounds", total=rounds)
        honest = recorded(
            first,
            rounds,
            model=None if run is None else read_model(run),
            first=0 if begun is None else len(begun.rounds),
            machine=Machine(data_dir, device, threads or torch.get_num_threads()),
            on_round=lambda done: bars.update(told, completed=done),
        )
        with torch_threads(threads or (1 if honest[0].rows.numel() < _SMALL else None)):
            results = [_tried(scenario, honest, bars) for scenario in scenarios]
    which = f"{counted(rounds, 'round')} of {first.dataset.name}" + ("" if run is None else " from a run's model")
    who = f"{first.clients} clients, {first.byzantine} Byzantine"
    found = outcome(results, [which, who, f"{honest[0].rows.shape[1]:,} coordinates", f"seed {first.seed}"])
    source = {"preset": preset} if run is None else {"from": quote(str(run))}
    options = {"aggregator": aggregator and quote(aggregator), **asked, "rounds": rounds, **source}
    words = [f"--{name} {value}" for name, value in options.items() if value is not None]
    _write(found, folder, " ".join(["fedseca stress", *words, *(f"--set {quote(each)}" for each in settings or ())]))
    if as_json:
        typer.echo(json.dumps(_plain(results), indent=1, ensure_ascii=False))
    else:
        _show(found.table, folder)


def _rules(aggregator: str | None, begun: History | None) -> list[Any]:
    """Those that are asked for; else that of the run, or the paper's."""
    if aggregator is None:
        return [None if begun is None else begun.scenario.values()["aggregator"]]
    rules = [rule.strip() for rule in aggregator.split(",") if rule.strip()]
    if not rules:
        raise InputError("--aggregator takes names of rules with commas between; found none")
    return rules


def _scenario(values: Mapping[str, Any], rule: Any, settings: Sequence[str]) -> Scenario:
    """The federation with a rule; settings may be of the rule, too."""
    given = deepcopy(dict(values)) | ({} if rule is None else {"aggregator": rule})
    put_settings(given, settings)
    return Scenario.of(given)


def _tried(scenario: Scenario, honest: Sequence[HonestRound], bars: Progress) -> Stress:
    task = bars.add_task(scenario.aggregator.name, total=None)
    found = attack_rule(
        scenario.aggregator,
        honest,
        scenario.byzantine,
        seed=scenario.seed,
        on_craft=lambda done: bars.update(task, completed=done),
    )
    bars.update(task, total=len(found.effects))
    return found


@contextmanager
def _bars() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield bars


def _write(found: Outcome, folder: Path, command: str) -> None:
    record = ExperimentRecord.of(NAME, command, found)
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in {**found.files, record.file: record.content()}.items():
        write_atomically(folder / file, content)
    write_atomically(folder / f"{NAME}.html", make_page(collect([folder])).encode())


def _plain(results: Sequence[Stress]) -> list[dict[str, Any]]:
    """For programs: the worst effects of each rule; JSON knows no infinity."""

    def numbers(effect: Any) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in effect._asdict().items()}

    return [
        {
            "aggregator": result.rule,
            "crafts": len(result.effects),
            "unharmed": [numbers(effect) for effect in result.unharmed],
            "worst": {heading: numbers(effect) for heading, effect in result.worst().items()},
        }
        for result in results
    ]


def _show(table: ResultTable, folder: Path) -> None:
    """The numbers, then what reached them."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    shown.add_column(table.row_name, no_wrap=True, style="bold")
    for column in table.columns:
        shown.add_column(column, justify="right", no_wrap=True)
    places = table.by_place()
    for row in table.rows:
        shown.add_row(row, *(f"{places[row, column].mean:.3g}" for column in table.columns))
    console = wide_console(shown)
    lines = packed(table.setting, lambda line: len(line) < 80)
    console.print(Text.assemble((table.title, "bold"), "\n", ("\n".join(lines), "dim")), soft_wrap=True)
    console.print(shown)
    for row in table.rows:
        by_note: dict[str, list[str]] = {}
        for column in table.columns:
            if note := places[row, column].note:
                by_note.setdefault(note, []).append(column)
        console.print(Text(row, style="bold"))
        for note, columns in by_note.items():
            console.print(Text(f"  {', '.join(columns)}: {printable(note)}", style="dim"), soft_wrap=True)
    files = f"{NAME}.csv (all crafts), {NAME}.png, {NAME}.html are in {printable(str(folder))}"
    console.print(Text(files), soft_wrap=True)
