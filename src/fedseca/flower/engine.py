"""A scenario on Flower's simulation runtime: the rounds are played here, the clients train on Flower's nodes (Ray).

A crafted update is made of all honest ones, so what the Byzantine clients send is made here as well; the rule, the
folder and the numbers are those of the built-in loop.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor

from fedseca.errors import FedsecaError, printable
from fedseca.experiments.workers import check_reachable, connect_to_ray
from fedseca.federation import Federation, History, Scenario, simulate
from fedseca.plugins import load_plugin, loaded

_PAUSE = 0.02
"""Seconds between two looks for answers."""
Model = Mapping[str, Tensor]


class NodeFailed(FedsecaError):
    """A node could not train its client, or the nodes are gone."""


def simulate_on_flower(
    scenario: Scenario | None = None,
    *,
    ray: str = "local",
    data_dir: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    **options: Any,
) -> History:
    """As `simulate`, which takes the other options, with each client on a node of Flower's simulation runtime.

    `ray` is the address of a cluster, whose machines have fedseca, the plugins and the data where they are here; or
    local, for a Ray of its own. Each client takes `threads` cores, one if not given.
    """
    check_reachable(ray)
    scenario = scenario or Scenario()
    cores = threads or 1
    where: dict[str, Any] = {
        "scenario": json.dumps(scenario.values()),
        "plugins": loaded(),
        "data-dir": "" if data_dir is None else str(Path(data_dir).resolve()),
        "device": device,
        "threads": cores,
    }
    with ExitStack() as stack:

        @functools.cache  # begun when it is needed first: that takes seconds, and bad input is told before
        def nodes() -> _Nodes:
            return stack.enter_context(_begin(scenario.clients, ray, cores))

        def train(clients: Sequence[int], model: Model, number: int) -> Mapping[int, Model]:
            arrays = ArrayRecord(dict(model))
            return nodes().ask(
                {
                    k: RecordDict({"arrays": arrays, "task": ConfigRecord({**where, "client": k, "round": number})})
                    for k in clients
                }
            )

        return simulate(scenario, data_dir=data_dir, device=device, threads=threads, train=train, **options)


client_app = ClientApp()


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    """What a node does: it trains the client of a scenario that it is told."""
    task = cast(Mapping[str, Any], message.content["task"])
    torch.set_num_threads(task["threads"])
    for plugin in task["plugins"]:
        load_plugin(plugin)
    federation = _federation(task["scenario"], task["data-dir"], task["device"])
    trained = federation.train(task["client"], _model(message.content), task["round"])
    arrays = ArrayRecord(trained)
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@functools.lru_cache(maxsize=1)
def _federation(scenario: str, data_dir: str, device: str) -> Federation:
    """Its data are read once in each of Ray's processes."""
    return Federation(Scenario.of(json.loads(scenario)), data_dir=data_dir or None, device=device)


def _model(content: RecordDict) -> dict[str, Tensor]:
    arrays = cast(ArrayRecord, content["arrays"]).to_torch_state_dict()
    # In memory of torch's own: where a vector lies decides how its sums are rounded.
    return {name: value.clone() for name, value in arrays.items()}


class _Nodes:
    """The nodes of a runtime that has begun, one for each client."""

    def __init__(self, grids: Queue[Grid], count: int, ends: Queue[str]) -> None:
        """`grids` will hold the runtime's grid, `ends` why it has ended, if it has."""
        self._ends = ends
        while grids.empty():
            self._rest()
        self._grid = grids.get()
        while len(ids := sorted(self._grid.get_node_ids())) < count:
            self._rest()
        self._ids = ids

    def ask(self, contents: Mapping[int, RecordDict]) -> dict[int, dict[str, Tensor]]:
        """The models that the nodes of some clients answer."""
        messages = {
            k: Message(content, dst_node_id=self._ids[k], message_type=MessageType.TRAIN)
            for k, content in contents.items()
        }
        self._grid.push_messages(messages.values())
        waiting = {message.metadata.message_id: k for k, message in messages.items()}
        answers: dict[int, dict[str, Tensor]] = {}
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                client = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    raise NodeFailed(f"client {client} could not train: {_last_line(str(reply.error.reason))}")
                answers[client] = _model(reply.content)
            self._rest()
        return answers

    def _rest(self) -> None:
        if not self._ends.empty():
            raise NodeFailed(f"Flower's simulation runtime has ended: {_last_line(self._ends.get())}")
        time.sleep(_PAUSE)


@contextmanager
def _begin(count: int, address: str, cores: int) -> Iterator[_Nodes]:
    """Flower's runtime, in a thread of its own: the rounds stay in this one, where Ctrl-C and errors arrive."""
    connect_to_ray(address, cores)  # which Flower then uses, and shuts down
    grids: Queue[Grid] = Queue()
    ends: Queue[str] = Queue()
    finished = threading.Event()
    server_app = ServerApp()

    @server_app.main()
    def hand_over(grid: Grid, context: Context) -> None:
        grids.put(grid)
        finished.wait()

    def play() -> None:
        resources: Any = {"client_resources": {"num_cpus": cores, "num_gpus": 0.0}}
        try:
            run_simulation(server_app, client_app, count, backend_config=resources)
            ends.put("it ended without an error message")
        except BaseException as problem:
            ends.put(f"{type(problem).__name__}: {problem.__cause__ or problem}")

    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it tells of every step, and that run_simulation will be replaced
    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield _Nodes(grids, count, ends)
    finally:
        finished.set()
        thread.join(timeout=60)
        logger.setLevel(level)


def _last_line(text: str) -> str:
    """Of a traceback, what went wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    return printable(lines[-1] if lines else "no reason given", limit=300)
