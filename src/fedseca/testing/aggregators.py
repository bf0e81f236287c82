"""The contract of every rule, clause by clause."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedseca.aggregators import Aggregation, Aggregator, make_aggregator
from fedseca.errors import NotEnoughClients, NotEnoughRows
from fedseca.server import Server
from fedseca.testing.check import Check, Clause, close, generator, hold, refuses_bad_hyperparameters, updates_of
from fedseca.testing.check import matrix as _matrix
from fedseca.updates import Updates

_CLAUSES: list[Clause[Aggregator]] = [refuses_bad_hyperparameters]


def aggregator_checks(rule: str | Aggregator) -> Iterator[Check[Aggregator]]:
    """The checks of one rule; with a name, the rule has its default hyperparameters."""
    made = make_aggregator(rule)
    return (Check(made, clause) for clause in _CLAUSES)


def check_aggregator(rule: str | Aggregator) -> None:
    """Hold a rule to the contract: the first clause it breaks is an AssertionError that says which."""
    hold(aggregator_checks(rule))


def _clause(clause: Clause[Aggregator]) -> Clause[Aggregator]:
    _CLAUSES.append(clause)
    return clause


# --- what the checks are made of ---------------------------------------------------------------------------------


def _count(rule: Aggregator) -> int:
    """A comfortable number of clients, odd."""
    return max(7, rule.min_clients() + 2) | 1


def _ask(rule: Aggregator, updates: Updates, rounds: int = 0, seed: int = 0) -> Aggregation:
    """The answer in a given round: what came before were other updates of the same clients."""
    state = rule.init(updates.dim)
    for past in range(rounds):
        earlier = _matrix(len(updates), updates.dim, seed=100 + past, dtype=updates.dtype)
        state = rule.aggregate(updates_of(earlier, list(updates.client_ids)), state, generator(seed + past)).state
    return rule.aggregate(updates, state, generator(seed + rounds))


def _same(left: Aggregation, right: Aggregation) -> bool:
    def equal(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)

    return (
        equal(left.update, right.update)
        and left.suspects == right.suspects
        and left.diagnostics.keys() == right.diagnostics.keys()
        and all(equal(left.diagnostics[name], right.diagnostics[name]) for name in left.diagnostics)
        and left.state.keys() == right.state.keys()
        and all(equal(left.state[name], right.state[name]) for name in left.state)
    )


# --- the clauses -------------------------------------------------------------------------------------------------


@_clause
def answers_in_shape_dtype_and_device_of_the_updates(rule: Aggregator) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        updates = updates_of(_matrix(_count(rule), 33, dtype=dtype))
        for rounds in (0, 3):
            answer = _ask(rule, updates, rounds)
            found = (answer.update.shape, answer.update.dtype, answer.update.device)
            expected = (torch.Size([33]), dtype, updates.device)
            assert found == expected, f"found {found}, expected {expected}"
            assert answer.update.isfinite().all(), f"not finite for {dtype}"


@_clause
def tells_the_weight_of_every_client(rule: Aggregator) -> None:
    updates = updates_of(_matrix(_count(rule), 40))
    for rounds in (0, 3):
        answer = _ask(rule, updates, rounds)
        assert "weight" in answer.diagnostics, "there is no diagnostic named weight"
        for name, values in answer.diagnostics.items():
            assert values.shape[0] == len(updates), f"{name} has {values.shape[0]} numbers for {len(updates)} clients"
            assert values.device.type == "cpu", f"{name} is not on the CPU"
        weight = answer.diagnostics["weight"]
        assert weight.ndim == 1 and weight.isfinite().all(), "weight must be one finite number for each client"
        assert (weight >= 0).all() and weight.sum() <= 1 + 1e-9, "weights must be ≥ 0 and sum to 1 at most"
        assert set(answer.suspects) <= set(updates.client_ids), "a suspect is none of the clients"
        told, declared = set(answer.diagnostics), {each.name for each in rule.diagnostics}
        assert told == declared, f"it says {sorted(told)} of the clients and declares {sorted(declared)}"
        for each in rule.diagnostics:
            assert (answer.diagnostics[each.name].ndim == 2) == each.pairs, (
                f"{each.name}: pairs = {each.pairs} is wrong"
            )


@_clause
def changes_neither_updates_nor_state_and_aliases_neither(rule: Aggregator) -> None:
    matrix = _matrix(_count(rule), 25)
    original = matrix.clone()
    updates = updates_of(matrix)
    state = _ask(rule, updates, rounds=3).state
    copies = {name: value.clone() for name, value in state.items()}
    answer = rule.aggregate(updates, state, generator())
    assert torch.equal(matrix, original), "the updates were written to"
    assert state.keys() == copies.keys(), "the state was written to"
    assert all(torch.equal(state[name], copies[name]) for name in copies), "the state was written to"
    answer.update.fill_(torch.nan)
    for name, value in answer.state.items():
        assert value.is_floating_point() is False or not value.isnan().any(), f"state {name} is the update's memory"
    if answer.state is not state:
        for name, value in answer.state.items():
            if name not in state or value is not state[name]:  # what is carried over may be carried as it is
                value.fill_(1)
    assert torch.equal(matrix, original), "the updates are the memory of a result"
    assert all(torch.equal(state[name], copies[name]) for name in copies), "the old state is the memory of the new"


@_clause
def gives_one_answer_however_often_it_is_asked(rule: Aggregator) -> None:
    updates = updates_of(_matrix(_count(rule), 30))
    state = _ask(rule, updates, rounds=3).state
    answers = [rule.aggregate(updates, state, generator(5)) for _ in range(3)]
    assert all(_same(answers[0], other) for other in answers[1:]), "asked again from one state, it answers otherwise"


@_clause
def draws_from_the_generator_it_is_given(rule: Aggregator) -> None:
    updates = updates_of(_matrix(_count(rule), 30))
    before = torch.random.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    _ask(rule, updates, rounds=3)
    assert torch.equal(torch.random.get_rng_state(), before[0]), "torch's global generator was drawn from"
    assert random.getstate() == before[1], "Python's global generator was drawn from"
    assert repr(np.random.get_state()) == before[2], "NumPy's global generator was drawn from"  # noqa: NPY002


@_clause
def works_from_min_clients_on(rule: Aggregator) -> None:
    fewest = rule.min_clients()
    answer = Server(rule).aggregate(_matrix(fewest, 20))
    assert answer.update.isfinite().all(), f"not finite for K = {fewest}"
    # So many are left out that B, which they are some of, cannot be small enough for the others.
    broken = next(b for b in range(1, fewest + 1) if rule.after_leaving_out(b, fewest - b).min_clients() > fewest - b)
    matrix = _matrix(fewest, 20)
    matrix[:broken, 3] = torch.nan
    server = Server(rule)
    saved = server.state_dict()
    try:
        server.aggregate(matrix, client_ids=[f"site {k}" for k in range(fewest)])
    except NotEnoughClients as refused:
        assert "site 0" in str(refused) and "NaN" in str(refused), f"does not say who and why: {refused}"
    else:
        raise AssertionError(f"accepted {fewest - broken} clients, fewer than min_clients() = {fewest}")
    assert server.state_dict() == saved, "a refused round changed the server"


@_clause
def works_for_one_coordinate(rule: Aggregator) -> None:
    for rounds in (0, 3):
        try:
            answer = _ask(rule, updates_of(_matrix(_count(rule), 1)), rounds)
        except NotEnoughRows:  # the signs of one coordinate are alike: a step may leave a single row
            return
        assert answer.update.shape == (1,) and answer.update.isfinite().all(), f"D = 1 gives {answer.update}"


@_clause
def gives_identical_rows_back(rule: Aggregator) -> None:
    if not rule.returns_identical:
        return
    row = _matrix(1, 50, dtype=torch.float64)
    try:
        found = _ask(rule, updates_of(row.repeat(_count(rule), 1))).update
    except NotEnoughRows:  # a step may take them for one
        return
    assert close(found, row[0], tolerance=1e-6), "identical rows do not give that row back"


@_clause
def does_not_depend_on_the_order_of_the_clients(rule: Aggregator) -> None:
    count = _count(rule)
    matrix = _matrix(count, 60, dtype=torch.float64)
    updates = updates_of(matrix)
    order = torch.randperm(count, generator=generator(9)).tolist()
    shuffled = updates.select(order)
    for rounds in (0, 3):
        state = _ask(rule, updates, rounds).state if rounds else rule.init(60)
        straight, permuted = (rule.aggregate(u, state, generator(1)) for u in (updates, shuffled))
        assert close(permuted.update, straight.update, tolerance=1e-9), "the order of the clients changes the result"
        assert set(permuted.suspects) == set(straight.suspects), "the order of the clients changes the suspects"
        for name, values in straight.diagnostics.items():
            expected = values[order] if values.ndim == 1 else values[order][:, order]
            assert close(permuted.diagnostics[name], expected, tolerance=1e-9), f"{name} does not follow the clients"


@_clause
def scales_with_the_updates(rule: Aggregator) -> None:
    if not rule.scales:
        return
    matrix = _matrix(_count(rule), 45, dtype=torch.float64)
    base = _ask(rule, updates_of(matrix)).update
    for factor in (1e-3, 8.0, 1e4):
        found = _ask(rule, updates_of(matrix * factor)).update
        assert close(found, base * factor, tolerance=1e-5), f"{factor}·updates do not give {factor}·result"


@_clause
def stays_finite_for_huge_and_tiny_values(rule: Aggregator) -> None:
    count = _count(rule)
    for dtype in (torch.float32, torch.float64):
        base = _matrix(count, 30, dtype=dtype)
        mixed = base * torch.tensor([1e30, 1e-30, 1.0])[torch.arange(count) % 3, None].to(base)
        zeros = torch.zeros_like(base)
        jumping = (base, base * 1e30, base, base * 1e-30, mixed, base)
        for matrices in ([base * 1e30] * 4, [base * 1e-30] * 4, [mixed] * 4, [zeros] * 4, jumping):
            server = Server(rule)
            for matrix in matrices:
                out = server.aggregate(matrix)
                assert not out.rejected and out.update.isfinite().all(), "a finite update gave NaN or Inf"
                assert out.diagnostics["weight"].isfinite().all(), "a finite update gave a weight that is not"


@_clause
def follows_screening(rule: Aggregator) -> None:
    count = _count(rule)
    matrix = _matrix(count + 2, 30)
    matrix[0, 7], matrix[1, 2] = torch.nan, -torch.inf
    ids = [f"client-{k:03d}" for k in range(count + 2)]
    out = Server(rule).aggregate(matrix, ids)
    left = rule.after_leaving_out(2, count)
    if rule.tolerates(count) >= (rule.assumed_byzantine() or 0):
        assert left == rule, "a rejected client changed the rule, although its bound holds for the others"
    alone = Server(left).aggregate(matrix[2:], ids[2:])
    assert [r.client_id for r in out.rejected] == ids[:2], f"rejected: {out.rejected}"
    assert torch.equal(out.update, alone.update), "a rejected client changed the result"


@_clause
def clients_may_come_and_go(rule: Aggregator) -> None:
    matrix = _matrix(_count(rule) + 2, 30)
    ids = [f"client-{k:03d}" for k in range(len(matrix))]
    server = Server(rule)
    for present in (slice(0, -2), slice(2, None), slice(1, -1), slice(0, None)):
        out = server.aggregate(matrix[present], ids[present])
        assert out.client_ids == tuple(ids[present]), "the diagnostics are of other clients"
        assert out.update.isfinite().all(), "not finite when clients come and go"


@_clause
def goes_on_from_a_saved_state(rule: Aggregator) -> None:
    rounds = [_matrix(_count(rule), 35, seed=seed) for seed in range(5)]
    unbroken = Server(rule)
    expected = [unbroken.aggregate(matrix).update for matrix in rounds][-1]
    first = Server(rule)
    for matrix in rounds[:2]:
        first.aggregate(matrix)
    with tempfile.TemporaryDirectory() as folder:
        first.save(folder)
        second = Server(rule).load(folder)
    found = [second.aggregate(matrix).update for matrix in rounds[2:]][-1]
    assert torch.equal(found, expected), "five rounds are not two, save, load and three"


@_clause
def suspects_nobody_among_clients_that_are_alike(rule: Aggregator) -> None:
    for seed in range(3):
        server = Server(rule)
        for number in range(2):
            out = server.aggregate(_matrix(_count(rule), 2000, seed=10 * seed + number))
            assert not out.suspicions, f"honest clients are suspect: {dict(out.suspicions)}"


@_clause
def bounds_the_outliers_it_claims_to_tolerate(rule: Aggregator) -> None:
    errors = outlier_errors(rule)
    if errors is not None:
        small, large = errors
        assert small <= 1e3, f"outliers of size 1e6 move it by {small:.3g}, honest clients have a length of about 8"
        assert large <= 2 * small + 1e-6, f"outliers of 1e6 move it by {small:.3g}, of 1e9 by {large:.3g}"


def outlier_errors(rule: Aggregator, outliers: int | None = None) -> tuple[float, float] | None:
    """How far outliers of size 1e6 and of size 1e9 move the result from the honest mean; None if none are tolerated."""
    count = max(11, rule.min_clients()) | 1
    outliers = rule.tolerates(count) if outliers is None else outliers
    if outliers == 0:
        return None

    def error(size: float) -> float:
        worst = 0.0
        honest = _matrix(count - outliers, 40, dtype=torch.float64)
        for direction in (torch.ones(40).to(honest), -honest.mean(dim=0), _matrix(1, 40, seed=3)[0]):
            bad = _outliers(direction, size, outliers)
            for rounds in (0, 3):
                result = _ask(rule, updates_of(torch.cat([honest, bad])), rounds).update
                worst = max(worst, float((result - honest.mean(dim=0)).norm()))
        return worst

    return error(1e6), error(1e9)


def _outliers(direction: Tensor, size: float, count: int) -> Tensor:
    """Rows of a length along a direction, no two of them the same."""
    rows: Tensor = (size * direction.double() / direction.double().norm()).repeat(count, 1)
    rows += torch.arange(count).to(rows)[:, None] * rows / 10
    return rows


@_clause
def keeps_its_bound_over_the_rounds(rule: Aggregator) -> None:
    if not rule.init(1):
        return  # without a memory each round is the first
    errors = errors_over_rounds(rule)
    if errors is not None:
        assert max(errors) <= 1e3, f"outliers move it by {max(errors):.3g}, honest clients have a length of about 8"
        third = len(errors) // 3
        earlier, last = max(errors[third:-third]), max(errors[-third:])
        assert last <= 1.5 * earlier + 1e-6, f"moved by {earlier:.3g} at first and by {last:.3g} later: without end"


def errors_over_rounds(rule: Aggregator, outliers: int | None = None, rounds: int = 60) -> list[float] | None:
    """How far outliers of 1e30 that always push one way move the result from the honest mean, round after round.

    Of as many clients as the rule tolerates; None if that is none.
    """
    count = max(10, rule.min_clients())
    outliers = rule.tolerates(count) if outliers is None else outliers
    if outliers == 0:
        return None
    state, errors = rule.init(12), []
    bad = _outliers(_matrix(1, 12, seed=3)[0], 1e30, outliers)
    for number in range(rounds):
        honest = _matrix(count - outliers, 12, seed=number % 7, dtype=torch.float64)
        answer = rule.aggregate(updates_of(torch.cat([honest, bad])), state, generator(number))
        state = answer.state
        errors.append(float((answer.update - honest.mean(dim=0)).norm()))
    return errors
