"""What every node did in every round, as lines of JSON that cannot be edited later without showing.

Each line ends with the hash of the line before it and with its own, which is that of all that stands before it in the
line: whoever changes, adds, removes or moves a line breaks the chain there. Two things leave a chain that is whole,
cutting lines off its end and writing it anew from some line on; only somebody who kept a hash elsewhere can tell.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Literal, NamedTuple, Self

from fedseca.errors import FolderBusy, InputError
from fedseca.files import take_lock

Record = dict[str, Any]
BEGINNING = "0" * 64
"""Stands for the line before the first."""
NO_ANSWER = "no answer"
"""How the reason begins for which a node was left out that did not answer: that is absence, not a bad answer."""
_LONGEST = 1 << 20
"""Bytes of a line; no record comes near it, and a file that holds a longer one is no audit."""


class AuditError(InputError):
    """An audit file is not what was written, or cannot be read or written."""


class Audit:
    """An audit file, open for appending by this process alone."""

    def __init__(self, path: str | Path) -> None:
        """Goes on with what is there; half a line at its end, which a process left that was killed, is dropped.

        A broken chain is an `AuditError`, an audit that another process writes is a `FolderBusy`; nothing is changed
        then.
        """
        self.path = Path(path)
        self.head, self._end = BEGINNING, 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as problem:
            raise AuditError(f"{self.path}: cannot be written ({problem.strerror})") from None
        try:
            if not take_lock(self._file, wait=False):
                raise FolderBusy(
                    f"{self.path}: another server is writing this audit; wait for its end, or give another audit_dir"
                )
            for _, self.head, self._end in _links(self.path):
                pass
            self._file.truncate(self._end)
        except BaseException:
            self.close()
            raise

    def append(self, records: Iterable[Mapping[str, Any]]) -> str:
        """Add lines, all or none of them; the hash of the last, once they are on the disk."""
        head, lines = self.head, []
        for record in records:
            line, head = _sealed(_begun(record, head))
            lines.append(line)
        content = memoryview(b"".join(lines))
        end = self._end + len(content)
        try:
            while content:
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())
        except BaseException as problem:
            self._file.truncate(self._end)
            if isinstance(problem, OSError):
                raise AuditError(f"{self.path}: cannot be written ({problem.strerror})") from None
            raise
        self.head, self._end = head, end
        return head

    def cut_back(self, head: str) -> None:
        """Drop the lines after the one with this hash: they are of a round that is played again."""
        if head == self.head:
            return
        ends = (end for _, found, end in _links(self.path) if found == head)
        end = 0 if head == BEGINNING else next(ends, None)
        if end is None:
            raise AuditError(f"{self.path}: is not the audit of this federation: the line it goes on from is missing")
        self._file.truncate(end)
        self.head, self._end = head, end

    def close(self) -> None:
        """Others may write it now."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_audit(path: str | Path) -> list[Record]:
    """The records of an audit file whose chain is whole; otherwise an `AuditError` that says where it breaks."""
    return [record for record, _ in _records(Path(path), strict=True)]


class _Link(NamedTuple):
    """A line of the chain."""

    begun: bytes
    """All of it but its own hash."""
    hash: str
    end: int
    """Where it ends in the file."""


def _begun(record: Mapping[str, Any], previous: str) -> bytes:
    """A line without its own hash. ASCII only: whatever a client had put into it, a terminal shows it harmlessly."""
    finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in record.items()}
    content = json.dumps(finite | {"previous": previous}, separators=(",", ":"), allow_nan=False)
    return content[:-1].encode()


def _sealed(begun: bytes) -> tuple[bytes, str]:
    """The whole line, and its hash."""
    digest = hashlib.sha256(begun).hexdigest()
    return b'%b,"hash":"%b"}\n' % (begun, digest.encode()), digest


_SEAL = len(_sealed(b"")[0])


