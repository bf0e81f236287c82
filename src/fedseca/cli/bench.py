"""`fedseca bench`: the paper's timing table beside this machine's."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedseca.bench import FORMS, PLAIN, PLAIN_NAMES, RESNET18, Measurement, measure, paper_seconds, plan_measurements
from fedseca.cli.tables import wide_console
from fedseca.errors import InputError
from fedseca.experiments.plots import Curve, curves, png, require_matplotlib
from fedseca.experiments.results import counted
from fedseca.federation.loop import check_threads
from fedseca.files import write_atomically


def bench(
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "4,8,16,32,64",
    dim: Annotated[
        str, typer.Option(help="Coordinates of an update, one or more sizes; ResNet18 has 11.2 million.")
    ] = str(RESNET18),
    rules: Annotated[
        str, typer.Option("--rules", "--rule", "--aggregator", help="Rules or chains to measure, with commas between.")
    ] = "fedseca",
    forms: Annotated[
        str, typer.Option(help=f"How the updates come: {', '.join(FORMS)}. models: with the global model.")
    ] = "rows",
    compare: Annotated[str, typer.Option(help="pseudocode (the paper's, in plain torch), torch (plain ways).")] = "",
    compare_at: Annotated[str, typer.Option(help="Numbers of clients to compare at; all if not given.")] = "",
    repeats: Annotated[int, typer.Option(help="Repeats of which the median is taken.", min=1)] = 5,
    threads: Annotated[int | None, typer.Option(help="Threads; as many as torch takes if not given.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A folder for the table and the plot.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Measure how long the rules take and how much memory, beside the paper's table."""
    check_threads(threads)
    if output is not None:
        require_matplotlib()
    torch.set_num_threads(threads or torch.get_num_threads())
    planned = plan_measurements(
        _words(rules),
        _words(compare),
        _numbers(dim, "--dim"),
        _numbers(clients, "--clients"),
        _numbers(compare_at, "--compare-at") or None,
        _words(forms),
    )
    found: list[Measurement] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("making updates", total=len(planned))
        upcoming = iter([*map(str, planned), "done"])
        progress.update(bar, description=next(upcoming))
        for measurement in measure(planned, repeats):
            found.append(measurement)
            progress.update(bar, advance=1, description=next(upcoming))
    report = _report(found)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _show(report)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(output / "bench.json", json.dumps(report, indent=1).encode())
        write_atomically(output / "bench.png", picture(report))
        typer.echo(f"written: {output / 'bench.json'}, {output / 'bench.png'}", err=True)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, option: str) -> list[int]:
    try:
        return sorted({int(word) for word in _words(text)})
    except ValueError:
        raise InputError(f"{option} takes whole numbers with commas between; found {text!r}") from None


def _report(found: list[Measurement]) -> dict[str, Any]:
    """The measurements with their ratios, as plain data."""
    paper = paper_seconds()
    of_rows = {(m.name, m.clients, m.dim): m for m in found if m.form == "rows"}
    rows = []
    for m in found:
        mean, alike = of_rows["torch.mean", m.clients, m.dim], of_rows.get((m.name, m.clients, m.dim))
        name = "pseudocode" if m.name == "fedseca" else PLAIN.get(m.name, ("", None))[0]
        plain = of_rows.get((name, m.clients, m.dim)) if m.form == "rows" and name != "torch.mean" else None
        rows.append(
            dataclasses.asdict(m)
            | {
                "cpu_seconds": None if math.isnan(m.cpu_seconds) else m.cpu_seconds,
                "times_mean": m.seconds / mean.seconds,
                "times_rows": None if alike is None else _ratio(m, alike),
                "plain": None if plain is None else name,
                "faster_than_plain": None if plain is None else plain.seconds / m.seconds,
                "paper_seconds": paper.get((m.name, m.clients)) if m.form == "rows" else None,
                "extra_share": None if m.extra_bytes is None else m.extra_bytes / m.update_bytes,
            }
        )
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processor": _processor()}
    return {"machine": machine, "measurements": rows}


