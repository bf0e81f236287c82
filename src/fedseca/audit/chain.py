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
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, NamedTuple, Self

from fedseca.errors import FolderBusy, InputError
from fedseca.files import take_lock

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
            for link in _links(self.path):
                self.head, self._end = link.hash, link.end
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

    def cut_back(self, head: str, number: int) -> None:
        """Drop the lines after the one with this hash: they are of the round of this number, which is played again.

        If there are lines of other rounds among them, others have written here: an `AuditError`, and nothing is lost.
        """
        if head == self.head:
            return
        end = 0 if head == BEGINNING else None
        for link in _links(self.path):
            # A quote inside of a text is escaped, so this is the round's own number.
            if end is not None and b'"round":%d,' % number not in link.begun:
                raise AuditError(
                    f"{self.path}: goes on with rounds of another training; give each an audit_dir of its own"
                )
            if link.hash == head:
                end = link.end
        if end is None:
            raise AuditError(f"{self.path}: is not the audit of this training: the line it goes on from is missing")
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
    return [record for record, _ in read_records(Path(path), strict=True)]


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
    finite.pop("previous", None)  # ours stands last, whatever a rule calls its diagnostics
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
_FIELDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "time": ("a text", (str,)),
    "run": ("a whole number", (int,)),
    "round": ("a whole number", (int,)),
    "node": ("a text or null", (str, NoneType)),
    "admitted": ("true or false", (bool,)),
    "suspect": ("true or false", (bool,)),
    "reason": ("a text", (str,)),
    "void": ("a text", (str,)),
    "norm": ("a number or null", (float, int, NoneType)),
    "weight": ("a number or null", (float, int, NoneType)),
}


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
        for name, (allowed, types) in _FIELDS.items():
            if name not in record:
                if name in ("round", "node"):
                    raise AuditError(f"{path}: line {number} is no record of a round: {name} is missing")
                continue
            if not _fits(record[name], types):
                raise AuditError(f"{path}: line {number} is no record of a round: {name} must be {allowed}")
        yield record, link.hash


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON knows no {constant}")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
