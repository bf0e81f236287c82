"""The contract suite over every registered rule."""

import dataclasses
from typing import Any

import pytest
import torch

import fedseca
from fedseca.aggregators.fedavg import FedAvg
from fedseca.testing import Check, aggregator_checks, check_aggregator, outlier_errors
from tests.paper_rules import PAPER


@pytest.mark.parametrize("check", [check for name in fedseca.AGGREGATORS for check in aggregator_checks(name)], ids=str)
def test_contract(check: Check[Any]):
    check()


OTHERWISE: list[dict[str, Any]] = [
    {"rule": "bulyan", "num_byzantine": 2},
    {"rule": "caf", "num_byzantine": 4},
    {"rule": "cge", "num_byzantine": 5},
    {"rule": "flame", "noise": 0.1},
    {"rule": "fltrust", "average_root": True},
    {"rule": "foundationfl", "num_byzantine": 8},
    {"rule": "mda", "num_byzantine": 5},
    {"rule": "meamed", "num_byzantine": 5},
    {"rule": "rffl", "norm": 0.5},
    {"rule": "standing", "memory": 0.0, "length": "mean"},
]
"""Rules that claim something else with other hyperparameters than their defaults."""


@pytest.mark.parametrize("given", OTHERWISE, ids=lambda given: " ".join(map(str, given.values())))
def test_contract_with_other_hyperparameters(given):
    rule, hyperparameters = given["rule"], {name: value for name, value in given.items() if name != "rule"}
    check_aggregator(fedseca.make_aggregator(rule, **hyperparameters))


def test_the_names_of_the_paper_are_registered():
    assert set(PAPER) <= set(fedseca.AGGREGATORS)


DECLARED = """
    bulyan.num_byzantine = 1: integer ≥ 0
    caf.num_byzantine = 1: integer ≥ 0
    cc_randbucket.radius = 100.0: float > 0
    cc_randbucket.iterations = 1: integer ≥ 1
    cc_randbucket.bucket_size = 2: integer ≥ 1
    cc_seqbucket.radius = 100.0: float > 0
    cc_seqbucket.iterations = 1: integer ≥ 1
    cc_seqbucket.bucket_size = 2: integer ≥ 1
    cclip.radius = 100.0: float > 0
    cclip.iterations = 3: integer ≥ 1
    cge.num_byzantine = 1: integer ≥ 0
    clipped_clustering.linkage = average: complete | average | single
    clipped_clustering.window = 1000: integer ≥ 1
    clustering.linkage = single: complete | average | single
    cwmed.even = lower: lower | mean
    cwtm.trim = 0.2: float ≥ 0, < 0.5
    dnc.num_byzantine = 1: integer ≥ 0
    dnc.repeats = 1: integer ≥ 1
    dnc.coordinates = 10000: integer ≥ 1
    dnc.filter_fraction = 1.0: float > 0
    fedseca.sparsity = 0.9: float ≥ 0, < 1
    fedseca.momentum = 0.5: float ≥ 0, < 1
    fedseca.variant = paper: paper | released
    fedseca.concordance = True: true | false
    fedseca.coordinatewise = True: true | false
    fedseca.election = True: true | false
    fedseca.vrs = True: true | false
    fedseca.clip = True: true | false
    fedseca.clamp = True: true | false
    flame.noise = 0.0: float ≥ 0
    fldetector.window = 10: integer ≥ 1
    fldetector.references = 10: integer ≥ 1
    fltrust.root = server: str
    fltrust.without_root = median: median | error
    fltrust.average_root = False: true | false
    foolsgold.confidence = 1.0: float > 0
    foolsgold.features = all: all | last
    foolsgold.forget_after = 50: integer ≥ 1
    foundationfl.num_byzantine = 1: integer ≥ 0
    foundationfl.synthetic = 0.5: float ≥ 0, ≤ 1
    huber.threshold = 0.2: float > 0
    huber.iterations = 100: integer ≥ 1
    huber.tolerance = 1e-06: float ≥ 0
    krum.num_byzantine = 1: integer ≥ 0
    krum.select = 1: integer ≥ 1
    lasa.sparsity = 0.3: float ≥ 0, < 1
    lasa.norm_bound = 1.0: float > 0
    lasa.sign_bound = 1.0: float > 0
    mda.num_byzantine = 1: integer ≥ 0, ≤ 16
    meamed.num_byzantine = 1: integer ≥ 0
    multi_krum.num_byzantine = 1: integer ≥ 0
    multi_krum.select = None: integer ≥ 1 | none
    rfa.iterations = 3: integer ≥ 1
    rfa.smoothing = 1e-06: float > 0
    rffl.memory = 0.95: float ≥ 0, < 1
    rffl.threshold = 0.3333333333333333: float ≥ 0, < 1
    rffl.norm = None: float > 0 | none
    rffl.forget_after = 1000: integer ≥ 1
    signguard.lower = 0.1: float ≥ 0, ≤ 1
    signguard.upper = 3.0: float ≥ 1
    signguard.fraction = 0.1: float > 0, ≤ 1
    signguard.bandwidth = 0.5: float > 0, ≤ 1
    signsgd_mv.step = 0.001: float > 0
    standing.memory = 0.8: float ≥ 0, < 1
    standing.share = 0.25: float > 0, ≤ 1
    standing.doubt = 0.1: float > 0, ≤ 1
    standing.leave = 0.3333333333333333: float ≥ -1, ≤ 1
    standing.back = 0.6666666666666666: float ≥ -1, ≤ 1
    standing.length = median: median | mean
    standing.forget_after = 1000: integer ≥ 1
    ties.sparsity = 0.9: float ≥ 0, < 1
"""
"""A default or a bound that changes is another result, or another error, for everybody who relies on it."""
NAMES = list(dict.fromkeys(line.split(".")[0].strip() for line in DECLARED.strip().splitlines()))


