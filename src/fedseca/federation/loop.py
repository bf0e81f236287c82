"""The rounds of a simulated federation: broadcast, train, craft, aggregate, evaluate, write down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedseca.aggregators import State
from fedseca.aggregators.fltrust import ROOT
from fedseca.errors import InputError
from fedseca.federation.byzantine import Byzantines, Model
from fedseca.federation.client import Federation
from fedseca.federation.folder import RunFolder, check_folder
from fedseca.federation.history import History, Record
from fedseca.federation.scenario import Scenario
from fedseca.rounds import NoAnswer, Played, play_round
from fedseca.server import Round, Server

COUNTED = {
    "present": ("used", "suspect", "left out", "round void"),
    "admitted": ("used", "suspect", "round void"),
    "rejected": ("left out",),
    "suspects": ("suspect",),
}
"""What is counted of each round, by the verdicts that count."""
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
    workers: int = 0,
    train: Train | None = None,
    on_start: Callable[[Federation, History], None] | None = None,
    on_round: Callable[[History], None] | None = None,
) -> History:
    """Train a scenario to its end and say what happened.

    With a `folder` the run is written there as it goes; with `resume` it goes on from there, whenever it was cut off,
    and the numbers are those of an unbroken run. `on_start` is called once with what is about to run and what is
    there already, `on_round` with the history after each round. `threads` are torch's for the time of the run; if not
    given, one where a step is so small that more would only wait for each other, else what torch is set to. `workers`
    are the processes that read the samples of a data set that is not in memory; with 0 this one reads them. `train`
    says where the clients train, if not here one after the other.
    """
    if checkpoint_every < 1:
        raise InputError(f"checkpoint_every must be an integer ≥ 1; found {checkpoint_every!r}")
    check_threads(threads)
    scenario = scenario or Scenario()
    if folder is not None:
        check_folder(Path(folder), scenario, overwrite=overwrite)
    federation = Federation(scenario, data_dir=data_dir, device=device, workers=workers)
    server = Server(
        scenario.aggregator,
        learning_rate=scenario.server_learning_rate,
        buffers=scenario.buffers,
        seed=scenario.seed,
    )
    history = History(scenario)
    attack_state: State = {}
    with ExitStack() as stack:
        stack.enter_context(torch_threads(threads or (1 if federation.small_steps else None)))
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
            trained = _play(federation, train or _one_by_one(federation), server, history.model, attack_state, number)
            history.model, attack_state = trained.model, trained.attack_state
            history.append(trained.records)
            if book is not None:
                book.append(trained.records)
                if _due(number + 1, scenario.rounds, checkpoint_every, kept):
                    book.checkpoint(history, server, attack_state)
                    kept = time.monotonic()
            if on_round is not None:
                on_round(history)
        if book is not None:
            book.finish(history)
    return history


def _due(done: int, rounds: int, every: int, kept: float) -> bool:
    """Whether it is time for a checkpoint, the last one of which was kept at that moment."""
    return done % every == 0 or done == rounds or time.monotonic() - kept >= _PATIENCE


MOST_THREADS = 1024


def check_threads(threads: int | None) -> None:
    """That torch can be told to use so many."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads must be an integer from 1 to {MOST_THREADS}; found {threads!r}")


