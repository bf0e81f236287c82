"""`fedseca audit`: whether an audit is whole, and what it says of the nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedseca.audit import AUDIT_FILE, Conduct, Survey, Verified
from fedseca.audit import verify as verify_audit
from fedseca.cli.tables import cell, wide_console
from fedseca.errors import InputError, printable
from fedseca.files import write_atomically
from fedseca.report import require_plotly
from fedseca.report.audit import make_audit_page

audit_app = typer.Typer(
    help="What every node of a federation did, and whether the record of it was changed.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@audit_app.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit file, or the folder that holds it.")],
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A last hash that was kept elsewhere: it must be in the chain.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line was changed, added, removed or moved since it was written; exit code 2 if one was."""
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise InputError(f"--head takes the 64 digits that verify printed; found {printable(repr(head), 80)}")
    path = _path(file)
    found = verify_audit(path, kept=head)
    survey = found.survey
    if as_json:
        counts = {"lines": survey.lines, "rounds": survey.rounds, "nodes": len(survey.nodes)}
        typer.echo(json.dumps({"file": str(path), **counts, "head": found.head, "kept_line": found.kept_line}))
        return
    console = wide_console()
    console.print(Text(f"{printable(str(path))}: whole, each line follows from the one before it"), soft_wrap=True)
    console.print(f"lines {survey.lines:,} · rounds {survey.rounds:,} · nodes {len(survey.nodes):,}")
    console.print(f"last hash {found.head}", soft_wrap=True)
    if found.kept_line is None:
        console.print(
            "Keep this hash elsewhere: lines cut off the end, or a file written anew, show only with --head HASH.",
            style="dim",
        )
    else:
        console.print(f"the hash that was kept is that of line {found.kept_line:,}")


@audit_app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The audit_dir of a strategy, or the file in it.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write it as an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say of every node whether it is suspicious and since when, how often it was left out, and why.

    A node is suspicious if since some round its bad answers outnumber its good ones by three or more.
    """
    path = _path(folder)
    if output is not None:
        _check_output(output, path)
    found = verify_audit(path, strict=False)  # a server may be writing its next line
    if not found.survey.lines:
        found = verify_audit(path)  # with no line before it, what is there is hardly an audit
    if output is not None:
        page = make_audit_page(found, str(path)).encode()
        write_atomically(output, page)
    if as_json:
        typer.echo(json.dumps(_as_data(found), indent=1))
        return
    _print(found.survey)
    if output is not None:
        line = Text(f"written to {printable(str(output))} ({len(page) / 1e6:.1f} MB)")
        wide_console().print(line, soft_wrap=True)


def _path(given: Path) -> Path:
    path = given / AUDIT_FILE if given.is_dir() else given
    if not path.is_file():
        raise InputError(f"{given}: no audit is there; it is the file {AUDIT_FILE} in the audit_dir of the strategy")
    return path


def _check_output(output: Path, audit: Path) -> None:
    if output.is_dir():
        raise InputError(f"{output}: is a folder; the page is a file")
    if not output.parent.is_dir():
        raise InputError(f"{output}: its folder does not exist; make it first")
    if output.exists() and output.samefile(audit):
        raise InputError(f"{output}: is the audit itself; give the page another name")
    require_plotly()


def _as_data(found: Verified) -> dict[str, Any]:
    survey = found.survey
    nodes = [
        {
            "node": node.node,
            "verdict": node.verdict,
            "suspicious": node.suspicious,
            "since": None if node.since is None else node.since._asdict(),
            "asked": node.asked,
            "no_answer": node.no_answer,
            "left_out": node.left_out,
            "suspect": node.suspect,
            "mean_weight": node.mean_weight,
            "last_reason": node.last_reason,
        }
        for node in survey.nodes
    ]
    return {"rounds": survey.rounds, "kept_model": survey.voids, "head": found.head, "nodes": nodes}


_NUMBERS = ("since round", "rounds asked", "no answer", "left out", "suspect", "mean weight")


def _print(survey: Survey) -> None:
    """The table, with dates and reasons below it: they are long, and a terminal is narrow."""
    console = wide_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("node", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in _NUMBERS:
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    details = Table.grid(padding=(0, 2, 0, 0))
    for node in survey.nodes:
        name, style = printable(node.node, 40), "red" if node.suspicious else ""
        table.add_row(Text(name), node.verdict, *_numbers(node), style=style)
        if told := _details(survey, node):
            details.add_row(Text(name, style=style), Text(told, overflow="fold"))
    if survey.lines:
        console.print(table, "")
        if details.rows:
            console.print(details, "")
        console.print(
            "left out: its answer could not be used. suspect: admitted, but it stands out (next to no weight, far too "
            "large, or called malicious by the rule). suspicious: since that round, three more such answers than good.",
            style="dim",
        )
    console.print(Text(survey.summary()))


def _numbers(node: Conduct) -> list[str]:
    since = "–" if node.since is None else str(node.since.round)
    counts = (node.asked, node.no_answer, node.left_out, node.suspect)
    return [since, *(f"{count:,}" for count in counts), cell("weight", node.mean_weight)]


def _details(survey: Survey, node: Conduct) -> str:
    since = None if node.since is None else f"suspicious since {', '.join(survey.words(node.since))}"
    reason = None if node.last_reason is None else f"last reason: {printable(node.last_reason, 300)}"
    return "; ".join(filter(None, (since, reason)))