def test_the_defaults_and_bounds_are_those_that_people_rely_on():
    declared = [
        f"{name}.{each.name} = {each.default}: {each.allowed}"
        for name in NAMES
        for each in fedseca.AGGREGATORS[name].hyperparameters().values()
    ]
    assert declared == [line.strip() for line in DECLARED.strip().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_are_given_by_name_and_stay(name):
    made = fedseca.AGGREGATORS[name]()
    for hyperparameter, value in made.values().items():
        with pytest.raises(TypeError):
            fedseca.AGGREGATORS[name](value)  # type: ignore[call-arg]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, hyperparameter, value)


CLAIMS = {
    "bulyan": ("returns_identical scales", 7, [0, 0, 0, 0, 0, 1, 1]),
    "caf": ("returns_identical scales", 3, [0, 0, 1, 1, 1, 1, 1]),
    "cc_randbucket": ("low_weight_is_distrust", 1, [0, 0, 0, 0, 1, 2, 2]),
    "cc_seqbucket": ("", 1, [0, 0, 0, 1, 1, 4, 4]),
    "cclip": ("low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "cge": ("returns_identical scales", 2, [0, 0, 1, 1, 1, 1, 1]),
    "clipped_clustering": ("returns_identical scales", 1, [0, 0, 1, 1, 2, 4, 5]),
    "clustering": ("returns_identical scales", 1, [0, 0, 0, 0, 0, 0, 0]),
    "copod_dos": ("returns_identical scales", 1, [0, 0, 0, 0, 0, 0, 0]),
    "cwmed": ("returns_identical scales low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "cwtm": ("returns_identical scales low_weight_is_distrust", 1, [0, 0, 0, 0, 1, 2, 2]),
    "dnc": ("returns_identical scales", 2, [0, 0, 0, 0, 0, 0, 0]),
    "fedavg": ("returns_identical scales takes_weights", 1, [0, 0, 0, 0, 0, 0, 0]),
    "fedseca": ("scales low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "flame": ("returns_identical scales", 1, [0, 0, 1, 1, 2, 4, 5]),
    "fldetector": ("returns_identical scales low_weight_is_distrust", 1, [0, 0, 0, 0, 0, 0, 0]),
    "fltrust": ("returns_identical scales low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "foolsgold": ("scales low_weight_is_distrust", 1, [0, 0, 0, 0, 0, 0, 0]),
    "foundationfl": ("returns_identical scales low_weight_is_distrust", 2, [0, 0, 0, 0, 0, 0, 0]),
    "huber": ("returns_identical low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "krum": ("returns_identical scales", 4, [0, 0, 0, 0, 1, 1, 1]),
    "lasa": ("scales", 1, [0, 0, 1, 1, 2, 4, 5]),
    "mda": ("returns_identical scales", 2, [0, 0, 1, 1, 1, 1, 1]),
    "meamed": ("returns_identical scales low_weight_is_distrust", 2, [0, 0, 1, 1, 1, 1, 1]),
    "multi_krum": ("returns_identical scales", 4, [0, 0, 0, 0, 1, 1, 1]),
    "rfa": ("returns_identical scales takes_weights low_weight_is_distrust", 1, [0, 0, 0, 0, 0, 0, 0]),
    "rffl": ("returns_identical scales low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "signguard": ("returns_identical scales", 1, [0, 0, 1, 1, 2, 4, 5]),
    "signsgd_mv": ("low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "standing": ("returns_identical scales low_weight_is_distrust", 1, [0, 0, 1, 1, 2, 4, 5]),
    "ties": ("scales low_weight_is_distrust", 1, [0, 0, 0, 0, 0, 0, 0]),
}
"""Traits, fewest clients, and how many of 1, 2, 3, 4, 5, 10 and 11 clients may send anything."""


@pytest.mark.parametrize("name", CLAIMS)
def test_a_rule_claims_what_its_equations_promise(name):
    """A claim that is dropped is a check of the contract that is no longer made."""
    traits, fewest, tolerated = CLAIMS[name]
    rule = fedseca.make_aggregator(name)
    known = ("returns_identical", "scales", "takes_weights", "low_weight_is_distrust")
    assert [trait for trait in known if getattr(rule, trait)] == traits.split()
    assert rule.min_clients() == fewest
    assert [rule.tolerates(clients) for clients in (1, 2, 3, 4, 5, 10, 11)] == tolerated


@pytest.mark.parametrize(
    ("switches", "tolerated"),
    [
        ({}, 5), ({"clip": False}, 5), ({"clamp": False}, 5), ({"clip": False, "clamp": False}, 0), ({"vrs": False}, 0),
        ({"variant": "released"}, 5), ({"variant": "released", "clip": False}, 5),
        ({"variant": "released", "clamp": False}, 0), ({"sparsity": 0.0, "election": False}, 5),
    ],
)  # fmt: skip
def test_fedseca_without_what_bounds_it_claims_no_bound(switches, tolerated):
    assert fedseca.make_aggregator("fedseca", **switches).tolerates(11) == tolerated


def test_every_rule_is_held_to_its_claims():
    assert set(CLAIMS) == {name for name, rule in fedseca.AGGREGATORS.items() if rule.__module__.startswith("fedseca.")}
    assert set(NAMES) == {name for name in CLAIMS if fedseca.AGGREGATORS[name].hyperparameters()}


@pytest.mark.parametrize("given", [{"rule": name} for name in CLAIMS] + OTHERWISE, ids=lambda given: str(given))
def test_what_is_tolerated_is_a_minority_of_clients_that_are_enough(given):
    rule = fedseca.make_aggregator(given["rule"], **{name: value for name, value in given.items() if name != "rule"})
    for clients in range(1, 40):
        assert 2 * rule.tolerates(clients) < clients
        assert clients >= rule.min_clients() or rule.tolerates(clients) == 0


def test_krum_needs_three_more_clients_than_are_byzantine_and_holds_with_two_more_than_twice_as_many():
    for byzantine in (0, 1, 2, 3):
        rule = fedseca.make_aggregator("krum", num_byzantine=byzantine)
        assert rule.min_clients() == byzantine + 3
        held = [clients for clients in range(1, 20) if rule.tolerates(clients) == byzantine]
        assert byzantine == 0 or held == list(range(2 * byzantine + 3, 20))


@pytest.mark.parametrize(
    ("select", "fewest", "tolerated"), [(1, 5, 2), (4, 5, 2), (9, 9, 2), (10, 10, 0), (None, 5, 2)]
)
def test_multi_krum_holds_while_it_chooses_no_more_than_are_honest(select, fewest, tolerated):
    rule = fedseca.make_aggregator("multi_krum", num_byzantine=2, select=select)
    assert rule.min_clients() == fewest and rule.tolerates(11) == tolerated


def test_shares_are_shown_in_per_cent():
    said = fedseca.make_aggregator("fedseca").diagnostics
    assert [each.name for each in said if each.share] == ["weight", "adopted"]
    assert [each.name for each in said if each.pairs] == ["concordance"]


def test_what_a_rule_answered_cannot_be_changed_and_is_told_shortly():
    server = fedseca.Server("cwmed")
    answer = server.rule.aggregate(server.screen(torch.ones(3, 7)).updates, {}, torch.Generator())
    assert repr(answer) == "Aggregation(update of 7 numbers; of 3 clients: weight)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.suspects = ("a",)  # type: ignore[misc]


def test_negative_control_the_mean_is_carried_off():
    small, large = outlier_errors(fedseca.make_aggregator("fedavg"), outliers=1) or (0, 0)
    assert small > 1e4 and large > 500 * small


@pytest.mark.parametrize("rule", ["fedavg", "rfa", "copod_dos", "fldetector", "ties"])
def test_rules_that_claim_no_bound_have_none(rule):
    """`tolerates` is an honest 0: the error grows with the outlier."""
    small, large = outlier_errors(fedseca.make_aggregator(rule), outliers=1) or (0, 0)
    assert large > 5 * small


def test_one_outlier_hardly_moves_rfa_and_copod_dos():
    """They give no bound, but they are not the mean either."""
    mean = outlier_errors(fedseca.make_aggregator("fedavg"), outliers=1) or (0, 0)
    for rule in ("rfa", "copod_dos"):
        error = outlier_errors(fedseca.make_aggregator(rule), outliers=1) or (0, 0)
        assert error[0] < mean[0] / 50, rule


class _WritesToUpdates(FedAvg):
    def aggregate(self, updates, state, rng):
        updates.row(0).mul_(2)
        return super().aggregate(updates, state, rng)


class _DrawsGlobally(FedAvg):
    def aggregate(self, updates, state, rng):
        torch.rand(1)
        return super().aggregate(updates, state, rng)


class _ForgetsAClient(FedAvg):
    def aggregate(self, updates, state, rng):
        return super().aggregate(updates.select(range(len(updates) > 1, len(updates))), state, rng)


class _TakesTheFirst(FedAvg):
    def aggregate(self, updates, state, rng):
        answer = super().aggregate(updates, state, rng)
        return dataclasses.replace(answer, update=updates.row(0).to(updates.dtype, copy=True))


class _Boasts(FedAvg):
    def tolerates(self, num_clients):
        return 1


@pytest.mark.parametrize(
    ("rule", "clause"),
    [
        (_WritesToUpdates(), "changes_neither"),
        (_DrawsGlobally(), "draws_from_the_generator"),
        (_ForgetsAClient(), "tells_the_weight"),
        (_TakesTheFirst(), "does_not_depend_on_the_order"),
        (_Boasts(), "bounds_the_outliers"),
    ],
)
def test_the_suite_sees_a_broken_rule(rule, clause):
    failed = []
    for check in aggregator_checks(rule):
        try:
            check()
        except AssertionError:
            failed.append(str(check))
    assert any(clause in name for name in failed), failed
    with pytest.raises(AssertionError, match="fedavg-"):
        check_aggregator(rule)
