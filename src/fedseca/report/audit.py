"""The page of an audit: a table of the clients, and a map of what each of them did in each round."""

from __future__ import annotations

from typing import Any

from fedseca.audit import Act, Conduct, Findings, PastRound, Verified
from fedseca.errors import printable
from fedseca.report.compact import number, text
from fedseca.report.page import assemble
from fedseca.verdict import KINDS, MEANINGS
from fedseca.version import __version__

_PROGRAM = ("elements.js", "plots.js", "audit.js")
_LETTERS = {kind: str(index) for index, kind in enumerate(KINDS)}
_ABSENT = "-"
_MOST_CELLS = 50_000
"""Of the map, so that a browser draws it at once: 1,000 rounds of 50 clients."""
_LONGEST_ID = 60


def make_audit_page(found: Verified, name: str) -> str:
    """HTML that opens from a file, without a network; `name` is that of the audit file."""
    findings, clients = found.findings, found.findings.clients
    rounds = list(findings.latest)[-max(1, _MOST_CELLS // max(1, len(clients))) :]
    reasons: dict[str, int] = {}
    data = {
        "made_by": f"fedseca {__version__}",
        "source": f"{printable(name, 200)}: {findings.lines:,} lines, the last with the hash {found.head}",
        "summary": findings.summary(),
        "verdicts": list(MEANINGS.items()),
        "clients": [_row(findings, client) for client in clients],
        "rounds": [_column(findings, each) for each in rounds],
        "all_rounds": findings.rounds,
        "map": [_course([each.clients.get(client.client) for each in rounds], reasons) for client in clients],
        "reasons": list(reasons),
    }
    return assemble("audit.html", ("page.css", "audit.css"), _PROGRAM, data)


def _row(findings: Findings, client: Conduct) -> dict[str, Any]:
    return {
        "client": printable(client.client, _LONGEST_ID),
        "suspicious": client.suspicious,
        "standing": client.standing,
        "since": None if client.since is None else findings.words(client.since),
        "asked": client.asked,
        "no_answer": client.no_answer,
        "left_out": client.left_out,
        "suspect": client.suspect,
        "weight": number(client.mean_weight),
        "last_reason": None if client.last_reason is None else text(client.last_reason),
    }


def _column(findings: Findings, each: PastRound) -> dict[str, Any]:
    return {
        "number": each.when.round,
        "run": str(each.when.run) if findings.repeats and each.when.run is not None else None,
        "name": findings.words(each.when),
        "void": None if each.void is None else text(each.void),
    }


def _course(acts: list[Act | None], reasons: dict[str, int]) -> dict[str, Any]:
    """One client over the rounds, in few bytes; a reason is its place in the list of all of them."""
    reason_of = {index: act.verdict.reason for index, act in enumerate(acts) if act is not None}
    said = {index: text(reason) for index, reason in reason_of.items() if reason is not None}
    return {
        "verdicts": "".join(_ABSENT if act is None else _LETTERS[act.verdict.kind] for act in acts),
        "norms": [None if act is None else number(act.norm) for act in acts],
        "weights": [None if act is None else number(act.weight) for act in acts],
        "reasons": {index: reasons.setdefault(reason, len(reasons)) for index, reason in said.items()},
    }
