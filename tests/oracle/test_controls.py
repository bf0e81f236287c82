"""Controls of the whole registry: for each attack a rule that it breaks, for each rule an attack that it withstands.

An attack that breaks nobody, or a rule that withstands nothing that breaks the mean, is most likely programmed
wrongly, even if it keeps its contract. All train the same small federation; one number says what came of it: `harm`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fedseca.aggregators import AGGREGATORS, Aggregation, Aggregator, State, make_aggregator
from fedseca.attacks import ATTACKS, Attack, Knowledge, make_attack
from fedseca.parts import Registry
from fedseca.updates import Updates

CLIENTS, FEATURES, SAMPLES, RATE = 11, 60, 200, 0.1
BROKEN = 0.7
"""A training with this harm or more is lost."""
HELD = 0.35
"""One with this harm or less is not: to listen to other honest clients than before moves the model a little, too."""


@dataclass(frozen=True)
class Control:
    """Who is set against whom, and in which federation."""

    against: str
    """A rule, in the table of attacks; an attack, in the table of rules."""
    why: str
    byzantine: int = 4
    """How many of the 11 clients."""
    apart: float = 0.2
    """How far the clients' data are from each other."""
    rounds: int = 6
    rule: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the rule; `num_byzantine` is the true number unless it is here."""
    attack: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters of the attack."""

    @property
    def federation(self) -> tuple[int, float, int]:
        return self.byzantine, self.apart, self.rounds


DIVERSE = 1.5
"""Clients that are so far apart leave room between them for an attack that looks like one of them."""

BREAKS = {
    "alie": Control("cwmed", "one deviation from the mean, it is on its side of most medians", apart=DIVERSE),
    "backdoor": Control("fedavg", "the mean learns all that is taught", attack={"size": 4, "factor": 3.0}),
    "concordant_flip": Control("cge", "a mean is shorter than what it is the mean of: the honest are left out"),
    "fang": Control("rfa", "a step of 0.1 in each coordinate is long, and three iterations are few", apart=DIVERSE),
    "fang_krum": Control("krum", "it is made for it: the longest step back that is chosen", apart=DIVERSE),
    "fang_trim": Control(
        "cwtm", "it is made for it: what is trimmed are honest values", apart=DIVERSE, rule={"trim": 0.4}
    ),
    "ipm": Control("multi_krum", "rows around one point are each other's neighbours", apart=DIVERSE),
    "labelflip": Control("foolsgold", "each flips labels of its own: no two of them are alike", apart=DIVERSE),
    "leaning": Control("rfa", "a majority of the length is on its side", apart=DIVERSE),
    "mimic": Control("krum", "copies are each other's neighbours: all goes after one odd client", apart=DIVERSE),
    "minmax": Control("rfa", "far enough away, what three iterations leave of it is still long"),
    "minmax_agnostic": Control("meamed", "as near to the median as honest values are", apart=DIVERSE),
    "minsum": Control("clipped_clustering", "its angles are those of a client among others", apart=DIVERSE),
    "model_replacement": Control("huber", "far rows count less for their distance, and are still counted"),
    "noisy_mimic": Control("krum", "with a tenth of the signs turned they are still neighbours", apart=DIVERSE),
    "nonfinite": Control("fedavg", "NaN in a sum: it is the server's screening that keeps it out"),
    "opt_alie": Control("multi_krum", "it asks which strength is still chosen", apart=DIVERSE),
    "opt_ipm": Control("cge", "it asks which length is still kept"),
    "poisonedfl": Control("rfa", "the same way in each round, as long as it has to be"),
    "random": Control("foolsgold", "no two rows of noise are alike"),
    "rop": Control(
        "cclip", "a step aside of the centre is within the radius", apart=DIVERSE, rounds=12, rule={"radius": 0.1}
    ),
    "scaling": Control("clustering", "angles say nothing of lengths"),
    "shrink": Control("krum", "rows near zero are each other's neighbours: the model stays", apart=DIVERSE),
    "signflip": Control("cge", "their rows are no longer than the others"),
    "sparse": Control("krum", "near the others but for a few coordinates", apart=DIVERSE),
    "strongest": Control("multi_krum", "it tries all others", apart=DIVERSE, rounds=3),
}
"""Each attack, and a rule that it breaks."""

