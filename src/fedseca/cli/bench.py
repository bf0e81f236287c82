"""`fedseca bench`: the paper's timing table beside this machine's."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedseca.bench import PLAIN, PLAIN_NAMES, RESNET18, Measurement, measure, paper_seconds, plan_measurements
from fedseca.errors import InputError
from fedseca.experiments.plots import Curve, curves, png, require_matplotlib
from fedseca.experiments.results import counted
from fedseca.federation.loop import check_threads
from fedseca.files import write_atomically


def bench(
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "4,8,16,32,64",
    dim: Annotated[int, typer.Option(help="Coordinates of an update; ResNet18 has 11.2 million.")] = RESNET18,
    rules: Annotated[
        str, typer.Option("--rules", "--rule", "--aggregator", help="Rules or chains to measure, with commas between.")
    ] = "fedseca",
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
    counts = _numbers(clients)
    planned = plan_measurements(_words(rules), _words(compare), dim, counts, _numbers(compare_at) or None)
    found: list[Measurement] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("making updates", total=len(planned))
        upcoming = iter([f"{name}, {count} clients" for name, count, _ in planned] + ["done"])
        progress.update(bar, description=next(upcoming))
        for measurement in measure(planned, dim, repeats):
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


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(word) for word in _words(text)})
    except ValueError:
        raise InputError(f"--clients takes whole numbers with commas between; found {text!r}") from None


def _report(found: list[Measurement]) -> dict[str, Any]:
    """The measurements with their ratios, as plain data."""
    paper = paper_seconds()
    seconds = {(m.name, m.clients): m.seconds for m in found}
    rows = []
    for m in found:
        plain = "pseudocode" if m.name == "fedseca" else PLAIN.get(m.name, ("", None))[0]
        rows.append(
            dataclasses.asdict(m)
            | {
                "times_mean": m.seconds / seconds["torch.mean", m.clients],
                "plain": plain if (plain, m.clients) in seconds and plain != "torch.mean" else None,
                "faster_than_plain": seconds.get((plain, m.clients), 0) / m.seconds or None,
                "paper_seconds": paper.get((m.name, m.clients)),
                "extra_share": None if m.extra_bytes is None else m.extra_bytes / (4 * m.clients * m.dim),
            }
        )
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "processor": _processor()}
    return {"machine": machine, "measurements": rows}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":")[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _show(report: dict[str, Any]) -> None:
    machine, rows = report["machine"], report["measurements"]
    title = f"{rows[0]['dim']:,} coordinates, {machine['threads']} threads, {machine['processor']}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("clients", justify="right", no_wrap=True)
    table.add_column("what", style="bold", no_wrap=True)
    for heading in ("seconds", "× mean", "× faster", "paper", "extra memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    last = None
    for row in rows:
        if last not in (None, row["clients"]):
            table.add_section()
        last = row["clients"]
        plain = f"{row['faster_than_plain']:.1f}" if row["plain"] else ""
        paper = f"{row['paper_seconds']:g}" if row["paper_seconds"] is not None else ""
        memory = "" if row["extra_bytes"] is None else f"{row['extra_bytes'] / 1e6:.0f} MB  {row['extra_share']:4.0%}"
        mean = f"{row['times_mean']:.1f}"
        table.add_row(str(row["clients"]), row["name"], f"{row['seconds']:.3f}", mean, plain, paper, memory)
    console = Console()
    console.print(table)
    console.print("× mean: as long as so many torch.mean over the clients", style="dim")
    console.print("× faster: than the plain way in torch (fedseca: than the paper's pseudocode)", style="dim")
    console.print("paper: its seconds for ResNet18 on 8 cores", style="dim")
    console.print("extra memory: beyond the updates, and as a share of them", style="dim")


def picture(report: dict[str, Any]) -> bytes:
    """Seconds over clients, both axes logarithmic, as a PNG; drawn from nothing but the report."""
    machine, rows = report["machine"], report["measurements"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    counts, dim = {row["clients"] for row in rows}, rows[0]["dim"]
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
