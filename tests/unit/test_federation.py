"""The pieces of the simulated federation: scenario, training, evaluation, rounds, history."""

import dataclasses
import json
import os
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

import fedseca
from fedseca.aggregators.fedavg import FedAvg
from fedseca.attacks import make_attack
from fedseca.audit import read_audit
from fedseca.data import Classification, Samples
from fedseca.data.samples import InMemory
from fedseca.data.task import macro_f1
from fedseca.errors import InputError, ParameterError, UnknownName
from fedseca.federation import Federation, History, Scenario, simulate
from fedseca.federation.byzantine import Byzantines
from fedseca.federation.evaluation import evaluate
from fedseca.federation.precision import _end_of_probe

SMALL: dict[str, Any] = {"rounds": 3, "train_images": 100, "test_images": 60}


# --- the scenario ------------------------------------------------------------------------------------------------


def test_parts_are_given_by_name_as_a_table_or_made():
    for given in ("krum", {"name": "krum", "num_byzantine": 2}, fedseca.make_aggregator("krum", num_byzantine=2)):
        assert Scenario(aggregator=given).aggregator == fedseca.make_aggregator("krum", num_byzantine=2)
    assert Scenario(attack={"name": "ipm", "strength": 2.0}).attack.strength == 2.0


def test_a_rule_is_told_how_many_byzantine_clients_there_are_unless_it_is_given():
    assert Scenario(aggregator="krum", clients=9, byzantine=3).aggregator.num_byzantine == 3
    counted = Scenario(aggregator="krum", clients=np.int64(9), byzantine=np.int64(3))  # type: ignore[arg-type]
    assert counted.aggregator.num_byzantine == 3
    told = Scenario(aggregator={"name": "krum", "num_byzantine": 1}, clients=9, byzantine=3)
    assert told.aggregator.num_byzantine == 1


def test_in_what_a_scenario_is_not_the_default():
    assert Scenario().differences() == Scenario(aggregator={"clamp": True}).differences() == []
    rule, attack = {"name": "nnm+krum", "krum.num_byzantine": 1}, {"name": "ipm", "strength": 2.0}
    scenario = Scenario(aggregator=rule, attack=attack, train_images=50)
    assert [(each.path, each.value, each.default) for each in scenario.differences()] == [
        ("aggregator", "nnm+krum", "fedseca"),
        ("aggregator.krum.num_byzantine", 1, 2),  # nnm was told the true number
        ("attack.strength", 2.0, 1.3),
        ("train_images", 50, None),
    ]
    (clamp,) = Scenario(aggregator={"clamp": False}).differences()
    assert clamp == ("aggregator.clamp", False, True, fedseca.AGGREGATORS["fedseca"].declared("clamp").help)


def test_a_config_gives_the_scenario_back():
    scenario = Scenario(aggregator="multi_krum", attack={"name": "minmax", "direction": "std"}, train_images=50, seed=3)
    again = Scenario.of(json.loads(json.dumps(scenario.values())))
    assert again == scenario and again.id == scenario.id and again.title == scenario.title


def test_everything_in_it_changes_the_id():
    changes: dict[str, Any] = {
        "aggregator": {"name": "fedseca", "sparsity": 0.8},
        "attack": {"name": "ipm", "strength": 1.2},
        "dataset": "fashion_mnist",
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": {"name": "cnn", "batch_norm": True},
        "buffers": "aggregate",
        "train_images": 10,
        "test_images": 10,
        "byzantine_clients": "1,2",
        "precision": "bf16",
        "root_samples": 10,
        **dict.fromkeys(("clients", "byzantine", "rounds", "local_epochs", "batch_size", "seed"), 4),
        **dict.fromkeys(("learning_rate", "weight_decay", "server_learning_rate", "participation", "dropout"), 0.5),
    }
    assert changes.keys() == Scenario.hyperparameters().keys()
    ids = {Scenario(**{name: value}).id for name, value in changes.items()}
    assert len(ids | {Scenario().id}) == len(changes) + 1