def _links(path: Path, *, strict: bool = False) -> Iterator[_Link]:
    """The chain, line by line, up to where it breaks, which is an error; half a line at its end is one if `strict`."""
    head, end = BEGINNING, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, _LONGEST), b""), 1):
                if line[-1:] != b"\n" and len(line) < _LONGEST:
                    if strict:
                        raise AuditError(
                            f"{path}: line {number} is unfinished: its end was cut off, or a server is writing it, or "
                            "was killed while it did (the next one drops it)"
                        )
                    return
                begun = line[:-_SEAL]
                sealed, digest = _sealed(begun)
                if line != sealed:
                    raise AuditError(f"{path}: line {number} was changed after it was written")
                if not begun.endswith(b',"previous":"%b"' % head.encode()):
                    raise AuditError(
                        f"{path}: line {number} does not follow from what stands before it: lines were added, removed "
                        "or moved there"
                    )
                head, end = digest, end + len(line)
                yield _Link(begun, head, end)
    except OSError as problem:
        raise AuditError(f"{path}: cannot be read ({problem.strerror})") from None


# Whoever writes a chain anew can put anything into it: what is wrong is said here, and nobody below has to look again.
_WHOLE, _NUMBER = "a whole number", "a number"
_FIELDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "time": ("a text", (str,)),
    "run": (_WHOLE, (int,)),
    "round": (_WHOLE, (int,)),
    "node": ("a text or null", (str, NoneType)),
    "admitted": ("true or false", (bool,)),
    "suspect": ("true or false", (bool,)),
    "reason": ("a text", (str,)),
    "void": ("a text", (str,)),
    "norm": (_NUMBER, (float, int, NoneType)),
    "weight": (_NUMBER, (float, int, NoneType)),
}
_LARGEST = 1e300


def _records(path: Path, *, strict: bool) -> Iterator[tuple[Record, str]]:
    """Each record with the hash of its line."""
    for number, link in enumerate(_links(path, strict=strict), 1):
        try:
            record = _DECODER.decode(link.begun.decode() + "}")
        except (ValueError, RecursionError):
            raise AuditError(f"{path}: line {number} is not JSON") from None
        del record["previous"]
        for name, (allowed, types) in _FIELDS.items():
            if name not in record:
                if name in ("round", "node"):
                    raise AuditError(f"{path}: line {number} is no record of a round: {name} is missing")
                continue
            value = record[name]
            if type(value) not in types or (type(value) in (int, float) and not abs(value) <= _LARGEST):
                raise AuditError(f"{path}: line {number} is no record of a round: {name} must be {allowed}")
        yield record, link.hash


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON knows no {constant}")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


State = Literal["used", "no say", "left out", "no answer"]


class When(NamedTuple):
    """A round of an audit. Its number alone may stand for several: a new run begins again at 1."""

    run: int | None
    round: int
    time: str | None


class Act(NamedTuple):
    """What one node did in one round."""

    state: State
    reason: str | None
    norm: float | None
    weight: float | None


@dataclass
class PastRound:
    """One round, and what is known of the nodes in it."""

    when: When
    void: str | None = None
    """Why it kept the model that it began with, if it did."""
    nodes: dict[str, Act] = field(default_factory=dict)


@dataclass
class Conduct:
    """What one node did over the rounds, and whether it is suspicious.

    An answer is bad if it was left out (it could not be used: NaN, another shape, an error) or had no say (it was
    admitted, and the rule gave it next to no weight or called it malicious). A node is suspicious if since some round
    its bad answers outnumber its good ones by three or more. So one that turns after a hundred good rounds is caught
    in the third bad one, and one that was mended is cleared after as many good answers as it gave bad ones. Where
    nothing came, nothing is counted: to be absent is not to be malicious.
    """

    node: str
    asked: int = 0
    """Rounds."""
    no_answer: int = 0
    left_out: int = 0
    no_say: int = 0
    last_reason: str | None = None
    """For which it was left out."""
    _surplus: int = 0
    """Bad answers over good ones since `_turned`, where it last rose from 0 (Page's CUSUM)."""
    _turned: When | None = None
    _weights: float = 0.0
    _weighed: int = 0

    def add(self, when: When, act: Act) -> None:
        """One more round."""
        self.asked += 1
        if act.weight is not None:
            self._weights, self._weighed = self._weights + act.weight, self._weighed + 1
        if act.state == "no answer":
            self.no_answer += 1
        elif act.state == "used":
            self._surplus = max(0, self._surplus - 1)
        else:
            self._turned = when if self._surplus == 0 else self._turned
            self._surplus += 1
            self.no_say += act.state == "no say"
            if act.state == "left out":
                self.left_out, self.last_reason = self.left_out + 1, act.reason

    @property
    def suspicious(self) -> bool:
        return self._surplus >= 3

    @property
    def since(self) -> When | None:
        """The round from which on it is suspicious, if it is."""
        return self._turned if self.suspicious else None

    @property
    def mean_weight(self) -> float | None:
        """Over the rounds in which it was admitted."""
        return self._weights / self._weighed if self._weighed else None

    @property
    def bad_share(self) -> float:
        """Of its answers."""
        return (self.left_out + self.no_say) / max(1, self.asked - self.no_answer)


