"""What every client did in every round, as lines of JSON that cannot be edited later without showing.

Each line ends with the hash of the line before it and with its own, which is that of all that stands before it in the
line: whoever changes, adds, removes or moves a line breaks the chain there. Two things leave a chain that is whole,
cutting lines off its end and writing it anew from some line on; only a hash that was kept elsewhere can tell, as an
anchor does (`fedseca.audit.anchor`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, NamedTuple, Self

from fedseca.errors import FolderBusy, InputError
from fedseca.files import PRIVATE, append, open_regular, sync_folder, take_lock
from fedseca.verdict import KINDS

Record = dict[str, Any]
AUDIT_FILE = "audit.jsonl"
"""In the folder of an audit."""
BEGINNING = "0" * 64
"""Stands for the line before the first."""
_LONGEST = 1 << 24
"""Bytes of a line that are read at once: no record comes near it, and a file of one endless line fills no memory."""


class AuditError(InputError):
    """An audit file is not what was written, or cannot be read or written."""


class Audit:
    """An audit file, open for appending by this process alone."""

    def __init__(self, path: str | Path, *, every_line_synced: bool = True) -> None:
        """Appends to the existing file; an incomplete last line, left by a killed process, is dropped.

        A broken chain is an `AuditError`, an audit that another process writes is a `FolderBusy`; nothing is changed
        then. Unless every line is synced, a power cut may cost what was written since the last `sync`.
        """
        self.path, self._every_line_synced = Path(path), every_line_synced
        self.head, self.lines, self._end = BEGINNING, 0, 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
            self._file = os.fdopen(handle, "ab", buffering=0)
            sync_folder(self.path.parent)
        except OSError as problem:
            raise AuditError(f"{self.path}: cannot be written ({problem.strerror})") from None
        try:
            if not take_lock(self._file, wait=False):
                raise FolderBusy(
                    f"{self.path}: another server is writing this audit; wait for its end, or give another audit_dir"
                )
            for link in _links(self.path):
                self.head, self.lines, self._end = link.hash, self.lines + 1, link.end
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
        content = b"".join(lines)
        end = self._end + len(content)
        try:
            append(self._file, content, self.path)
            if self._every_line_synced:
                self.sync()
        except BaseException as problem:
            self._file.truncate(self._end)
            if isinstance(problem, OSError):
                raise AuditError(f"{self.path}: cannot be written ({problem.strerror})") from None
            raise
        self.head, self.lines, self._end = head, self.lines + len(lines), end
        return head

    def sync(self) -> None:
        """What was written is on the disk."""
        os.fsync(self._file.fileno())

    def cut_back(self, head: str, first: int, last: int, *, anchored: int = 0) -> None:
        """Drop the lines after the one with this hash: they are of the rounds first … last, which are played again.

        If there are lines of other rounds among them, others have written here; if the last one that stays is not of
        the round before the first, it is another round that was kept; so it is if it would drop some of the lines that
        are `anchored`, so many from the first on: an `AuditError`, and nothing is lost.
        """
        end, kept, lines = (0 if head == BEGINNING else None), 0, 0
        for number, link in enumerate(_links(self.path), 1):
            if end is not None and not first <= _round_of(link) <= last:
                raise AuditError(
                    f"{self.path}: goes on with rounds of another training; give each training a folder of its own"
                )
            if link.hash == head:
                end, kept, lines = link.end, _round_of(link), number
        if end is None:
            raise AuditError(f"{self.path}: is not the audit of this training: the line it goes on from is missing")
        if first > 1 and kept != first - 1:  # before round 1 stands the end of another training, if anything
            raise AuditError(f"{self.path}: round {first - 1} was kept, but the line to go on from is of round {kept}")
        if lines < anchored:
            raise AuditError(
                f"{self.path}: the checkpoint goes on from line {lines}, but the anchor knows line {anchored}: the "
                "checkpoint is an older one; put the newest there, or begin anew with new folders and another anchor"
            )
        self._file.truncate(end)
        self.head, self.lines, self._end = head, lines, end

    def close(self) -> None:
        """Others may write it now."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def is_chained(path: Path) -> bool:
    """Whether the first line of a file carries hashes; of an empty or missing one too, which is a chain of no lines."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            first = file.readline(_LONGEST)
    except OSError:
        return True
    return not first or (b'"previous":"' in first and b'"hash":"' in first)


def read_audit(path: str | Path) -> list[Record]:
    """The records of an audit file whose chain is whole; otherwise an `AuditError` that says where it breaks."""
    return [record for record, _ in read_records(Path(path), strict=True)]


def hashes(path: Path) -> Iterator[str]:
    """That of every whole line; an `AuditError` where the chain breaks."""
    return (link.hash for link in _links(path))


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
    for ours in ("previous", "hash"):  # they stand last, whatever a rule calls its diagnostics
        finite.pop(ours, None)
    content = json.dumps({**finite, "previous": previous}, separators=(",", ":"), allow_nan=False)
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
        with os.fdopen(open_regular(path), "rb") as file:
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
                    other = ", or this is not an audit" if number == 1 else ""
                    raise AuditError(f"{path}: line {number} was changed after it was written{other}")
                if not begun.endswith(b',"previous":"%b"' % head.encode()):
                    raise AuditError(
                        f"{path}: line {number} does not follow from what stands before it: lines were added, removed "
                        "or moved there"
                    )
                head, end = digest, end + len(line)
                yield _Link(begun, head, end)
    except OSError as problem:
        raise AuditError(f"{path}: cannot be read ({problem.strerror})") from None


def _round_of(link: _Link) -> int:
    try:
        number = json.loads(link.begun + b"}")["round"]
        return number if type(number) is int else -1
    except (ValueError, LookupError, TypeError, RecursionError):
        return -1


# Whoever writes a chain anew can put anything into it: what is wrong is said here, and nobody below has to look again.
_FIELDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "time": ("a text", (str,)),
    "run": ("a whole number", (int,)),
    "round": ("a whole number", (int,)),
    "client": ("a text or null", (str, NoneType)),
    "verdict": (f"null or one of {', '.join(KINDS)}", (str, NoneType)),
    "reason": ("a text", (str,)),
    "void": ("a text", (str,)),
    "not_anchored": ("a text", (str,)),
    "norm": ("a number or null", (float, int, NoneType)),
    "weight": ("a number or null", (float, int, NoneType)),
}


_FLAGS = ("admitted", "suspect")
"""What the version before wrote in the place of a verdict."""


def _fits(value: Any, types: tuple[type, ...]) -> bool:
    """Of one of the types, exactly; numbers are finite, whole ones those that 64 bits can hold."""
    if type(value) not in types:
        return False
    if type(value) is int:
        return 0 <= value < 1 << 64 or (float in types and abs(value) < 1 << 64)
    return type(value) is not float or math.isfinite(value)


def read_records(path: Path, *, strict: bool) -> Iterator[tuple[Record, str]]:
    """Each record with the hash of its line."""
    for number, link in enumerate(_links(path, strict=strict), 1):
        try:
            record = _DECODER.decode(link.begun.decode() + "}")
        except (ValueError, RecursionError):
            raise AuditError(f"{path}: line {number} is not JSON") from None
        record.pop("previous", None)
        yield checked(record, path, number), link.hash


def checked(record: Record, path: Path, number: int) -> Record:
    """A record in the words of this version, in which every field is of its type; otherwise an `AuditError`."""
    for name in _FLAGS:
        if "verdict" not in record and type(record.get(name, True)) is not bool:
            raise AuditError(f"{path}: line {number} is no record of a round: {name} must be true or false")
    record = modern(record)
    for name, (allowed, types) in _FIELDS.items():
        if name not in record:
            if name in ("round", "client"):
                raise AuditError(f"{path}: line {number} is no record of a round: {name} is missing")
            continue
        if not _fits(record[name], types) or (name == "verdict" and record[name] not in (None, *KINDS)):
            raise AuditError(f"{path}: line {number} is no record of a round: {name} must be {allowed}")
    if record["client"] is not None and "verdict" not in record:
        raise AuditError(f"{path}: line {number} is no record of a round: verdict is missing")
    return record


def modern(record: Record) -> Record:
    """A record in the words of this version. The version before had no verdict: it is read off what it wrote."""
    if "verdict" in record or "admitted" not in record:
        return {"client": record.pop("node"), **record} if record.keys() & {"client", "node"} == {"node"} else record
    admitted, suspect = record.pop("admitted"), record.pop("suspect", None)
    client = {"client": record.pop("node")} if "node" in record else {}
    if record.pop("present", True) is False:
        kind = "no answer" if record.get("reason") == "did not answer" else None
    elif admitted is True:
        kind = "round void" if suspect is None else "suspect" if suspect is True else "used"
    else:  # it told an answer that did not come from a bad one by the first words of the reason
        kind = "no answer" if str(record.get("reason")).startswith("no answer") else "left out"
    return {**client, **record, "verdict": kind}


def minute(time: str | None) -> str | None:
    """In UTC, for people; None if it is no time."""
    try:
        moment = datetime.fromisoformat(time or "")
        return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON knows no {constant}")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
