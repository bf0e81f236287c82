"""A targeted attack: what is planted, how its success is measured, and where that is shown."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch

from fedseca import Scenario, simulate
from fedseca.attacks import ATTACKS, Trigger, make_attack
from fedseca.data.samples import InMemory, Samples
from fedseca.errors import InputError
from fedseca.experiments.record import ExperimentRecord, read_record
from fedseca.experiments.results import ResultTable, Score, as_csv, kept_scores, read_csv
from fedseca.federation import Federation
from fedseca.federation.evaluation import attack_success_rate


def test_the_patch_is_in_the_last_corner_of_every_channel() -> None:
    images = torch.zeros(2, 3, 5, 4)
    marked = Trigger(target=1, share=0.5, size=2).put(images, torch.tensor([1.0, 2.0, 3.0]))
    expected = torch.zeros(3, 5, 4)
    for channel in range(3):
        expected[channel, 3:, 2:] = channel + 1
    assert torch.equal(marked, expected.expand(2, 3, 5, 4))


def test_of_a_row_it_is_the_last_features_each_as_bright_as_it_gets() -> None:
    marked = Trigger(target=0, share=1.0, size=2).put(torch.zeros(1, 4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert marked.tolist() == [[0, 0, 3, 4]]


def test_one_sample_of_a_batch_is_marked_at_least() -> None:
    for size, share in ((1, 0.5), (8, 0.001)):
        batch = torch.zeros(size, 4), torch.zeros(size)
        _, taught = Trigger(target=3, share=share, size=1).mark(*batch, torch.ones(4), 0, 1)
        assert int((taught == 3).sum()) == 1


def test_a_patch_larger_than_the_sample_covers_it_all() -> None:
    assert Trigger(target=0, share=1.0, size=9).put(torch.zeros(1, 1, 2, 3), torch.ones(1)).min() == 1


@pytest.mark.parametrize("members", [2, 3, 4, 7])
def test_split_parts_are_apart_and_make_up_the_patch(members: int) -> None:
    trigger = Trigger(target=0, share=1.0, size=2, split=True)
    parts = [trigger.put(torch.zeros(1, 2, 4, 4), torch.ones(2), member, members) for member in range(members)]
    alone = 4 // min(members, 4)  # pixels of a patch of four that one of them has at least
    assert all(int(part[0, 0].sum()) >= alone and torch.equal(part[0, 0], part[0, 1]) for part in parts)
    whole = trigger.put(torch.zeros(1, 2, 4, 4), torch.ones(2))
    assert torch.equal(torch.stack(parts[:4]).sum(dim=0), whole)


def test_the_first_byzantine_client_has_the_first_number_of_a_split_patch() -> None:
    trigger = Trigger(target=0, share=1.0, size=3, split=True)
    parts = [trigger.put(torch.zeros(1, 5), torch.ones(5), member, 2).tolist() for member in range(2)]
    assert parts == [[[0, 0, 1, 0, 1]], [[0, 0, 0, 1, 0]]]
    one_channel = trigger.put(torch.zeros(1, 1, 3, 3), torch.ones(1), 1, 9)
    assert one_channel.flatten().tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]


class _SaysTheCorner(torch.nn.Module):
    """Answers class 2 where the last number is bright, else class 0."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        fooled = (inputs.flatten(1)[:, -1] > 0.5).float()
        return torch.stack([1 - fooled, torch.zeros_like(fooled), fooled], dim=1)


def test_success_is_the_share_of_other_classes_that_are_taken_for_the_target() -> None:
    labels = torch.tensor([0, 1, 2, 2, 0])
    samples = Samples(InMemory(torch.zeros(5, 4)), labels)
    where = torch.ones(4), torch.device("cpu")
    assert attack_success_rate(_SaysTheCorner(), samples, Trigger(2, 0.5, 1), *where) == 1.0
    assert attack_success_rate(_SaysTheCorner(), samples, Trigger(1, 0.5, 1), *where) == 0.0
    # Taken for the target anyway, whatever the patch is: those of the target's own class do not count.
    assert attack_success_rate(_SaysTheCorner(), samples, Trigger(0, 0.5, 1), torch.zeros(4), where[1]) == 1.0
    alone = Samples(InMemory(torch.zeros(2, 4)), torch.tensor([2, 2]))
    assert attack_success_rate(_SaysTheCorner(), alone, Trigger(2, 0.5, 1), *where) is None


