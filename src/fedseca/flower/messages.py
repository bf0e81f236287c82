"""Questions to nodes and their answers: whom to ask, and at most one answer to each question, whatever a node uploads.

Flower's own `send_and_receive` ends the run when an answer cannot be decoded, and passes on messages that nobody asked
for, so that one node could answer many times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO
from typing import Any, cast

import httpx
from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedseca.errors import printable

_SHORTEST, _LONGEST, _GROWTH = 0.1, 3.0, 1.5
"""Seconds between two looks for answers: few at first, for simulations; at most what Flower itself waits."""


class CarefulGrid:
    """Another grid, with a `send_and_receive` that no node can disturb."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.lost: dict[int, str] = {}
        """Of the last call: the nodes without an answer, and why."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The answers that came in time, in the order of the questions."""
        asked = list(messages)
        self.lost = {}
        if not asked:
            return []
        deadline = None if timeout is None else time.monotonic() + timeout
        pushed = set(self._grid.push_messages(asked))
        answers: dict[str, Message] = {}
        waiting: dict[str, int] = {}
        for message in asked:
            if message.metadata.message_id in pushed:
                waiting[message.metadata.message_id] = message.metadata.dst_node_id
            else:
                self.lost[message.metadata.dst_node_id] = "the SuperLink took no message for it"
        for pause in _pauses():
            for identity in list(waiting):
                self._look_for(identity, waiting, answers)
            left = None if deadline is None else deadline - time.monotonic()
            if not waiting or (left is not None and left <= 0):
                break
            time.sleep(pause if left is None else min(pause, left))
        self.lost |= dict.fromkeys(waiting.values(), "none came in time")
        return [answers[identity] for identity in (m.metadata.message_id for m in asked) if identity in answers]

    def _look_for(self, identity: str, waiting: dict[str, int], answers: dict[str, Message]) -> None:
        """One at a time: an answer that cannot be decoded is then that of the node that was asked."""
        self._drop_unasked()
        try:
            found = list(self._grid.pull_messages([identity]))
        except httpx.TransportError:  # the SuperLink cannot be reached, which is no node's doing
            raise
        except Exception as problem:  # it was handed out and will not come again
            reason = printable(f"{type(problem).__name__}: {problem}", limit=120)
            # Not held against the node: another one may have spoilt it with what came along (see below).
            self.lost[waiting.pop(identity)] = f"none that can be decoded ({reason})"
            return
        for message in found:
            if message.metadata.reply_to_message_id == identity and identity in waiting:
                answers[identity] = message
                del waiting[identity]

    def _drop_unasked(self) -> None:
        """A message to the server that answers nothing comes along with any answer, and would spoil an honest one's
        decoding if it is malformed: fetched alone, it does no harm."""
        try:
            list(self._grid.pull_messages([]))
        except httpx.TransportError:
            raise
        except Exception:
            return


def _pauses() -> Iterator[float]:
    pause = _SHORTEST
    while True:
        yield pause
        pause = min(pause * _GROWTH, _LONGEST)


class _Here:
    """Stands for a grid whose nodes do not change while some of them are drawn."""

    def __init__(self, nodes: list[int]) -> None:
        self._nodes = nodes

    def get_node_ids(self) -> list[int]:
        return self._nodes


def wait_for_nodes(grid: Grid, enough: int) -> Grid:
    """As FedAvg waits, without end. Sorted: what is drawn from them must not depend on a grid's order."""
    while len(nodes := sorted(grid.get_node_ids())) < enough:
        log(INFO, "Waiting for nodes: %d are here, %d are needed", len(nodes), enough)
        time.sleep(1)
    return cast(Grid, _Here(nodes))


@contextmanager
def drawing(seed: str) -> Iterator[None]:
    """FedAvg draws nodes with Python's own generator; seeded by the round, a resumed run draws as an unbroken one."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def nodes_asked(messages: Iterable[Message]) -> Mapping[str, int]:
    """Whom each message asks. An answer belongs to the node that was asked, whatever it says of itself."""
    return {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