def _one_by_one(federation: Federation) -> Train:
    """In this process, one client after the other."""
    return lambda clients, model, number: {k: federation.train(k, model, number) for k in clients}


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """So many for the time of a block; as many as there are if not given."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Trained:
    """What came of one round of the federation."""

    model: dict[str, Tensor]
    attack_state: State
    records: Mapping[str, list[Record]]


def _play(
    federation: Federation, train: Train, server: Server, model: Model, attack_state: State, number: int
) -> _Trained:
    scenario = federation.scenario
    present = _present(scenario, number)
    honest = [k for k in present if not scenario.is_byzantine(k)]
    byzantine = [k for k in present if scenario.is_byzantine(k)]
    seconds: dict[str, float] = {}
    training = [*honest, *(byzantine if "own" in scenario.attack.needs or not honest else ())]
    with _clock(seconds, "train"):
        trained = train(training, model, number)
        root = federation.train_root(model, number)  # here, wherever the clients train
    trusted: dict[str, Model] = {} if root is None else {ROOT: root}
    models = {scenario.client_ids[k]: trained[k] for k in honest}
    own = {scenario.client_ids[k]: trained[k] for k in training if scenario.is_byzantine(k)}
    with _clock(seconds, "attack"):
        if byzantine:
            ids = tuple(scenario.client_ids[k] for k in byzantine)
            asked = partial(federation.loss, clients=honest or byzantine)
            attackers = Byzantines(scenario.attack, server, number, model, ids, trusted, asked)
            rng = scenario.generator("attack", number)
            crafted, attack_state = attackers.craft(models, own, attack_state, rng)
            models |= crafted
    answers = {i: models.get(i, NoAnswer()) for i in _asked(scenario, number)} | trusted
    with _clock(seconds, "aggregate"):
        played = play_round(server, answers, model, rule_may_fail=False)
    with _clock(seconds, "evaluate"):
        metrics = federation.evaluate(played.model)
    said = scenario.attack.told(attack_state) if byzantine else None
    record = {
        "round": number + 1,
        **metrics,
        **{name: len([i for i in played.of_kind(*kinds) if i != ROOT]) for name, kinds in COUNTED.items()},
        "void": played.void,
        "idle": played.idle,
        **({} if said is None else {"craft": said}),
        **({"root": played.verdicts[ROOT].kind} if trusted else {}),
        "seconds": {part: round(spent, 6) for part, spent in seconds.items()},
    }
    audit = _audit(scenario, number, played)
    records = {"rounds": [record], "audit": audit, "pairs": _pairs(played.round, number)}
    return _Trained(dict(played.model), attack_state, records)


@contextmanager
def _clock(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - start


def _participation(scenario: Scenario, number: int) -> tuple[list[int], Tensor]:
    """Who is asked in a round, in ascending order; and which of the clients do not answer if they are."""
    rng = scenario.generator("participation", number)
    chosen = torch.randperm(scenario.clients, generator=rng)[: scenario.asked].sort().values
    return chosen.tolist(), torch.rand(scenario.clients, generator=rng) < scenario.dropout


def _asked(scenario: Scenario, number: int) -> list[str]:
    return [scenario.client_ids[k] for k in _participation(scenario, number)[0]]


def _present(scenario: Scenario, number: int) -> list[int]:
    """Who was asked and answers."""
    chosen, silent = _participation(scenario, number)
    return [k for k in chosen if not silent[k]]


def _audit(scenario: Scenario, number: int, played: Played) -> list[Record]:
    """A record for each client, in the order of the clients; of one that was not asked it has no verdict."""
    records = {record["client"]: record for record in played.records() if record["client"] != ROOT}
    told: list[Record] = []
    for k, client_id in enumerate(scenario.client_ids):
        of_client = records.pop(client_id, {"client": client_id, "verdict": None})
        told.append({"round": number + 1, "byzantine": scenario.is_byzantine(k), **of_client})
    return told + [{"round": number + 1, **record} for record in records.values()]


def _pairs(out: Round | None, number: int) -> list[Record]:
    """What the rule says of each pair of clients, to four digits."""
    if out is None or len(out.client_ids) > _MOST_PAIRS:
        return []
    clients = [k for k, client_id in enumerate(out.client_ids) if client_id != ROOT]
    matrices: dict[str, Any] = {
        name: [[round(value, 4) for value in row] for row in values[clients][:, clients].tolist()]
        for name, values in out.diagnostics.items()
        if values.ndim == 2
    }
    ids = [out.client_ids[k] for k in clients]
    return [{"round": number + 1, "clients": ids, **matrices}] if matrices else []