@pytest.mark.parametrize("name", Scenario.hyperparameters())
def test_bad_values_are_refused(name):
    for bad in Scenario.hyperparameters()[name].bad_values():
        with pytest.raises(ParameterError, match=name):
            Scenario(**{name: bad})


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ParameterError, match=r"byzantine must be below clients.*found byzantine=5 of clients=5"):
        Scenario(clients=5, byzantine=5)
    with pytest.raises(ParameterError, match=r"krum needs at least 5 clients in a round; found 4 \(clients=4, part"):
        Scenario(aggregator="krum", clients=4)
    with pytest.raises(ParameterError, match=r"found 3 \(clients=10, participation=0.3\)"):
        Scenario(aggregator="krum", clients=10, participation=0.3)
    with pytest.raises(UnknownName, match="unknown attack 'imp'; did you mean 'ipm'"):
        Scenario(attack="imp")
    with pytest.raises(ParameterError, match="unknown hyperparameter of scenario 'round'; did you mean 'rounds'"):
        Scenario.of({"round": 3})


def test_generators_differ_by_purpose_round_and_client():
    scenario = Scenario()
    seeds = [
        scenario.generator(*place).initial_seed()
        for place in (("a",), ("b",), ("a", 1), ("a", 2), ("a", 1, 2), ("a", 2, 1))
    ]
    assert len(set(seeds)) == len(seeds)
    assert scenario.generator("a", 1).initial_seed() == Scenario(rounds=7).generator("a", 1).initial_seed()
    assert scenario.generator("a", 1).initial_seed() != Scenario(seed=1).generator("a", 1).initial_seed()


# --- a client ----------------------------------------------------------------------------------------------------


def test_training_is_adamw_by_its_equations():
    """One local epoch against AdamW written out (Loshchilov & Hutter 2019), in the order the generator gives."""
    scenario = Scenario(**SMALL, weight_decay=0.1, learning_rate=0.01)
    federation = Federation(scenario)
    start = federation.arrays()
    found = federation.train(1, start, round=4)

    network = scenario.model.build((1, 8, 8), 10, seed=0)
    network.load_state_dict(start)
    part = federation.parts[1]
    images, labels = federation.train_set.inputs.read(part), federation.train_set.labels[part]
    order = torch.randperm(len(part), generator=scenario.generator("training", 4, 1))
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in network.named_parameters()}
    for step, begin in enumerate(range(0, len(part), 8), start=1):
        batch = order[begin : begin + 8]
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
        with torch.no_grad():
            for name, p in network.named_parameters():
                assert p.grad is not None
                first, second = moments[name]
                first.mul_(0.9).add_(0.1 * p.grad)
                second.mul_(0.999).add_(0.001 * p.grad**2)
                p.mul_(1 - 0.01 * 0.1)
                p.sub_(0.01 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8))
    for name, value in network.state_dict().items():
        assert torch.allclose(found[name], value, atol=2e-5), name


def test_training_depends_on_round_and_client_and_starts_anew():
    federation = Federation(Scenario(**SMALL))
    start = federation.arrays()
    first = federation.train(0, start, 0)
    federation.train(1, start, 0)
    again, later = federation.train(0, start, 0), federation.train(0, start, 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], later[name]) for name in first)
    assert all(torch.equal(value, federation.network.state_dict()[name]) for name, value in later.items())


def test_only_byzantine_clients_train_on_poisoned_labels():
    plain, flipped = (Federation(Scenario(**SMALL, attack=attack)) for attack in ("none", "labelflip"))
    start = plain.arrays()
    for client in range(5):
        a, b = plain.train(client, start, 0), flipped.train(client, start, 0)
        assert all(torch.equal(a[name], b[name]) for name in a) == (client < 3), client


def test_a_left_over_image_joins_the_batch_before_it():
    federation = Federation(Scenario(**SMALL))
    sizes = lambda count: [len(batch) for batch in federation._batches(torch.arange(count))]  # noqa: E731
    assert (
        sizes(17) == [8, 9] and sizes(16) == [8, 8] and sizes(18) == [8, 8, 2] and sizes(1) == [1] and sizes(9) == [9]
    )
    alone = Federation(Scenario(**SMALL, batch_size=1))
    assert [len(batch) for batch in alone._batches(torch.arange(3))] == [1, 1, 1]


