"""The contract suite over every registered step, alone and with every registered rule."""

import dataclasses
from typing import Any

import pytest
import torch

import fedseca
from fedseca import STEPS, Mix
from fedseca.aggregators import Chain, make_aggregator
from fedseca.steps.base import check_mix
from fedseca.steps.clipping import Clipping
from fedseca.steps.momentum import Momentum
from fedseca.testing import Check, chain_checks, check_step, errors_over_rounds, outlier_errors, step_checks
from tests.paper_rules import PAPER


@pytest.mark.parametrize("check", [check for name in STEPS for check in step_checks(name)], ids=str)
def test_contract(check: Check[Any]):
    check()


def chosen_chains() -> list[Check[Chain]]:
    """The rules of the paper with every step; of the others each with one step, all of them in turns."""
    others = [name for name in fedseca.AGGREGATORS if name not in PAPER]
    with_one = {name: list(STEPS)[place % len(STEPS)] for place, name in enumerate(others)}
    checks = [(step, check) for step in STEPS for check in chain_checks(step)]
    return [check for step, check in checks if with_one.get(check.subject.rule.name, step) == step]


@pytest.mark.parametrize("check", chosen_chains(), ids=str)
def test_contract_of_rules_with_steps(check: Check[Any]):
    check()


def test_every_step_and_every_rule_stands_in_a_chain_that_is_checked():
    chains = {check.subject.name for check in chosen_chains()}
    assert {f"{step}+cwmed" for step in STEPS if step != "momentum"} | {"cwmed+momentum"} <= chains
    assert {rule for name in chains for rule in name.split("+")} - set(STEPS) == set(fedseca.AGGREGATORS)


def test_the_steps_of_the_design_are_registered():
    assert {"nnm", "bucketing", "clipping", "normalising", "arc", "one_voice", "momentum"} <= set(STEPS)


DECLARED = """
    arc.num_byzantine = 1: integer ≥ 0
    bucketing.size = 2: integer ≥ 1
    clipping.factor = 1.0: float > 0
    momentum.beta = 0.5: float ≥ 0, < 1
    nnm.num_byzantine = 1: integer ≥ 0
    one_voice.threshold = 0.9: float ≥ 0, < 1
"""
"""A default or a bound that changes is another result, or another error, for everybody who relies on it."""
NAMES = list(dict.fromkeys(line.split(".")[0].strip() for line in DECLARED.strip().splitlines()))


