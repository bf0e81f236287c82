"""The red team: effects as their equations say, bounds that were proven, and rounds that were really played."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedseca.aggregators import Aggregation, Aggregator, make_aggregator
from fedseca.errors import InputError
from fedseca.experiments.stress import recorded
from fedseca.federation import Federation, Scenario
from fedseca.stress import MEASURES, NO_ATTACK, VOID, Effect, HonestRound, Stress, stress


def rounds(count: int = 1, clients: int = 7, dim: int = 40, spread: float = 0.7, seed: int = 0) -> list[HonestRound]:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(dim, generator=generator)
    return [HonestRound(mean + spread * torch.randn(clients, dim, generator=generator)) for _ in range(count)]


@pytest.fixture(scope="module")
def of_fedavg() -> Stress:
    return stress("fedavg", rounds(), 2)


def test_an_effect_is_what_its_equations_say(of_fedavg: Stress) -> None:
    rows = rounds()[0].rows.double()
    mean = rows[:5].mean(dim=0)
    variance = sum(float((row - mean).norm()) ** 2 for row in rows[:5]) / 5
    found = next(effect for effect in of_fedavg.effects if effect.craft == "0.1 of the mean")
    moved = (5 * mean + 2 * 0.1 * mean) / 7
    assert found.cosine == pytest.approx(1.0)
    assert found.ratio == pytest.approx(5.2 / 7, rel=1e-5)
    assert found.kappa == pytest.approx(float((moved - mean).norm()) ** 2 / variance, rel=1e-4)
    assert found.xi == pytest.approx((1 - 5.2 / 7) ** 2, rel=1e-4)
    (quiet,) = of_fedavg.unharmed
    everyone = rows.mean(dim=0)
    assert quiet.craft == NO_ATTACK
    assert quiet.ratio == pytest.approx(float(everyone.norm() / mean.norm()), rel=1e-5)
    assert quiet.cosine == pytest.approx(float(everyone @ mean / everyone.norm() / mean.norm()), rel=1e-5)


def test_the_mean_is_led_anywhere(of_fedavg: Stress) -> None:
    worst = of_fedavg.worst()
    assert worst["worst cosine"].cosine == pytest.approx(-1.0)
    assert worst["largest norm"].ratio > 50
    assert worst["κ̂"].kappa > 1e3
    assert worst["least norm"].ratio < 0.2


def test_it_tries_hundreds_of_different_crafts(of_fedavg: Stress) -> None:
    labels = [effect.craft for effect in of_fedavg.effects]
    assert len(labels) > 200 and len(set(labels)) == len(labels)
    families = ("ipm strength=", "mimic", "a copy of honest client", "backwards ×", "of the mean", "signs turned")
    assert all(any(family in label for label in labels) for family in families)
    assert any(" and " in label for label in labels), "no two crafts were sent together"


@pytest.mark.parametrize(("clients", "byzantine"), [(7, 1), (7, 2), (11, 3)])
def test_what_is_found_never_exceeds_what_was_proven(clients: int, byzantine: int) -> None:
    """κ of the trimmed mean: 6f/(n − 2f)·(1 + f/(n − 2f)) (Allouah et al. 2023). What is found is a lower bound."""
    rule = make_aggregator("cwtm", trim=byzantine / clients)
    found = stress(rule, rounds(clients=clients), byzantine).worst()["κ̂"].kappa
    share = byzantine / (clients - 2 * byzantine)
    assert 0 < found <= 6 * share * (1 + share)


def test_a_rule_that_ignores_everyone_is_found_out() -> None:
    class Nothing(Aggregator):
        """Zero, whatever is sent. Cost: none."""

        def aggregate(self, updates: Any, state: Any, rng: torch.Generator) -> Aggregation:
            return Aggregation(torch.zeros(updates.dim), {"weight": torch.zeros(len(updates), dtype=torch.float64)})

    worst = stress(Nothing(), rounds(), 2).worst()
    assert {effect.ratio for effect in worst.values()} == {0.0}
    assert worst["worst cosine"].cosine == 0.0
    assert worst["ξ̂"].xi == pytest.approx(1.0)


def test_the_rule_has_seen_the_rounds_before_without_an_attack() -> None:
    played = rounds(3)
    rule = make_aggregator("fedavg+momentum")
    found = stress(rule, played, 2)
    alone = stress(rule, played[2:], 2)
    assert {effect.round for effect in found.effects} == {1, 2, 3}
    last = [effect for effect in found.effects if effect.round == 3]
    assert last[5].craft == alone.effects[5].craft and last[5].xi != alone.effects[5].xi
    # Without a memory a round is the same, whatever came before.
    assert stress("cwmed", played, 2).unharmed[2][2:] == stress("cwmed", played[2:], 2).unharmed[0][2:]


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, other = (stress("cwmed", rounds(), 2, seed=3) for _ in range(2))
    assert one.effects == other.effects
    assert stress("cwmed", rounds(), 2, seed=4).effects != one.effects


def test_honest_clients_that_are_all_alike_have_no_variance() -> None:
    alike = [HonestRound(torch.ones(5, 8))]
    effects = stress("cwmed", alike, 2).effects
    assert all(effect.kappa in (0.0, math.inf) for effect in effects)
    assert stress("fedavg", alike, 2).worst()["κ̂"].kappa == math.inf


def test_the_rows_are_left_alone_and_progress_is_told() -> None:
    played = rounds()
    told: list[int] = []
    before = played[0].rows.clone()
    found = stress("fedseca", played, 2, on_craft=told.append)
    assert torch.equal(played[0].rows, before)
    assert told == list(range(1, len(found.effects) + 1))


@pytest.mark.parametrize("byzantine", [0, 6, 7, -1])
def test_somebody_is_honest_and_somebody_is_not(byzantine: int) -> None:
    with pytest.raises(InputError, match=f"found {byzantine} Byzantine of 7 clients"):
        stress("fedavg", rounds(), byzantine)


def test_what_is_no_number_is_the_worst() -> None:
    numbers = {"good": (0.9, 1.0, 0.1, 0.1), "broken": (math.nan,) * 4, "bad": (0.0, 9.0, 9.0, 9.0)}
    effects = [Effect(1, craft, *each) for craft, each in numbers.items()]
    assert {effect.craft for effect in Stress("rule", effects).worst().values()} == {"broken"}


def test_rows_at_the_end_of_the_numbers_are_still_rounds() -> None:
    far = [HonestRound(each.rows * 1e37) for each in rounds()]
    found = stress(make_aggregator("krum", num_byzantine=2), far, 2)
    assert len(found.effects) > 50 and all(-1 <= effect.cosine <= 1 for effect in found.effects)


def test_the_servers_own_update_holds_the_rule_that_trusts_it() -> None:
    """FLTrust is never longer than it, and never against it, whatever is sent; without it the median stands in."""
    (bare,) = rounds()
    own = bare.rows[:5].mean(dim=0)
    rule = make_aggregator("fltrust", without_root="error")
    worst = stress(rule, [HonestRound(bare.rows, root=own)], 2).worst()
    assert worst["worst cosine"].cosine > 0.5 and worst["largest norm"].ratio < 1.001
    with pytest.raises(InputError, match="no update of the server's own"):
        stress(rule, [bare], 2)


def test_every_measure_takes_its_own_side() -> None:
    good = Effect(1, "good", 0.9, 1.0, 0.1, 0.1)
    bad = Effect(1, "bad", -0.5, 3.0, 2.0, 1.0)
    small = Effect(1, "small", 0.8, 0.1, 0.5, 0.5)
    worst = Stress("rule", [good, bad, small]).worst()
    assert {heading: effect.craft for heading, effect in worst.items()} == {
        "worst cosine": "bad",
        "least norm": "small",
        "largest norm": "bad",
        "κ̂": "bad",
        "ξ̂": "bad",
    }
    assert list(worst) == [measure.heading for measure in MEASURES]


def test_recorded_rounds_are_those_that_honest_clients_would_have_trained() -> None:
    scenario = Scenario(model="mlp", clients=4, byzantine_clients="0", train_images=200, attack="labelflip")
    first, second = recorded(scenario, 2)
    assert first.model is not None and second.model is not None
    federation = Federation(Scenario.of({**scenario.values(), "attack": "none"}))
    model = federation.arrays()
    flat = torch.cat([value.flatten() for value in model.values()])
    assert torch.equal(first.model, flat)
    own = torch.cat([value.flatten() for value in federation.train(0, model, 0).values()])
    assert torch.equal(first.rows[-1], flat - own), "the Byzantine client comes last, and trained honestly"
    assert torch.allclose(second.model, flat - first.rows.mean(dim=0), atol=1e-6)
    assert first.root is None
    (rooted,) = recorded(Scenario.of({**scenario.values(), "root_samples": 50}), 1)
    assert rooted.root is not None and rooted.root.shape == flat.shape and not torch.equal(rooted.root, first.rows[0])
    (later,) = recorded(scenario, 1, model=model, first=1)
    assert later.model is not None
    assert not torch.equal(later.rows, first.rows) and torch.equal(later.model, flat)


def test_a_round_that_a_craft_makes_void_is_an_effect() -> None:
    """Rows that are too long are left out, and the others are too few for the rule: the model stays as it is."""

    class Fragile(Aggregator):
        """The mean of at least seven clients. Cost: one read."""

        def min_clients(self) -> int:
            return 7

        def aggregate(self, updates: Any, state: Any, rng: torch.Generator) -> Aggregation:
            rows = torch.stack(updates.read(0, updates.dim))
            return Aggregation(rows.mean(dim=0), {"weight": torch.full((len(updates),), 1 / len(updates)).double()})

    far = [HonestRound(each.rows.double() * 1e148) for each in rounds()]
    void = [effect for effect in stress(Fragile(), far, 2).effects if effect.craft.endswith(VOID)]
    assert void and {(effect.cosine, effect.ratio, effect.xi) for effect in void} == {(0.0, 0.0, 1.0)}


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (HonestRound(torch.ones(7)), "found torch.float32 of shape \\(7,\\)"),
        (HonestRound(torch.ones(7, 4, dtype=torch.float16)), "float16"),
        (HonestRound(torch.ones(7, 40), model=torch.ones(39)), "must have 40 coordinates; found \\(39,\\)"),
        (HonestRound(torch.ones(7, 40), root=torch.full((40,), torch.inf)), "NaN or Inf"),
        (HonestRound(torch.full((7, 40), torch.nan)), "NaN or Inf"),
        (HonestRound(torch.ones(7, 41)), "found 40, 41"),
    ],
)
def test_rounds_that_no_rule_can_compute_with_are_refused(broken: HonestRound, found: str) -> None:
    with pytest.raises(InputError, match=found):
        stress("fedavg", [*rounds(), broken], 2)


def test_the_worst_by_every_measure_is_refined() -> None:
    """Noisy copies of each of the worst, not only of those by the first measures."""
    found = stress("fedavg", rounds(), 2)
    noisy = [e.craft for e in found.effects if e.craft.endswith(", 10% of the signs turned")]
    before = [e for e in found.effects if " and " not in e.craft and e.craft not in noisy]
    worst = {effect.craft for effect in Stress("fedavg", before).worst().values()}
    assert {f"{craft}, 10% of the signs turned" for craft in worst} == set(noisy)
