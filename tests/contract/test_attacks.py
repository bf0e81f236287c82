"""The contract suite over every registered attack."""

import dataclasses
from typing import Any

import pytest
import torch

import fedseca
from fedseca.attacks import ATTACKS, Knowledge, make_attack
from fedseca.attacks.ipm import IPM
from fedseca.testing import Check, attack_checks, check_attack, damage_to_the_mean


@pytest.mark.parametrize("check", [check for name in ATTACKS for check in attack_checks(name)], ids=str)
def test_contract(check: Check[Any]):
    check()


@pytest.mark.parametrize("attack", ["minmax", "minmax_agnostic", "minsum"])
@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
def test_contract_in_every_direction(attack, direction):
    check_attack(make_attack(attack, direction=direction))


def test_the_names_of_the_paper_are_registered():
    assert {"none", "alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax"} <= set(ATTACKS)
    assert {"minmax_agnostic", "minsum", "random", "signflip", "nonfinite"} <= set(ATTACKS)


DECLARED = """
    alie.strength = 1.0: float | none
    alie.jitter = 0.05: float ≥ 0
    backdoor.target = 0: integer ≥ 0
    backdoor.share = 0.5: float > 0, ≤ 1
    backdoor.size = 2: integer ≥ 1
    backdoor.split = False: true | false
    backdoor.factor = 1.0: float > 0
    concordant_flip.share = None: float > 0, < 0.5 | none
    fang.strength = 0.1: float
    fang.jitter = 0.05: float ≥ 0
    fang_krum.threshold = 1e-05: float > 0
    fang_krum.spread = 0.01: float ≥ 0
    fang_trim.factor = 2.0: float > 1
    fang_trim.of = models: models | updates
    ipm.strength = 1.3: float
    ipm.jitter = 0.05: float ≥ 0
    leaning.cosine = 0.05: float ≥ -1, ≤ 1
    mimic.warmup = 5: integer ≥ 1
    minmax.direction = unit: unit | sign | std
    minmax.start = 10.0: float > 0
    minmax.threshold = 1e-05: float > 0
    minmax_agnostic.direction = std: unit | sign | std
    minsum.direction = std: unit | sign | std
    model_replacement.labels = flip: flip | next | true
    model_replacement.factor = None: float > 0 | none
    noisy_mimic.warmup = 5: integer ≥ 1
    noisy_mimic.share = 0.1: float ≥ 0, ≤ 1
    nonfinite.value = mixed: nan | inf | -inf | mixed
    nonfinite.count = 3: integer ≥ 1
    opt_alie.least = 0.1: float > 0
    opt_alie.most = 10.0: float > 0
    opt_alie.questions = 16: integer ≥ 1
    opt_ipm.least = 0.1: float > 0
    opt_ipm.most = 10.0: float > 0
    opt_ipm.questions = 16: integer ≥ 1
    poisonedfl.strength = 8.0: float > 0
    poisonedfl.every = 50: integer ≥ 1
    poisonedfl.decay = 0.7: float > 0, ≤ 1
    poisonedfl.least = 0.5: float ≥ 0
    poisonedfl.significance = 0.01: float > 0, < 1
    random.factor = 10.0: float > 0
    rop.strength = 1.0: float > 0
    rop.location = 1.0: float ≥ 0, ≤ 1
    rop.reference = 0.9: float ≥ 0, ≤ 1
    rop.angle = 90.0: float ≥ 0, ≤ 360
    scaling.factor = 10.0: float
    shrink.factor = 0.001: float ≥ 0, < 1
    signflip.factor = 1.0: float > 0
    sparse.share = 0.005: float > 0, ≤ 1
    sparse.scale = 5.0: float
    sparse.strength = 1.0: float | none
    strongest.refined = 3: integer ≥ 0
"""
"""A default or a bound that changes is another result, or another error, for everybody who relies on it."""
NAMES = list(dict.fromkeys(line.split(".")[0].strip() for line in DECLARED.strip().splitlines()))


