"""What became of one client in one round, as a type that every runtime, table and page shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["used", "suspect", "left out", "no answer", "round void"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MEANINGS: dict[Kind, str] = {
    "used": "its answer was used",
    "suspect": "it was admitted, but stands out: next to no weight, far too large, or called malicious by the rule",
    "left out": "its answer could not be used",
    "no answer": "none came in time",
    "round void": "its answer could be used, but the round kept the model it began with",
}
"""For people, in tables and on pages."""


@dataclass(frozen=True)
class Verdict:
    """One for each client that was asked: its kind, and a reason where there is something to say (`MEANINGS`)."""

    kind: Kind
    reason: str | None = None
    """Why, in a sentence; none is needed for what was used."""

    @property
    def admitted(self) -> bool:
        """Whether its answer passed the screening."""
        return self.kind not in ("left out", "no answer")

    def record(self) -> dict[str, str]:
        """As fields of a record, ready for JSON."""
        return {"verdict": self.kind} | ({} if self.reason is None else {"reason": self.reason})


USED = Verdict("used")

OWN_FIELDS = ("time", "run", "round", "client", "byzantine", "verdict", "reason", "void", "previous", "hash")
"""What a record of one client in one round says beside its numbers: a diagnostic of such a name is left out of it."""