def test_a_model_that_cannot_train_on_the_images_is_said_before_the_first_round():
    with pytest.raises(InputError, match="resnet18 cannot train on digits: Expected more than 1 value"):
        Federation(Scenario(**SMALL, model={"name": "resnet18", "stem": "imagenet"}, batch_size=1))


def test_more_images_than_there_are():
    with pytest.raises(InputError, match="digits has 1437 training samples; 2000 requested"):
        Federation(Scenario(train_images=2000))


# --- evaluation --------------------------------------------------------------------------------------------------


def evaluated(outputs, labels, task):
    return evaluate(torch.nn.Identity(), Samples(InMemory(outputs), labels), task, torch.device("cpu"))


def test_metrics_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    for classes in (2, 5, 10):
        logits = torch.randn(1300, classes, generator=generator)
        labels = torch.randint(classes, (1300,), generator=generator)
        labels[: 20 * classes] = 0  # imbalanced
        found = evaluated(logits, labels, Classification(classes))
        predicted = logits.argmax(dim=1)
        assert found["f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
        assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
        assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_a_model_that_always_says_the_same():
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    confusion[:, 3] = 36
    assert macro_f1(confusion) == pytest.approx(2 * 0.1 / 1.1 / 10)


def test_an_infinite_loss_is_none():
    logits = torch.tensor([[torch.inf, 0.0], [0.0, 1.0]])
    assert evaluated(logits, torch.tensor([1, 1]), Classification(2))["loss"] is None


# --- rounds ------------------------------------------------------------------------------------------------------


def test_one_round_of_fedavg_is_the_mean_of_the_clients_models():
    scenario = Scenario(aggregator="fedavg", attack="none", rounds=1, train_images=100, test_images=60)
    federation = Federation(scenario)
    start = federation.arrays()
    models = [federation.train(client, start, 0) for client in range(5)]
    found = simulate(scenario).model
    assert found is not None
    for name, value in found.items():
        assert torch.allclose(value, torch.stack([model[name] for model in models]).mean(dim=0), atol=1e-6), name


def test_the_server_learning_rate_is_the_length_of_the_step():
    scenario = Scenario(aggregator="fedavg", attack="none", rounds=1, train_images=100, test_images=60)
    start = Federation(scenario).arrays()
    whole, half = simulate(scenario).model, simulate(dataclasses.replace(scenario, server_learning_rate=0.5)).model
    assert whole is not None and half is not None
    for name in start:
        assert torch.allclose(half[name], (start[name] + whole[name]) / 2, atol=1e-6)


def test_two_local_epochs_train_longer():
    scenario = Scenario(**SMALL, aggregator="fedavg", attack="none")
    assert (
        simulate(dataclasses.replace(scenario, local_epochs=8)).rounds[-1]["loss"]
        < simulate(scenario).rounds[-1]["loss"]
    )


def test_the_same_seed_gives_the_same_numbers():
    scenario = Scenario(**SMALL, attack="alie", dropout=0.3)
    first, again, other = simulate(scenario), simulate(scenario), simulate(dataclasses.replace(scenario, seed=1))
    assert _numbers(first) == _numbers(again) != _numbers(other)
    assert first.audit == again.audit


def _numbers(history: History) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in history.rounds]


def test_participation_and_dropout():
    history = simulate(Scenario(**(SMALL | {"rounds": 12}), clients=10, participation=0.5, dropout=0.2, byzantine=3))
    verdicts = [line["verdict"] for line in history.audit]
    assert set(verdicts) == {None, "no answer", "used", "suspect"} and verdicts.count(None) == 12 * 5
    assert all(line["reason"] == "none came" for line in history.audit if line["verdict"] == "no answer")
    assert all(line.keys() == {"round", "byzantine", "client", "verdict"} for line in absent(history, None))
    assert all(record["present"] <= 5 for record in history.rounds)
    assert {record["present"] for record in history.rounds} > {5}
    assert sum(record["present"] for record in history.rounds) == 12 * 5 - len(absent(history, "no answer"))
    present = {line["client"] for line in history.audit if line["verdict"] not in (None, "no answer")}
    assert len(present) == 10  # not the same five each time
    assert len(history.audit) == 12 * 10


