"""A server that trains on a few samples of its own, and hands what comes of it to its rule."""

import dataclasses
from typing import Any, ClassVar

import pytest
import torch

import fedseca
from fedseca.aggregators.fltrust import ROOT
from fedseca.attacks import make_attack
from fedseca.errors import InputError
from fedseca.federation import Federation, Scenario, simulate
from fedseca.federation.folder import read_history

SMALL: dict[str, Any] = {"rounds": 3, "train_images": 120, "test_images": 60, "root_samples": 30}
ATTACKED: dict[str, Any] = {
    "attack": "ipm", "clients": 5, "byzantine": 3, "partition": "iid", "rounds": 10, "learning_rate": 5e-3,
    "train_images": 700, "test_images": 300,
}  # fmt: skip


def test_fltrust_learns_where_most_clients_attack_and_fedavg_does_not():
    def f1(rule: str, root_samples: int) -> float:
        return simulate(Scenario(**ATTACKED, aggregator=rule, root_samples=root_samples)).f1[-1]

    assert f1("fltrust", 100) > 0.8
    assert f1("fedavg", 0) < 0.1 and f1("fedavg", 100) < 0.1


def test_the_root_samples_are_drawn_and_no_client_has_them():
    federation = Federation(Scenario(**SMALL))
    assert federation.root is not None and len(federation.root) == 30
    dealt = torch.cat(federation.parts)
    assert sorted([*federation.root.tolist(), *dealt.tolist()]) == list(range(120))
    assert int(federation.who_has_what().sum()) == 90
    again, other = (Federation(Scenario(**SMALL, seed=seed)).root for seed in (0, 1))
    assert again is not None and other is not None
    assert torch.equal(again, federation.root) and not torch.equal(other, federation.root)


def test_without_root_samples_everything_is_as_it_was():
    assert "root_samples" not in Scenario(root_samples=0).values()
    assert Scenario(root_samples=0).id == Scenario().id != Scenario(root_samples=1).id
    federation = Federation(Scenario(**SMALL | {"root_samples": 0}))
    assert federation.root is None and federation.train_root(federation.arrays(), 0) is None
    split = federation.scenario.partition.split(federation.train_set, 5, federation.scenario.generator("partition"))
    assert all(torch.equal(a, b) for a, b in zip(federation.parts, split, strict=True))
    assert "root" not in simulate(Scenario(**SMALL | {"root_samples": 0, "rounds": 1})).rounds[0]


def test_too_many_root_samples_are_refused():
    with pytest.raises(InputError, match=r"root_samples=118 of 120 training samples leave too few for 5 clients"):
        Federation(Scenario(**SMALL | {"root_samples": 118}))
    Federation(Scenario(**SMALL | {"root_samples": 115}))


def test_the_server_trains_as_a_client_does_and_its_rule_is_handed_the_result():
    """By hand: FedAvg knows no root, so that it is one more client."""
    scenario = Scenario(**SMALL, aggregator="fedavg", attack="labelflip")
    history = simulate(scenario)
    federation, server = Federation(scenario), fedseca.Server("fedavg")
    model = federation.arrays()
    for number, record in enumerate(history.rounds):
        trained = {str(k): federation.train(k, model, number) for k in range(5)}
        root = federation.train_root(model, number)
        assert root is not None
        trained[ROOT] = root
        model = server.aggregate(list(trained.values()), list(trained), before=model).model
        assert federation.evaluate(model)["loss"] == record["loss"]


def test_the_server_trains_on_true_labels():
    """It draws as the client after the last one would: on the same samples it learns what an honest client learns."""
    federation = Federation(Scenario(**SMALL, attack="labelflip", clients=2, byzantine=1))
    start = federation.arrays()
    found = federation.train_root(start, 4)
    twin = Federation(Scenario(**SMALL, attack="none", clients=3, byzantine=0))
    assert federation.root is not None and found is not None
    twin.parts = [*twin.parts[:2], federation.root]
    assert all(torch.equal(value, found[name]) for name, value in twin.train(2, start, 4).items())


def test_the_root_is_no_client_in_what_is_written_down(tmp_path):
    history = simulate(Scenario(**SMALL, aggregator="fedseca"), folder=tmp_path / "run")
    for record in history.rounds:
        assert (record["present"], record["admitted"], record["root"]) == (5, 5, "used")
    assert {line["client"] for line in history.audit} == set("01234") and len(history.audit) == 15
    assert all(pairs["clients"] == list("01234") and len(pairs["concordance"]) == 5 for pairs in history.pairs)
    assert len(history.by_client()) == 5
    kept = read_history(tmp_path / "run")
    assert kept.rounds == history.rounds and kept.scenario == history.scenario


def test_a_run_with_a_root_goes_on_where_it_was_cut_off(tmp_path):
    scenario = Scenario(**SMALL | {"rounds": 4}, aggregator="fltrust", attack="minmax")
    whole = simulate(scenario)

    def cut_off(history):
        if len(history.rounds) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(scenario, folder=tmp_path / "run", checkpoint_every=1, on_round=cut_off)
    resumed = simulate(scenario, folder=tmp_path / "run", resume=True)
    assert [record["loss"] for record in resumed.rounds] == [record["loss"] for record in whole.rounds]
    assert all(record["rooted"] == 1 for record in whole.by_client())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asks(type(make_attack("ipm"))):  # type: ignore[misc]
    """Keeps what it was shown."""

    needs = ("probe",)
    shown: ClassVar[dict[str, Any]] = {}

    def craft(self, honest, knowledge, state, rng):
        self.shown.update(honest=honest, ids=knowledge.honest_ids, answer=knowledge.probe(-honest[:2]))
        return -honest[:2], state


def test_the_attack_does_not_see_the_root_but_asks_the_true_rule():
    """A rule that refuses rounds without a root answers: the one that is asked has it."""
    rule = {"name": "fltrust", "without_root": "error"}
    scenario = Scenario(**SMALL | {"rounds": 1}, aggregator=rule, attack=_Asks())
    history = simulate(scenario)
    assert _Asks.shown["ids"] == ("0", "1", "2") and len(_Asks.shown["honest"]) == 3
    start = Federation(scenario).arrays()
    assert history.model is not None
    names = [name for name, _ in Federation(scenario).network.named_parameters()]
    moved = torch.cat([(start[name] - history.model[name]).reshape(-1) for name in names])
    assert torch.allclose(_Asks.shown["answer"], moved, atol=1e-6)


def test_a_rule_that_needs_a_root_says_so_where_there_is_none():
    rule = {"name": "fltrust", "without_root": "error"}
    with pytest.raises(InputError, match="fltrust: the round has no update of the server's own"):
        simulate(Scenario(**SMALL | {"root_samples": 0}, aggregator=rule))


def test_the_root_has_the_id_that_fltrust_looks_for():
    assert fedseca.AGGREGATORS["fltrust"].declared("root").default == ROOT
