"""The Flower strategy: what one node sends can neither end the run nor reach the model unfiltered."""

import importlib
import inspect
import json
import random
import sys
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import save_file

from fedseca.audit import Audit, conduct, read_anchor, read_audit, verify
from fedseca.errors import InputError, MissingDependency, StateError, printable
from fedseca.flower import RobustStrategy
from fedseca.flower.messages import CarefulGrid, drawing, wait_for_nodes
from fedseca.flower.replies import read_answer
from fedseca.rounds import Unreadable
from fedseca.server import Server
from tests.unit.checkpoints import opened, sealed

NODES = [2**63 + 11, 12, 13, 14, 15, 16]
BEFORE = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "bias": np.ones(4, np.float32)}


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class MadeGrid:
    """A grid whose nodes answer what a function says; nothing else is made up."""

    def __init__(self, answer, nodes=NODES):
        self.answer, self.nodes, self.asked, self.count = answer, nodes, {}, 0
        self.extra: list[Message] = []
        self.run = SimpleNamespace(run_id=7)

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"m{self.count}"  # as Flower's grids do
            self.asked[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        found = []
        for identity in message_ids:
            found += self.answer(self.asked[identity])
        return found + self.extra


def reply(message: Message, arrays: Any, metrics: Any = None) -> Message:
    content = RecordDict({"metrics": MetricRecord(metrics or {"num-examples": 10})})
    if arrays is not None:
        content["arrays"] = arrays if isinstance(arrays, ArrayRecord) else record(arrays)
    return Message(content, reply_to=message)


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def step(node: int, sign: float = 1.0) -> dict[str, np.ndarray]:
    """What a node trained: a common direction and a little of its own."""
    rng = np.random.default_rng(node % 1000)
    return {k: (v - sign * (0.1 + 0.01 * rng.random(v.shape))).astype(np.float32) for k, v in BEFORE.items()}


def honest(message: Message) -> list[Message]:
    return [reply(message, step(message.metadata.dst_node_id))]


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def play(answer, rounds=1, *, before=BEFORE, extra=(), nodes=NODES, evaluate_fn=None, fraction_evaluate=0.0, **options):
    strategy = RobustStrategy(fraction_evaluate=fraction_evaluate, **options)
    grid: Any = MadeGrid(answer, nodes)
    grid.extra = list(extra)
    result = strategy.start(grid, record(before), num_rounds=rounds, timeout=0.0, evaluate_fn=evaluate_fn)
    return result, strategy


def audit_of(folder) -> dict[int, dict[str, dict[str, Any]]]:
    """By round and node."""
    lines: dict[int, dict[str, dict[str, Any]]] = {}
    for line in read_audit(folder / "audit.jsonl"):
        lines.setdefault(line["round"], {})[line["client"]] = line
    return lines


def test_it_gives_what_the_server_gives():
    result, _ = play(honest, rounds=2, hyperparameters={"momentum": 0.5})
    server, model = Server("fedseca", momentum=0.5), BEFORE
    for _ in range(2):
        model = server.aggregate([step(node) for node in NODES], NODES, before=model).model
    found = arrays_of(result.arrays)
    assert list(found) == list(BEFORE)
    for name, value in model.items():
        np.testing.assert_array_equal(found[name], value)
        assert found[name].dtype == BEFORE[name].dtype
    assert result.train_metrics_clientapp[2]["admitted"] == 6


def npy(dtype: str, shape: tuple[int, ...], version: int = 1) -> bytes:
    """The header of an array, and nothing after it."""
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    padded = str(header).encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(padded).to_bytes(2, "little") + padded


def raw(data: bytes, stype: str = "numpy.ndarray") -> ArrayRecord:
    array = Array(dtype="float32", shape=(3, 4), stype=stype, data=data)
    return ArrayRecord({"weight": array, "bias": Array(BEFORE["bias"])})


GOOD = step(1)
HOSTILE = {
    "NaN": ({**GOOD, "bias": np.full(4, np.nan, np.float32)}, "4 NaN, first at bias[0]"),
    "Inf": ({**GOOD, "bias": np.full(4, np.inf, np.float32)}, "4 Inf"),
    "a shape that would broadcast": ({**GOOD, "bias": np.ones(1, np.float32)}, "bias"),
    "a missing array": ({"weight": GOOD["weight"]}, "bias"),
    "an extra array": ({**GOOD, "more": np.ones(2, np.float32)}, "more"),
    "integers for floats": ({**GOOD, "bias": np.ones(4, np.int64)}, "bias"),
    "complex numbers": ({**GOOD, "bias": np.ones(4, np.complex64)}, "'bias' has dtype complex64, expected numbers"),
    "text": ({**GOOD, "bias": np.array(["a"] * 4)}, "'bias' has dtype <U1, expected numbers"),
    "no arrays": (None, "expected one record of arrays; found none"),
    "empty bytes": (raw(b""), "'weight' is not an array"),
    "half of the bytes": (raw(Array(GOOD["weight"]).data[:-8]), "holds 40 bytes where its shape (3, 4) needs 48"),
    "bytes after the end": (raw(Array(GOOD["weight"]).data + b"\0"), "holds 49 bytes"),
    "a shape larger than any memory": (raw(npy("<f4", (10**12,))), "0 bytes"),
    "a negative shape": (raw(npy("<f4", (-3, -4)) + bytes(48)), "has the shape (-3, -4)"),
    "a shape that is no number": (raw(npy("<f4", (True, 12)) + bytes(48)), "has the shape (True, 12)"),
    "too many dimensions": (raw(npy("<f4", (1,) * 20 + (12,)) + bytes(48)), "weight"),
    "no numbers in too large a shape": (raw(npy("<f4", (0, 10**30))), "'weight' is not an array"),
    "another version of the format": (raw(npy("<f4", (3, 4), version=2) + bytes(48)), "another version"),
    "a shape of minus one": (raw(npy("<f4", (-1, -1)) + bytes(4)), "has the shape (-1, -1)"),
    "pickled objects": (raw(npy("|O", (12,))), "has dtype object, expected numbers"),
    "another serialisation": (raw(b"", stype="torch.tensor"), "of type 'torch.tensor'"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_what_one_node_sends_is_left_out_and_the_others_decide(case, tmp_path):
    arrays, reason = HOSTILE[case]

    def answer(message):
        bad = message.metadata.dst_node_id == 14
        return [reply(message, arrays)] if bad else honest(message)

    result, _ = play(answer, audit_dir=tmp_path, hyperparameters={"momentum": 0.0})
    others = [node for node in NODES if node != 14]
    expected = Server("fedseca", momentum=0.0).aggregate([step(n) for n in others], others, before=BEFORE).model
    for name, value in arrays_of(result.arrays).items():
        np.testing.assert_array_equal(value, expected[name])
    admitted = ("used", "suspect")
    (line,) = [line for line in read_audit(tmp_path / "audit.jsonl") if line["verdict"] not in admitted]
    assert line["client"] == "14" and line["verdict"] == "left out" and reason in line["reason"]
    assert result.train_metrics_clientapp[1]["rejected-nodes"] == [14]


def test_errors_silence_twins_and_forged_names(tmp_path):
    def answer(message):
        node = message.metadata.dst_node_id
        if node == 12:
            return [Message(Error(code=2, reason="boom\x1b[31m" + "x" * 5000), reply_to=message)]
        if node == 13:
            return []
        if node == 16:  # as the SuperLink answers for a node that is gone
            return [Message(Error(code=5, reason="Node unavailable"), reply_to=message)]
        if node == 14:  # twice, the second time for another
            second = reply(message, step(14, sign=-50.0))
            return [reply(message, step(14)), second]
        if node == 15:
            raise IndexError("list index out of range")  # as Flower's decoder does
        forged = reply(message, step(node))
        forged.metadata.__dict__["_src_node_id"] = 4242
        return [forged]

    nobody = Message(RecordDict({"arrays": record(step(1, sign=-99.0))}), dst_node_id=1, message_type="train")
    play(answer, audit_dir=tmp_path, extra=[nobody], min_admitted=2)
    lines = audit_of(tmp_path)[1]
    assert set(lines) == set(map(str, NODES)), "each node once, whatever it calls itself"
    assert lines["12"]["verdict"] == "left out"
    assert lines["12"]["reason"].startswith("answered with error 2: boom") and len(lines["12"]["reason"]) < 200
    assert "\x1b" not in lines["12"]["reason"]
    assert [lines[node]["verdict"] for node in ("13", "15", "16")] == ["no answer"] * 3
    assert lines["13"]["reason"] == "none came in time"
    assert lines["15"]["reason"].startswith("none that can be decoded (IndexError")
    assert lines["16"]["reason"] == "Node unavailable"
    assert all(lines[str(node)]["verdict"] in ("used", "suspect") for node in (NODES[0], 14))
    gone = {each.client for each in conduct(lines.values()) if each.no_answer}
    assert gone == {"13", "15", "16"}, "to be absent is not to be malicious"


def questions(*nodes: int) -> list[Message]:
    return [Message(RecordDict({"arrays": record(BEFORE)}), dst_node_id=node, message_type="train") for node in nodes]


def test_an_answer_belongs_to_the_question_that_was_asked():
    """What comes along with an answer is nobody's: neither an answer to another question, nor one to none."""
    made = MadeGrid(honest)
    first, second, third = asked = questions(12, 13, 14)

    def answer(message):
        others = [reply(other, step(99)) for other in asked if other is not message]
        return [*others, *([] if message is second else honest(message)), *others]

    made.answer = answer
    made.extra = questions(1)
    grid = CarefulGrid(made)  # type: ignore[arg-type]
    answers = grid.send_and_receive(asked, timeout=0.0)
    assert [each.metadata.reply_to_message_id for each in answers] == [m.metadata.message_id for m in (first, third)]
    for message, found in zip((first, third), answers, strict=True):
        trained = arrays_of(found.content["arrays"])  # type: ignore[arg-type]
        np.testing.assert_array_equal(trained["bias"], step(message.metadata.dst_node_id)["bias"])
    assert grid.lost == {13: "none came in time"}


class Clock:
    """In the place of the module time: to sleep is to move its hands."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, []  # type: ignore[var-annotated]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def test_it_looks_often_at_first_and_then_every_three_seconds_until_the_deadline(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedseca.flower.messages.time", clock)
    grid = CarefulGrid(MadeGrid(lambda message: []))  # type: ignore[arg-type]
    assert grid.send_and_receive(questions(12), timeout=30.0) == [] and grid.lost == {12: "none came in time"}
    assert clock.slept[:4] == pytest.approx([0.1, 0.15, 0.225, 0.3375])
    assert max(clock.slept) == 3.0 and clock.slept.count(3.0) > 3 and clock.slept[-1] < 3.0
    assert clock.now == pytest.approx(130.0)
    clock.slept.clear()
    assert grid.send_and_receive(questions(12), timeout=0.5) == []
    assert clock.slept == pytest.approx([0.1, 0.15, 0.225, 0.025]), "the last look is at the deadline"


def test_without_a_deadline_it_waits_for_the_last_answer_and_no_longer(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("fedseca.flower.messages.time", clock)
    late = {12: 100.0, 13: 500.0, 14: 110.0}  # when each of them has answered
    made = MadeGrid(lambda message: honest(message) if clock.now >= late[message.metadata.dst_node_id] else [])
    grid = CarefulGrid(made)  # type: ignore[arg-type]
    asked = questions(13, 12, 14)
    answers = grid.send_and_receive(asked)
    assert [m.metadata.reply_to_message_id for m in answers] == [m.metadata.message_id for m in asked], "in their order"
    assert grid.lost == {} and 500 <= clock.now < 503
    before = len(clock.slept)
    assert len(grid.send_and_receive(questions(12), timeout=9.0)) == 1 and len(clock.slept) == before, (
        "it is there at once"
    )
    assert len(grid.send_and_receive(questions(12), timeout=0.0)) == 1


def test_a_question_that_was_not_taken_is_not_waited_for():
    class Full(MadeGrid):
        def push_messages(self, messages):
            return super().push_messages(messages)[:1]

    grid = CarefulGrid(Full(honest))  # type: ignore[arg-type]
    assert grid.lost == {}, "nobody was asked yet"
    assert len(grid.send_and_receive(questions(12, 13))) == 1
    assert grid.lost == {13: "the SuperLink took no message for it"}
    assert grid.send_and_receive([]) == [] and grid.lost == {}, "what was lost is of the last call"


class _Spoilt(MadeGrid):
    """Someone has uploaded a message that answers nothing and cannot be decoded: whoever fetches next, stumbles."""

    problem: Exception | None = IndexError("list index out of range")

    def pull_messages(self, message_ids):
        problem, self.problem = self.problem, None
        if problem is not None:
            raise problem
        return super().pull_messages(message_ids)


def test_what_nobody_asked_for_spoils_nobodys_answer():
    grid = CarefulGrid(_Spoilt(honest))  # type: ignore[arg-type]
    assert len(grid.send_and_receive(questions(12, 13), timeout=0.0)) == 2 and grid.lost == {}
    unreachable = _Spoilt(honest)
    unreachable.problem = httpx.ConnectError("connection refused")
    with pytest.raises(httpx.ConnectError):
        CarefulGrid(unreachable).send_and_receive(questions(12), timeout=0.0)  # type: ignore[arg-type]


def test_it_waits_until_enough_nodes_are_here(monkeypatch, caplog):
    clock = Clock()
    monkeypatch.setattr("fedseca.flower.messages.time", clock)
    grid: Any = SimpleNamespace(get_node_ids=lambda: {5, 3, 9, 1} if clock.now >= 103 else {9})
    assert wait_for_nodes(grid, 4).get_node_ids() == [1, 3, 5, 9], "in an order of its own"
    assert clock.slept == [1, 1, 1] and caplog.text.count("Waiting for nodes: 1 are here, 4 are needed") == 3
    assert list(wait_for_nodes(grid, 2).get_node_ids()) == [1, 3, 5, 9] and len(clock.slept) == 3


def test_drawing_is_seeded_and_leaves_pythons_generator_as_it_was():
    random.seed(7)
    expected = [random.random() for _ in range(2)]
    random.seed(7)
    with drawing("train/0/1"):
        first = random.random()
    with pytest.raises(ZeroDivisionError), drawing("train/0/1"):
        assert random.random() == first
        raise ZeroDivisionError
    with drawing("train/0/2"):
        assert random.random() != first
    assert [random.random() for _ in range(2)] == expected


@pytest.mark.parametrize(
    ("code", "verdict"), [(2, "left out"), (3, "no answer"), (4, "no answer"), (5, "no answer"), (6, "left out")]
)
def test_only_what_the_superlink_says_itself_is_an_absence(code, verdict, tmp_path):
    def answer(message):
        away = message.metadata.dst_node_id == 12
        return [Message(Error(code=code, reason="away"), reply_to=message)] if away else honest(message)

    play(answer, audit_dir=tmp_path)
    line = audit_of(tmp_path)[1]["12"]
    assert line["verdict"] == verdict
    assert line["reason"] == ("away" if verdict == "no answer" else f"answered with error {code}: away")


def test_a_message_without_content_or_that_cannot_even_be_looked_at_is_unreadable():
    class Torn:
        def has_error(self):
            return False

        def has_content(self):
            return self.whole

        whole = False

        @property
        def content(self):
            raise LookupError("torn\x1b")

    torn: Any = Torn()
    assert read_answer(torn, ["bias"]) == Unreadable("answered with nothing")
    torn.whole = True
    assert read_answer(torn, ["bias"]) == Unreadable(r"LookupError: torn\x1b")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "found none"), (("a", "b"), "found a, b"), (("a", "b", "c"), "found a, b, c"),
        (("a", "b", "c", "d"), "found a, b, c …"),
    ],
)  # fmt: skip
def test_one_record_of_arrays_is_expected(names, told, tmp_path):
    def answer(message):
        if message.metadata.dst_node_id != 12:
            return honest(message)
        return [Message(RecordDict({name: record(step(12)) for name in names}), reply_to=message)]

    play(answer, audit_dir=tmp_path)
    assert audit_of(tmp_path)[1]["12"]["reason"] == f"expected one record of arrays; {told}"


def test_too_few_clients_keep_the_model_and_say_so(tmp_path):
    def answer(message):
        broken = {"weight": np.full((3, 4), np.nan), "bias": BEFORE["bias"]}
        return [reply(message, step(12) if message.metadata.dst_node_id == 12 else broken)]

    result, strategy = play(answer, rounds=2, rule="krum", audit_dir=tmp_path)
    for name, value in arrays_of(result.arrays).items():
        np.testing.assert_array_equal(value, BEFORE[name])
    assert result.train_metrics_clientapp[2]["void"] == 1 and strategy.server.round == 0
    audit = audit_of(tmp_path)
    assert sorted(audit) == [1, 2]
    assert audit[2][None]["void"] == "at least 4 answers needed, 1 usable of 6 asked"  # type: ignore[index]
    (node,) = [each for each in conduct(read_audit(tmp_path / "audit.jsonl")) if each.client == "12"]
    assert (node.asked, node.suspect, node.left_out, node.no_answer) == (2, 0, 0, 0)
    assert audit[2]["12"]["verdict"] == "round void"
    assert {audit[2][str(node)]["verdict"] for node in NODES if node != 12} == {"left out"}


@pytest.mark.parametrize(
    ("asked", "usable", "fewest", "goes_on"),
    [
        (6, 3, None, True), (6, 2, None, False), (6, 2, 2, True), (6, 1, 1, True), (6, 1, 2, False),
        (5, 3, None, True), (5, 2, None, False),  # two of five are a minority
        (3, 2, None, True), (3, 1, None, False), (2, 2, None, True), (2, 1, None, False), (1, 1, None, True),
    ],
)  # fmt: skip
def test_a_minority_of_answers_does_not_decide(asked, usable, fewest, goes_on):
    def answer(message):
        return honest(message) if message.metadata.dst_node_id in NODES[:usable] else []

    few = {"min_train_nodes": 1, "min_available_nodes": 1}
    result, _ = play(answer, rule="cwmed", min_admitted=fewest, nodes=NODES[:asked], **few)
    assert result.train_metrics_clientapp[1]["void"] == (not goes_on)
    assert np.array_equal(arrays_of(result.arrays)["bias"], BEFORE["bias"]) != goes_on


def test_the_order_of_names_is_no_matter(tmp_path):
    """Otherwise a node that answers first with another order would lock out all the others."""

    def answer(message):
        trained = step(message.metadata.dst_node_id)
        turned = dict(reversed(trained.items()))
        return [reply(message, turned if message.metadata.dst_node_id in (12, 13, 14, 15) else trained)]

    result, _ = play(answer, rounds=3, audit_dir=tmp_path)
    straight, _ = play(honest, rounds=3)
    assert list(result.arrays) == list(BEFORE) and result.train_metrics_clientapp[3]["admitted"] == 6
    np.testing.assert_array_equal(arrays_of(result.arrays)["weight"], arrays_of(straight.arrays)["weight"])


def test_another_training_in_the_same_audit_is_not_cut_off(tmp_path):
    play(train, 2, audit_dir=tmp_path, checkpoint_dir=tmp_path / "a")
    play(train, 3, audit_dir=tmp_path, checkpoint_dir=tmp_path / "b")
    lines = (tmp_path / "audit.jsonl").read_bytes()
    with pytest.raises(InputError, match="give each training a folder of its own"):
        play(train, 2, audit_dir=tmp_path, checkpoint_dir=tmp_path / "a")
    assert (tmp_path / "audit.jsonl").read_bytes() == lines


def test_a_checkpoint_from_before_rounds_that_were_finished_is_not_gone_on_from(tmp_path):
    """Only the round after it may have been written down without being kept."""
    folders = {"audit_dir": tmp_path, "checkpoint_dir": tmp_path / "kept"}
    play(train, 1, **folders)
    file = tmp_path / "kept" / "checkpoint.safetensors"
    after_one = file.read_bytes()
    play(train, 3, **folders)
    file.write_bytes(after_one)
    lines = (tmp_path / "audit.jsonl").read_bytes()
    with pytest.raises(InputError, match="goes on with rounds of another training"):
        play(train, 4, **folders)
    assert (tmp_path / "audit.jsonl").read_bytes() == lines


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"learning_rate": 0.5}, "learning_rate"),
        ({"trust_num_examples": True}, "trust_num_examples"),
        ({"before": {"weight": BEFORE["weight"]}}, "model"),
        ({"hyperparameters": {}, "rule": "cwmed"}, "rule"),
    ],
)
def test_what_goes_on_must_be_what_it_was(changed, what, tmp_path):
    play(train, 1, rule="fedavg", checkpoint_dir=tmp_path)
    with pytest.raises(StateError, match=what):
        play(train, 2, **{"rule": "fedavg", "checkpoint_dir": tmp_path, **changed})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"round": None}, "a number of rounds must be a whole number; found None"),
        ({"round": 1}, "its parts are not of the same round or model"),
        ({"names": ["weight"]}, "its parts are not of the same round or model"),
        ({"names": ["weight", "bias", "more"]}, "KeyError"),
        ({"names": 3}, "TypeError"),
        ({"settings": {}}, "KeyError"),
        ({"settings": None}, "TypeError"),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused_in_one_line(change, told, tmp_path):
    """Its digest is right: someone has written it anew."""
    play(train, 2, checkpoint_dir=tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    manifest, tensors = opened(file)
    file.write_bytes(sealed(manifest | change, tensors))
    with pytest.raises(
        StateError, match=r"cannot be resumed \(.*\); give another checkpoint_dir to begin anew"
    ) as problem:
        play(train, 3, checkpoint_dir=tmp_path)
    assert told in str(problem.value) and "\n" not in str(problem.value)
    file.write_bytes(sealed(manifest, tensors))
    play(train, 3, checkpoint_dir=tmp_path)  # the negative control


def test_an_audit_may_begin_or_end_where_a_training_goes_on(tmp_path):
    kept = tmp_path / "deep" / "in" / "kept"
    play(train, 1, checkpoint_dir=kept)
    play(train, 2, checkpoint_dir=kept, audit_dir=tmp_path)
    assert set(audit_of(tmp_path)) == {2}
    play(train, 3, checkpoint_dir=kept)
    result, _ = play(train, 4, checkpoint_dir=kept)
    unbroken, _ = play(train, 4)
    np.testing.assert_array_equal(arrays_of(result.arrays)["bias"], arrays_of(unbroken.arrays)["bias"])


def test_two_names_for_one_array_can_be_kept(tmp_path):
    shared = Array(BEFORE["bias"])
    grid: Any = MadeGrid(lambda message: [])
    strategy = RobustStrategy(fraction_evaluate=0.0, checkpoint_dir=tmp_path)
    strategy.start(grid, ArrayRecord({"a": shared, "b": shared}), num_rounds=1, timeout=0.0)
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_rules_that_take_few_of_many_accuse_nobody(tmp_path):
    play(train, 4, rule="multi_krum", audit_dir=tmp_path)
    assert not any(each.suspicious for each in conduct(read_audit(tmp_path / "audit.jsonl")))


def test_endless_text_of_a_client_costs_little():
    assert printable("\x1b" * 50_000_000, limit=100).endswith("…")


def test_a_client_cannot_make_itself_heavy():
    def answer(message):
        node = message.metadata.dst_node_id
        return [reply(message, step(node), {"num-examples": 1e30 if node == 12 else 1, "mine": [1, 2]})]

    result, _ = play(answer, rule="fedavg")
    expected = np.mean([step(node)["bias"] for node in NODES], axis=0)
    np.testing.assert_allclose(arrays_of(result.arrays)["bias"], expected, rtol=1e-6)
    trusting, _ = play(answer, rule="fedavg", trust_num_examples=True)
    np.testing.assert_allclose(arrays_of(trusting.arrays)["bias"], step(12)["bias"], rtol=1e-6)
    with pytest.raises(InputError, match="krum weighs no client by a given number"):
        RobustStrategy(rule="krum", trust_num_examples=True)


def test_the_audit_names_who_stands_out(tmp_path):
    def answer(message):
        node = message.metadata.dst_node_id
        return [reply(message, step(node, sign=-10.0 if node == 16 else 1.0))]

    result, _ = play(answer, rounds=3, audit_dir=tmp_path)
    suspects = {line["client"] for line in read_audit(tmp_path / "audit.jsonl") if line["verdict"] == "suspect"}
    assert suspects == {"16"}
    assert [each.client for each in conduct(read_audit(tmp_path / "audit.jsonl")) if each.suspicious] == ["16"]
    assert result.train_metrics_clientapp[3]["suspect-nodes"] == [16]


@pytest.mark.parametrize(("rule", "why"), [("fedavg", "norm"), ("krum", "norm"), ("cwmed", "weight")])
def test_whatever_the_rule_the_audit_says_why(rule, why, tmp_path):
    """Ten times too long, in a direction of its own."""

    def answer(message):
        node = message.metadata.dst_node_id
        return [reply(message, step(node, sign=-10.0 if node == 16 else 1.0))]

    play(answer, rule=rule, audit_dir=tmp_path)
    lines = audit_of(tmp_path)[1]
    assert lines["16"]["verdict"] == "suspect" and lines["16"]["reason"].startswith(why), lines["16"]
    honest_ones = [line for node, line in lines.items() if node != "16"]
    assert [line["verdict"] for line in honest_ones] == ["used"] * 5


def test_rows_are_views_of_the_replies(monkeypatch):
    seen = []

    def look(self, updates, ids, **_):
        seen.extend(updates)
        raise InputError("seen enough")

    monkeypatch.setattr(Server, "aggregate", look)
    sent: dict[int, Any] = {}

    def answer(message):
        (told,) = honest(message)
        sent[message.metadata.dst_node_id] = told.content["arrays"]
        return [told]

    with pytest.raises(InputError, match="seen enough"):
        play(answer)
    assert len(seen) == len(sent) == 6
    for row, arrays in zip(seen, (sent[node] for node in sorted(NODES)), strict=True):
        for name, value in row.items():
            assert np.shares_memory(value, np.frombuffer(arrays[name].data, np.uint8))


def train(message: Message) -> list[Message]:
    """A node whose step depends on the model, the round and itself."""
    model = arrays_of(message.content["arrays"])  # type: ignore[arg-type]
    node, number = message.metadata.dst_node_id, int(message.content["config"]["server-round"])  # type: ignore[arg-type]
    rng = np.random.default_rng([node % 1000, number])
    noisy = {k: (v * 0.9 + 0.1 * rng.standard_normal(v.shape)).astype(np.float32) for k, v in model.items()}
    return [reply(message, noisy)]


@pytest.mark.parametrize("options", [{"rule": "fldetector"}, {"rule": "fedseca", "fraction_train": 0.5}])
def test_cut_off_after_any_round_it_goes_on_and_ends_the_same(options, tmp_path):
    def run(folder, rounds, **options):
        evaluated: list[int] = []
        result, _ = play(
            train, rounds, audit_dir=folder, checkpoint_dir=folder / "kept", **options,
            evaluate_fn=lambda number, arrays: evaluated.append(number),
        )  # fmt: skip
        return result, evaluated

    def without_times(folder):
        lines = read_audit(folder / "audit.jsonl")
        return [{name: value for name, value in line.items() if name != "time"} for line in lines]

    unbroken, evaluated = run(tmp_path / "a", 6, **options)
    assert evaluated == [0, 1, 2, 3, 4, 5, 6]
    for cut in (1, 3, 5):
        folder = tmp_path / f"cut{cut}"
        run(folder, cut, **options)
        with (folder / "audit.jsonl").open("ab") as file:  # killed in the next round, while it wrote
            file.write(b'{"round":9,"cl')
        again, evaluated = run(folder, 6, **options)
        assert evaluated == list(range(cut, 7)) and sorted(again.train_metrics_clientapp) == evaluated[1:]
        for name, value in arrays_of(unbroken.arrays).items():
            np.testing.assert_array_equal(arrays_of(again.arrays)[name], value)
        assert without_times(folder) == without_times(tmp_path / "a")
    assert len({tuple(nodes) for nodes in audit_of(tmp_path / "a").values()}) > 1 or "fraction_train" not in options
    finished, _ = run(tmp_path / "a", 6, **options)
    np.testing.assert_array_equal(arrays_of(finished.arrays)["bias"], arrays_of(unbroken.arrays)["bias"])
    with pytest.raises(StateError, match=r"cannot be resumed .*; give another checkpoint_dir"):
        run(tmp_path / "a", 8, rule="krum")


def test_a_kill_in_round_1_does_not_write_its_lines_twice(tmp_path, monkeypatch):
    """Three times; a node that was bad once would be called suspicious."""
    folders = {"audit_dir": tmp_path, "checkpoint_dir": tmp_path / "kept"}
    original = Server.keep

    def killed(server, path, manifest, parts):
        if manifest["round"] > 0:
            raise KeyboardInterrupt
        original(server, path, manifest, parts)

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Server, "keep", killed)
            with pytest.raises(KeyboardInterrupt):
                play(train, 2, **folders)
        assert len(read_audit(tmp_path / "audit.jsonl")) == len(NODES)
    result, _ = play(train, 2, **folders)
    assert len(read_audit(tmp_path / "audit.jsonl")) == 2 * len(NODES)
    unbroken, _ = play(train, 2)
    np.testing.assert_array_equal(arrays_of(result.arrays)["bias"], arrays_of(unbroken.arrays)["bias"])


def test_a_round_that_was_written_down_but_not_kept_is_played_again(tmp_path, monkeypatch):
    folders = {"audit_dir": tmp_path, "checkpoint_dir": tmp_path / "kept"}
    play(train, 1, **folders)
    with monkeypatch.context() as patch:
        patch.setattr(Server, "keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            play(train, 2, **folders)
    assert set(audit_of(tmp_path)) == {1, 2}
    result, _ = play(train, 3, **folders)
    unbroken, _ = play(train, 3)
    np.testing.assert_array_equal(arrays_of(result.arrays)["weight"], arrays_of(unbroken.arrays)["weight"])
    assert [line["round"] for line in read_audit(tmp_path / "audit.jsonl")] == [1] * 6 + [2] * 6 + [3] * 6


def test_the_anchor_gets_the_end_of_every_round(tmp_path, caplog):
    options = {"audit_dir": tmp_path / "audit", "checkpoint_dir": tmp_path / "kept", "anchor": tmp_path / "heads"}
    play(train, 2, **options)
    play(train, 3, **options)
    anchor = read_anchor(tmp_path / "heads")
    assert [(record.round, record.lines) for record in anchor.records] == [(0, 0), (1, 6), (2, 12), (2, 12), (3, 18)]
    assert verify(tmp_path / "audit" / "audit.jsonl", anchor=anchor).anchored == anchor.records[-1]
    with pytest.raises(InputError, match="anchor must be outside of audit_dir"):
        RobustStrategy(audit_dir=tmp_path, anchor=tmp_path / "heads")


def lines_of_the_version_before() -> list[dict[str, Any]]:
    """Two rounds, the second of them void."""
    when: dict[str, Any] = {"time": "2026-11-16T09:00:00+00:00", "run": 6}
    first: list[dict[str, Any]] = [
        {"node": "12", "admitted": False, "reason": "4 NaN, first at bias[0]"},
        {"node": "13", "admitted": False, "reason": "no answer in time"},
        {"node": "14", "admitted": True, "suspect": False, "norm": 0.4, "weight": 0.5},
        {
            "node": "15",
            "admitted": True,
            "suspect": True,
            "norm": 4.2,
            "weight": 0.0,
            "reason": "weight 0, where the …",
        },
    ]
    second: list[dict[str, Any]] = [{"node": str(node), "admitted": True} for node in (12, 13, 14, 15)]
    void: dict[str, Any] = {"node": None, "void": "at least 5 answers needed, 4 usable of 6 asked"}
    return [when | {"round": 1} | each for each in first] + [when | {"round": 2} | each for each in (*second, void)]


def test_the_audit_of_the_version_before_goes_on(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append(lines_of_the_version_before())
    old = (tmp_path / "audit.jsonl").read_bytes()
    play(train, 3, audit_dir=tmp_path, checkpoint_dir=tmp_path / "kept")
    play(train, 4, audit_dir=tmp_path, checkpoint_dir=tmp_path / "kept")
    assert (tmp_path / "audit.jsonl").read_bytes().startswith(old)
    findings = verify(tmp_path / "audit.jsonl").findings
    then, void, *now = findings.latest
    assert {node: act.verdict.kind for node, act in then.clients.items()} == {
        "12": "left out", "13": "no answer", "14": "used", "15": "suspect",
    }  # fmt: skip
    assert {act.verdict.kind for act in void.clients.values()} == {"round void"} and findings.voids == 1
    assert [each.when[:2] for each in now] == [(7, 1), (7, 2), (7, 3), (7, 4)]
    assert all(set(each.clients) == set(map(str, NODES)) for each in now)
    assert {client.client: client.asked for client in findings.clients}["12"] == 2 + 4
    lines = read_audit(tmp_path / "audit.jsonl")
    assert not any(line.keys() & {"node", "admitted", "suspect"} for line in lines)


def test_a_checkpoint_of_the_version_before_is_refused_and_left(tmp_path):
    file = tmp_path / "checkpoint.safetensors"
    manifest = {"round": 1, "audit": None, "contents": "0123456789abcdef", "server": {"rule": "fedseca"}}
    save_file({"model/bias": torch.ones(4)}, file, {"manifest": json.dumps(manifest)})
    content = file.read_bytes()
    with pytest.raises(StateError, match=r"earlier version of fedseca.* give another checkpoint_dir") as problem:
        play(train, 2, audit_dir=tmp_path, checkpoint_dir=tmp_path)
    assert "\n" not in str(problem.value) and file.read_bytes() == content


def test_two_servers_do_not_share_a_folder(tmp_path):
    def answer(message):
        with pytest.raises(InputError, match=r"another server"):
            play(honest, checkpoint_dir=tmp_path)
        return honest(message)

    play(answer, checkpoint_dir=tmp_path)


def test_what_nodes_report_of_themselves_weighs_the_same():
    """Neither a claimed number nor odd names or values change what is combined of the others."""

    def answer(message):
        node = message.metadata.dst_node_id
        odd = {
            12: {"num-examples": 1e30, "loss": 1.0},
            13: {"loss": float("nan"), "num-examples": 1},
            14: {"num-examples": 1, "loss": [1.0, 2.0]},
            15: {"num-examples": 1, "loss": 5.0, "more": 1.0},
        }
        return [reply(message, step(node), odd.get(node, {"num-examples": 10, "loss": 0.25}))]

    result, _ = play(answer)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx((1.0 + 0.25 + 0.25) / 3)
    assert result.train_metrics_clientapp[1]["admitted"] == 6, "what a node reports beside its model harms nobody"


@pytest.mark.parametrize("claimed", [float("nan"), float("inf"), -3, 0, [1, 2], None])
def test_a_number_of_examples_that_cannot_be_trusted(claimed, tmp_path):
    def answer(message):
        node = message.metadata.dst_node_id
        metrics = {"loss": 1.0} if claimed is None else {"num-examples": claimed}
        return [reply(message, step(node), metrics if node == 12 else {"num-examples": 5})]

    result, _ = play(answer, rule="fedavg", trust_num_examples=True, audit_dir=tmp_path)
    line = audit_of(tmp_path)[1]["12"]
    assert line["verdict"] == "left out" and "expected a finite number above 0" in line["reason"]
    assert result.train_metrics_clientapp[1]["admitted"] == 5


def test_a_rule_that_fails_leaves_the_model_and_says_so(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise FloatingPointError("underflow")

    monkeypatch.setattr(Server, "aggregate", fail)
    result, _ = play(honest, audit_dir=tmp_path)
    np.testing.assert_array_equal(arrays_of(result.arrays)["bias"], BEFORE["bias"])
    assert audit_of(tmp_path)[1][None]["void"] == "fedseca failed: FloatingPointError('underflow')"  # type: ignore[index]


def test_an_unreachable_superlink_is_nobodys_fault():
    def answer(message):
        raise httpx.ConnectError("connection refused")

    with pytest.raises(httpx.ConnectError):
        play(answer)


def test_who_is_not_asked_to_evaluate_is_not_missed(caplog):
    play(honest)
    assert "did not evaluate" not in caplog.text and "configure_train" in caplog.text
    strategy, grid = RobustStrategy(fraction_evaluate=0.0), cast(Any, MadeGrid(honest))
    assert len(list(strategy.configure_train(1, record(BEFORE), ConfigRecord(), grid))) == 6
    assert list(strategy.configure_evaluate(1, record(BEFORE), ConfigRecord(), grid)) == []
    assert strategy.aggregate_evaluate(1, []) is None and "did not evaluate" not in caplog.text


def test_evaluation_survives_what_a_node_reports():
    def answer(message):
        node = message.metadata.dst_node_id
        if message.metadata.message_type.startswith("train"):
            return honest(message)
        reported = {
            12: {"num-examples": 0.0, "f1": float("nan")},
            13: {"other": 1.0},
            14: {"num-examples": [1], "f1": 0.5},
        }
        return [reply(message, None, reported.get(node, {"num-examples": 10, "f1": 0.5}))]

    result, _ = play(answer, fraction_evaluate=1.0)
    assert result.evaluate_metrics_clientapp[1]["f1"] == pytest.approx(0.5)


def test_buffers_take_the_median(tmp_path):
    before = {**BEFORE, "bn.running_var": np.ones(2, np.float32), "bn.num_batches_tracked": np.array(5)}

    def answer(message):
        node = message.metadata.dst_node_id
        far = 1e6 if node == 16 else float(NODES.index(node))
        trained = {**step(node), "bn.running_var": np.full(2, far, np.float32), "bn.num_batches_tracked": np.array(7)}
        return [reply(message, trained)]

    result, _ = play(answer, before=before)
    found = arrays_of(result.arrays)
    np.testing.assert_allclose(found["bn.running_var"], 2.0)  # the lower of the two in the middle
    assert found["bn.num_batches_tracked"] == 7 and found["bn.num_batches_tracked"].dtype == np.int64


def test_torch_state_dicts_fit():
    net = torch.nn.Linear(4, 2)
    answer = lambda message: [reply(message, message.content["arrays"])]  # noqa: E731
    grid: Any = MadeGrid(answer)
    strategy = RobustStrategy(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=1, timeout=0.0)
    net.load_state_dict(result.arrays.to_torch_state_dict())


def test_without_flower_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fedseca.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(MissingDependency, match=r"pip install 'fedseca\[flower\]'"):
        importlib.import_module("fedseca.flower")


@pytest.mark.parametrize("name", ["audit_dir", "checkpoint_dir"])
def test_a_file_is_no_folder(name, tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match=f"{name} must be a folder; found the file"):
        RobustStrategy(**{name: tmp_path / "mine"})


# --- what the log tells ------------------------------------------------------------------------------------------


def test_the_log_tells_the_rule_and_that_nobody_weighs_more(caplog):
    play(honest, rule="fedavg")
    assert (
        "Rule: FedAvg()" in caplog.text
        and "All nodes weigh the same, whatever they declare as 'num-examples'" in caplog.text
    )
    assert "Resuming" not in caplog.text and "keeps the model" not in caplog.text and "node 12" not in caplog.text
    assert "Fraction: train (1.00)" in caplog.text, "what FedAvg tells of itself follows"
    caplog.clear()
    play(honest, rule="fedavg", trust_num_examples=True)
    assert "Rule: FedAvg()" in caplog.text and "All nodes weigh the same" not in caplog.text


def test_the_log_tells_who_was_left_out_and_why_a_round_is_void(caplog):
    def answer(message):
        node = message.metadata.dst_node_id
        return {12: [], 13: [reply(message, HOSTILE["NaN"][0])]}.get(node, honest(message))

    play(answer, min_admitted=4)
    assert "round 1: node 12: no answer: none came in time" in caplog.text
    assert "round 1: node 13: left out: 4 NaN, first at bias[0]" in caplog.text
    assert "node 14" not in caplog.text and "keeps the model" not in caplog.text
    caplog.clear()
    play(answer, min_admitted=5)
    assert "round 1 keeps the model it began with: at least 5 answers needed, 4 usable of 6 asked" in caplog.text
    assert "node 14" not in caplog.text, "it did nothing wrong"


def test_the_log_tells_where_it_goes_on(caplog, tmp_path):
    play(train, 2, checkpoint_dir=tmp_path)
    assert "Resuming" not in caplog.text and "done already" not in caplog.text
    play(train, 3, checkpoint_dir=tmp_path)
    assert f"Resuming after round 2, from {tmp_path}" in caplog.text and "done already" not in caplog.text
    for rounds in (3, 2):
        caplog.clear()
        result, _ = play(train, rounds, checkpoint_dir=tmp_path)
        assert f"All {rounds} rounds are done already: nothing is trained" in caplog.text
        assert result.train_metrics_clientapp == {}
    caplog.clear()
    play(train, 0, checkpoint_dir=tmp_path)
    assert "done already" not in caplog.text, "none was asked for"
    play(train, 1, checkpoint_dir=tmp_path / "another")
    result, _ = play(train, 1, checkpoint_dir=tmp_path / "another")
    assert "All 1 rounds are done already" in caplog.text and result.train_metrics_clientapp == {}


def test_who_is_asked_does_not_depend_on_where_a_training_was_cut_off(tmp_path):
    """Neither to train nor to evaluate; and from round to round others are asked."""

    def run(rounds, folder):
        asked: list[tuple[str, int]] = []

        def answer(message):
            kind = message.metadata.message_type
            asked.append((kind, message.metadata.dst_node_id))
            return train(message) if kind.startswith("train") else [reply(message, None, {"num-examples": 1})]

        few = {"fraction_train": 0.34, "fraction_evaluate": 0.34, "min_available_nodes": 6}
        play(answer, rounds, rule="fedavg", checkpoint_dir=folder, min_train_nodes=1, min_evaluate_nodes=1, **few)
        return asked

    unbroken = run(4, tmp_path / "a")
    assert run(2, tmp_path / "b") + run(4, tmp_path / "b") == unbroken
    for kind in ("train", "evaluate"):
        drawn = [node for each, node in unbroken if each.startswith(kind)]
        assert len({tuple(drawn[k : k + 2]) for k in range(0, 8, 2)}) > 1


def test_rounds_are_counted_on_where_it_goes_on(tmp_path):
    def answer(message):
        if message.metadata.message_type.startswith("train"):
            return train(message)
        return [reply(message, None, {"num-examples": 1, "f1": 0.5})]

    def run(rounds):
        seen: list[int] = []

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            seen.append(number)
            return MetricRecord({"f1": float(number)})

        result, _ = play(
            answer, rounds, rule="fedavg", fraction_evaluate=1.0, checkpoint_dir=tmp_path, evaluate_fn=evaluate
        )
        told = (result.train_metrics_clientapp, result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp)
        return seen, [list(each) for each in told]

    assert run(2) == ([0, 1, 2], [[1, 2], [1, 2], [0, 1, 2]])
    assert run(4) == ([2, 3, 4], [[3, 4], [3, 4], [2, 3, 4]])


def test_who_does_not_evaluate_is_told_with_the_reason(caplog):
    def answer(message):
        node = message.metadata.dst_node_id
        if message.metadata.message_type.startswith("train"):
            return honest(message)
        if node == 12:
            return []
        if node == 13:
            return [Message(Error(code=2, reason="no data\x1b"), reply_to=message)]
        return [reply(message, None, {"num-examples": 10, "f1": 0.5})]

    result, _ = play(answer, fraction_evaluate=1.0)
    assert "round 1: node 12 did not evaluate: none came in time" in caplog.text
    assert r"round 1: node 13 did not evaluate: no data\x1b" in caplog.text and "node 14" not in caplog.text
    assert result.evaluate_metrics_clientapp[1]["f1"] == pytest.approx(0.5)


def test_what_cannot_be_combined_does_not_end_the_run(caplog):
    def fails(records, key):
        raise ZeroDivisionError("of what a node reports")

    result, _ = play(honest, train_metrics_aggr_fn=fails)
    assert "round 1: what the nodes report cannot be combined: of what a node reports" in caplog.text
    assert result.train_metrics_clientapp[1]["admitted"] == 6


# --- whom it asks ------------------------------------------------------------------------------------------------


def test_what_is_not_given_is_what_the_guide_says(tmp_path):
    strategy = RobustStrategy(audit_dir=str(tmp_path), checkpoint_dir=tmp_path / "kept")
    assert (strategy.audit_dir, strategy.checkpoint_dir) == (tmp_path, tmp_path / "kept")
    strategy = RobustStrategy()
    assert [strategy.audit_dir, strategy.checkpoint_dir, strategy.min_admitted] == [None] * 3
    server = strategy.server
    assert (server.rule.name, server.learning_rate, server.buffers, server.seed) == ("fedseca", 1.0, "median", 0)
    assert not strategy.trust_num_examples


def test_it_is_started_as_fedavg_is():
    own, fedavgs = (inspect.signature(strategy.start).parameters for strategy in (RobustStrategy, FedAvg))
    assert {name: each.default for name, each in own.items()} == {name: each.default for name, each in fedavgs.items()}


@pytest.mark.parametrize("bad", [0, -1])
def test_fewer_than_one_answer_cannot_be_asked_for(bad):
    with pytest.raises(InputError, match=f"min_admitted must be an integer ≥ 1; found {bad}"):
        RobustStrategy(min_admitted=bad)
    RobustStrategy(min_admitted=1)


@pytest.mark.parametrize(("kind", "other"), [("train", "evaluate"), ("evaluate", "train")])
def test_as_many_nodes_are_waited_for_as_either_number_says(kind, other, monkeypatch):
    for available, needed in ((2, 4), (4, 2)):
        clock = Clock()
        monkeypatch.setattr("fedseca.flower.messages.time", clock)
        options: Any = {f"min_{kind}_nodes": needed, f"min_{other}_nodes": 2, "min_available_nodes": available}
        strategy = RobustStrategy(**options)
        grid: Any = SimpleNamespace(get_node_ids=lambda clock=clock: NODES[:4] if clock.now >= 102 else NODES[:3])
        messages = list(getattr(strategy, f"configure_{kind}")(1, record(BEFORE), ConfigRecord(), grid))
        assert len(messages) == 4 and clock.slept == [1, 1]
        nobody: Any = SimpleNamespace(get_node_ids=list)
        nothing: Any = {f"fraction_{kind}": 0.0}
        unasked = RobustStrategy(**nothing)
        assert list(getattr(unasked, f"configure_{kind}")(1, record(BEFORE), ConfigRecord(), nobody)) == []


def test_an_answer_to_nothing_and_a_second_one_are_dropped(caplog):
    """Also where another grid hands them over."""
    strategy = RobustStrategy("fedavg")
    made = MadeGrid(honest, NODES[1:4])
    grid: Any = made
    asked = list(strategy.configure_train(1, record(BEFORE), ConfigRecord(), grid))
    made.push_messages(asked)
    assert {message.content["config"]["server-round"] for message in asked} == {1}
    replies = [*honest(asked[0]), reply(asked[0], step(99)), *honest(asked[1]), *questions(1)]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None and metrics is not None
    assert metrics["admitted"] == 2 and metrics["no-answer-nodes"] == [asked[2].metadata.dst_node_id]
    expected = np.mean([step(message.metadata.dst_node_id)["bias"] for message in asked[:2]], axis=0)
    np.testing.assert_allclose(arrays_of(arrays)["bias"], expected, rtol=1e-6)
    assert caplog.text.count("an answer to nothing that was asked, or a second one, is dropped") == 2


def test_what_nodes_report_is_combined_of_the_admitted_only():
    def answer(message):
        node = message.metadata.dst_node_id
        bad = node == 12
        return [
            reply(message, HOSTILE["NaN"][0] if bad else step(node), {"num-examples": 1, "loss": 9.0 if bad else 1.0})
        ]

    result, _ = play(answer)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(1.0)


@pytest.mark.parametrize("loss", [10**400, [1.0, float("inf")], float("-inf"), [8.0], []])
def test_what_is_no_finite_number_like_the_others_is_not_combined(loss):
    def answer(message):
        node = message.metadata.dst_node_id
        return [reply(message, step(node), {"num-examples": 1, "loss": loss if node == 12 else 2.0})]

    result, _ = play(answer)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(2.0)


@pytest.mark.parametrize("records", [0, 2])
def test_of_a_node_with_none_or_several_records_of_metrics_nothing_is_combined(records):
    def answer(message):
        node = message.metadata.dst_node_id
        if node != 12:
            return [reply(message, step(node), {"num-examples": 1, "loss": 2.0})]
        content = RecordDict({"arrays": record(step(node))})
        for name in range(records):
            content[str(name)] = MetricRecord({"num-examples": 1, "loss": 8.0})
        return [Message(content, reply_to=message)]

    result, _ = play(answer)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(2.0)
    assert result.train_metrics_clientapp[1]["admitted"] == 6


def test_the_weights_that_nodes_declare_count_where_they_are_trusted():
    def answer(message):
        node = message.metadata.dst_node_id
        return [reply(message, step(node), {"num-examples": 5 if node == 12 else 1, "loss": float(node == 12)})]

    result, _ = play(answer, rule="fedavg", trust_num_examples=True)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(0.5)
    result, _ = play(answer, rule="fedavg")
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(1 / 6)


def test_arrays_in_fortrans_order_are_read_as_they_are(tmp_path):
    def answer(message):
        trained = step(message.metadata.dst_node_id)
        return [reply(message, {**trained, "weight": np.asfortranarray(trained["weight"])})]

    result, straight = play(answer)[0], play(honest)[0]
    np.testing.assert_array_equal(arrays_of(result.arrays)["weight"], arrays_of(straight.arrays)["weight"])
