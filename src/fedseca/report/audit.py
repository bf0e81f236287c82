"""The page of an audit: a table of the nodes, and a map of what each of them did in each round."""

from __future__ import annotations

from typing import Any, get_args

from fedseca.audit import Act, Conduct, PastRound, State, Survey, Verified
from fedseca.errors import printable
from fedseca.report.compact import number, text
from fedseca.report.page import assemble
from fedseca.version import __version__

_PROGRAM = ("elements.js", "plots.js", "audit.js")
_STATES = {state: str(index) for index, state in enumerate(get_args(State))}
_ABSENT = "-"
_MOST_CELLS = 50_000
"""Of the map, so that a browser draws it at once: 1,000 rounds of 50 nodes."""
_LONGEST_NODE = 60


def make_audit_page(found: Verified, name: str) -> str:
    """HTML that opens from a file, without a network; `name` is that of the audit file."""
    survey, nodes = found.survey, found.survey.nodes
    rounds = list(survey.latest)[-max(1, _MOST_CELLS // max(1, len(nodes))) :]
    reasons: dict[str, int] = {}
    data = {
        "made_by": f"fedseca {__version__}",
        "source": f"{printable(name, 200)}: {survey.lines:,} lines, the last with the hash {found.head}",
        "summary": survey.summary(),
        "nodes": [_row(survey, node) for node in nodes],
        "rounds": [_column(survey, each) for each in rounds],
        "all_rounds": survey.rounds,
        "map": [_course([each.nodes.get(node.node) for each in rounds], reasons) for node in nodes],
        "reasons": list(reasons),
    }
    return assemble("audit.html", ("page.css", "audit.css"), _PROGRAM, data)


def _row(survey: Survey, node: Conduct) -> dict[str, Any]:
    return {
        "node": printable(node.node, _LONGEST_NODE),
        "suspicious": node.suspicious,
        "verdict": node.verdict,
        "since": None if node.since is None else survey.words(node.since),
        "asked": node.asked,
        "no_answer": node.no_answer,
        "left_out": node.left_out,
        "suspect": node.suspect,
        "weight": number(node.mean_weight),
        "last_reason": None if node.last_reason is None else text(node.last_reason),
    }


def _column(survey: Survey, each: PastRound) -> dict[str, Any]:
    return {
        "number": each.when.round,
        "run": str(each.when.run) if survey.repeats and each.when.run is not None else None,
        "name": survey.words(each.when),
        "void": None if each.void is None else text(each.void),
    }


def _course(acts: list[Act | None], reasons: dict[str, int]) -> dict[str, Any]:
    """One node over the rounds, in few bytes; a reason is its place in the list of all of them."""
    said = {index: text(act.reason) for index, act in enumerate(acts) if act is not None and act.reason is not None}
    return {
        "states": "".join(_ABSENT if act is None else _STATES[act.state] for act in acts),
        "norms": [None if act is None else number(act.norm) for act in acts],
        "weights": [None if act is None else number(act.weight) for act in acts],
        "reasons": {index: reasons.setdefault(reason, len(reasons)) for index, reason in said.items()},
    }
