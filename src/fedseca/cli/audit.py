"""`fedseca audit`: whether an audit is whole, and what it says of the clients."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedseca.aggregators import WEIGHT
from fedseca.audit import AUDIT_FILE, Conduct, Findings, Verified, checked
from fedseca.audit import verify as verify_audit
from fedseca.cli.groups import Group
from fedseca.cli.tables import wide_console
from fedseca.errors import InputError, printable
from fedseca.federation import read_history
from fedseca.federation.folder import LINES, is_unchained
from fedseca.files import write_atomically
from fedseca.report import require_plotly
from fedseca.report.audit import make_audit_page

audit_app = typer.Typer(
    cls=Group,
    add_completion=False,
    help="What every client of a federation did, and whether the record of it was changed.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@audit_app.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit file, or its folder: an audit_dir, a run.")],
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A last hash that was kept elsewhere: it must be in the chain.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line was changed, added, removed or moved since it was written; exit code 2 if one was."""
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise InputError(f"--head takes the 64 digits that verify printed; found {printable(repr(head), 80)}")
    path = _path(file)
    if _is_old_run(path):
        raise InputError(f"{file}: was written by an earlier version, whose runs have no hashes; audit show reads it")
    found = verify_audit(path, kept=head)
    findings = found.findings
    if as_json:
        counts = {"lines": findings.lines, "rounds": findings.rounds, "clients": len(findings.clients)}
        typer.echo(json.dumps({"file": str(path), **counts, "head": found.head, "kept_line": found.kept_line}))
        return
    console = wide_console()
    console.print(Text(f"{printable(str(path))}: whole, each line follows from the one before it"), soft_wrap=True)
    console.print(f"lines {findings.lines:,} · rounds {findings.rounds:,} · clients {len(findings.clients):,}")
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
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The audit_dir of a strategy, the folder of a run, or the file in it.")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write it as an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say of every client whether it is suspicious and since when, how often it was left out, and why.

    A client is suspicious if since some round its bad answers outnumber its good ones by three or more.
    """
    path = _path(folder)
    if output is not None:
        _check_output(output, path)
    found = _read(path)
    if output is not None:
        page = make_audit_page(found, str(path)).encode()
        write_atomically(output, page)
    if as_json:
        typer.echo(json.dumps(_as_data(found), indent=1))
        return
    _print(found.findings)
    if found.head is None:
        wide_console().print("not verified: an earlier version wrote it, without hashes", style="yellow")
    if output is not None:
        line = Text(f"written to {printable(str(output))} ({len(page) / 1e6:.1f} MB)")
        wide_console().print(line, soft_wrap=True)


def _path(given: Path) -> Path:
    """The file of an audit: that of a strategy, or that of a run, which is one too."""
    if not given.is_dir():
        path = given
    else:
        path = next((given / name for name in (AUDIT_FILE, LINES["audit"]) if (given / name).is_file()), given)
    if not path.is_file():
        raise InputError(
            f"{given}: no audit is there; it is the file {AUDIT_FILE} in the audit_dir of the strategy, or "
            f"{LINES['audit']} in the folder of a run"
        )
    return path


def _is_old_run(path: Path) -> bool:
    """Whether this is what an earlier version wrote of the clients of a run."""
    return path.name == LINES["audit"] and is_unchained(path.parent)


def _read(path: Path) -> Verified:
    if _is_old_run(path):
        findings = Findings()
        for number, record in enumerate(read_history(path.parent).audit, 1):
            findings.add(checked(record, path, number))
        return Verified(findings, None, None)
    found = verify_audit(path, strict=False)  # a server may be writing its next line
    # With no line before it, half a line is hardly an audit.
    return found if found.findings.lines else verify_audit(path)


def _check_output(output: Path, audit: Path) -> None:
    if output.is_dir():
        raise InputError(f"{output}: is a folder; the page is a file")
    if not output.parent.is_dir():
        raise InputError(f"{output}: its folder does not exist; make it first")
    if output.exists() and output.samefile(audit):
        raise InputError(f"{output}: is the audit itself; give the page another name")
    require_plotly()


def _as_data(found: Verified) -> dict[str, Any]:
    findings = found.findings
    clients = [
        {
            "client": client.client,
            "standing": client.standing,
            "suspicious": client.suspicious,
            "since": None if client.since is None else client.since._asdict(),
            "asked": client.asked,
            "no_answer": client.no_answer,
            "left_out": client.left_out,
            "suspect": client.suspect,
            "mean_weight": client.mean_weight,
            "last_reason": client.last_reason,
        }
        for client in findings.clients
    ]
    return {"rounds": findings.rounds, "kept_model": findings.voids, "head": found.head, "clients": clients}


_NUMBERS = ("since round", "rounds asked", "no answer", "left out", "suspect", "mean weight")


def _print(findings: Findings) -> None:
    """The table, with dates and reasons below it: they are long, and a terminal is narrow."""
    console = wide_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("client", no_wrap=True)
    table.add_column("standing", no_wrap=True)
    for heading in _NUMBERS:
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    details = Table.grid(padding=(0, 2, 0, 0))
    for client in findings.clients:
        name, style = printable(client.client, 40), "red" if client.suspicious else ""
        table.add_row(Text(name), client.standing, *_numbers(client), style=style)
        if told := _details(findings, client):
            details.add_row(Text(name, style=style), Text(told, overflow="fold"))
    if findings.lines:
        console.print(table, "")
        if details.rows:
            console.print(details, "")
        console.print(
            "left out: its answer could not be used. suspect: admitted, but it stands out (next to no weight, far too "
            "large, or called malicious by the rule). suspicious: since that round, three more such answers than good.",
            style="dim",
        )
    console.print(Text(findings.summary()))


def _numbers(client: Conduct) -> list[str]:
    since = "–" if client.since is None else str(client.since.round)
    counts = (client.asked, client.no_answer, client.left_out, client.suspect)
    return [since, *(f"{count:,}" for count in counts), WEIGHT.show(client.mean_weight)]


def _details(findings: Findings, client: Conduct) -> str:
    since = None if client.since is None else f"suspicious since {', '.join(findings.words(client.since))}"
    reason = None if client.last_reason is None else f"last reason: {printable(client.last_reason, 300)}"
    return "; ".join(filter(None, (since, reason)))
