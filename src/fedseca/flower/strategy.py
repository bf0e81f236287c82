"""`RobustStrategy`: Flower's FedAvg with a rule of this library in the place of the average."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from logging import INFO, WARNING
from pathlib import Path
from statistics import median
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedseca.aggregators import Aggregator
from fedseca.audit import AUDIT_FILE, NO_ANSWER, Audit
from fedseca.checkpoint import read_checkpoint, write_checkpoint
from fedseca.errors import (
    FolderBusy,
    InputError,
    MissingDependency,
    NotEnoughClients,
    NotFinite,
    Rejection,
    StateError,
    printable,
)
from fedseca.files import take_lock
from fedseca.flower.grid import CarefulGrid, nodes_asked
from fedseca.flower.replies import AggregateMetrics, Arrays, combine_metrics, read_arrays, read_number, read_reply
from fedseca.layout import BufferPolicy, Malformed
from fedseca.reading import as_tensor
from fedseca.server import Round, Server

_CHECKPOINT, _LOCK = "checkpoint.safetensors", ".lock"
_FAR_BELOW, _FAR_ABOVE = 1 / 3, 5
"""A node is suspect with that share of the median weight or less, or with so many times the median norm or more."""

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class RobustStrategy(FedAvg):
    """Sampling, messages and evaluation are FedAvg's; the replies are screened and aggregated by a rule.

    Nothing that one node sends ends the run or reaches the model: a reply that cannot be used is left out of its round,
    and the audit says why. With too few replies left the round keeps the model that it began with.
    """

    def __init__(
        self,
        rule: str | Aggregator = "fedseca",
        *,
        audit_dir: str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        learning_rate: float = 1.0,
        buffers: BufferPolicy = "median",
        seed: int = 0,
        min_admitted: int | None = None,
        trust_num_examples: bool = False,
        hyperparameters: Mapping[str, Any] | None = None,
        **fedavg_options: Any,
    ) -> None:
        """`audit_dir` gets a line for every round and node, `checkpoint_dir` what is needed to go on after a kill.

        `hyperparameters` are the rule's. A round with fewer than `min_admitted` usable answers keeps its model; if that
        is not given, with fewer than two or than half of those that were asked: a rule withstands a minority, and must
        not be left alone with it. `trust_num_examples` weighs each client by the number that it says itself, which a
        malicious one will make large: only for rules that take weights, only where all clients are trusted.
        """
        super().__init__(**fedavg_options)
        self.server = Server(
            rule, learning_rate=learning_rate, buffers=buffers, seed=seed, **dict(hyperparameters or {})
        )
        if trust_num_examples and not self.server.rule.takes_weights:
            raise InputError(
                f"{self.server.rule.name} weighs no client by a given number: leave out trust_num_examples"
            )
        if min_admitted is not None and min_admitted < 1:
            raise InputError(f"min_admitted must be an integer ≥ 1; found {min_admitted!r}")
        self.min_admitted, self.trust_num_examples = min_admitted, trust_num_examples
        self.audit_dir = None if audit_dir is None else Path(audit_dir)
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        for name, folder in (("audit_dir", self.audit_dir), ("checkpoint_dir", self.checkpoint_dir)):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise InputError(f"{name} must be a folder; found the file {folder}")
        self._audit: Audit | None = None
        self._grid: CarefulGrid | None = None
        self._run = 0
        self._done = 0
        """Rounds before this start: Flower counts from 1, the federation goes on."""
        self._sent = ArrayRecord()
        self._messages: list[Message] = []

    def summary(self) -> None:
        log(INFO, "\t├──> Rule: %s", self.server.rule)
        if not self.trust_num_examples:
            log(INFO, "\t├──> All nodes weigh the same, whatever they declare as '%s'", self.weighted_by_key)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """As FedAvg's; with `checkpoint_dir` it goes on after the last round that was kept there."""
        with ExitStack() as stack:
            if self.audit_dir is not None:
                self._audit = stack.enter_context(Audit(self.audit_dir / AUDIT_FILE))
            if self.checkpoint_dir is not None:
                stack.enter_context(_alone_in(self.checkpoint_dir))
                initial_arrays = self._restore(self.checkpoint_dir / _CHECKPOINT, initial_arrays)
            self._grid = CarefulGrid(grid)
            self._run = grid.run.run_id
            done = self._done
            if 0 < num_rounds <= done:
                log(WARNING, "All %s rounds are done already: nothing is trained. New folders begin anew.", num_rounds)
            result = super().start(
                cast(Grid, self._grid),
                initial_arrays,
                max(0, num_rounds - done),
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else lambda number, arrays: evaluate_fn(number + done, arrays),
            )
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, name, {number + done: metrics for number, metrics in getattr(result, name).items()})
        if not result.arrays:  # no round gave a new model
            result.arrays = initial_arrays
        return result

    def _restore(self, path: Path, initial: ArrayRecord) -> ArrayRecord:
        """The model that was kept, with rule, round and audit put back to where they were; if none was, the initial."""
        if not path.exists():
            return initial
        try:
            found = read_checkpoint(path)
            found.restore(self.server)
            arrays = ArrayRecord({name: Array(found.parts["model"][name].numpy()) for name in found.manifest["names"]})
            for name, value in self._settings(initial).items():
                if found.manifest["settings"][name] != value:
                    raise StateError(f"{path}: is of another {name}")
            number, head = int(found.manifest["round"]), found.manifest["audit"]
        except (StateError, KeyError, TypeError, ValueError) as problem:
            raise StateError(f"{problem}; or give another checkpoint_dir") from None
        if self._audit is not None and head is not None:
            self._audit.cut_back(head, number + 1)
        self._done = number
        log(INFO, "Going on after round %s, from %s", number, path)
        return arrays

    def _settings(self, arrays: ArrayRecord) -> dict[str, Any]:
        """What must be the same when a training goes on, beside the rule."""
        model = [[name, str(value.dtype), list(value.shape)] for name, value in read_arrays(arrays).items()]
        return {
            "model": model,
            "learning_rate": self.server.learning_rate,
            "trust_num_examples": self.trust_num_examples,
        }

    def _keep(self, number: int, arrays: ArrayRecord) -> None:
        if self.checkpoint_dir is None:
            return
        # Copies: two names may stand for one array, which the format does not know.
        model = {name: as_tensor(value).clone() for name, value in read_arrays(arrays).items()}
        manifest = {
            "round": number,
            "audit": None if self._audit is None else self._audit.head,
            "names": list(model),  # the format keeps no order
            "settings": self._settings(arrays),
        }
        write_checkpoint(self.checkpoint_dir / _CHECKPOINT, self.server, {"model": model}, manifest)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's; what is sent, and to whom, is remembered."""
        number = server_round + self._done
        self._sent, self._messages = arrays, []
        if self.fraction_train == 0.0:
            return []
        here = _wait_for_nodes(grid, max(self.min_available_nodes, self.min_train_nodes))
        with _drawing(f"train/{self.server.seed}/{number}"):
            self._messages = list(super().configure_train(number, arrays, config, here))
        return self._messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        number = server_round + self._done
        self._messages = []
        if self.fraction_evaluate == 0.0:
            return []
        here = _wait_for_nodes(grid, max(self.min_available_nodes, self.min_evaluate_nodes))
        with _drawing(f"evaluate/{self.server.seed}/{number}"):
            self._messages = list(super().configure_evaluate(number, arrays, config, here))
        return self._messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model, or None if the round keeps the old one; and the summary of the round."""
        number = server_round + self._done
        answers, rejected = self._identify(replies)
        models: dict[str, Arrays] = {}
        for node, reply in answers.items():
            try:
                models[node] = read_reply(reply, list(self._sent))
            except Exception as problem:  # nothing that can be wrong with an answer is worth a run
                kind = "" if isinstance(problem, Malformed) else f"{type(problem).__name__}: "
                rejected.append(Rejection(node, printable(f"{kind}{problem}", limit=200)))
        out, void, screened = self._aggregate(models, answers)
        rejected += screened
        by_weight = self.server.rule.low_weight_is_distrust and not self.trust_num_examples
        lines = _audit_lines(models, out, rejected, void, by_weight=by_weight)
        if self._audit is not None:
            when = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "run": self._run, "round": number}
            self._audit.append(when | line for line in lines)
        arrays = None if out is None else ArrayRecord({name: Array(value) for name, value in out.model.items()})
        self._keep(number, self._sent if arrays is None else arrays)
        for rejection in rejected:
            log(WARNING, "round %s: node %s is left out: %s", number, rejection.client_id, rejection.reason)
        if void is not None:
            log(WARNING, "round %s keeps the model it began with: %s", number, void)
        admitted = [] if out is None else [answers[node] for node in out.client_ids]
        reported = self._combine(number, admitted, self.train_metrics_aggr_fn)
        return arrays, MetricRecord({**(reported or {}), **_summary(lines, void)})

    def _identify(self, replies: Iterable[Message]) -> tuple[dict[str, Message], list[Rejection]]:
        """The first answer of each node that was asked, in the order of their ids, and the nodes without one.

        An answer belongs to the node that was asked, whatever it says of itself.
        """
        waiting = dict(nodes_asked(self._messages))
        answers: dict[int, Message] = {}
        for reply in replies:
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                log(WARNING, "an answer to nothing that was asked, or a second one, is dropped")
            else:
                answers[node] = reply
        lost = self._grid.lost if self._grid is not None else {}
        silent = [Rejection(str(node), lost.get(node, f"{NO_ANSWER} in time")) for node in sorted(waiting.values())]
        # Answers come in any order; sums must not depend on it.
        return {str(node): answers[node] for node in sorted(answers)}, silent

    def _aggregate(
        self, models: Mapping[str, Arrays], answers: Mapping[str, Message]
    ) -> tuple[Round | None, str | None, list[Rejection]]:
        """What came of the round, or why nothing did; and whom the screening left out."""
        weights = None
        if self.trust_num_examples:
            weights = [read_number(answers[node].content, self.weighted_by_key) for node in models]
        asked = len(self._messages)
        fewest = max(min(2, asked), (asked + 1) // 2) if self.min_admitted is None else self.min_admitted
        try:
            out = self.server.aggregate(
                list(models.values()),
                list(models),
                before=read_arrays(self._sent),
                weights=weights,
                min_clients=fewest,
            )
        except NotEnoughClients as problem:
            count = f"{problem.admitted} of {asked} that were asked can be used"
            return None, f"at least {problem.required} answers are needed, {count}", list(problem.rejected)
        except NotFinite as problem:
            return None, str(problem), []
        except (InputError, StateError, MissingDependency):  # of the server's own side
            raise
        except Exception as problem:  # numbers that a rule could not compute with
            log(WARNING, "%s failed", self.server.rule.name, exc_info=True)
            return None, f"{self.server.rule.name} failed: {printable(repr(problem), limit=200)}", []
        return out, None, list(out.rejected)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """FedAvg's, of the replies whose metrics can be used."""
        answers, lost = self._identify(replies)
        number = server_round + self._done
        for node, reason in lost:
            log(WARNING, "round %s: node %s did not evaluate: %s", number, node, reason)
        for node, reply in answers.items():
            if reply.has_error():
                reason = printable(str(reply.error.reason), limit=200)
                log(WARNING, "round %s: node %s did not evaluate: %s", number, node, reason)
        return self._combine(number, answers.values(), self.evaluate_metrics_aggr_fn)

    def _combine(self, number: int, replies: Iterable[Message], aggregate: AggregateMetrics) -> MetricRecord | None:
        contents = [reply.content for reply in replies if reply.has_content()]
        try:
            return combine_metrics(contents, aggregate, self.weighted_by_key, trust_weights=self.trust_num_examples)
        except Exception as problem:  # what nodes report of themselves must not end the run
            log(
                WARNING,
                "round %s: what the nodes report cannot be combined: %s",
                number,
                printable(str(problem), limit=200),
            )
            return None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other server keeps its checkpoints there meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as file:
        if not take_lock(file, wait=False):
            raise FolderBusy(
                f"{folder}: another server keeps its checkpoints there; wait for its end or choose another"
            )
        yield


