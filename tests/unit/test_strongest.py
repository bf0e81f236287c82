"""The attacker who knows the rule: it sends the worst of its book, and says what it sent."""

import math
from typing import Any

import pytest
import torch

import fedseca
from fedseca.attacks import ATTACKS, Knowledge, make_attack
from fedseca.attacks.strongest import Strongest, book
from fedseca.server import Server

HONEST = torch.randn(5, 40, generator=torch.Generator().manual_seed(3)) + 0.5


def knowledge(server: Server, *, loss=None, byzantine: int = 2) -> Knowledge:
    def probe(rows):
        return server.rehearse(torch.cat([HONEST, rows])).update

    own = HONEST[:byzantine].clone()
    ids = tuple(map(str, range(len(HONEST))))
    return Knowledge.of(Strongest(), 0, byzantine, ids, own=own, model=torch.zeros(40), probe=probe, loss=loss)


def craft(known: Knowledge, state=None, **parameters):
    return Strongest(**parameters).craft(HONEST, known, state or {}, torch.Generator().manual_seed(0))


def test_the_book_holds_every_attack_that_crafts_rows_at_several_strengths():
    labels = [label for label, _ in book()]
    assert len(labels) == len(set(labels)) >= 30
    assert {"ipm strength=0.39", "ipm strength=1.3", "ipm strength=3.9", "ipm strength=13", "mimic"} <= set(labels)
    assert {f"minsum direction={each}" for each in ("unit", "sign", "std")} <= set(labels)
    in_it = {label.split()[0] for label in labels}
    left_out = {name for name, attack in ATTACKS.items() if attack.__module__.startswith("fedseca.")} - in_it
    on_data = {name for name in left_out if ATTACKS[name].attacks_data()}
    assert left_out - on_data == {"strongest", "none", "nonfinite"} and {"labelflip", "backdoor"} <= on_data


@pytest.mark.parametrize("rule", ["fedavg", "cwmed", "fedseca"])
def test_no_other_craft_turns_the_aggregate_further_back(rule):
    known = knowledge(Server(rule))
    rows, state = craft(known, refined=0)
    mean, rng = HONEST.double().mean(dim=0), torch.Generator().manual_seed(0)
    others = [(label, attack.craft(HONEST, known, {}, rng)[0]) for label, attack in book()]
    reached = [float(known.probe(other).double() @ mean) for _, other in others]
    least = min(range(len(others)), key=reached.__getitem__)
    assert Strongest().told(state) == others[least][0] and torch.equal(rows, others[least][1])
    assert float(known.probe(craft(known)[0]).double() @ mean) <= min(
        reached
    )  # refined, it is no better for the server


def test_where_there_is_a_loss_it_decides():
    """A loss that only scaling makes high, though it moves the aggregate forward."""

    def loss(rows):
        return float(rows.mean(dim=0).double() @ HONEST.double().mean(dim=0))

    rows, state = craft(knowledge(Server("fedavg"), loss=loss))
    assert Strongest().told(state) == "scaling factor=100"
    assert torch.allclose(rows, 100 * HONEST.mean(dim=0).repeat(2, 1), rtol=1e-4)
    assert math.isclose(float(state["chosen/scaling factor=100"]), loss(rows), rel_tol=1e-4)


def test_what_the_attacks_of_the_book_remember_is_kept_apart():
    known = knowledge(Server("cwmed"))
    _, first = craft(known)
    assert any(name.startswith("mimic: ") for name in first)
    alone = make_attack("mimic").craft(HONEST, known, {}, torch.Generator().manual_seed(0))[1]
    of_mimic = {name.removeprefix("mimic: ").partition("/")[0] for name in first if name.startswith("mimic: ")}
    assert of_mimic == {name.partition("/")[0] for name in alone}
    _, second = craft(known, first)
    assert int(second["mimic: seen"]) == 2 and sum(name.startswith("chosen/") for name in second) == 1


def test_noisy_copies_differ_from_client_to_client():
    def loss(rows):  # the attacker is paid for the same magnitudes with some other signs
        flipped = float((rows[0] == -rows[1]).double().mean())
        return flipped if torch.equal(rows[0].abs(), rows[1].abs()) and flipped < 0.6 else 0.0

    rows, state = craft(knowledge(Server("fedavg"), loss=loss), refined=50)
    assert torch.equal(rows[0].abs(), rows[1].abs()) and not torch.equal(rows[0], rows[1])
    assert "of the signs flipped" in (Strongest().told(state) or "")


def test_in_a_federation_it_says_what_it_sent_and_hurts_more_than_its_parts():
    settings: dict[str, Any] = {"rounds": 4, "train_images": 250, "test_images": 100, "aggregator": "cwmed"}
    history = fedseca.simulate(fedseca.Scenario(attack="strongest", **settings))
    labels = {label for label, _ in book()}
    for record in history.rounds:
        assert any(record["craft"].startswith(label) for label in labels)
    mild = fedseca.simulate(fedseca.Scenario(attack="none", **settings))
    assert "craft" not in mild.rounds[0]
    assert history.rounds[-1]["loss"] > mild.rounds[-1]["loss"]