def test_the_defaults_and_bounds_are_those_that_people_rely_on():
    declared = [
        f"{name}.{each.name} = {each.default}: {each.allowed}"
        for name in NAMES
        for each in STEPS[name].hyperparameters().values()
    ]
    assert declared == [line.strip() for line in DECLARED.strip().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_are_given_by_name_and_stay(name):
    made = STEPS[name]()
    for hyperparameter, value in made.values().items():
        with pytest.raises(TypeError):
            STEPS[name](value)  # type: ignore[call-arg]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, hyperparameter, value)


CLAIMS = {
    "arc": ("keeps_clients scales returns_identical low_weight_is_distrust", [2, 2, 5], [1, 2, 5, 10, 11]),
    "bucketing": ("scales returns_identical low_weight_is_distrust", [1, 3, 9], [1, 1, 3, 5, 6]),
    "clipping": ("keeps_clients scales returns_identical low_weight_is_distrust", [1, 2, 5], [1, 2, 5, 10, 11]),
    "nnm": ("keeps_clients scales returns_identical", [2, 2, 5], [1, 2, 5, 10, 11]),
    "normalising": ("keeps_clients scales returns_identical low_weight_is_distrust", [1, 2, 5], [1, 2, 5, 10, 11]),
    "one_voice": ("scales returns_identical low_weight_is_distrust", [1, 2, 5], [1, 1, 1, 1, 1]),
}
"""Traits; the fewest clients for 1, 2 and 5 rows; the fewest rows that 1, 2, 5, 10 and 11 clients leave."""


@pytest.mark.parametrize("name", CLAIMS)
def test_a_step_claims_what_its_equations_promise(name):
    """A claim that is dropped is a check of the contract that is no longer made."""
    traits, fewest_clients, fewest_rows = CLAIMS[name]
    step: Any = STEPS[name]()
    known = ("keeps_clients", "scales", "returns_identical", "low_weight_is_distrust")
    assert [trait for trait in known if getattr(step, trait)] == traits.split()
    assert [step.min_clients(rows) for rows in (1, 2, 5)] == fewest_clients
    assert [step.fewest_rows(clients) for clients in (1, 2, 5, 10, 11)] == fewest_rows


def test_arc_bounds_its_byzantine_clients_where_they_are_a_minority():
    for byzantine in (1, 2, 3):
        step: Any = STEPS.make("arc", num_byzantine=byzantine)
        bounded = [step.tolerates(clients, lambda rows: 0) for clients in range(1, 10)]
        assert bounded == [byzantine if 2 * byzantine < clients else 0 for clients in range(1, 10)]
        assert step.tolerates(10, lambda rows: rows // 2) == 5, "what stands behind may tolerate more"


@pytest.mark.parametrize("name", ["clipping", "normalising"])
def test_rows_of_bounded_length_bound_every_minority(name):
    step: Any = STEPS[name]()
    assert [step.tolerates(clients, lambda rows: 0) for clients in range(1, 10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("chain", "fewest"),
    [("krum", 4), ("nnm+cwmed", 2), ("bucketing+krum", 7), ("nnm+bucketing+krum", 7), ("cwmed+momentum", 1)],
)
def test_a_chain_needs_as_many_clients_as_leave_its_rule_enough_rows(chain, fewest):
    assert make_aggregator(chain).min_clients() == fewest


@pytest.mark.parametrize(
    ("chain", "traits"),
    [
        ("nnm+cwmed", "returns_identical scales"),
        ("clipping+cwmed", "returns_identical scales low_weight_is_distrust"),
        ("clipping+fedavg", "returns_identical scales takes_weights"),
        ("bucketing+fedavg", "returns_identical scales"),
        ("arc+rfa", "returns_identical scales takes_weights low_weight_is_distrust"),
        ("one_voice+rfa", "returns_identical scales low_weight_is_distrust"),
        ("clipping+krum", "returns_identical scales"),
        ("clipping+huber", "returns_identical low_weight_is_distrust"),
        ("clipping+ties", "scales low_weight_is_distrust"),
        ("cwmed+momentum", "scales low_weight_is_distrust"),
    ],
)
def test_a_chain_claims_what_all_its_parts_promise(chain, traits):
    made = make_aggregator(chain)
    known = ("returns_identical", "scales", "takes_weights", "low_weight_is_distrust")
    assert [trait for trait in known if getattr(made, trait)] == traits.split()


class _OfAFixedLength(Clipping):
    scales = False
    returns_identical = False


def test_what_a_step_does_not_promise_its_chain_does_not_either():
    made = Chain(before=(_OfAFixedLength(),), rule=make_aggregator("cwmed"))
    assert not made.scales and not made.returns_identical
    made = Chain(before=(Clipping(),), rule=make_aggregator("cwmed"))
    assert made.scales and made.returns_identical


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        ("nnm", "'nnm' has no rule; a chain is .* as nnm.cwmed"),
        ([], r"unknown rule \[\]"),
        ("cwmed+nnm", "nnm is a step before a rule, and cannot stand after cwmed"),
        ("momentum+cwmed", "momentum is a step after a rule, and cannot stand before cwmed"),
        ("cwmed+krum", "cwmed and krum are both rules"),
        ("nnm+momentum", "has no rule; a chain is .* as nnm.cwmed.momentum"),
        ("nnm+nnm+cwmed", "nnm stands in it more than once"),
        ("nnm++cwmed", "a part is empty"),
        ("nmn+cwmed", "unknown part 'nmn'; did you mean 'nnm'"),
    ],
)
def test_a_chain_that_cannot_be_is_told_why(chain, why):
    with pytest.raises(fedseca.FedsecaError, match=why):
        make_aggregator(chain)


def test_a_rule_that_is_made_has_its_hyperparameters():
    made = make_aggregator("nnm+krum", num_byzantine=2)
    assert make_aggregator(made) is made
    with pytest.raises(TypeError, match="hyperparameters go with the name of a rule"):
        make_aggregator(made, num_byzantine=1)


def test_momentum_without_memory_and_what_it_remembers_is_its_own():
    matrix = torch.randn(5, 4)
    assert torch.equal(fedseca.aggregate(matrix, rule="cwmed+momentum"), fedseca.aggregate(matrix, rule="cwmed"))
    update = torch.ones(3)
    assert Momentum(beta=0.0).apply(update, {}) == (update, {}) and Momentum(beta=0.0).init(3) == {}
    given, state = Momentum(beta=0.5).apply(update, Momentum(beta=0.5).init(3))
    given += 1
    assert [value.tolist() for value in state.values()] == [[0.5] * 3]


BUCKET = {each.name: torch.zeros(3) for each in STEPS["bucketing"].diagnostics}


@pytest.mark.parametrize(
    "mix",
    [
        Mix([[0]], [[1.0]], [0, 0, 1], ["a"]), Mix([[0]], [[1.0]], [0, -1, 0], ["a"]),
        Mix([[0]], [[1.0]], [0, 0], ["a"]),
        Mix([[3]], [[1.0]], [0] * 3, ["a"]), Mix([[-1]], [[1.0]], [0] * 3, ["a"]), Mix([[]], [[]], [0] * 3, ["a"]),
        Mix([[0]], [[1.0, 2.0]], [0] * 3, ["a"]), Mix([[0]], [[1.0]], [0] * 3, []), Mix([], [], [0] * 3, []),
        Mix([[0]], [], [0] * 3, ["a"]), Mix([[0]] * 4, [[1.0]] * 4, [0] * 3, list("abcd")),
    ],
)  # fmt: skip
def test_mixes_that_cannot_be_are_refused(mix):
    with pytest.raises(fedseca.FedsecaError, match=r"must answer .*; it was given K = 3 clients"):
        check_mix(STEPS["bucketing"](), dataclasses.replace(mix, diagnostics=BUCKET), 3)


def test_mixes_that_can_be_are_not():
    for mix in (
        Mix([[0, 1, 2]], [[1.0] * 3], [0] * 3, ["a"]),
        Mix([[0], [1], [2]], [[1.0]] * 3, [2, 1, 0], list("abc")),
    ):
        check_mix(STEPS["bucketing"](), dataclasses.replace(mix, diagnostics=BUCKET), 3)


def test_a_mix_cannot_be_changed_and_rows_of_no_weight_share_alike():
    mix = Mix([[0, 1], [2]], [[0.0, 0.0], [-3.0]], [0, 0, 1], ["a", "b"])
    assert mix.shares() == [(0, 0, 0.5), (0, 1, 0.5), (1, 2, 1.0)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        mix.ids = ["c"]  # type: ignore[misc]


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


def test_what_two_parts_say_under_the_same_name_is_told_apart():
    rows = torch.ones(5, 8) * torch.tensor([1.0, 2.0, 3.0, 4.0, 50.0])[:, None]
    said = fedseca.Server("arc+clipping+fedavg", factor=0.5).aggregate(rows).diagnostics
    assert said["arc.scale"].tolist() == pytest.approx([1, 1, 1, 1, 0.08])
    assert said["clipping.scale"].tolist() == pytest.approx([1, 0.75, 0.5, 0.375, 0.375])
    assert "scale" not in said and "scale" in fedseca.Server("arc+fedavg").aggregate(rows).diagnostics
    both = fedseca.Server("bucketing+cc_randbucket").aggregate(rows).diagnostics
    assert {"bucket", "bucketing.bucket"} <= set(both)


def test_a_step_that_clients_can_shrink_promises_nothing_to_a_rule_that_needs_many_rows():
    """One client that is like all others joins them into one row, and krum needs four."""
    assert make_aggregator("clipping+one_voice+krum").tolerates(10) == 0
    assert make_aggregator("clipping+one_voice+cwmed").tolerates(10) == 4


def test_rows_beyond_float32_are_not_normalised_to_inf():
    rows = torch.full((9, 4), 3.4e38) * torch.tensor([1.0, -1.0])[torch.arange(9) % 2, None]
    rows[8] = torch.arange(1.0, 5.0)
    for rule in ("cwmed", "copod_dos", "huber"):
        assert fedseca.aggregate(rows, rule=f"normalising+{rule}").isfinite().all(), rule


def test_a_chain_is_made_of_the_right_parts_and_remade_with_known_names():
    cwmed = make_aggregator("cwmed")
    chain = make_aggregator("nnm+cwmed")
    wrong: list[dict[str, Any]] = [
        {"before": (Clipping(), Clipping()), "rule": cwmed},
        {"before": (Momentum(),), "rule": cwmed},
        {"rule": chain},
        {"rule": Clipping()},
        {"rule": cwmed, "after": (Clipping(),)},
    ]
    for parts in wrong:
        with pytest.raises(fedseca.FedsecaError, match="chain"):
            Chain(**parts)
    assert chain.remade(**{"nnm.num_byzantine": 3}).values() == {"nnm.num_byzantine": 3}
    for unknown in ("num_byzantine", "bogus.x", "cwmed.x"):
        with pytest.raises(fedseca.FedsecaError, match=f"unknown hyperparameter of nnm.cwmed '{unknown}'"):
            chain.remade(**{unknown: 3})
    assert chain.declared("nnm.num_byzantine").default == 1


def test_a_name_means_one_part():
    for name in ("a+b", "a.b", "", "a b"):
        with pytest.raises(ValueError, match="a name has letters, digits, _ and -"):
            fedseca.register(name)(dataclasses.make_dataclass("Mine", [], bases=(Clipping,), frozen=True))
    with pytest.raises(ValueError, match="rule 'cwmed' is registered already"):
        fedseca.register("cwmed")(dataclasses.make_dataclass("Mine", [], bases=(Clipping,), frozen=True))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda mix: None, "must answer a Mix; found NoneType"),
        (lambda mix: dataclasses.replace(mix, members=[[k + 1] for k in range(5)]), "the places of clients as members"),
        (lambda mix: dataclasses.replace(mix, members=[], weights=[], ids=[]), "from 1 to K mixes"),
        (lambda mix: dataclasses.replace(mix, ids=["a"]), "weights and an id for each mix"),
        (lambda mix: dataclasses.replace(mix, weights=[[]] * 5), "a weight for each member"),
        (lambda mix: dataclasses.replace(mix, members=[()] * 5, weights=[()] * 5), "a member in each mix"),
        (lambda mix: dataclasses.replace(mix, row_of=[9] * 5), "a mix for each client in row_of"),
        (lambda mix: dataclasses.replace(mix, diagnostics={}), "what it declares as diagnostics"),
    ],
)
def test_what_a_step_of_ones_own_answers_wrongly_is_told_in_one_line(answer, message):
    class Mine(Clipping):
        def mix(self, updates, state, rng):
            return answer(super().mix(updates, state, rng))

    with pytest.raises(fedseca.FedsecaError, match=f"clipping.mix must answer .*{message}|{message}") as problem:
        fedseca.aggregate(torch.randn(5, 4), rule=Chain(before=(Mine(),), rule=make_aggregator("cwmed")))
    assert "clipping.mix must answer" in str(problem.value) and "\n" not in str(problem.value)


def test_a_part_that_defines_nothing_is_refused_when_it_is_registered():
    with pytest.raises(TypeError, match="step 'half': Half must define mix, tolerates"):
        fedseca.register("half")(dataclasses.make_dataclass("Half", [], bases=(fedseca.StepBefore,), frozen=True))
