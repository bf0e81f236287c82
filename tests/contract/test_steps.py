"""The contract suite over every registered step, alone and with every registered rule."""

import dataclasses
from typing import Any

import pytest
import torch

import fedseca
from fedseca import STEPS, Mix
from fedseca.aggregators import Chain, make_aggregator
from fedseca.steps.clipping import Clipping
from fedseca.steps.momentum import Momentum
from fedseca.testing import Check, chain_checks, check_step, errors_over_rounds, outlier_errors, step_checks


@pytest.mark.parametrize("check", [check for name in STEPS for check in step_checks(name)], ids=str)
def test_contract(check: Check[Any]):
    check()


@pytest.mark.parametrize("check", [check for name in STEPS for check in chain_checks(name)], ids=str)
def test_contract_of_every_rule_with_every_step(check: Check[Any]):
    check()


def test_the_steps_of_the_design_are_registered():
    assert {"nnm", "bucketing", "clipping", "normalising", "arc", "one_voice", "momentum"} <= set(STEPS)


def test_negative_control_more_outliers_than_the_bound_drag_buckets_on_without_end():
    """Four of ten own most of the five buckets; the bound is two."""
    rule = make_aggregator("cc_randbucket")
    assert rule.tolerates(10) == 2 and make_aggregator("bucketing+cclip").tolerates(10) == 2
    held, dragged = errors_over_rounds(rule) or [], errors_over_rounds(rule, outliers=4) or []
    assert max(held) < 300 and dragged[-1] > 1000 and dragged[-1] > 2 * dragged[len(dragged) // 3]


@pytest.mark.parametrize(
    ("chain", "clients", "tolerated"),
    [
        ("cwmed", 10, 4),
        ("nnm+cwmed", 10, 1),
        ("bucketing+cwmed", 10, 2),
        ("clipping+fedavg", 10, 4),
        ("normalising+rfa", 11, 5),
        ("arc+fedavg", 10, 1),
        ("one_voice+cwmed", 10, 0),
        ("clipping+one_voice+cwmed", 10, 4),
        ("bucketing+clipping+fedavg", 10, 2),
        ("cwmed+momentum", 10, 4),
        ("nnm+fedavg", 10, 0),
        ("bucketing+krum", 10, 1),
        ("bucketing+krum", 6, 0),
    ],
)
def test_the_bound_follows_through_a_chain(chain, clients, tolerated):
    assert make_aggregator(chain).tolerates(clients) == tolerated


def test_one_voice_has_no_bound_of_its_own_and_says_so():
    """A client that has the signs of an honest one joins its voice and drags it along; clipping before it helps."""

    def moved(chain: str, size: float) -> float:
        honest = torch.ones(5, 8, dtype=torch.float64) + 0.1 * torch.rand(5, 8, dtype=torch.float64)
        updates = torch.cat([honest, size * honest[:1]])
        return float((fedseca.aggregate(updates, rule=chain) - honest.mean(dim=0)).norm())

    assert moved("one_voice+cwmed", 1e9) > 1e6
    assert moved("clipping+one_voice+cwmed", 1e9) < 1


def test_steps_bound_rules_that_have_no_bound():
    for chain in ("clipping+fedavg", "normalising+fedavg", "arc+fedavg"):
        small, large = outlier_errors(make_aggregator(chain)) or (0, 0)
        assert 0 < large <= 2 * small, chain
    small, large = outlier_errors(make_aggregator("fedavg"), outliers=1) or (0, 0)
    assert large > 500 * small


class _WritesToUpdates(Clipping):
    def mix(self, updates, state, rng):
        updates.row(0).mul_(2)
        return super().mix(updates, state, rng)


class _DrawsGlobally(Clipping):
    def mix(self, updates, state, rng):
        return Mix.scaled(updates, torch.rand(len(updates)), scale=torch.ones(len(updates)))


class _ForgetsAClient(Clipping):
    def mix(self, updates, state, rng):
        return dataclasses.replace(super().mix(updates, state, rng), row_of=[0] * len(updates))


class _IsSilent(Clipping):
    def mix(self, updates, state, rng):
        return dataclasses.replace(super().mix(updates, state, rng), diagnostics={})


class _TakesTheFirst(Clipping):
    def mix(self, updates, state, rng):
        count = len(updates)
        found = torch.ones(count)
        return Mix([[0]] * count, [[1.0]] * count, range(count), updates.client_ids, {"scale": found})


class _Overflows(Clipping):
    def mix(self, updates, state, rng):
        return Mix.scaled(updates, torch.full((len(updates),), 1e20), scale=torch.ones(len(updates)))


class _Grows(Momentum):
    def apply(self, update, state):
        return update * 2, state


class _Overwrites(Momentum):
    def apply(self, update, state):
        return update.mul_(0.5), state


@pytest.mark.parametrize(
    ("step", "clause"),
    [
        (_WritesToUpdates(), "changes_neither"),
        (_DrawsGlobally(), "draws_from_its_generator"),
        (_ForgetsAClient(), "as_many_mixes_as_clients"),
        (_IsSilent(), "tells_what_it_declares"),
        (_TakesTheFirst(), "does_not_depend_on_the_order"),
        (_Overflows(), "stays_finite"),
        (_Grows(), "stays_within"),
        (_Overwrites(), "changes_nothing"),
    ],
)
def test_the_suite_sees_a_broken_step(step, clause):
    failed = []
    for check in step_checks(step):
        try:
            check()
        except Exception:
            failed.append(str(check))
    assert any(clause in name for name in failed), failed
    with pytest.raises(AssertionError, match=f"{step.name}-"):
        check_step(step)


class _Boasts(Clipping):
    def tolerates(self, num_clients, behind):
        return 1

    def mix(self, updates, state, rng):
        return Mix.scaled(updates, torch.ones(len(updates)), scale=torch.ones(len(updates)))


def test_the_suite_sees_a_bound_that_is_none():
    whole = Chain(before=(_Boasts(),), rule=make_aggregator("fedavg"))
    checks = [check for check in chain_checks(_Boasts()) if str(check).startswith("clipping+fedavg-bounds")]
    assert whole.tolerates(11) == 1 and len(checks) == 1
    with pytest.raises(AssertionError, match="outliers of size 1e6 move it"):
        checks[0]()
