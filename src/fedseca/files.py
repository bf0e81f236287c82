"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows: there, processes must keep off each other's files themselves
    fcntl = None  # type: ignore[assignment]


PRIVATE = 0o600
"""The mode of files that name sites or hold models: only who runs the server reads them."""


def take_lock(file: IO[bytes], *, wait: bool) -> bool:
    """Lock an open file until it is closed; whether that was possible, for others may hold it."""
    if fcntl is None:
        return True  # type: ignore[unreachable]
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file; a pipe or a device, at which one would wait without end, is an `OSError`."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), PRIVATE)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "it is not a file", str(path))
    return handle


def read_regular(path: Path) -> bytes:
    """The content of a file that may lie in anybody's folder."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file for a moment; others that want it wait."""
    with path.open("ab") as file:
        take_lock(file, wait=True)
        yield


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An `OSError` names this path: that of a full disk names none."""
    try:
        yield
    except OSError as problem:
        raise type(problem)(problem.errno, problem.strerror, str(path)) from None


def append(file: IO[bytes], content: bytes, path: Path) -> None:
    """Write all of it to a file that is open without a buffer, in which nothing is left to fail when it is closed."""
    rest = memoryview(content)
    with naming(path):
        while rest:
            rest = rest[file.write(rest) :]


def write_atomically(path: str | Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write the whole content to `path`, or leave what was there; an `OSError` names the path that was asked for."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    with naming(path):
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)  # the new name, too, survives a power cut


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove what processes left that were killed in `write_atomically`, of the files whose names match a pattern.

    For those alone who know that nobody is writing them now.
    """
    leftover = re.compile(rf"\.(?:{names})\.[0-9a-f]{{12}}")
    for entry in folder.iterdir():
        if leftover.fullmatch(entry.name):
            entry.unlink(missing_ok=True)