class _Here:
    """Stands for a grid whose nodes do not change while some of them are drawn."""

    def __init__(self, nodes: list[int]) -> None:
        self._nodes = nodes

    def get_node_ids(self) -> list[int]:
        return self._nodes


def _wait_for_nodes(grid: Grid, enough: int) -> Grid:
    """As FedAvg waits, without end. Sorted: what is drawn from them must not depend on a grid's order."""
    while len(nodes := sorted(grid.get_node_ids())) < enough:
        log(INFO, "Waiting for nodes: %d are here, %d are needed", len(nodes), enough)
        time.sleep(1)
    return cast(Grid, _Here(nodes))


@contextmanager
def _drawing(seed: str) -> Iterator[None]:
    """FedAvg draws nodes with Python's own generator; seeded by the round, a resumed run draws as an unbroken one."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _audit_lines(
    nodes: Iterable[str], out: Round | None, rejected: Iterable[Rejection], void: str | None, *, by_weight: bool
) -> list[dict[str, Any]]:
    """One for each node of the round, by id; then, of a round that keeps its model, the reason."""
    # Of a round that came to nothing all that is known of the others is that they could be used.
    lines: dict[str, dict[str, Any]] = {node: {"admitted": True} for node in nodes}
    admitted = [] if out is None else [record for record in out.records() if record["admitted"]]
    names = ("weight", "norm") if by_weight else ("norm",)
    usual = {name: _median(record.get(name) for record in admitted) for name in names}
    for record in admitted:
        reason = _suspicion(record, usual)
        record["suspect"] = reason is not None
        lines[record.pop("client")] = record if reason is None else {**record, "reason": reason}
    lines |= {node: {"admitted": False, "reason": reason} for node, reason in rejected}
    told: list[dict[str, Any]] = [{"node": node, **lines[node]} for node in sorted(lines, key=int)]
    return told if void is None else [*told, {"node": None, "void": void}]


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0


def _suspicion(record: Mapping[str, Any], usual: Mapping[str, float]) -> str | None:
    """Why a node that was admitted is suspect."""
    if record["suspect"]:
        return "the rule calls it malicious"
    for name, median_value in usual.items():
        value = record.get(name)
        if value is None or median_value <= 0:
            continue
        if value <= _FAR_BELOW * median_value if name == "weight" else value >= _FAR_ABOVE * median_value:
            return f"{name} {value:.3g}, where the median is {median_value:.3g}"
    return None


def _summary(lines: Iterable[Mapping[str, Any]], void: str | None) -> dict[str, Any]:
    """The round in numbers, which is all that a MetricRecord can hold."""
    of_nodes = [line for line in lines if line["node"] is not None]
    suspects = [int(line["node"]) for line in of_nodes if line.get("suspect")]
    rejected = [int(line["node"]) for line in of_nodes if not line["admitted"]]
    return {
        "admitted": len(of_nodes) - len(rejected),
        "rejected": len(rejected),
        "suspect": len(suspects),
        "rejected-nodes": rejected,
        "suspect-nodes": suspects,
        "void": int(void is not None),
    }
