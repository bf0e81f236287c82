"""What runs and listens on this machine, as Linux tells it in /proc."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Address = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]

_PROC = Path("/proc")
_LISTENS = "0A"


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    command: str


def running() -> Iterator[Process]:
    """All processes that have not ended; a zombie has."""
    for folder in _PROC.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it may end between two looks
            if folder.name.isdigit():
                # pid (name) state parent group session …, where the name may hold anything
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if state not in "ZX":
                    yield Process(int(folder.name), int(parent), int(session), command)


def listening(pids: Collection[int]) -> set[Address]:
    """The addresses and ports at which any of these processes takes connections."""
    sockets = {link for pid in pids for link in _open_files(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and f"socket:[{rest[5]}]" in sockets:
                address, port = local.split(":")
                found.add((_address(address), int(port, 16)))
    return found


def _open_files(pid: int) -> Iterator[str]:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for link in (_PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                yield os.readlink(link)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel writes each four bytes as a number, so on the usual machines backwards."""
    words = [int(text[start : start + 8], 16).to_bytes(4, "little") for start in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(words))