def _ratio(one: Measurement, other: Measurement) -> float:
    """Of the processors' time, which others on the machine disturb less; of the clock's where that is not known."""
    ratio = one.cpu_seconds / other.cpu_seconds
    return one.seconds / other.seconds if math.isnan(ratio) else ratio


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _show(report: dict[str, Any]) -> None:
    machine, rows = report["machine"], report["measurements"]
    dims, forms = {row["dim"] for row in rows}, {row["form"] for row in rows}
    size = f"{rows[0]['dim']:,} coordinates, " if len(dims) == 1 else ""
    title = f"{size}{machine['threads']} threads, {machine['processor']}"
    columns = {
        "clients": lambda row: f"{row['clients']:,}",
        **({"coordinates": lambda row: f"{row['dim']:,}"} if len(dims) > 1 else {}),
        "what": lambda row: row["name"],
        **({"form": lambda row: row["form"]} if len(forms) > 1 else {}),
        "seconds": lambda row: _seconds(row["seconds"]),
        "CPU": lambda row: _seconds(row["cpu_seconds"]),
        "× mean": lambda row: f"{row['times_mean']:.1f}",
        **({"× rows": lambda row: _optional(row["times_rows"], ".2f")} if len(forms) > 1 else {}),
        "× faster": lambda row: _optional(row["faster_than_plain"], ".1f"),
        "paper": lambda row: _optional(row["paper_seconds"], "g"),
        "extra memory": _memory,
    }
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for heading in columns:
        words = heading in ("what", "form")
        table.add_column(
            heading, justify="left" if words else "right", no_wrap=True, style="bold" * (heading == "what")
        )
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and (before["clients"], before["dim"]) != (row["clients"], row["dim"]):
            table.add_section()
        table.add_row(*(show(row) for show in columns.values()))
    wide_console(table).print(table)
    for line in (
        "CPU: what all threads took together",
        "× mean: as long as so many torch.mean over the clients",
        *(["× rows: CPU, as much as so many of the same rule on float32 rows"] if len(forms) > 1 else []),
        "× faster: than the plain way in torch (fedseca: than the paper's pseudocode)",
        "paper: its seconds for ResNet18 on 8 cores",
        "extra memory: beyond the updates, and as a share of them",
    ):
        Console().print(line, style="dim", highlight=False)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _memory(row: dict[str, Any]) -> str:
    return "" if row["extra_bytes"] is None else f"{row['extra_bytes'] / 1e6:.0f} MB  {row['extra_share']:4.0%}"


def picture(report: dict[str, Any]) -> bytes:
    """Seconds over clients, of rows of the largest size, as a PNG with logarithmic axes; drawn from the report."""
    machine, every = report["machine"], report["measurements"]
    dim = max(row["dim"] for row in every)
    rows = [row for row in every if row["dim"] == dim and row.get("form", "rows") == "rows"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    counts = {row["clients"] for row in rows}
    # The paper's seconds are for ResNet18: beside those of another size they would say nothing.
    paper = paper_seconds() if dim == RESNET18 else {}
    of_the_paper = {"fedseca": "fedseca", "torch.mean": "fedavg"}
    lines = [
        Curve(
            name,
            {row["clients"]: row["seconds"] for row in rows if row["name"] == name},
            {
                count: seconds
                for (rule, count), seconds in sorted(paper.items())
                if rule == of_the_paper.get(name) and count in counts
            },
            plain=name in PLAIN_NAMES,
            bold=name == "fedseca",
        )
        for name in sorted(names, key=lambda name: name in PLAIN_NAMES)
    ]
    rules = sum(not line.plain for line in lines)
    setting = [
        f"{dim:,} coordinates",
        counted(machine["threads"], "thread"),
        machine["processor"],
        "dotted: plain torch",
        *(["torch.mean is the paper's FedAvg"] if paper else []),
    ]
    title = f"Seconds that {counted(rules, 'rule')} took to aggregate"
    return png(curves(title, setting, lines, "seconds", "ResNet18, 8 cores"))