def test_the_defaults_and_bounds_are_those_that_people_rely_on():
    declared = [
        f"{name}.{each.name} = {each.default}: {each.allowed}"
        for name in NAMES
        for each in ATTACKS[name].hyperparameters().values()
    ]
    assert declared == [line.strip() for line in DECLARED.strip().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_are_given_by_name_and_stay(name):
    made = ATTACKS[name]()
    for hyperparameter, value in made.values().items():
        with pytest.raises(TypeError):
            ATTACKS[name](value)  # type: ignore[call-arg]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, hyperparameter, value)


LOOKS = {
    "backdoor": ("own",),
    "fang_trim": ("model",),
    "labelflip": ("own",),
    "minmax": ("probe",),
    "model_replacement": ("own",),
    "none": ("own",),
    "opt_alie": ("probe",),
    "opt_ipm": ("probe",),
    "poisonedfl": ("model",),
    "rop": ("model",),
    "signflip": ("own",),
    "sparse": ("model",),
    "strongest": ("own", "model", "probe", "loss"),
}
"""What an attack looks at beside the honest updates."""


def test_an_attack_claims_what_it_does():
    """A claim that is dropped is a check of the contract that is no longer made."""
    own = {name: attack for name, attack in ATTACKS.items() if attack.__module__.startswith("fedseca.")}
    assert set(NAMES) == {name for name, attack in own.items() if attack.hyperparameters()}
    assert [name for name, attack in own.items() if not attack.harms] == ["none"]
    assert [name for name, attack in own.items() if not attack.finite] == ["nonfinite"]
    assert {name: attack.needs for name, attack in own.items() if attack.needs} == LOOKS


def test_an_attack_that_is_made_has_its_hyperparameters():
    made = make_attack("ipm", strength=2.0)
    assert make_attack(made) is made
    with pytest.raises(TypeError, match="hyperparameters go with the name of an attack"):
        make_attack(made, strength=3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Knowledge(0, 1, ("a",)).round = 3  # type: ignore[misc]


def test_negative_control_no_attack_leaves_the_mean():
    assert damage_to_the_mean(make_attack("none")) == 1
    assert damage_to_the_mean(make_attack("ipm")) > 2
    assert damage_to_the_mean(make_attack("ipm"), byzantine=0) == 1
    assert damage_to_the_mean(make_attack("nonfinite")) == float("inf")


def test_an_unknown_need_is_said():
    class Curious(IPM):
        needs = ("prob",)

    with pytest.raises(fedseca.FedsecaError, match="unknown need of ipm 'prob'; did you mean 'probe'"):
        Knowledge.of(Curious(), 0, 1, ("a",))


def test_what_is_not_declared_is_not_known():
    knowledge = Knowledge.of(make_attack("ipm"), 0, 1, ("a",), own=torch.ones(1, 2), model=torch.ones(2))
    for look in (lambda: knowledge.own, lambda: knowledge.model, lambda: knowledge.probe(torch.ones(1, 2))):
        with pytest.raises(fedseca.FedsecaError, match="does not declare it: needs ="):
            look()


class _WritesToHonest(IPM):
    def craft(self, honest, knowledge, state, rng):
        honest *= 2
        return super().craft(honest, knowledge, state, rng)


class _DrawsGlobally(IPM):
    def craft(self, honest, knowledge, state, rng):
        return super().craft(honest, knowledge, state, rng)[0] * torch.rand(1), state


class _SendsTooMuch(IPM):
    def craft(self, honest, knowledge, state, rng):
        return honest.clone(), state


class _SendsViews(IPM):
    def craft(self, honest, knowledge, state, rng):
        return honest[:1].expand(knowledge.num_byzantine, -1), state


class _DoesNothing(IPM):
    needs = ("own",)

    def craft(self, honest, knowledge, state, rng):
        return knowledge.own.clone(), state


class _SendsTheMean(IPM):
    def craft(self, honest, knowledge, state, rng):
        return honest.mean(dim=0).repeat(knowledge.num_byzantine, 1), state


class _WritesToTheModel(IPM):
    needs = ("model",)

    def craft(self, honest, knowledge, state, rng):
        knowledge.model.fill_(torch.nan)
        return super().craft(honest, knowledge, state, rng)


class _RemembersInPlace(IPM):
    def craft(self, honest, knowledge, state, rng):
        state.setdefault("seen", torch.zeros(1)).add_(1)
        return super().craft(honest, knowledge, state, rng)


class _Corrupts(IPM):
    needs = ("probe",)

    def craft(self, honest, knowledge, state, rng):
        server = knowledge.offered["probe"].__closure__[0].cell_contents.server
        server.aggregate(honest)
        return super().craft(honest, knowledge, state, rng)


@pytest.mark.parametrize(
    ("attack", "clause"),
    [
        (_WritesToHonest(), "leaves_the_honest_rows"),
        (_SendsViews(), "leaves_the_honest_rows"),
        (_DrawsGlobally(), "draws_from_the_generator"),
        (_SendsTooMuch(), "sends_a_row"),
        (_DoesNothing(), "makes_the_error_of_the_mean_grow"),
        (_SendsTheMean(), "makes_the_error_of_the_mean_grow"),
        (_WritesToTheModel(), "leaves_the_honest_rows"),
        (_RemembersInPlace(), "leaves_the_honest_rows"),
        (_Corrupts(), "asking_leaves_the_server"),
    ],
)
def test_the_suite_sees_a_broken_attack(attack, clause):
    failed = []
    for check in attack_checks(attack):
        try:
            check()
        except Exception:
            failed.append(str(check))
    assert any(clause in name for name in failed), failed
    with pytest.raises(AssertionError, match="ipm-"):
        check_attack(attack)