def absent(history: History, verdict: str | None) -> list[dict[str, Any]]:
    return [line for line in history.audit if line["verdict"] == verdict]


def test_a_round_without_honest_clients_goes_on():
    history = simulate(Scenario(**(SMALL | {"rounds": 8}), clients=3, byzantine=2, participation=0.34, attack="ipm"))
    alone = [
        record["round"]
        for record in history.rounds
        if all(line["byzantine"] for line in history.audit if line["round"] == record["round"] and line["verdict"])
    ]
    assert alone and len(history.rounds) == 8 and all(record["void"] is None for record in history.rounds)


def test_a_round_that_nobody_answers_is_void_and_leaves_the_model():
    history = simulate(Scenario(**(SMALL | {"rounds": 6}), clients=2, byzantine=0, dropout=0.8))
    void = [record for record in history.rounds if record["present"] == 0]
    told = re.compile(r"at least 1 answer needed, 0 usable of 2 asked")
    assert void and all(told.fullmatch(record["void"]) for record in void)
    lines = [line for line in history.audit if line["client"] is None]
    assert lines == [{"round": record["round"], "client": None, "void": record["void"]} for record in void]
    assert len(history.audit) == 6 * 2 + len(void)
    for before, after in zip(history.rounds, history.rounds[1:], strict=False):
        assert after["void"] is None or after["f1"] == before["f1"]


def test_a_client_that_sends_nan_is_rejected_in_every_round_and_changes_nothing():
    scenario = Scenario(**SMALL, attack="nonfinite")
    history = simulate(scenario)
    for line in history.audit:
        assert line["verdict"] == ("left out" if line["byzantine"] else "used")
        assert not line["byzantine"] or "NaN" in line["reason"]
    assert [record["rejected"] for record in history.rounds] == [2, 2, 2]
    assert [record["rejected"] for record in history.by_client()] == [0, 0, 0, 3, 3]
    # By hand, with the three honest clients alone.
    federation, server = Federation(scenario), fedseca.Server("fedseca")
    model = federation.arrays()
    for number, record in enumerate(history.rounds):
        trained = [federation.train(k, model, number) for k in range(3)]
        model = server.aggregate(trained, ["0", "1", "2"], before=model).model
        found = federation.evaluate(model)
        assert (found["f1"], found["loss"]) == (record["f1"], record["loss"])


def test_a_rule_left_without_clients_voids_the_round():
    history = simulate(Scenario(**SMALL, aggregator={"name": "krum", "select": 5}, attack="nonfinite"))
    shortage = "at least 5 answers needed, 3 usable of 5 asked"
    assert all(record["void"] == shortage for record in history.rounds)
    assert len({record["f1"] for record in history.rounds}) == 1 and history.result()["void_rounds"] == 3
    of_clients = [line for line in history.audit if line["client"] is not None]
    assert all(line["verdict"] == ("left out" if line["byzantine"] else "round void") for line in of_clients)
    assert [line["void"] for line in history.audit if line["client"] is None] == [shortage] * 3
    assert [(record["admitted"], record["rejected"]) for record in history.rounds] == [(3, 2)] * 3
    assert [record["rejected"] for record in history.by_client()] == [0, 0, 0, 3, 3]


def test_who_sends_what_cannot_be_used_does_not_stop_the_training():
    """Krum, told B = 2, needs five clients; the two that were left out were these two."""
    history = simulate(Scenario(**SMALL, aggregator="krum", attack="nonfinite"))
    assert history.result()["void_rounds"] == 0 and len({record["f1"] for record in history.rounds}) > 1
    assert [record["rejected"] for record in history.by_client()] == [0, 0, 0, 3, 3]


class _Explodes(FedAvg):
    def aggregate(self, updates, state, rng):
        answer = super().aggregate(updates, state, rng)
        return dataclasses.replace(answer, update=answer.update * torch.inf)


def test_a_rule_that_explodes_voids_the_round():
    history = simulate(Scenario(**SMALL, aggregator=_Explodes()))
    assert all("not finite" in record["void"] for record in history.rounds)
    assert {line.get("verdict") for line in history.audit if line["client"] is not None} == {"round void"}


