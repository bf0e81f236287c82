"""A run for people: what is about to happen, and what did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedseca.cli.data import partition_table
from fedseca.cli.tables import score, shown_diagnostics, sparkline, wide_console
from fedseca.errors import printable
from fedseca.federation import Federation, History
from fedseca.federation.history import LAST, in_words

_MOST_CLIENTS_SHOWN = 30
_MOST_CRAFTS_SHOWN = 5


def introduce(console: Console, federation: Federation, history: History, folder: Path) -> None:
    scenario = federation.scenario
    byzantine = [client_id for k, client_id in enumerate(scenario.client_ids) if scenario.is_byzantine(k)]
    who = f"{len(byzantine)} of them Byzantine" + (f" ({', '.join(byzantine)})" if 0 < len(byzantine) <= 10 else "")
    console.print(
        f"[bold]{scenario.aggregator.name}[/] under [bold]{scenario.attack.name}[/] on {scenario.dataset.name}: "
        f"{scenario.clients} clients, {who}, {scenario.rounds} round{'s' * (scenario.rounds != 1)}"
    )
    if scenario.clients <= _MOST_CLIENTS_SHOWN:
        classes = federation.task.num_classes
        title = "who has how many samples" + (" of each class" if classes is not None else "")
        console.print(Text(title, style="italic"))
        console.print(partition_table(federation.who_has_what(), classes))
    for note in federation.notes:
        console.print(Text(printable(note), style="yellow"), soft_wrap=True)
    if federation.frozen_parameters:
        layers = dict.fromkeys(name.partition(".")[0] for name, _ in federation.network.named_parameters())
        size = sum(each.numel() for each in federation.network.parameters())
        console.print(
            f"trained: {', '.join(layers)} ({size:,} parameters); the {federation.frozen_parameters:,} before them are "
            "frozen",
            highlight=False,
        )
    rule = scenario.aggregator
    tolerated = rule.tolerates(scenario.clients)
    if scenario.attack.harms and tolerated < scenario.byzantine:
        against = f"{rule.name} is guaranteed against {tolerated} Byzantine clients of {scenario.clients}"
        text = f"{against}; this run has {scenario.byzantine}"
        console.print(text, style="yellow")
    done = len(history.rounds)
    if done == scenario.rounds:
        console.print(f"finished already; this is what it gave, from {printable(str(folder))}", markup=False)
    elif done:
        console.print(f"going on after round {done}, from {printable(str(folder))}", markup=False)


def show(console: Console, history: History, folder: Path) -> None:
    """The clients, what went wrong, the course of the F1, the time, the place."""
    table = _client_table(history)
    wide_console(table).print(table)
    if history.scenario.clients > _MOST_CLIENTS_SHOWN:
        shown = f"{_MOST_CLIENTS_SHOWN} of {history.scenario.clients} clients, the Byzantine ones among them"
        console.print(f"({shown}; all are in clients.jsonl)", style="dim")
    for record in history.by_client():
        if record["rejected"]:
            times = f"{record['rejected']} of {record['present']} rounds"
            text = f"client {record['client']} was left out in {times}: {record['reason']}"
            console.print(Text(text, style="red"), soft_wrap=True)
    of_rounds = f"of {len(history.rounds)} rounds"
    void = [record["void"] for record in history.rounds if record["void"] is not None]
    if void:
        text = f"{len(void)} {of_rounds} were void, the model stayed as it was: {void[-1]}"
        console.print(Text(text, style="red"), soft_wrap=True)
    idle = sum(record["idle"] for record in history.rounds)
    if idle:
        text = (
            f"in {idle} {of_rounds} {history.scenario.aggregator.name} took nothing from any client: all have weight 0"
        )
        console.print(Text(text, style="yellow"), soft_wrap=True)
    if counts := Counter(record["craft"] for record in history.rounds if "craft" in record):
        told = "; ".join(f"{printable(craft)} ({count})" for craft, count in counts.most_common(_MOST_CRAFTS_SHOWN))
        more = f"; and {len(counts) - _MOST_CRAFTS_SHOWN} more" if len(counts) > _MOST_CRAFTS_SHOWN else ""
        text = f"{history.scenario.attack.name} sent, in so many rounds: {told}{more}"
        console.print(Text(text, style="dim"), soft_wrap=True)
    last = min(LAST, len(history.rounds))
    mean = f" (mean of the last {last} rounds)" if last > 1 else ""
    metric, *others = history.metrics
    line = Text.assemble(in_words(metric), " ", sparkline(history.scores), " ", score(history.score), mean)
    console.print(line, *(Text(f"{in_words(other)} {history.last(other):.3f}", style="dim") for other in others))
    console.print(Text(_time(history), style="dim"))
    console.print(Text(f"written to {printable(str(folder))}"), soft_wrap=True)


def _client_table(history: History) -> Table:
    records = _some(history.by_client())
    fixed = ("client", "byzantine", "present", "rejected", "reason", "suspected")
    names = (name for record in records for name in record if name not in fixed)
    columns = shown_diagnostics(history.scenario.aggregator, names)
    absent = any(record["present"] < len(history.rounds) for record in records)
    table = Table(title="clients, means over the rounds", title_justify="left")
    table.add_column("client", style="bold", justify="right")
    table.add_column("truth")
    if absent:
        table.add_column("present", justify="right")
    left_out = any(record["rejected"] for record in records)
    if left_out:
        table.add_column("left out", justify="right")
    table.add_column("suspect", justify="right")
    for each in columns:
        table.add_column(each.heading, justify="right")
    for record in records:
        truth = Text("Byzantine", style="red") if record["byzantine"] else Text("honest", style="green")
        counts = [Text(str(record["present"]))] if absent else []
        counts += [_times(record["rejected"], record["present"])] if left_out else []
        counts += [_times(record["suspected"], record["present"])]
        table.add_row(record["client"], truth, *counts, *(each.show(record.get(each.name)) for each in columns))
    return table


def _some(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Not more than fit: of very many clients as many Byzantine ones as make up half of it, then honest ones."""
    byzantine = [k for k, record in enumerate(records) if record["byzantine"]]
    honest = [k for k, record in enumerate(records) if not record["byzantine"]]
    first = byzantine[: max(_MOST_CLIENTS_SHOWN // 2, _MOST_CLIENTS_SHOWN - len(honest))]
    return [records[k] for k in sorted([*first, *honest[: _MOST_CLIENTS_SHOWN - len(first)]])]


def _times(count: int, rounds: int) -> Text:
    if not rounds:
        return Text("–", style="dim")
    return Text(f"{count}/{rounds}", style="red" if count else "dim")


def _time(history: History) -> str:
    seconds = history.seconds()
    total = sum(seconds.values())
    shares = ", ".join(f"{part} {spent / total:.0%}" for part, spent in seconds.items())
    return f"{total:.1f} s: {shares}"
