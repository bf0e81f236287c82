"""`fedseca list`: the rules with their hyperparameters, all read off their declarations."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedseca.aggregators import AGGREGATORS


def list_rules(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the rules with their hyperparameters, bounds and defaults."""
    if as_json:
        typer.echo(json.dumps({"rules": {name: describe(name) for name in AGGREGATORS}}, indent=2, ensure_ascii=False))
        return
    console = Console()
    rows = {name: _rows(name) for name in AGGREGATORS}
    widths = [max(len(row[i]) for rule in rows.values() for row in rule) for i in range(3)]
    for name, hyperparameters in rows.items():
        console.print(f"[bold cyan]{name}[/]  {_summary(name)}", highlight=False)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=2)
        for width in widths:
            table.add_column(width=width, overflow="fold")
        table.add_column(style="dim", overflow="fold")
        for row in hyperparameters:
            table.add_row("", *row)
        if hyperparameters:
            console.print(table)
    console.print(f"\n{len(AGGREGATORS)} rules. Set a hyperparameter with --set NAME=VALUE.", highlight=False)


def _rows(name: str) -> list[tuple[str, str, str, str]]:
    declared = AGGREGATORS[name].hyperparameters().values()
    return [
        (p.name, "none" if p.default is None else json.dumps(p.default).strip('"'), p.allowed, p.help) for p in declared
    ]


def _summary(name: str) -> str:
    return (AGGREGATORS[name].__doc__ or "").strip().partition("\n")[0]


def describe(name: str) -> dict[str, object]:
    """One rule as plain data."""
    declared = AGGREGATORS[name].hyperparameters().values()
    parameters = [{"name": p.name, "default": p.default, "allowed": p.allowed, "help": p.help} for p in declared]
    return {"summary": _summary(name), "hyperparameters": parameters}
