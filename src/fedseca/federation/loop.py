"""The rounds of a simulated federation: broadcast, train, craft, aggregate, evaluate, write down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedseca.aggregators import State
from fedseca.errors import InputError, NotEnoughClients
from fedseca.federation.byzantine import Byzantines, Model, answer
from fedseca.federation.client import Federation
from fedseca.federation.folder import RunFolder
from fedseca.federation.history import History, Record
from fedseca.federation.scenario import Scenario
from fedseca.server import Round, Server

Train = Callable[[Sequence[int], Model, int], Mapping[int, Model]]
"""What some clients have after training on the global model in a round."""
_PATIENCE = 20.0
"""Seconds after which a round is kept, even if it is not yet its turn: so much is lost at most."""
_MOST_PAIRS = 32
"""Up to how many clients what is known of each pair is written down: it grows with their square."""


def simulate(
    scenario: Scenario | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: int = 5,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    train: Train | None = None,
    on_start: Callable[[Federation, History], None] | None = None,
    on_round: Callable[[History], None] | None = None,
) -> History:
    """Train a scenario to its end and say what happened.

    With a `folder` the run is written there as it goes; with `resume` it goes on from there, whenever it was cut off,
    and the numbers are those of an unbroken run. `on_start` is called once with what is about to run and what is
    there already, `on_round` with the history after each round. `threads` are torch's for the time of the run; if not
    given, one where a step is so small that more would only wait for each other, else what torch is set to. `train`
    says where the clients train, if not here one after the other.
    """
    if checkpoint_every < 1:
        raise InputError(f"checkpoint_every must be an integer ≥ 1; found {checkpoint_every!r}")
    if threads is not None and threads < 1:
        raise InputError(f"threads must be an integer ≥ 1; found {threads!r}")
    scenario = scenario or Scenario()
    federation = Federation(scenario, data_dir=data_dir, device=device)
    server = Server(
        scenario.aggregator,
        learning_rate=scenario.server_learning_rate,
        buffers=scenario.buffers,
        seed=scenario.seed,
    )
    history = History(scenario)
    attack_state: State = {}
    with ExitStack() as stack:
        stack.enter_context(_torch_threads(threads or (1 if federation.small_steps else None)))
        book = None
        if folder is not None:
            book = RunFolder(Path(folder), scenario, federation.fingerprint, resume=resume, overwrite=overwrite)
            stack.callback(book.close)
            history, attack_state = book.restore(server)
        history.model = federation.arrays() if history.model is None else federation.fitting(history.model)
        if on_start is not None:
            on_start(federation, history)
        kept = time.monotonic()
        for number in range(len(history.rounds), scenario.rounds):
            played = _play(federation, train or _one_by_one(federation), server, history.model, attack_state, number)
            history.model, attack_state = played.model, played.attack_state
            history.append(played.records)
            if book is not None:
                book.append(played.records)
                late = time.monotonic() - kept >= _PATIENCE
                if (number + 1) % checkpoint_every == 0 or number + 1 == scenario.rounds or late:
                    book.checkpoint(history, server, attack_state)
                    kept = time.monotonic()
            if on_round is not None:
                on_round(history)
        if book is not None:
            book.finish(history)
    return history


def _one_by_one(federation: Federation) -> Train:
    """In this process, one client after the other."""
    return lambda clients, model, number: {k: federation.train(k, model, number) for k in clients}


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Played:
    """What came of one round of the federation."""

    model: dict[str, Tensor]
    attack_state: State
    records: Mapping[str, list[Record]]


def _play(
    federation: Federation, train: Train, server: Server, model: Model, attack_state: State, number: int
) -> _Played:
    scenario = federation.scenario
    absent = _absent(scenario, number)
    present = [k for k in range(scenario.clients) if scenario.client_ids[k] not in absent]
    honest = [k for k in present if not scenario.is_byzantine(k)]
    byzantine = [k for k in present if scenario.is_byzantine(k)]
    seconds: dict[str, float] = {}
    training = [*honest, *(byzantine if "own" in scenario.attack.needs or not honest else ())]
    with _clock(seconds, "train"):
        trained = train(training, model, number)
    models = {scenario.client_ids[k]: trained[k] for k in honest}
    own = {scenario.client_ids[k]: trained[k] for k in training if scenario.is_byzantine(k)}
    with _clock(seconds, "attack"):
        if byzantine:
            ids = tuple(scenario.client_ids[k] for k in byzantine)
            attackers = Byzantines(scenario.attack, server, number, model, ids)
            rng = scenario.generator("attack", number)
            crafted, attack_state = attackers.craft(models, own, attack_state, rng)
            models |= crafted
    with _clock(seconds, "aggregate"):
        out, void = answer(server, models, model)
    after = dict(model if out is None else out.model)
    with _clock(seconds, "evaluate"):
        metrics = federation.evaluate(after)
    verdicts = absent | _verdicts(out, void, list(models))
    audit = [_audit(scenario, number, k, verdicts[scenario.client_ids[k]]) for k in range(scenario.clients)]
    record = {
        "round": number + 1,
        **asdict(metrics),
        "present": len(present),
        "admitted": sum(line["admitted"] for line in audit),
        "rejected": sum(line["present"] and not line["admitted"] for line in audit),
        "suspects": sum(bool(line.get("suspect")) for line in audit),
        "void": None if void is None else str(void),
        "idle": out is not None and not bool(out.clients["weight"].any()),
        "seconds": {part: round(spent, 6) for part, spent in seconds.items()},
    }
    return _Played(after, attack_state, {"rounds": [record], "clients": audit, "pairs": _pairs(out, number)})


@contextmanager
def _clock(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - start


def _absent(scenario: Scenario, number: int) -> dict[str, Record]:
    """Who is not there in a round, and why."""
    rng = scenario.generator("participation", number)
    chosen = set(torch.randperm(scenario.clients, generator=rng)[: scenario.asked].tolist())
    silent = torch.rand(scenario.clients, generator=rng) < scenario.dropout
    return {
        client_id: {
            "present": False,
            "admitted": False,
            "reason": "did not answer" if k in chosen else "was not asked",
        }
        for k, client_id in enumerate(scenario.client_ids)
        if k not in chosen or silent[k]
    }


def _verdicts(out: Round | None, void: Exception | None, ids: list[str]) -> dict[str, Record]:
    """What the server made of each client that was there. Of a void round: who was rejected; the others were not."""
    if out is not None:
        return {record["client"]: record for record in out.records()}
    rejected = {r.client_id: r.reason for r in void.rejected} if isinstance(void, NotEnoughClients) else {}
    return {i: {"admitted": False, "reason": rejected[i]} if i in rejected else {"admitted": True} for i in ids}


def _audit(scenario: Scenario, number: int, client: int, verdict: Record) -> Record:
    truth = scenario.is_byzantine(client)
    where = {"round": number + 1, "client": scenario.client_ids[client], "byzantine": truth, "present": True}
    return where | verdict


def _pairs(out: Round | None, number: int) -> list[Record]:
    """What the rule says of each pair of clients, to four digits."""
    if out is None or len(out.client_ids) > _MOST_PAIRS:
        return []
    matrices: dict[str, Any] = {
        name: [[round(value, 4) for value in row] for row in values.tolist()]
        for name, values in out.clients.items()
        if values.ndim == 2
    }
    return [{"round": number + 1, "clients": list(out.client_ids), **matrices}] if matrices else []
