"""`fedseca list`: what there is to choose from, with its hyperparameters, all read off their declarations."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedseca.aggregators import AGGREGATORS, WEIGHT
from fedseca.attacks import ATTACKS
from fedseca.cli.tables import wide_console
from fedseca.data import DATASETS, PARTITIONS
from fedseca.declare import Declared, unknown
from fedseca.errors import InputError
from fedseca.models import MODELS
from fedseca.parts import Registry
from fedseca.steps import STEPS, Step, StepBefore

KINDS: dict[str, Registry[Any]] = {
    "rules": AGGREGATORS,
    "steps": STEPS,
    "attacks": ATTACKS,
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "models": MODELS,
}


_ALIASES = {"aggregators": "rules"}
_PARTS = {"attacks": "attack", "datasets": "dataset", "partitions": "partition", "models": "model"}
"""What fedseca run calls one of them."""


def list_all(
    kind: Annotated[str | None, typer.Argument(help=f"Only these: {', '.join(KINDS)}.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List rules, steps, attacks, data sets, partitions and models with their hyperparameters, bounds and defaults.

    Steps and a rule make a chain, written with + from left to right: nnm+cwmed, clipping+fedavg, cwmed+momentum.
    """
    kind = _ALIASES.get(kind or "", kind)
    if kind is not None and kind not in KINDS:
        raise InputError(unknown("kind", kind, KINDS))
    chosen = {name: registry for name, registry in KINDS.items() if kind in (None, name)}
    if as_json:
        described = {name: {key: describe(cls) for key, cls in items.items()} for name, items in chosen.items()}
        typer.echo(json.dumps(described, indent=2, ensure_ascii=False))
        return
    console = wide_console()
    every = [cls for registry in chosen.values() for cls in registry.values()]
    widths = [max((len(row[i]) for cls in every for row in _rows(cls)), default=0) for i in range(3)]
    for name, registry in chosen.items():
        console.rule(f"[bold]{len(registry)} {name}", align="left")
        for key, cls in registry.items():
            _show(console, key, cls, widths)
            if issubclass(cls, Step):
                where = "before" if issubclass(cls, StepBefore) else "after"
                console.print(Text(f"    stands {where} a rule", style="dim"))
    part = _PARTS.get(kind or "", "aggregator")
    path = "STEP.NAME" if kind == "steps" else f"{part}.NAME"
    console.print(f"\nSet a hyperparameter with fedseca run --set {path}=VALUE.")
    if kind in (None, "rules", "steps"):
        console.print("Write a chain with +, from left to right: fedseca run --aggregator nnm+cwmed")


def _show(console: Console, name: str, cls: type[Declared], widths: list[int]) -> None:
    console.print(f"[bold cyan]{name}[/]  {_summary(cls)}")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    for width in widths:
        table.add_column(width=width, overflow="fold")
    table.add_column(style="dim", overflow="fold")
    rows = _rows(cls)
    for row in rows:
        table.add_row("", *row)
    if rows:
        console.print(table)
    told = [each for each in getattr(cls, "diagnostics", ()) if each != WEIGHT]  # which every rule tells
    if told:
        said = Table.grid(padding=(0, 2, 0, 0))
        for each in told:
            of_whom = "each pair" if each.pairs else "each client"
            said.add_row(Text(f"    says of {of_whom}:", style="dim"), f"{each.name} {each.symbol}".strip(), each.help)
        console.print(said)


def _rows(cls: type[Declared]) -> list[tuple[str, str, str, str]]:
    declared = cls.hyperparameters().values()
    return [(p.name, _shown(p.default), p.allowed, p.help) for p in declared]


def _summary(cls: type[Declared]) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]


def describe(cls: type[Declared]) -> dict[str, object]:
    """One of them as plain data."""
    declared = cls.hyperparameters().values()
    parameters = [{"name": p.name, "default": p.default, "allowed": p.allowed, "help": p.help} for p in declared]
    told = [
        {"name": d.name, "symbol": d.symbol, "heading": d.heading, "pairs": d.pairs, "help": d.help}
        for d in getattr(cls, "diagnostics", ())
    ]
    place = {} if not issubclass(cls, Step) else {"place": "before" if issubclass(cls, StepBefore) else "after"}
    return {"summary": _summary(cls), **place, "hyperparameters": parameters, "diagnostics": told}


def _shown(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, float) and len(repr(default)) > 10:  # a third has 16 digits
        return f"{default:.4g}"
    return json.dumps(default).strip('"')