BATCH_NORM = {"name": "cnn", "batch_norm": True}


def test_running_statistics_are_no_gradients():
    """By default the attack sees and makes what the rule sees: its lengths are those of the parameters alone."""
    history = simulate(Scenario(**SMALL, model=BATCH_NORM, attack="random", aggregator="fedavg"))
    for record in history.rounds:
        norms = [line["norm"] for line in history.audit if line["round"] == record["round"]]
        assert np.mean(norms[3:]) == pytest.approx(10 * np.mean(norms[:3]), rel=0.05)
    assert history.model is not None
    statistics = [value for name, value in history.model.items() if "running" in name]
    assert statistics and all(value.abs().max() < 100 for value in statistics)
    assert all((v >= 0).all() for name, v in history.model.items() if name.endswith("running_var"))


def test_aggregated_running_statistics_are_the_attacker_s_to_choose():
    """With buffers="aggregate" they are part of the vector: FedAvg lets them explode, FedSECA does not."""
    largest = {}
    for rule in ("fedavg", "fedseca"):
        attack = {"name": "random", "factor": 1e6}
        model = simulate(Scenario(**SMALL, model=BATCH_NORM, attack=attack, aggregator=rule, buffers="aggregate")).model
        assert model is not None and all((v >= 0).all() for name, v in model.items() if name.endswith("running_var"))
        largest[rule] = max(float(value.abs().max()) for name, value in model.items() if "running" in name)
    assert largest["fedavg"] > 1e3 and largest["fedseca"] < 100


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_federation_without_attack_is_one_without_byzantine_clients(batch_norm):
    model = {"name": "cnn", "batch_norm": batch_norm}
    some, none = (simulate(Scenario(**SMALL, model=model, attack="none", byzantine=b)).model for b in (2, 0))
    assert some is not None and none is not None
    assert all(torch.allclose(some[name], none[name], atol=1e-6) for name in some)


# --- the Byzantine clients ---------------------------------------------------------------------------------------


