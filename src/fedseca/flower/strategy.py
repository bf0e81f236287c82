"""`RobustStrategy`: Flower's FedAvg with a rule of this library in the place of the average."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedseca.aggregators import Aggregator
from fedseca.audit import Place
from fedseca.book import Book
from fedseca.errors import InputError, printable
from fedseca.flower.messages import CarefulGrid, drawing, nodes_asked, wait_for_nodes
from fedseca.flower.replies import AggregateMetrics, combine_metrics, read_answer, read_arrays, read_number
from fedseca.layout import BufferPolicy
from fedseca.rounds import NoAnswer, Played, play_round
from fedseca.server import Server


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
        anchor: Place | None = None,
        learning_rate: float = 1.0,
        buffers: BufferPolicy = "median",
        seed: int = 0,
        min_admitted: int | None = None,
        trust_num_examples: bool = False,
        hyperparameters: Mapping[str, Any] | None = None,
        **fedavg_options: Any,
    ) -> None:
        """`rule` is a rule or a chain, `nnm+cwmed`; `hyperparameters` are those of its parts.

        `audit_dir` gets a line for every round and node, `checkpoint_dir` what is needed to go on after a kill. After
        every round `anchor` gets the end of the audit, so that a cut or a rewritten one shows: a file on other storage,
        or a command as a list of words, which reads a line on its stdin. A round with fewer than `min_admitted` usable
        answers keeps its model; if that is not given, with fewer than two or than half of those that were asked: a rule
        withstands a minority, and must not be left alone with it.
        `trust_num_examples` weighs each client by the number that it says itself, which a malicious one will make
        large: only for rules that take weights, only where all clients are trusted.
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
        self._book = Book(self.server, audit_dir, checkpoint_dir, anchor=anchor)
        self._grid: CarefulGrid | None = None
        self._run = 0
        self._done = 0
        """Rounds before this start: Flower counts from 1, the federation goes on."""
        self._sent = ArrayRecord()
        self._messages: list[Message] = []

    @property
    def audit_dir(self) -> Path | None:
        return self._book.audit_dir

    @property
    def checkpoint_dir(self) -> Path | None:
        return self._book.checkpoint_dir

    def summary(self) -> None:
        log(INFO, "\t├──> Rule: %s", self.server.rule)
        if not self.trust_num_examples:
            log(INFO, "\t├──> All nodes weigh the same, whatever they declare as '%s'", self.weighted_by_key)
        if self._book.anchor is not None:
            log(INFO, "\t├──> Anchor of the audit: %s", self._book.anchor)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        """As FedAvg's; with `checkpoint_dir` it goes on after the last round that was kept there."""
        with self._book as book:
            initial = read_arrays(initial_arrays)
            done, model = book.resume(self._settings(initial), initial)
            if model is not None:
                initial_arrays = ArrayRecord({name: Array(value.numpy()) for name, value in model.items()})
                log(INFO, "Resuming after round %s, from %s", done, book.checkpoint_dir)
            self._done, self._run, self._grid = done, grid.run.run_id, CarefulGrid(grid)
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

    def _settings(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """What must be the same when a training goes on, beside the rule."""
        model = [[name, str(value.dtype), list(value.shape)] for name, value in arrays.items()]
        return {
            "model": model,
            "learning_rate": self.server.learning_rate,
            "trust_num_examples": self.trust_num_examples,
        }

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's; what is sent, and to whom, is remembered."""
        number = server_round + self._done
        self._sent, self._messages = arrays, []
        if self.fraction_train > 0.0:
            here = wait_for_nodes(grid, max(self.min_available_nodes, self.min_train_nodes))
            with drawing(f"train/{self.server.seed}/{number}"):
                self._messages = list(super().configure_train(number, arrays, config, here))
        return self._messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        number = server_round + self._done
        self._messages = []
        if self.fraction_evaluate > 0.0:
            here = wait_for_nodes(grid, max(self.min_available_nodes, self.min_evaluate_nodes))
            with drawing(f"evaluate/{self.server.seed}/{number}"):
                self._messages = list(super().configure_evaluate(number, arrays, config, here))
        return self._messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model, or None if the round keeps the old one; and the summary of the round."""
        number = server_round + self._done
        messages, silent = self._identify(replies)
        answers = {node: read_answer(reply, list(self._sent)) for node, reply in messages.items()}
        asked = len(self._messages)
        fewest = max(min(2, asked), (asked + 1) // 2) if self.min_admitted is None else self.min_admitted
        weights = None
        if self.trust_num_examples:
            weights = {node: read_number(reply, self.weighted_by_key) for node, reply in messages.items()}
        # By id: answers come in any order, and sums must not depend on it.
        in_order = dict(sorted({**answers, **silent}.items(), key=lambda item: int(item[0])))
        before = read_arrays(self._sent)
        played = play_round(self.server, in_order, before, weights=weights, min_clients=fewest)
        self._book.write(number, played, run=self._run)
        self._tell(number, played)
        arrays = None if played.round is None else ArrayRecord({n: Array(v) for n, v in played.model.items()})
        admitted = () if played.round is None else played.round.client_ids
        reported = self._combine(number, [messages[node] for node in admitted], self.train_metrics_aggr_fn)
        return arrays, MetricRecord({**(reported or {}), **_summary(played)})

    def _identify(self, replies: Iterable[Message]) -> tuple[dict[str, Message], dict[str, NoAnswer]]:
        """The first answer of each node that was asked, and the nodes without one.

        An answer belongs to the node that was asked, whatever it says of itself.
        """
        waiting = dict(nodes_asked(self._messages))
        answers: dict[str, Message] = {}
        for reply in replies:
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                log(WARNING, "an answer to nothing that was asked, or a second one, is dropped")
            else:
                answers[str(node)] = reply
        lost = self._grid.lost if self._grid is not None else {}
        return answers, {str(node): NoAnswer(lost.get(node, "none came in time")) for node in waiting.values()}

    def _tell(self, number: int, played: Played) -> None:
        for node, verdict in played.verdicts.items():
            if verdict.kind not in ("used", "round void"):
                log(WARNING, "round %s: node %s: %s: %s", number, node, verdict.kind, verdict.reason)
        if played.void is not None:
            log(WARNING, "round %s keeps the model it began with: %s", number, played.void)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """FedAvg's, of the replies whose metrics can be used."""
        answers, silent = self._identify(replies)
        number = server_round + self._done
        errors = {node: str(reply.error.reason) for node, reply in answers.items() if reply.has_error()}
        for node, reason in {**{node: none.reason for node, none in silent.items()}, **errors}.items():
            log(WARNING, "round %s: node %s did not evaluate: %s", number, node, printable(reason, limit=200))
        in_order = [answers[node] for node in sorted(answers, key=int)]
        return self._combine(number, in_order, self.evaluate_metrics_aggr_fn)

    def _combine(self, number: int, replies: Iterable[Message], aggregate: AggregateMetrics) -> MetricRecord | None:
        contents = [reply.content for reply in replies if reply.has_content()]
        try:
            return combine_metrics(contents, aggregate, self.weighted_by_key, trust_weights=self.trust_num_examples)
        except Exception as problem:  # what nodes report of themselves must not end the run
            shown = printable(str(problem), limit=200)
            log(WARNING, "round %s: what the nodes report cannot be combined: %s", number, shown)
            return None


def _summary(played: Played) -> dict[str, Any]:
    """The round in numbers, which is all that a MetricRecord can hold."""
    nodes = {kind: [int(node) for node in played.of_kind(kind)] for kind in ("left out", "no answer", "suspect")}
    return {
        "admitted": sum(verdict.admitted for verdict in played.verdicts.values()),
        "rejected": len(nodes["left out"]),
        "no-answer": len(nodes["no answer"]),
        "suspect": len(nodes["suspect"]),
        "rejected-nodes": nodes["left out"],
        "no-answer-nodes": nodes["no answer"],
        "suspect-nodes": nodes["suspect"],
        "void": int(played.void is not None),
    }