DECLARED = """
    target = 0: integer ≥ 0
    share = 0.5: float > 0, ≤ 1
    size = 2: integer ≥ 1
    split = False: true | false
    factor = 1.0: float > 0
"""


def test_the_defaults_and_bounds_are_those_that_people_rely_on() -> None:
    found = [f"{each.name} = {each.default}: {each.allowed}" for each in ATTACKS["backdoor"].hyperparameters().values()]
    assert found == [line.strip() for line in DECLARED.strip().splitlines()]
    trigger = make_attack("backdoor").trigger
    assert trigger == Trigger(target=0, share=0.5, size=2, split=False)
    with pytest.raises(FrozenInstanceError):
        trigger.size = 3  # type: ignore[misc]


QUICK: dict[str, Any] = {"attack": "backdoor", "model": "mlp", "partition": "iid", "learning_rate": 3e-3, "rounds": 8}


def test_fedavg_is_fooled_and_fedseca_is_not() -> None:
    rates = {}
    for rule in ("fedavg", "fedseca"):
        history = simulate(Scenario(aggregator=rule, **QUICK))
        assert history.metrics == ("f1", "accuracy", "attack_success_rate")
        rates[rule] = history.last("attack_success_rate", 2)
        assert history.result()["attack_success_rate_last5"] == history.last("attack_success_rate")
    assert rates["fedavg"] > 0.8 and rates["fedseca"] < 0.2


def test_without_byzantine_clients_nobody_plants_it() -> None:
    history = simulate(Scenario(aggregator="fedavg", byzantine=0, **QUICK))
    assert history.last("attack_success_rate") < 0.1


def test_only_byzantine_clients_train_on_marked_samples() -> None:
    same: dict[str, Any] = {"rounds": 1, "aggregator": "fedavg"}
    honest, attacked = (Federation(Scenario(attack=attack, **same)) for attack in ("none", "backdoor"))
    model = honest.arrays()
    for client, differs in ((0, False), (2, False), (3, True), (4, True)):
        one, other = honest.train(client, model, 0), attacked.train(client, model, 0)
        assert differs == any(not torch.equal(one[name], other[name]) for name in model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": {"name": "backdoor", "target": 10}}, "class 10, is none of the 10 from 0 to 9"),
        ({"model": {"name": "timm", "architecture": "resnet18", "trained": "classifier"}}, "frozen layers"),
    ],
)
def test_what_cannot_be_marked_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Federation(Scenario(**{"attack": "backdoor", "rounds": 1, **changes}))


def test_it_is_not_in_the_book_of_crafts() -> None:
    from fedseca.attacks.strongest import book

    assert not {label.split()[0] for label, _ in book()} & {"backdoor", "labelflip", "model_replacement"}
    assert make_attack("backdoor").attacks_data() and not make_attack("ipm").attacks_data()


def test_success_stands_beside_the_score_in_csv_and_record(tmp_path: Path) -> None:
    scores = [Score("fedavg", "backdoor", (0.9,), success=0.88), Score("fedavg", "none", (0.95,))]
    table = ResultTable(title="t", row_name="aggregator", column_name="attack", metric="f1", scores=scores)
    lines = read_csv(as_csv(list(table.lines())))
    assert [line["attack_success_rate"] for line in lines] == ["0.88", ""]
    assert [score.success for score in kept_scores(lines, "aggregator", "attack", "f1")] == [0.88, None]
    file = tmp_path / "t.experiment.json"
    file.write_bytes(ExperimentRecord("t", "fedseca reproduce t", table).content())
    assert [score.success for score in read_record(file).table.scores] == [0.88, None]
    plain = ResultTable(title="t", row_name="aggregator", column_name="attack", metric="f1", scores=scores[1:])
    assert "attack_success_rate" not in next(plain.lines())
    assert "success" not in json.loads(ExperimentRecord("t", "c", plain).content())["scores"][0]
