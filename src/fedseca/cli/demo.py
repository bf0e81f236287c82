"""`fedseca demo`: FedAvg and FedSECA side by side under an attack, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedseca.cli.live import LiveRun, live
from fedseca.cli.tables import score, sparkline, wide_console
from fedseca.errors import printable
from fedseca.experiments.results import counted
from fedseca.federation import Federation, History, Scenario, simulate
from fedseca.federation.history import LAST

RULES = ("fedavg", "fedseca")
ENOUGH = 20
"""Rounds after which an honest federation has learnt the digits; before, a low score says nothing."""


def demo(
    attack: Annotated[
        str, typer.Option(help="What two of the five clients do; `fedseca list` shows them all.")
    ] = "fang",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each training.")] = 40,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the runs are written.")] = Path("runs/demo"),
) -> None:
    """See one model ruined and one survive: FedAvg and FedSECA, each trained on digits with two malicious clients."""
    console = wide_console()
    scenarios = {rule: Scenario(aggregator=rule, attack=attack, rounds=rounds) for rule in RULES}
    console.print(
        f"Five clients learn handwritten digits. Two of them attack: [bold]{scenarios['fedseca'].attack.name}[/]."
    )
    with live(Console(stderr=True)) as progress:
        bars = {rule: LiveRun(progress, scenario) for rule, scenario in scenarios.items()}
        histories = {rule: _train(scenario, output / rule, bars[rule]) for rule, scenario in scenarios.items()}
    console.print(_side_by_side(histories))
    for rule in RULES:
        text = f"{rule}: metrics, and what every client did, in {printable(str(output / rule))}"
        console.print(Text(text), soft_wrap=True)


def _train(scenario: Scenario, folder: Path, bar: LiveRun) -> History:
    def begin(_: Federation, history: History) -> None:
        bar(history)

    return simulate(scenario, folder=folder, overwrite=True, on_start=begin, on_round=bar)


def _side_by_side(histories: dict[str, History]) -> Table:
    rounds = len(histories["fedavg"].rounds)
    table = Table(title=f"F1 on the test set over {counted(rounds, 'round')}", title_justify="left")
    table.add_column("rule", style="bold")
    table.add_column("from the first round to the last")
    table.add_column("last five" if rounds > LAST else "mean", justify="right")
    table.add_column("the model")
    for rule, history in histories.items():
        final = history.f1_last5
        outcome = (
            "too early to say"
            if rounds < ENOUGH
            else "collapsed"
            if final < 0.2
            else "was damaged"
            if final < 0.8
            else "survived"
        )
        table.add_row(rule, sparkline(history.f1), score(final), outcome)
    return table
