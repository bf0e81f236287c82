"""The contract of every step, clause by clause; and every rule behind it, held to the contract of rules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from fedseca.aggregators import AGGREGATORS, Chain, make_aggregator
from fedseca.steps import STEPS, Mix, Step, StepAfter, StepBefore
from fedseca.testing.aggregators import aggregator_checks
from fedseca.testing.check import Check, Clause, close, generator, hold, matrix, refuses_bad_hyperparameters, updates_of
from fedseca.updates import State, Updates

_BEFORE: list[Clause[StepBefore]] = [refuses_bad_hyperparameters]
_AFTER: list[Clause[StepAfter]] = [refuses_bad_hyperparameters]


def step_checks(step: str | Step) -> Iterator[Check[Step]]:
    """The checks of one step alone; with a name, it has its default hyperparameters."""
    made = STEPS.make(step) if isinstance(step, str) else step
    clauses = _BEFORE if isinstance(made, StepBefore) else _AFTER
    return (Check(made, clause) for clause in clauses)  # type: ignore[arg-type]  # of the step's own kind


def chain_checks(step: str | Step) -> Iterator[Check[Chain]]:
    """The contract of rules, over every registered rule with the step before or after it."""
    made = STEPS.make(step) if isinstance(step, str) else step
    for name in AGGREGATORS:
        rule = make_aggregator(name)
        whole = Chain(before=(made,), rule=rule) if isinstance(made, StepBefore) else None
        whole = Chain(rule=rule, after=(made,)) if isinstance(made, StepAfter) else whole
        assert whole is not None, f"{made.name} is neither a StepBefore nor a StepAfter"
        yield from aggregator_checks(whole)  # type: ignore[misc]  # a chain is a rule


def check_step(step: str | Step) -> None:
    """Hold a step to the contract, alone and with every rule: the first clause it breaks is an AssertionError."""
    hold(chain(step_checks(step), chain_checks(step)))  # type: ignore[arg-type]  # each with its own subject


# --- steps before a rule -----------------------------------------------------------------------------------------


def _before(clause: Clause[StepBefore]) -> Clause[StepBefore]:
    _BEFORE.append(clause)
    return clause


def _count(step: StepBefore) -> int:
    return max(7, step.min_clients(3) + 2)


def _ask(step: StepBefore, updates: Updates, seed: int = 0) -> Mix:
    return step.mix(updates, step.init(updates.dim), generator(seed))


def _rows(mix: Mix, updates: Updates) -> Tensor:
    """What stands for each client (K, D), in float64."""
    rows = mix.rows(updates)
    return torch.stack([rows.row(m).double() for m in mix.row_of])


@_before
def answers_at_most_as_many_mixes_as_clients(step: StepBefore) -> None:
    for clients in (step.min_clients(1), _count(step), 2 * _count(step) + 1):
        updates = updates_of(matrix(clients, 30))
        mix = _ask(step, updates)
        mixes = len(mix.members)
        assert 1 <= mixes <= clients, f"{mixes} mixes of {clients} clients"
        assert len(mix.weights) == len(mix.ids) == mixes, "members, weights and ids must be one for each mix"
        assert len(set(mix.ids)) == mixes, "two mixes have the same id"
        assert len(mix.row_of) == clients, "there must be a mix that stands for each client"
        assert set(mix.row_of) == set(range(mixes)), "a mix stands for nobody"
        for members, weights in zip(mix.members, mix.weights, strict=True):
            assert len(members) == len(weights) > 0, "a mix needs a weight for each of its rows, and at least one"
            assert len(set(members)) == len(members) and set(members) <= set(range(clients)), "a wrong member"
            assert np.isfinite(weights).all(), "a weight is not finite"
        if step.keeps_clients:
            assert list(mix.row_of) == list(range(clients)), "keeps_clients, but the mix k is not that of client k"


@_before
def tells_what_it_declares(step: StepBefore) -> None:
    updates = updates_of(matrix(_count(step), 30))
    mix = _ask(step, updates)
    declared = {each.name for each in step.diagnostics}
    assert set(mix.diagnostics) == declared, f"it says {sorted(mix.diagnostics)} and declares {sorted(declared)}"
    for each in step.diagnostics:
        values = mix.diagnostics[each.name]
        assert values.shape == (len(updates),) * (2 if each.pairs else 1), f"{each.name} has the shape {values.shape}"
        assert values.device.type == "cpu" and values.isfinite().all(), f"{each.name} is not finite, or not on the CPU"


@_before
def leaves_the_rows_that_it_promises(step: StepBefore) -> None:
    for wanted in (1, 3, 5):
        clients = step.min_clients(wanted)
        same = len(_ask(step, updates_of(matrix(1, 60).repeat(clients, 1))).members)
        assert same >= step.fewest_rows(clients), f"{clients} equal clients leave {same} rows"
        left = len(_ask(step, updates_of(matrix(clients, 60))).members)
        assert left >= wanted, f"{clients} clients leave {left} rows, min_clients promises {wanted}"


@_before
def changes_neither_updates_nor_state(step: StepBefore) -> None:
    rows = matrix(_count(step), 25)
    original, updates = rows.clone(), updates_of(rows)
    state: State = step.mix(updates, step.init(25), generator()).state
    copies = {name: value.clone() for name, value in state.items()}
    step.mix(updates, state, generator())
    assert torch.equal(rows, original), "the updates were written to"
    assert state.keys() == copies.keys() and all(torch.equal(state[n], copies[n]) for n in copies), "state written to"


@_before
def gives_one_answer_and_draws_from_its_generator(step: StepBefore) -> None:
    updates = updates_of(matrix(_count(step), 30))
    before = torch.random.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    first, again = _rows(_ask(step, updates, 5), updates), _rows(_ask(step, updates, 5), updates)
    assert torch.equal(first, again), "asked again with the same seed, it answers otherwise"
    assert torch.equal(torch.random.get_rng_state(), before[0]), "torch's global generator was drawn from"
    assert random.getstate() == before[1], "Python's global generator was drawn from"
    assert repr(np.random.get_state()) == before[2], "NumPy's global generator was drawn from"  # noqa: NPY002


@_before
def does_not_depend_on_the_order_of_the_clients(step: StepBefore) -> None:
    updates = updates_of(matrix(_count(step), 40, dtype=torch.float64))
    order = torch.randperm(len(updates), generator=generator(9)).tolist()
    straight, shuffled = _ask(step, updates), _ask(step, updates.select(order))
    expected = _rows(straight, updates)[order]
    assert close(_rows(shuffled, updates.select(order)), expected, tolerance=1e-9), "the order changes the mixes"
    for each in step.diagnostics:
        values = straight.diagnostics[each.name][order]
        values = values[:, order] if each.pairs else values
        found = shuffled.diagnostics[each.name]
        assert close(found, values, tolerance=1e-9), f"{each.name} does not follow the clients"


@_before
def keeps_what_its_traits_promise(step: StepBefore) -> None:
    rows = matrix(_count(step), 45, dtype=torch.float64)
    base = _rows(_ask(step, updates_of(rows)), updates_of(rows))
    if step.scales:
        for factor in (1e-3, 8.0, 1e4):
            scaled = updates_of(rows * factor)
            assert close(_rows(_ask(step, scaled), scaled), base * factor, tolerance=1e-6), f"{factor}·updates differ"
    if step.returns_identical:
        same = updates_of(rows[:1].repeat(len(rows), 1))
        found = _rows(_ask(step, same), same)
        assert close(found, rows[:1].expand_as(found).cpu().to(found), tolerance=1e-9), "identical rows are changed"


@_before
def stays_finite_for_huge_and_tiny_values(step: StepBefore) -> None:
    count = _count(step)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        base = matrix(count, 30, dtype=dtype)
        huge, tiny = (1e4, 1e-7) if dtype == torch.float16 else (1e30, 1e-30)
        mixed = base * torch.tensor([huge, tiny, 1.0])[torch.arange(count) % 3, None].to(base)
        for rows in (base * huge, base * tiny, mixed, torch.zeros_like(base)):
            updates = updates_of(rows)
            assert _rows(_ask(step, updates), updates).isfinite().all(), f"finite rows of {dtype} give NaN or Inf"


# --- steps after a rule ------------------------------------------------------------------------------------------


def _after(clause: Clause[StepAfter]) -> Clause[StepAfter]:
    _AFTER.append(clause)
    return clause


@_after
def answers_in_shape_and_dtype_and_changes_nothing(step: StepAfter) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        update = matrix(1, 33, dtype=dtype)[0]
        original, state = update.clone(), step.init(33)
        for _ in range(3):
            copies = {name: value.clone() for name, value in state.items()}
            found, after = step.apply(update, state)
            assert found.shape == update.shape and found.dtype == dtype and found.isfinite().all(), f"found {found}"
            assert torch.equal(update, original), "the aggregate was written to"
            assert all(torch.equal(state[name], copies[name]) for name in copies), "the state was written to"
            state = after


@_after
def stays_within_what_it_was_given(step: StepAfter) -> None:
    state, longest = step.init(20), 0.0
    for number in range(60):
        update = matrix(1, 20, seed=number, dtype=torch.float64)[0]
        longest = max(longest, float(update.norm()))
        found, state = step.apply(update, state)
        assert float(found.norm()) <= longest * (1 + 1e-9), "longer than every aggregate that it was given"
