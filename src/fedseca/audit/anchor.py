"""The end of an audit, kept elsewhere: it shows when lines were cut off, or when the file was written anew.

After each round one line goes to the anchor: how many lines the audit has by now, and the hash of the last. The anchor
is a file on other storage, or a command that takes the line on its stdin. A line goes there only after the checkpoint
of its round, and a server that was killed plays again only what was not kept yet. So everything that the anchor knows
must be in the chain, whatever happened to the server.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedseca.audit.chain import BEGINNING, AuditError, hashes, minute
from fedseca.errors import InputError, printable
from fedseca.files import PRIVATE, append, open_regular, sync_folder, write_atomically

PATIENCE = 30.0
"""Seconds that a command may take."""
_NOTE = "anchor.json"
"""In the folder of the audit: where its anchor is."""
_LONGEST = 1 << 16
"""Bytes of a line of an anchor that are read at once; ours have less than 200."""

Place = str | Path | Sequence[str]
"""A text or a path is that of a file, a list is the words of a command."""


class AnchorError(AuditError):
    """An anchor cannot be written or read."""


class Anchored(NamedTuple):
    """The end of an audit at some moment."""

    time: str
    round: int
    lines: int
    head: str
    """The hash of the last of these lines."""

    def line(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode() + b"\n"

    def __str__(self) -> str:
        time = minute(self.time)
        return f"round {self.round}" + (f" ({time} UTC)" if time else "")


class FileAnchor:
    """A file, to which lines are only ever added: it may be one that the system lets nobody shorten."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))

    def __str__(self) -> str:
        return printable(str(self.path))

    def put(self, record: Anchored) -> None:
        """Add a line; it is on the disk then.

        The folder is not made: where storage is not mounted, the file would land on the disk of the server.
        """
        try:
            handle = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            with os.fdopen(handle, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                half = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # a disk was full, the power failed
                append(file, b"\n" * half + record.line(), self.path)
                os.fsync(file.fileno())
            if size == 0:
                sync_folder(self.path.parent)
        except OSError as problem:
            raise AnchorError(f"the anchor {self} cannot be written ({problem.strerror})") from None

    def note(self) -> dict[str, Any]:
        return {"file": str(self.path)}


class CommandAnchor:
    """A command, without a shell; what it does with the line is its own affair."""

    def __init__(self, words: Sequence[str], patience: float = PATIENCE) -> None:
        self.words, self._patience = tuple(words), patience

    def __str__(self) -> str:
        return printable(shlex.join(self.words), 100)

    def put(self, record: Anchored) -> None:
        """Run it to its end; with all that it started it is ended if it takes too long."""
        try:
            # Not a pipe: a child that the command leaves behind would hold it open, and we would wait for that.
            with tempfile.TemporaryFile() as said:
                code = self._run(record.line(), said)
                said.seek(max(0, said.seek(0, os.SEEK_END) - 200))
                words = said.read().decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            raise AnchorError(f"the anchor's command took longer than {self._patience:g} s: {self}") from None
        except OSError as problem:
            raise AnchorError(f"the anchor's command cannot be run ({problem.strerror}): {self}") from None
        if code:
            told = f" and said {printable(words)!r}" if words else ""
            raise AnchorError(f"the anchor's command ended with code {code}{told}: {self}")

    def _run(self, line: bytes, said: Any) -> int:
        with subprocess.Popen(
            self.words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        ) as process:
            try:
                process.communicate(line, timeout=self._patience)
            except BaseException:
                _end(process)
                raise
        return process.returncode

    def note(self) -> dict[str, Any]:
        return {"command": list(self.words)}


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


Anchor = FileAnchor | CommandAnchor


def make_anchor(place: Place) -> Anchor:
    """The anchor at a place; an `InputError` if it is none."""
    if isinstance(place, str | Path) and str(place) and _can_be_told(str(place)):
        return FileAnchor(place)
    words = list(place) if isinstance(place, Sequence) and not isinstance(place, str) else []
    if words and words[0] and all(isinstance(word, str) and _can_be_told(word) for word in words):
        return CommandAnchor(words)
    raise InputError(
        "anchor must be the path of a file, or a command as a list of words, such as ['logger', '-t', 'fedseca']; "
        f"found {printable(repr(place), 100)}"
    )


def _can_be_told(text: str) -> bool:
    """Whether the system understands it as a name or a word."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeError:
        return False


class Memory(NamedTuple):
    """What an anchor knows."""

    path: Path
    records: list[Anchored]
    unreadable: int
    """Lines that are no records: half a line is left where the disk was full or the power failed."""


def read_anchor(path: Path) -> Memory:
    """What was put into a file, by us or by what a command handed it to; an `AnchorError` if it cannot be read.

    Whoever compares it with an audit reads the anchor first: what is in it was in the audit already.
    """
    records, unreadable = [], 0
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            for line in iter(partial(file.readline, _LONGEST), b""):
                record = _record(line)
                if record is not None:
                    records.append(record)
                else:
                    unreadable += bool(line.strip())
    except OSError as problem:
        raise AnchorError(f"the anchor {printable(str(path))} cannot be read ({problem.strerror})") from None
    return Memory(path, records, unreadable)


def _record(line: bytes) -> Anchored | None:
    """What a line says. A log of the system puts its own words before the first brace."""
    try:
        found = json.loads(line[line.index(b"{") :])
        record = Anchored(*(found[name] for name in Anchored._fields))
        whole = all(type(number) is int and 0 <= number < 1 << 63 for number in (record.round, record.lines))
        text = isinstance(record.time, str) and re.fullmatch("[0-9a-f]{64}", record.head)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return record if whole and text else None


class Comparison:
    """What an anchor knows, held against a chain that is read line by line."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._expected: dict[int, list[Anchored]] = {}
        for record in memory.records:
            self._expected.setdefault(record.lines, []).append(record)
        self._strange: Anchored | None = None
        self._lines = -1
        self.last: Anchored | None = None
        """The last end of the audit that it knows, of those that are in the chain."""
        self.see(BEGINNING)

    def see(self, head: str) -> None:
        """The next line; the first call is of the beginning."""
        self._lines += 1
        for record in self._expected.pop(self._lines, ()):
            if record.head == head:
                self.last = record
            else:
                self._strange = self._strange or record

    def finish(self, audit: Path) -> None:
        """The chain is at its end: an `AuditError` says what the anchor knows of and the chain does not have."""
        where = f"the anchor {printable(str(self._memory.path))}"
        if not self._memory.records:
            raise AnchorError(f"{where} holds no line about an audit")
        known = self.last is not None and self.last.lines > 0
        if self._strange is not None and known:
            assert self.last is not None
            raise AuditError(
                f"{audit}: was written anew after line {self.last.lines}, the end of {self.last}: line "
                f"{self._strange.lines} is not the one that {where} knows of {self._strange}"
            )
        if self._strange is not None:
            raise AuditError(
                f"{audit}: was written anew from its first line on, or {where} is that of another audit: it knows no "
                f"line of this one"
            )
        if self._expected:
            last = self._expected[max(self._expected)][-1]
            other = "" if known else ", or it is the anchor of another audit"
            raise AuditError(
                f"{audit}: ends with line {self._lines}, but {where} knows line {last.lines}, the end of {last}: lines "
                f"were cut off the end{other}"
            )


def anchored_lines(audit: Path, anchor: Anchor) -> int:
    """How many lines of an audit its anchor knows; an `AuditError` if they are not those that are there.

    What a command stored cannot be asked for.
    """
    if isinstance(anchor, CommandAnchor):
        return 0
    memory = read_anchor(anchor.path) if anchor.path.exists() else None
    if memory is None or not memory.records:
        noted = read_note(audit)
        if isinstance(noted, FileAnchor) and noted.path == anchor.path:
            raise AnchorError(
                f"the anchor {anchor} is gone, but the end of {audit} has been kept there; mount its storage, put the "
                "file back, or give another anchor"
            )
        return 0
    comparison = Comparison(memory)
    for head in hashes(audit):
        comparison.see(head)
    try:
        comparison.finish(audit)
    except AuditError as problem:
        raise AuditError(f"{problem}; to go on with it as it is, give another anchor") from None
    return 0 if comparison.last is None else comparison.last.lines


def write_note(audit: Path, anchor: Anchor) -> None:
    """Say beside an audit where its anchor is. Whoever can rewrite the audit can rewrite this as well."""
    try:
        write_atomically(audit.parent / _NOTE, json.dumps(anchor.note()).encode(), mode=PRIVATE)
    except OSError as problem:
        raise AnchorError(f"{audit.parent / _NOTE}: cannot be written ({problem.strerror})") from None


def read_note(audit: Path) -> Anchor | None:
    """Where the anchor of an audit is, as it is said beside it; None if nothing is said."""
    path = audit.parent / _NOTE
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            found = json.loads(file.read(_LONGEST))
        place = found["file"] if "file" in found else found["command"]
        if type(place) is not (str if "file" in found else list):
            raise TypeError
        return make_anchor(place)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise AnchorError(f"{path}: cannot be read ({problem.strerror})") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise AnchorError(f"{path}: does not say where the anchor is; give it with --anchor FILE") from None
