"""The contract of every attack, clause by clause."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedseca.aggregators import State
from fedseca.attacks import Attack, Knowledge, make_attack
from fedseca.server import Server
from fedseca.testing.check import Check, Clause, device, hold, refuses_bad_hyperparameters

_CLAUSES: list[Clause[Attack]] = [refuses_bad_hyperparameters]


def attack_checks(attack: str | Attack) -> Iterator[Check[Attack]]:
    """The checks of one attack; with a name, it has its default hyperparameters."""
    made = make_attack(attack)
    return (Check(made, clause) for clause in _CLAUSES)


def check_attack(attack: str | Attack) -> None:
    """Hold an attack to the contract: the first clause it breaks is an AssertionError that says which."""
    hold(attack_checks(attack))


def _clause(clause: Clause[Attack]) -> Clause[Attack]:
    _CLAUSES.append(clause)
    return clause


# --- what the checks are made of ---------------------------------------------------------------------------------

_CLASSES, _FEATURES = 4, 6


@dataclass
class _Table:
    """A round of a federation: a linear model of labelled points, one gradient for each client, and a server."""

    attack: Attack
    honest: Tensor
    own: Tensor
    """What the Byzantine clients' training gave, on the samples that the attack makes."""
    unpoisoned: Tensor
    """The same on their true labels."""
    model: Tensor
    server: Server

    @classmethod
    def lay(
        cls, attack: Attack, honest: int = 6, byzantine: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> _Table:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        centres = draw(_CLASSES, _FEATURES)
        weights = draw(_CLASSES, _FEATURES) / 3
        rows, true_rows = [], []
        for client in range(honest + byzantine):
            labels = torch.randint(_CLASSES, (20,), generator=generator)
            points = centres[labels] + draw(20, _FEATURES)
            seen, taught = points, labels
            if client >= honest:
                taught = attack.poison(labels.clone(), _CLASSES)
                if attack.trigger is not None:
                    brightest = centres.amax(dim=0) + 3
                    seen, taught = attack.trigger.mark(points, taught, brightest, client - honest, byzantine)
            rows.append(_gradient(weights, seen, taught))
            true_rows.append(_gradient(weights, points, labels))
        stacked, true, model = (
            each.to(device(), dtype) for each in (torch.stack(rows), torch.stack(true_rows), weights.reshape(-1))
        )
        return cls(attack, stacked[:honest], stacked[honest:], true[honest:], model, Server("cwmed"))

    def knowledge(self, round: int = 0) -> Knowledge:
        def probe(rows: Tensor) -> Tensor:
            update: Tensor = self.server.rehearse(torch.cat([self.honest, rows])).update
            return update

        ids = tuple(f"client-{k:03d}" for k in range(len(self.honest)))
        return Knowledge.of(self.attack, round, len(self.own), ids, own=self.own, model=self.model, probe=probe)

    def craft(self, state: State | None = None, seed: int = 0, round: int = 0) -> tuple[Tensor, State]:
        rng = torch.Generator().manual_seed(seed)
        return self.attack.craft(self.honest, self.knowledge(round), state or {}, rng)


def _gradient(weights: Tensor, points: Tensor, labels: Tensor) -> Tensor:
    """Of the cross-entropy of a linear model, by its equation: (softmax(Wx) − y)·xᵀ."""
    error = torch.softmax(points @ weights.T, dim=1) - torch.eye(len(weights), dtype=weights.dtype)[labels]
    return (error.T @ points / len(points)).reshape(-1)


def _after(attack: Attack, rounds: int) -> State:
    """What the attack remembers after some rounds."""
    state: State = {}
    for past in range(rounds):
        _, state = _Table.lay(attack, seed=100 + past).craft(state, seed=past, round=past)
    return state


def _equal(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)


# --- the clauses -------------------------------------------------------------------------------------------------


@_clause
def sends_a_row_for_each_byzantine_client(attack: Attack) -> None:
    for dtype in (torch.float32, torch.float64):
        for byzantine in (0, 1, 3):
            table = _Table.lay(attack, byzantine=byzantine, dtype=dtype)
            rows, _ = table.craft()
            assert rows.shape == table.own.shape, f"the rows have the shape {rows.shape}, expected {table.own.shape}"
            assert rows.dtype == dtype, (
                f"the rows are {rows.dtype}; they must have the dtype of the honest rows, {dtype}"
            )
            assert not attack.finite or rows.isfinite().all(), "the rows are not finite"


@_clause
def works_with_one_honest_client_and_with_equal_ones(attack: Attack) -> None:
    for rounds in (0, 1, 7):
        alone = _Table.lay(attack, honest=1)
        equal = _Table.lay(attack, honest=4)
        equal.honest = equal.honest[:1].repeat(4, 1)
        silent = _Table.lay(attack, honest=4)
        silent.honest = torch.zeros_like(silent.honest)
        for table in (alone, equal, silent):
            rows, _ = table.craft(_after(attack, rounds), round=rounds)
            assert rows.shape == table.own.shape, f"{rows.shape} for {len(table.own)} Byzantine clients"
            assert not attack.finite or rows.isfinite().all(), "the rows are not finite"


@_clause
def leaves_the_honest_rows_and_its_memory_alone(attack: Attack) -> None:
    for rounds in (0, 3, 7):
        table, state = _Table.lay(attack), dict(_after(attack, rounds))
        originals = {name: value.clone() for name, value in state.items()}
        honest, own, model = table.honest.clone(), table.own.clone(), table.model.clone()
        rows, after = table.craft(state, round=rounds)
        rows.fill_(7.0)
        for name, value in after.items():
            if name not in state or value is not state[name]:  # what is carried over may be carried as it is
                value.fill_(True)
        assert torch.equal(table.honest, honest), "the honest rows were written to, or are the memory of the result"
        assert torch.equal(table.own, own), "the clients' own rows were written to, or are the memory of the result"
        assert torch.equal(table.model, model), "the global model was written to, or is the memory of the result"
        assert _equal(state, originals), "the state was written to"


@_clause
def leaves_the_labels_alone(attack: Attack) -> None:
    for classes in (2, 3, 10):
        labels = torch.arange(classes).repeat(2)
        original = labels.clone()
        poisoned = attack.poison(labels, classes)
        assert torch.equal(labels, original), "the labels were written to"
        assert poisoned.shape == labels.shape and poisoned.dtype == labels.dtype, "poisoned labels of another shape"
        assert int(poisoned.min()) >= 0 and int(poisoned.max()) < classes, "a poisoned label is no class"


@_clause
def marks_samples_as_it_says(attack: Attack) -> None:
    trigger = attack.trigger
    if trigger is None:
        return
    assert attack.attacks_data(), "it has a trigger and says that it does not attack data"
    for shape in ((3, 6, 6), (1, 2, 2), (5,), (1,)):
        inputs = torch.linspace(-1, 1, 8 * math.prod(shape)).reshape(8, *shape)
        labels, brightest = torch.arange(8) + trigger.target + 1, torch.full(shape[:1], 2.0)
        originals = inputs.clone(), labels.clone()
        whole = trigger.put(inputs, brightest)
        marked, taught = trigger.mark(inputs, labels, brightest, 0, 2)
        assert torch.equal(inputs, originals[0]) and torch.equal(labels, originals[1]), "the samples were written to"
        assert not torch.equal(whole, inputs), f"inputs of the shape {shape} with the trigger are as they were"
        count = max(1, round(trigger.share * 8))
        assert (taught == trigger.target).tolist() == [True] * count + [False] * (8 - count), "other labels than said"
        assert torch.equal(marked[count:], inputs[count:]), "more samples are marked than said"
        together = torch.stack([trigger.put(inputs, brightest, member, 2) for member in range(2)]).amax(dim=0)
        assert torch.equal(together, whole), "the parts of two Byzantine clients do not make up the trigger"


@_clause
def draws_from_the_generator_it_is_given(attack: Attack) -> None:
    before = torch.random.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    for rounds in (0, 3):
        table, state = _Table.lay(attack), _after(attack, rounds)
        first, again = table.craft(state, seed=5), table.craft(state, seed=5)
        assert _same(first[0], again[0]) and _equal(first[1], again[1]), "the same seed gives other rows"
    assert torch.equal(torch.random.get_rng_state(), before[0]), "torch's global generator was drawn from"
    assert random.getstate() == before[1], "Python's global generator was drawn from"
    assert repr(np.random.get_state()) == before[2], "NumPy's global generator was drawn from"  # noqa: NPY002


@_clause
def asking_leaves_the_server_as_it_was(attack: Attack) -> None:
    for rule in ("fedseca", "cclip"):
        table = _Table.lay(attack)
        table.server = Server(rule)
        table.server.aggregate(torch.cat([table.honest, table.own]))
        before = table.server.state_dict()
        table.craft()
        after = table.server.state_dict()
        assert _equal(before.pop("state"), after.pop("state")), f"{rule} remembers having been asked"
        assert before == after, f"{rule} remembers having been asked"


@_clause
def goes_on_from_a_saved_memory(attack: Attack) -> None:
    state = _after(attack, 3)
    restored = load(save({name: value.contiguous() for name, value in state.items()})) if state else {}
    table = _Table.lay(attack)
    assert _same(table.craft(state)[0], table.craft(restored)[0]), "a memory that was saved and read gives other rows"


@_clause
def honest_clients_may_come_and_go(attack: Attack) -> None:
    state: State = {}
    for round, honest in enumerate((6, 2, 4, 1, 5, 3, 6, 2)):
        table = _Table.lay(attack, honest=honest, byzantine=round % 3, seed=round)
        rows, state = table.craft(state, round=round)
        assert rows.shape == table.own.shape, f"{rows.shape} for {len(table.own)} Byzantine clients"


@_clause
def makes_the_error_of_the_mean_grow_if_it_claims_to_harm(attack: Attack) -> None:
    for rounds in (0, 3):
        damage = damage_to_the_mean(attack, rounds=rounds)
        assert (damage > 1.05) == attack.harms, f"makes the error {damage:.3g} times as large, harms = {attack.harms}"


def damage_to_the_mean(attack: Attack, *, byzantine: int = 2, rounds: int = 0) -> float:
    """How many times farther the mean of all clients is from the honest mean than if its clients had been honest.

    Averaged over several federations; 1 for no attack, infinite where the mean is not finite any more.
    """
    attacked = honest = 0.0
    for seed in range(5):
        table = _Table.lay(attack, byzantine=byzantine, seed=seed)
        rows, _ = table.craft(_after(attack, rounds), round=rounds)
        true_mean = table.honest.mean(dim=0)
        attacked += float((torch.cat([table.honest, rows]).mean(dim=0) - true_mean).norm())
        honest += float((torch.cat([table.honest, table.unpoisoned]).mean(dim=0) - true_mean).norm())
    if not np.isfinite(attacked):
        return float("inf")
    return attacked / honest if honest > 0 else 1.0
