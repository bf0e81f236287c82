"""`fedseca audit`: whether an audit is whole, and what it says of the clients."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedseca.aggregators import WEIGHT
from fedseca.audit import (
    AUDIT_FILE,
    Anchor,
    AnchorError,
    Conduct,
    FileAnchor,
    Findings,
    Memory,
    Verified,
    checked,
    read_anchor,
    read_note,
)
from fedseca.audit import verify as verify_audit
from fedseca.audit.conduct import count
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
    anchor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its anchor, or what its command stored; else the one noted beside it."),
    ] = None,
    no_anchor: Annotated[bool, typer.Option("--no-anchor", help="Check the chain alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that no line was changed, added, removed or moved since it was written; exit code 2 if one was.

    A chain alone cannot tell that its last lines were cut off, or that all of it was written anew: its anchor can, or a
    hash that you kept.
    """
    if no_anchor and anchor is not None:
        raise InputError("--anchor FILE and --no-anchor exclude each other")
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise InputError(f"--head takes the 64 digits that verify printed; found {printable(repr(head), 80)}")
    path = _path(file)
    if _is_old_run(path):
        raise InputError(f"{file}: was written by an earlier version, whose runs have no hashes; audit show reads it")
    noted = None if anchor is not None or no_anchor else read_note(path)
    memory = _read_anchor(anchor, noted)
    found = verify_audit(path, kept=head, anchor=memory)
    findings = found.findings
    if as_json:
        counts = {"lines": findings.lines, "rounds": findings.rounds, "clients": len(findings.clients)}
        report = {"file": str(path), **counts, "head": found.head, "kept_line": found.kept_line}
        typer.echo(json.dumps({**report, "anchor": _anchor_as_data(found, memory, noted)}))
        return
    console = wide_console()
    console.print(Text(f"{printable(str(path))}: whole, each line follows from the one before it"), soft_wrap=True)
    console.print(f"lines {findings.lines:,} · rounds {findings.rounds:,} · clients {len(findings.clients):,}")
    console.print(f"last hash {found.head}", soft_wrap=True)
    if found.kept_line is not None:
        console.print(f"the hash that was kept is that of line {found.kept_line:,}")
    for line in _about_anchor(found, memory, noted):
        console.print(Text(line), soft_wrap=True)
    if found.kept_line is None and memory is None:
        console.print(
            "Keep this hash elsewhere: lines cut off the end, or a file written anew, show only with --anchor FILE or "
            "--head HASH.",
            style="dim",
        )


def _read_anchor(given: Path | None, noted: Anchor | None) -> Memory | None:
    """What the anchor knows: the one that was given, or else the file that is noted beside the audit."""
    if given is not None:
        return read_anchor(given)
    if not isinstance(noted, FileAnchor):
        return None
    try:
        return read_anchor(noted.path)
    except AnchorError as problem:
        raise AnchorError(
            f"{problem}, but it is noted beside the audit; mount its storage, give a copy with --anchor FILE, or check "
            "the chain alone with --no-anchor"
        ) from None


def _about_anchor(found: Verified, memory: Memory | None, noted: Anchor | None) -> Iterator[str]:
    """Which anchor was used, and how far it reaches; or that there is none."""
    last, lines = found.anchored, found.findings.lines
    if memory is None and noted is None:
        yield "no anchor: none was given, and none is noted beside the audit"
    elif memory is None:
        yield f"no anchor was read: the ends were handed to a command, {noted}"
    elif last is not None:
        which = f"{printable(str(memory.path))}{'' if noted is None else ', as noted beside the audit'}"
        known = "the last line" if last.lines == lines else f"line {last.lines:,}"
        yield f"anchor {which}: fits; it knows {known}, the end of {last}"
        if last.lines < lines:
            yield f"not covered by the anchor: {count(lines - last.lines, 'line')} after that"
        if memory.unreadable:
            yield f"the anchor has {count(memory.unreadable, 'line')} that cannot be read, which were passed over"
    if found.findings.not_anchored:
        yield f"{count(found.findings.not_anchored, 'round')} could not be anchored when played; the audit says why"


def _anchor_as_data(found: Verified, memory: Memory | None, noted: Anchor | None) -> dict[str, Any] | None:
    if memory is None or found.anchored is None:
        return None if noted is None else noted.note()
    reach = {"line": found.anchored.lines, "round": found.anchored.round, "time": found.anchored.time}
    after = found.findings.lines - found.anchored.lines
    return {"file": str(memory.path), "noted": noted is not None, **reach, "lines_after": after}


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


_MOST_ROWS = 1000
"""Of the table: laying out a hundred thousand takes minutes, and nobody reads them."""
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
    clients = findings.clients
    for client in clients[:_MOST_ROWS]:
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
            "large, or called malicious by the rule). suspicious: since that round, three more such answers than good; "
            "doubtful: one or two more.",
            style="dim",
        )
    if len(clients) > _MOST_ROWS:
        console.print(
            f"the first {_MOST_ROWS:,} of {len(clients):,} clients are shown, the suspicious ones first; --json tells "
            "of all",
            style="yellow",
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