WITHSTANDS = {
    "bulyan": Control("model_replacement", "too far away to be picked", byzantine=2),
    "caf": Control("ipm", "what stands out along the widest axis loses its weight"),
    "cc_randbucket": Control(
        "random", "clipped to the radius", byzantine=2, rule={"radius": 0.1}, attack={"factor": 30.0}
    ),
    "cc_seqbucket": Control("scaling", "clipped to the radius, bucket after bucket", rule={"radius": 0.1}),
    "cclip": Control("random", "clipped to the radius", rule={"radius": 0.1}),
    "cge": Control("scaling", "the longest are left out"),
    "clipped_clustering": Control("ipm", "backwards is another cluster"),
    "clustering": Control("ipm", "backwards is another cluster"),
    "copod_dos": Control("labelflip", "distances that few others have"),
    "cwmed": Control("poisonedfl", "no value beyond the honest ones"),
    "cwtm": Control("fang", "no value beyond the honest ones", rule={"trim": 0.4}),
    "dnc": Control("ipm", "what stands out along the widest axis is left out"),
    "fedseca": Control("ipm", "its signs are concordant with nobody else's, so it has no vote"),
    "flame": Control("minmax", "not in the densest majority of directions"),
    "fldetector": Control(
        "signflip", "turned, the curvature fits no more", rounds=8, rule={"references": 3}, attack={"factor": 3.0}
    ),
    "fltrust": Control("ipm", "a majority, but the server has data of its own", byzantine=7),
    "foolsgold": Control("ipm", "names of one attacker are alike in each round"),
    "foundationfl": Control(
        "fang",
        "they and the copies of one of them are trimmed",
        byzantine=2,
        rule={"num_byzantine": 4, "synthetic": 0.2},
    ),
    "huber": Control("random", "far rows count less"),
    "krum": Control("labelflip", "no neighbours nearby"),
    "lasa": Control("poisonedfl", "not of the usual length"),
    "mda": Control("fang_trim", "far from all in the closest group"),
    "meamed": Control("model_replacement", "not among the nearest to the median"),
    "multi_krum": Control("minmax", "no neighbours nearby"),
    "rfa": Control("ipm", "the median has fewer than half of the clients there"),
    "rffl": Control("labelflip", "its reputation falls below the threshold"),
    "signguard": Control("scaling", "not of the usual length"),
    "signsgd_mv": Control("scaling", "a vote has no length"),
    "standing": Control("ipm", "no majority agrees with it"),
    "ties": Control("model_replacement", "of the other sign than most", byzantine=3),
}
"""Each rule, and an attack that it withstands and FedAvg does not."""


# --- the federation ----------------------------------------------------------------------------------------------


class Federation:
    """Logistic regression of labelled points. All clients have a direction in common, and each another one of its own.

    The last clients are Byzantine. After them comes the server, for a rule that wants an update of its own.
    """

    def __init__(self, attack: Attack, byzantine: int, apart: float, rounds: int, strangers: int = 0) -> None:
        """With `strangers`, a number, others stand in the place of the Byzantine clients, with data of their own."""
        self.attack, self.rounds, self.honest = attack, rounds, CLIENTS - byzantine
        common, self.begin = 0.3 * _draw(_generator(0), FEATURES), 0.1 * _draw(_generator(1), FEATURES)
        self.data: list[tuple[Tensor, Tensor]] = []
        for client in range(CLIENTS + 1):
            person = client + (100 * strangers if self.honest <= client < CLIENTS else 0)
            generator = _generator(100 + person)
            own = apart * _draw(generator, FEATURES) if client < CLIENTS else torch.zeros(FEATURES)
            labels = torch.randint(2, (SAMPLES,), generator=generator)
            points = (2 * labels - 1)[:, None] * (common + 0.3 * own) + _draw(generator, SAMPLES, FEATURES)
            self.data.append((points, labels))
        self.brightest = torch.cat([points for points, _ in self.data]).amax(dim=0)
        self.trained_on = [self._poisoned(client) for client in range(CLIENTS + 1)]

    def _poisoned(self, client: int) -> tuple[Tensor, Tensor]:
        points, labels = self.data[client]
        if not self.honest <= client < CLIENTS:
            return points, labels
        labels = self.attack.poison(labels, 2)
        if self.attack.trigger is None:
            return points, labels
        return self.attack.trigger.mark(points, labels, self.brightest, client - self.honest, CLIENTS - self.honest)

    def train(self, rule: Aggregator) -> Tensor:
        """The model after the rounds. The rule is asked as it is, without the server's screening before it."""
        root = getattr(rule, "root", None)
        ids = [*(f"client-{k:02d}" for k in range(CLIENTS)), *([root] if root else [])]
        model = self.begin
        memory: State = rule.init(FEATURES)
        remembered: State = {}
        for number in range(self.rounds):
            rows = torch.stack([RATE * _gradient(model, *self.trained_on[k]) for k in range(len(ids))])
            honest, own, of_server = rows.tensor_split([self.honest, CLIENTS])

            def answer(sent: Tensor, honest=honest, of_server=of_server, memory=memory, number=number) -> Aggregation:
                updates = Updates.collect(torch.cat([honest, sent, of_server]), ids)
                return rule.aggregate(updates, memory, _generator(number))

            def probe(sent: Tensor, answer=answer) -> Tensor:
                update: Tensor = answer(sent).update
                return update

            def loss(sent: Tensor, model=model, answer=answer) -> float:
                return self.loss(model - answer(sent).update)

            knowledge = Knowledge.of(
                self.attack,
                number,
                len(own),
                tuple(ids[: self.honest]),
                own=own,
                model=model,
                probe=probe,
                loss=loss,
            )
            sent, remembered = self.attack.craft(honest, knowledge, remembered, _generator(number))
            aggregation = answer(sent)
            model, memory = model - aggregation.update, aggregation.state
        return model

    def loss(self, model: Tensor) -> float:
        """Of the honest clients."""
        points, labels = (torch.cat(each) for each in zip(*self.data[: self.honest], strict=True))
        found = float(torch.nn.functional.binary_cross_entropy_with_logits(points @ model, labels.double()))
        return found if math.isfinite(found) else math.inf

    def success(self, model: Tensor) -> float:
        """How often the attack's trigger fires, on samples of the other class."""
        trigger = self.attack.trigger
        assert trigger is not None
        points, labels = (torch.cat(each) for each in zip(*self.data, strict=True))
        marked = trigger.put(points[labels != trigger.target], self.brightest)
        return float(((marked @ model > 0).long() == trigger.target).double().mean())


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _gradient(model: Tensor, points: Tensor, labels: Tensor) -> Tensor:
    """Of the cross-entropy: the mean of (σ(x·w) − y)·x."""
    error = torch.sigmoid(points @ model) - labels
    return (error[:, None] * points).mean(dim=0)


