"""`fedseca audit`: whether an audit is whole, and what it says of the nodes."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedseca.audit import Conduct, Record, conduct, hashes, read_audit
from fedseca.cli.tables import wide_console
from fedseca.errors import InputError, MissingDependency, printable
from fedseca.files import write_atomically

audit_app = typer.Typer(help="What every node of a federation did, and whether the record of it was changed.")
_FILE = "audit.jsonl"
_STATES = {"absent": "#d0d0d0", "admitted": "#2e8b57", "suspect": "#ffa600", "rejected": "#d94d4d"}


@audit_app.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit file, or the folder that holds it.")],
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash that was kept elsewhere: it must be in the chain.")
    ] = None,
) -> None:
    """Check that no line was changed, added or removed since it was written."""
    path = _path(file)
    chain = hashes(path)
    if head is not None and head not in chain:
        raise InputError(
            f"{path}: no line has the hash {printable(head)}: lines were cut off its end, or it is another"
        )
    typer.echo(f"{path}: {len(chain) - 1} lines, each follows from the one before it")
    typer.echo(f"last hash {chain[-1]}")


@audit_app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The audit_dir of a strategy, or the file in it.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write a page of it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Say of every node how often it was left out or had no say, and since when."""
    records = read_audit(_path(folder))
    nodes = conduct(records)
    if output is not None:
        write_atomically(output, _page(records, nodes).encode())
    if as_json:
        lines = [{**dataclasses.asdict(each), "suspicious": each.suspicious} for each in nodes]
        typer.echo(json.dumps(lines, indent=1, ensure_ascii=False))
        return
    table = Table()
    for heading, justify in _HEADINGS.items():
        table.add_column(heading, justify=justify, no_wrap=heading != "last reason")  # type: ignore[arg-type]
    for each in nodes:
        table.add_row(*map(Text, _cells(each)), style="red" if each.suspicious else None)
    console = wide_console()
    console.print(table)
    rounds = {record["round"] for record in records}
    voids = [record["round"] for record in records if "void" in record]
    kept = f", {len(voids)} of them kept the model they began with" if voids else ""
    console.print(Text(f"{len(rounds)} rounds{kept}"))


_HEADINGS = {
    "node": "left",
    "suspicious": "left",
    "rounds": "right",
    "rejected": "right",
    "no say": "right",
    "since round": "right",
    "weight": "right",
    "last reason": "left",
}


def _cells(each: Conduct) -> list[str]:
    return [
        printable(each.node),
        "yes" if each.suspicious else "no",
        str(each.rounds),
        str(each.rejected),
        str(each.suspect),
        "–" if each.since is None else str(each.since),
        "–" if each.mean_weight is None else f"{each.mean_weight:.1%}",
        "" if each.last_reason is None else printable(each.last_reason, limit=100),
    ]


def _path(given: Path) -> Path:
    path = given / _FILE if given.is_dir() else given
    if not path.is_file():
        raise InputError(
            f"{printable(str(given))}: no audit is there; it is the file {_FILE} in the strategy's audit_dir"
        )
    return path


def _page(records: Sequence[Record], nodes: Sequence[Conduct]) -> str:
    """One file that opens without a network: the table, and what each node was in each round."""
    try:
        from plotly import graph_objects
    except ImportError:
        raise MissingDependency("the page needs Plotly: pip install 'fedseca[report]'") from None
    names = [each.node for each in reversed(nodes)]
    rounds = sorted({record["round"] for record in records})
    places = {(record["node"], record["round"]): _state(record) for record in records if record.get("node")}
    states = list(_STATES)
    rows = [[states.index(places.get((name, number), "absent")) for number in rounds] for name in names]
    scale = [
        [edge / len(states), colour] for index, colour in enumerate(_STATES.values()) for edge in (index, index + 1)
    ]
    bar: dict[str, Any] = {"tickvals": list(range(len(states))), "ticktext": states}
    heat = graph_objects.Heatmap(
        z=rows, x=rounds, y=[f"node {printable(name)}" for name in names], colorscale=scale,
        zmin=-0.5, zmax=len(states) - 0.5, colorbar=bar, xgap=1, ygap=1,
    )  # fmt: skip
    figure = graph_objects.Figure(heat)
    figure.update_layout(xaxis_title="round", height=160 + 26 * len(names), margin={"t": 20})
    plot = figure.to_html(full_html=False, include_plotlyjs=True)
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in _HEADINGS)
    body = "".join(
        f"<tr{' class=suspicious' * each.suspicious}>{''.join(f'<td>{html.escape(c)}</td>' for c in _cells(each))}</tr>"
        for each in nodes
    )
    return _PAGE.format(head=head, body=body, plot=plot)


def _state(record: Record) -> str:
    if record.get("admitted") is not True:
        return "rejected"
    return "suspect" if record.get("suspect") is True else "admitted"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>fedseca audit</title>
<style>
body {{ font: 16px system-ui, sans-serif; margin: 1.5rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ padding: .3rem .8rem; border-bottom: 1px solid #ccc; text-align: left; }}
.suspicious td {{ background: #fbdcdc; }}
</style></head>
<body><h1>What the nodes did</h1><table><tr>{head}</tr>{body}</table><h2>Round by round</h2>{plot}</body></html>
"""
