"""The contract suite over every registered rule."""

import dataclasses
from typing import Any

import pytest
import torch

import fedseca
from fedseca.aggregators.fedavg import FedAvg
from fedseca.testing import Check, aggregator_checks, check_aggregator, outlier_errors


@pytest.mark.parametrize("check", [check for name in fedseca.AGGREGATORS for check in aggregator_checks(name)], ids=str)
def test_contract(check: Check[Any]):
    check()


def test_the_names_of_the_paper_are_registered():
    paper = (
        "fedavg krum multi_krum rfa cwtm cwmed huber cclip cc_randbucket cc_seqbucket copod_dos fldetector ties fedseca"
    )
    assert set(paper.split()) <= set(fedseca.AGGREGATORS)


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