# --- what came of it ---------------------------------------------------------------------------------------------


def harm(control: Control, rule: str, attack: str, strangers: int = 0) -> float:
    """How far the model is from where it would be without the attack, as a share of the way that it would have made.

    1 if the model stays where it was, 2 if it goes as far the other way, infinite if it is no number any more. Of an
    attack with a trigger: how much oftener that fires.
    """
    made = _rule(control, rule)
    federation = Federation(make_attack(attack, **control.attack), *control.federation, strangers)
    attacked, unattacked = federation.train(made), _unattacked(made, *control.federation)
    if not attacked.isfinite().all():
        return math.inf
    if federation.attack.trigger is not None:
        return federation.success(attacked) - federation.success(unattacked)
    return float((attacked - unattacked).norm() / (unattacked - federation.begin).norm())


def harm_of_strangers(control: Control, rule: str) -> float:
    """The most that it changes for this rule if other honest clients stand in the place of the Byzantine ones."""
    return max(harm(replace(control, attack={}), rule, "none", strangers) for strangers in (1, 2, 3))


def _rule(control: Control, rule: str) -> Aggregator:
    told = {"num_byzantine": control.byzantine} if "num_byzantine" in AGGREGATORS[rule].hyperparameters() else {}
    return make_aggregator(rule, **{**told, **control.rule})


@cache
def _unattacked(rule: Aggregator, byzantine: int, apart: float, rounds: int) -> Tensor:
    return Federation(make_attack("none"), byzantine, apart, rounds).train(rule)


# --- the tables hold ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", BREAKS)
def test_each_attack_breaks_a_rule(attack: str) -> None:
    control = BREAKS[attack]
    found, harmless = harm(control, control.against, attack), harm_of_strangers(control, control.against)
    assert found >= max(BROKEN, 2 * harmless), (
        f"{attack} does {found:.2f} of harm to {control.against}, other honest clients do {harmless:.2f}"
    )


@pytest.mark.parametrize("rule", WITHSTANDS)
def test_each_rule_withstands_an_attack_that_breaks_fedavg(rule: str) -> None:
    control = WITHSTANDS[rule]
    found, to_the_mean = (
        harm(control, rule, control.against),
        harm(replace(control, rule={}), "fedavg", control.against),
    )
    assert found <= HELD, f"{control.against} does {found:.2f} of harm to {rule}"
    assert to_the_mean >= BROKEN, f"{control.against} does only {to_the_mean:.2f} of harm to fedavg"


def _ours(registry: Registry[Any], without: str) -> set[str]:
    return {name for name, part in registry.items() if part.__module__.startswith("fedseca.")} - {without}


def test_every_attack_has_a_control() -> None:
    missing = sorted(_ours(ATTACKS, "none") - BREAKS.keys())
    assert not missing, f"add to BREAKS a rule that each of these attacks breaks: {', '.join(missing)}"


def test_every_rule_has_a_control() -> None:
    missing = sorted(_ours(AGGREGATORS, "fedavg") - WITHSTANDS.keys())
    assert not missing, (
        f"add to WITHSTANDS an attack that each of these rules withstands and fedavg does not: {', '.join(missing)}"
    )


def test_no_attack_does_no_harm_and_others_do_little() -> None:
    """The measure itself: it can be 0, and it is small if only honest people come and go."""
    control = Control("none", "nobody attacks")
    assert harm(control, "fedavg", "none") == 0
    assert 0 < harm_of_strangers(control, "fedavg") < HELD / 2
