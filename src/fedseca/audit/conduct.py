"""What an audit says: who is suspicious and since when, and what each client did in the last rounds."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedseca.audit.anchor import Anchored, Comparison, Memory
from fedseca.audit.chain import BEGINNING, AuditError, Record, minute, read_records
from fedseca.verdict import Verdict

ENOUGH = 3
"""More bad answers than good ones make a client suspicious."""


class When(NamedTuple):
    """A round of an audit. Its number alone may stand for several: a new run begins again at 1."""

    run: int | None
    round: int
    time: str | None


class Act(NamedTuple):
    """What one client did in one round."""

    verdict: Verdict
    norm: float | None
    weight: float | None


@dataclass
class PastRound:
    """One round, and what is known of the clients in it."""

    when: When
    void: str | None = None
    """Why it kept the model that it began with, if it did."""
    clients: dict[str, Act] = field(default_factory=dict)


@dataclass
class Conduct:
    """What one client did over the rounds, and whether it is suspicious.

    An answer is bad if it was left out (it could not be used: NaN, another shape, an error) or is suspect (it was
    admitted, but stands out: the rule gave it next to no weight or called it malicious, or its norm is far too large).
    A client is suspicious if since some round its bad answers outnumber its good ones by three or more. So one that
    turns after a hundred good rounds is caught in the third bad one, and one that was mended is cleared after as many
    good answers as it gave bad ones. Where nothing came, nothing is counted: to be absent is not to be malicious.
    """

    client: str
    asked: int = 0
    """Rounds."""
    no_answer: int = 0
    left_out: int = 0
    suspect: int = 0
    void: int = 0
    """Of the round: its answer could be used, and was not."""
    last_reason: str | None = None
    """For which an answer was bad."""
    _surplus: int = 0
    """Of bad answers over good ones, never below 0 (Page's CUSUM); it last rose from 0 in the round `_turned`."""
    _turned: When | None = None
    _weights: float = 0.0
    _weighed: int = 0

    def add(self, when: When, act: Act) -> None:
        """One more round."""
        self.asked += 1
        if act.weight is not None:
            self._weights, self._weighed = self._weights + act.weight, self._weighed + 1
        kind = act.verdict.kind
        if kind == "no answer":
            self.no_answer += 1
        elif kind == "used":
            self._surplus = max(0, self._surplus - 1)
        elif kind == "round void":
            self.void += 1
        else:
            self._turned = when if self._surplus == 0 else self._turned
            self._surplus += 1
            self.suspect += kind == "suspect"
            self.left_out += kind == "left out"
            self.last_reason = act.verdict.reason or self.last_reason

    @property
    def suspicious(self) -> bool:
        return self._surplus >= ENOUGH

    @property
    def standing(self) -> str:
        """In a word: below what is suspicious, bad answers that good ones have not made up for leave a doubt."""
        if self.suspicious:
            return "suspicious"
        if self.asked == self.no_answer:
            return "never answered"
        if self.asked == self.no_answer + self.void:
            return "not judged"
        return "doubtful" if self._surplus else "fine"

    @property
    def since(self) -> When | None:
        """The round from which on it is suspicious, if it is."""
        return self._turned if self.suspicious else None

    @property
    def mean_weight(self) -> float | None:
        """Its share of the result, over its answers: one that was left out had none."""
        mean = self._weights / (self._weighed + self.left_out) if self._weighed else math.inf
        return mean if math.isfinite(mean) else None

    @property
    def bad_share(self) -> float:
        """Of its answers."""
        return (self.left_out + self.suspect) / max(1, self.asked - self.no_answer)


class Findings:
    """An audit read once from its first line to its last: what it says of each client, and its last rounds."""

    def __init__(self, most_rounds: int = 1000) -> None:
        """`most_rounds` are kept to be shown; all are counted."""
        self.lines, self.rounds, self.voids = 0, 0, 0
        self.not_anchored = 0
        """Rounds whose end the anchor did not take when they were played."""
        self.first: When | None = None
        self.last: When | None = None
        self.latest: deque[PastRound] = deque(maxlen=most_rounds)
        self.repeats = False
        """Whether a number of a round stands for several, so that it takes the run as well to name one."""
        self._clients: dict[str, Conduct] = {}
        self._numbers: set[int] = set()
        self._runs: set[int | None] = set()

    def add(self, record: Record) -> None:
        """The next line."""
        self.lines += 1
        when = When(record.get("run"), record["round"], record.get("time"))
        if self.last is None or self.last[:2] != when[:2]:
            self._begin(when)
        client, kind = record["client"], record.get("verdict")
        if client is None:
            self.not_anchored += "not_anchored" in record
            self.voids += "void" in record and self.latest[-1].void is None
            self.latest[-1].void = record.get("void", self.latest[-1].void)
        elif kind is not None:  # it was asked
            act = Act(Verdict(kind, record.get("reason")), record.get("norm"), record.get("weight"))
            self.latest[-1].clients[client] = act
            if client not in self._clients:
                self._clients[client] = Conduct(client)
            self._clients[client].add(when, act)

    def _begin(self, when: When) -> None:
        self.rounds += 1
        self.first, self.last = self.first or when, when
        self.latest.append(PastRound(when))
        self.repeats |= when.round in self._numbers
        self._numbers.add(when.round)
        self._runs.add(when.run)

    def words(self, when: When) -> list[str]:
        """What tells a round from the others, for people: its run if numbers repeat, its number, its time."""
        run = f"run {when.run}" if self.repeats and when.run is not None else None
        time = minute(when.time)
        return [word for word in (run, f"round {when.round}", time and f"{time} UTC") if word]

    def summary(self) -> str:
        """In one sentence: how much there is, and how many are suspicious."""
        if self.first is None or self.last is None:
            return "no round is written down yet"
        standings = Counter(client.standing for client in self._clients.values())
        doubtful = f", {standings['doubtful']} doubtful" if standings["doubtful"] else ""
        runs = f" of {len(self._runs):,} runs" if len(self._runs) > 1 else ""
        times = [time for time in (minute(self.first.time), minute(self.last.time)) if time]
        when = f" ({' to '.join(dict.fromkeys(times))} UTC)" if times else ""
        began = "it" if self.voids == 1 else "they"
        kept = f"; {count(self.voids, 'round')} kept the model {began} began with" if self.voids else ""
        return (
            f"{count(len(self._clients), 'client')} over {count(self.rounds, 'round')}{runs}{when}: "
            f"{standings['suspicious'] or 'none'} suspicious{doubtful}{kept}"
        )

    @property
    def clients(self) -> list[Conduct]:
        """The suspicious ones first, then by the share of their answers that was bad."""
        return sorted(self._clients.values(), key=lambda c: (not c.suspicious, -c.bad_share, len(c.client), c.client))


def count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def conduct(records: Iterable[Record]) -> list[Conduct]:
    """By client, the suspicious ones first."""
    findings = Findings()
    for record in records:
        findings.add(record)
    return findings.clients


class Verified(NamedTuple):
    """An audit whose chain is whole; or one that has none."""

    findings: Findings
    head: str | None
    """The hash of its last line; None if an earlier version wrote it, without hashes."""
    kept_line: int | None
    """Which line has the hash that was asked for."""
    anchored: Anchored | None = None
    """The last end of the audit that the anchor knows."""


def verify(path: str | Path, *, kept: str | None = None, anchor: Memory | None = None, strict: bool = True) -> Verified:
    """Read an audit file once; an `AuditError` says where its chain breaks.

    `kept` is a hash that must be in the chain, as must be all that the `anchor` knows. If not `strict`, half a line at
    the end is passed over.
    """
    findings, head = Findings(), BEGINNING
    comparison = None if anchor is None else Comparison(anchor)
    kept_line = 0 if kept == BEGINNING else None
    for record, head in read_records(Path(path), strict=strict):
        findings.add(record)
        if comparison is not None:
            comparison.see(head)
        if head == kept:
            kept_line = findings.lines
    if comparison is not None:
        comparison.finish(Path(path))
    if kept is not None and kept_line is None:
        raise AuditError(
            f"{path}: no line has the hash that was kept, {kept}: lines were cut off the end, or it was written anew"
        )
    return Verified(findings, head, kept_line, None if comparison is None else comparison.last)