def a_round(**changes: Any) -> tuple[Federation, dict[str, Any], dict[str, Any]]:
    federation = Federation(Scenario(**(SMALL | changes)))
    before = federation.arrays()
    return federation, before, {str(k): federation.train(k, before, 0) for k in range(3)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asks(type(make_attack("ipm"))):  # type: ignore[misc]
    """Keeps what it was told."""

    needs = ("probe", "model")
    told: ClassVar[dict[str, Any]] = {}

    def craft(self, honest, knowledge, state, rng):
        rows = 3 * honest[:2]
        self.told.update(honest=honest, rows=rows, answer=knowledge.probe(rows), model=knowledge.model)
        self.told.update(ids=knowledge.honest_ids)
        return rows, state


@pytest.mark.parametrize("rate", [1.0, 0.01])
@pytest.mark.parametrize("rule", ["fedavg", "fedseca", "cclip"])
def test_a_probe_is_the_true_rule_on_a_copy_of_its_state(rule, rate):
    federation, before, honest = a_round(model=BATCH_NORM)
    server, twin = (fedseca.Server(rule, learning_rate=rate) for _ in range(2))
    for each in (server, twin):  # something to remember
        each.aggregate(list(honest.values()), list(honest), before=before)
    remembered = server.state_dict()
    Byzantines(_Asks(), server, 1, before, ("3", "4")).craft(honest, {}, {}, torch.Generator())
    told = _Asks.told
    names = [name for name, _ in federation.network.named_parameters()]
    flat = lambda arrays: torch.cat([arrays[name].reshape(-1) for name in names])  # noqa: E731
    assert torch.allclose(told["honest"], torch.stack([flat(before) - flat(model) for model in honest.values()]))
    rows = fedseca.Updates.collect(torch.cat([told["honest"], told["rows"]]), list("01234"))
    by_hand = twin.rule.aggregate(rows, twin._state, twin._generator())
    assert torch.allclose(told["answer"], by_hand.update, atol=1e-6)
    assert torch.equal(told["model"], flat(before)) and told["ids"] == ("0", "1", "2")
    after = server.state_dict()
    assert all(torch.equal(value, after["state"][name]) for name, value in remembered["state"].items())
    assert after["round"] == remembered["round"]


def test_a_diverged_client_is_not_shown_to_the_attack():
    _, before, honest = a_round()
    honest["1"] = {name: value * torch.nan for name, value in honest["1"].items()}
    Byzantines(_Asks(), fedseca.Server("fedavg"), 0, before, ("3", "4")).craft(honest, {}, {}, torch.Generator())
    assert _Asks.told["ids"] == ("0", "2") and _Asks.told["honest"].isfinite().all()


def test_without_honest_clients_nothing_is_remembered_of_the_round():
    federation, before, _ = a_round()
    own = {str(k): federation.train(k, before, 0) for k in (3, 4)}
    byzantines = Byzantines(make_attack("mimic"), fedseca.Server("fedavg"), 0, before, ("3", "4"))
    sent, state = byzantines.craft({}, own, {}, torch.Generator())
    assert state == {} and sent.keys() == {"3", "4"}


WRONG: dict[str, tuple[Any, str]] = {
    "one row": (lambda honest: (honest.mean(dim=0), {}), "found torch.float32"),
    "a column": (lambda honest: (honest[:2, :1], {}), "must answer a floating-point tensor of shape (2, 13706)"),
    "too many": (lambda honest: (honest, {}), "found torch.float32 (3, 13706)"),
    "an array": (lambda honest: (honest[:2].numpy(), {}), "found ndarray"),
    "integers": (lambda honest: (honest[:2].long(), {}), "found torch.int64 (2, 13706)"),
    "a state of numbers": (lambda honest: (honest[:2], {"seen": 3}), "must answer its state as tensors by name"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_an_attack_answers_is_checked(fault):
    answer, message = WRONG[fault]

    class Wrong(type(make_attack("ipm"))):  # type: ignore[misc]
        def craft(self, honest, knowledge, state, rng):
            return answer(honest)

    with pytest.raises(fedseca.FedsecaError, match=re.escape(message)):
        simulate(Scenario(**SMALL, attack=Wrong()))


def test_rounds_in_which_nobody_is_trusted_are_counted():
    """Three honest clients that disagree and two that agree with nobody: all ρ are 0, and nothing is adopted."""
    history = simulate(Scenario(**(SMALL | {"rounds": 8}), partition={"name": "dirichlet", "alpha": 0.05}))
    idle = [record["idle"] for record in history.rounds]
    for record in history.rounds:
        weights = [line["weight"] for line in history.audit if line["round"] == record["round"]]
        assert record["idle"] == (sum(weights) == 0)
    assert any(idle) and history.result()["idle_rounds"] == sum(idle)


def test_a_history_is_shown_in_one_line():
    history = simulate(Scenario(**SMALL))
    assert repr(history) == f"History({history.scenario.title}, 3 of 3 rounds, f1_last5={history.f1_last5:.3f})"


POSING = ("round", "client", "verdict", "reason", "byzantine", "void", "time", "run", "previous", "hash")


class _NamesFields(FedAvg):
    def aggregate(self, updates, state, rng):
        answer = super().aggregate(updates, state, rng)
        posing = dict.fromkeys(POSING, answer.diagnostics["weight"] + 7)
        return dataclasses.replace(answer, diagnostics={**answer.diagnostics, **posing, "mine": posing["round"]})


def test_a_diagnostic_cannot_pose_as_a_field_of_the_audit(tmp_path):
    history = simulate(Scenario(**SMALL, aggregator=_NamesFields()), folder=tmp_path / "run")
    assert {line["round"] for line in history.audit} == {1, 2, 3}
    assert {line["client"] for line in history.audit} == set("01234")
    assert {line["verdict"] for line in history.audit} == {"used"}
    assert [line["byzantine"] for line in history.audit] == ([False] * 3 + [True] * 2) * 3
    assert all(line["mine"] == pytest.approx(7.2) for line in history.audit)
    assert not any({"reason", "void", "time", "run", "previous", "hash"} & line.keys() for line in history.audit)
    assert read_audit(tmp_path / "run" / "clients.jsonl") == history.audit  # whole, and of the right types


def test_pairs_are_kept_for_few_clients():
    history = simulate(Scenario(**SMALL))
    assert [line["round"] for line in history.pairs] == [1, 2, 3]
    matrix = torch.tensor(history.pairs[0]["concordance"])
    assert matrix.shape == (5, 5) and torch.equal(matrix, matrix.T)
    many = simulate(Scenario(rounds=1, train_images=100, test_images=60, clients=40, byzantine=0))
    assert many.pairs == []


def test_the_score_is_the_mean_of_the_last_five_rounds():
    history = simulate(Scenario(**(SMALL | {"rounds": 7})))
    assert history.f1_last5 == pytest.approx(sum(history.f1[2:]) / 5)
    assert set(history.result()) >= {"f1_last5", "accuracy_last5", "seconds", "versions", "seed"}


def test_how_many_and_which_are_byzantine_must_agree():
    assert (
        Scenario(byzantine_clients="0").byzantine == 1 and Scenario(byzantine=1, byzantine_clients="3").byzantine == 1
    )
    with pytest.raises(ParameterError, match=r"byzantine_clients='3,4' are 2; found byzantine=1, leave it out"):
        Scenario(byzantine=1, byzantine_clients="3,4")
    for wrong in ({"clients": "x", "byzantine_clients": "3"}, {"byzantine_clients": "9" * 5000}):
        with pytest.raises(ParameterError):
            Scenario.of(wrong)


# --- precision and where models lie ------------------------------------------------------------------------------


def test_mixed_precision_trains_nearly_the_same():
    """In a process of its own: without AMX, which a virtual machine may offer and not have."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=without_amx) as process:
        trained = [process.submit(trained_twice, precision).result() for precision in ("bf16", "fp16")]
    for start, expected, found, losses in trained:
        assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in found.values())
        moved = np.concatenate([(expected[name] - start[name]).ravel() for name in start])
        apart = np.concatenate([(found[name] - expected[name]).ravel() for name in start])
        assert 0 < np.linalg.norm(apart) < 0.2 * np.linalg.norm(moved)
        assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


def without_amx():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


def trained_twice(precision):
    """The arrays before, after training with fp32, after the same with a precision; the loss of one model with both."""
    torch.set_num_threads(1)
    plain, mixed = (Federation(Scenario(**SMALL, precision=each)) for each in ("fp32", precision))
    start = plain.arrays()
    models = start, plain.train(0, start, 0), mixed.train(0, start, 0)
    losses = [federation.evaluate(models[1])["loss"] for federation in (plain, mixed)]
    return *({name: value.numpy() for name, value in model.items()} for model in models), losses


def test_a_precision_that_ends_the_process_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("fedseca.federation.precision._PROBE", "import os; os.kill(os.getpid(), 4)  # {}")
    monkeypatch.setattr("fedseca.federation.precision._end_of_probe", _end_of_probe.__wrapped__)
    with pytest.raises(
        InputError, match=r"precision fp16 cannot be used on this CPU: .*SIGILL; take fp32, or set ONED"
    ):
        Federation(Scenario(**SMALL, precision="fp16"))
    Federation(Scenario(**SMALL))


def test_a_run_is_not_resumed_with_another_precision(tmp_path):
    simulate(Scenario(**SMALL), folder=tmp_path / "run")
    assert "precision" not in json.loads((tmp_path / "run" / "config.json").read_text())["scenario"]
    with pytest.raises(InputError, match="precision is None there and 'bf16' here"):
        simulate(Scenario(**SMALL, precision="bf16"), folder=tmp_path / "run", resume=True)


def test_what_clients_answer_is_a_copy_in_the_memory_of_the_cpu():
    """The device holds one network, however many clients there are."""
    federation = Federation(Scenario(**SMALL))
    network = federation.network
    answer = federation.train(0, federation.arrays(), 0)
    inside = {value.untyped_storage().data_ptr() for value in network.state_dict().values()}
    assert all(value.device.type == "cpu" for value in answer.values())
    assert not inside & {value.untyped_storage().data_ptr() for value in answer.values()}