class Survey:
    """An audit read once from its first line to its last: what it says of each node, and its last rounds."""

    def __init__(self, most_rounds: int = 1000) -> None:
        """`most_rounds` are kept to be shown; all are counted."""
        self.lines, self.rounds, self.voids = 0, 0, 0
        self.first: When | None = None
        self.last: When | None = None
        self.latest: deque[PastRound] = deque(maxlen=most_rounds)
        self.repeats = False
        """Whether a number of a round stands for several, so that it takes the run as well to name one."""
        self._nodes: dict[str, Conduct] = {}
        self._numbers: set[int] = set()
        self._runs: set[int | None] = set()

    def add(self, record: Record) -> None:
        """The next line."""
        self.lines += 1
        when = When(record.get("run"), record["round"], record.get("time"))
        if self.last is None or self.last[:2] != when[:2]:
            self._begin(when)
        node = record["node"]
        if node is None:
            self.voids += "void" in record and self.latest[-1].void is None
            self.latest[-1].void = record.get("void")
            return
        act = Act(_state(record), record.get("reason"), record.get("norm"), record.get("weight"))
        self.latest[-1].nodes[node] = act
        self._nodes.setdefault(node, Conduct(node)).add(when, act)

    def _begin(self, when: When) -> None:
        self.rounds += 1
        self.first, self.last = self.first or when, when
        self.latest.append(PastRound(when))
        self.repeats |= when.round in self._numbers
        self._numbers.add(when.round)
        self._runs.add(when.run)

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def nodes(self) -> list[Conduct]:
        """The suspicious ones first, then by the share of their answers that was bad."""
        return sorted(self._nodes.values(), key=lambda n: (not n.suspicious, -n.bad_share, len(n.node), n.node))


def _state(record: Record) -> State:
    if record.get("admitted") is True:
        return "no say" if record.get("suspect") is True else "used"
    return "no answer" if record.get("reason", "").startswith(NO_ANSWER) else "left out"


def conduct(records: Iterable[Record]) -> list[Conduct]:
    """By node, the suspicious ones first."""
    survey = Survey()
    for record in records:
        survey.add(record)
    return survey.nodes


class Verified(NamedTuple):
    """An audit whose chain is whole."""

    survey: Survey
    head: str
    """The hash of its last line."""
    kept_line: int | None
    """Which line has the hash that was asked for."""


def verify(path: str | Path, *, kept: str | None = None, strict: bool = True) -> Verified:
    """Read an audit file once; an `AuditError` says where its chain breaks.

    `kept` is a hash that must be in the chain. If not `strict`, half a line at the end is passed over.
    """
    survey, head = Survey(), BEGINNING
    kept_line = 0 if kept == BEGINNING else None
    for record, head in _records(Path(path), strict=strict):
        survey.add(record)
        if head == kept:
            kept_line = survey.lines
    if kept is not None and kept_line is None:
        raise AuditError(
            f"{path}: no line has the hash that was kept, {kept}: lines were cut off the end, or it was written anew"
        )
    return Verified(survey, head, kept_line)
