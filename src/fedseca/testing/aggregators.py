"""The contract of every rule, clause by clause."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedseca.aggregators import Aggregation, Aggregator, make_aggregator
from fedseca.errors import NotEnoughClients
from fedseca.server import Server
from fedseca.testing.check import Check, Clause, hold, refuses_bad_hyperparameters
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


def _matrix(clients: int, dim: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Clients that share a direction and differ by noise; no two numbers are equal."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(clients, dim, generator=generator, dtype=torch.float64)
    return (direction + 0.7 * noise).to(dtype)


def _count(rule: Aggregator) -> int:
    """A comfortable number of clients, odd."""
    return max(7, rule.min_clients() + 2) | 1


def _updates(matrix: Tensor, client_ids: list[str] | None = None) -> Updates:
    ids = client_ids or [f"client-{k:03d}" for k in range(len(matrix))]
    return Updates.collect(matrix, ids)


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ask(rule: Aggregator, updates: Updates, rounds: int = 0, seed: int = 0) -> Aggregation:
    """The answer in a given round: what came before were other updates of the same clients."""
    state = rule.init(updates.dim)
    for past in range(rounds):
        earlier = _matrix(len(updates), updates.dim, seed=100 + past, dtype=updates.dtype)
        state = rule.aggregate(_updates(earlier, list(updates.client_ids)), state, _rng(seed + past)).state
    return rule.aggregate(updates, state, _rng(seed + rounds))


def _close(found: Tensor, expected: Tensor, *, tolerance: float = 1e-5) -> bool:
    scale = float(expected.double().nan_to_num().abs().max()) if expected.numel() else 0.0
    return torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _same(left: Aggregation, right: Aggregation) -> bool:
    def equal(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)

    return (
        equal(left.update, right.update)
        and left.suspects == right.suspects
        and left.clients.keys() == right.clients.keys()
        and all(equal(left.clients[name], right.clients[name]) for name in left.clients)
        and left.state.keys() == right.state.keys()
        and all(equal(left.state[name], right.state[name]) for name in left.state)
    )


# --- the clauses -------------------------------------------------------------------------------------------------


@_clause
def answers_in_shape_dtype_and_device_of_the_updates(rule: Aggregator) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        updates = _updates(_matrix(_count(rule), 33, dtype=dtype))
        for rounds in (0, 3):
            answer = _ask(rule, updates, rounds)
            found = (answer.update.shape, answer.update.dtype, answer.update.device)
            expected = (torch.Size([33]), dtype, updates.device)
            assert found == expected, f"found {found}, expected {expected}"
            assert answer.update.isfinite().all(), f"not finite for {dtype}"


@_clause
def tells_the_weight_of_every_client(rule: Aggregator) -> None:
    updates = _updates(_matrix(_count(rule), 40))
    for rounds in (0, 3):
        answer = _ask(rule, updates, rounds)
        assert "weight" in answer.clients, "there is no diagnostic named weight"
        for name, values in answer.clients.items():
            assert values.shape[0] == len(updates), f"{name} has {values.shape[0]} numbers for {len(updates)} clients"
            assert values.device.type == "cpu", f"{name} is not on the CPU"
        weight = answer.clients["weight"]
        assert weight.ndim == 1 and weight.isfinite().all(), "weight must be one finite number for each client"
        assert (weight >= 0).all() and weight.sum() <= 1 + 1e-9, "weights must be ≥ 0 and sum to 1 at most"
        assert set(answer.suspects) <= set(updates.client_ids), "a suspect is none of the clients"


@_clause
def changes_neither_updates_nor_state_and_aliases_neither(rule: Aggregator) -> None:
    matrix = _matrix(_count(rule), 25)
    original = matrix.clone()
    updates = _updates(matrix)
    state = _ask(rule, updates, rounds=3).state
    copies = {name: value.clone() for name, value in state.items()}
    answer = rule.aggregate(updates, state, _rng())
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
    updates = _updates(_matrix(_count(rule), 30))
    state = _ask(rule, updates, rounds=3).state
    answers = [rule.aggregate(updates, state, _rng(5)) for _ in range(3)]
    assert all(_same(answers[0], other) for other in answers[1:]), "asked again from one state, it answers otherwise"


@_clause
def draws_from_the_generator_it_is_given(rule: Aggregator) -> None:
    updates = _updates(_matrix(_count(rule), 30))
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
    matrix = _matrix(fewest, 20)
    matrix[0, 3] = torch.nan
    server = Server(rule)
    saved = server.state_dict()
    try:
        server.aggregate(matrix, client_ids=[f"site {k}" for k in range(fewest)])
    except NotEnoughClients as refused:
        assert "site 0" in str(refused) and "NaN" in str(refused), f"does not say who and why: {refused}"
    else:
        raise AssertionError(f"accepted {fewest - 1} clients, fewer than min_clients() = {fewest}")
    assert server.state_dict() == saved, "a refused round changed the server"


@_clause
def works_for_one_coordinate(rule: Aggregator) -> None:
    for rounds in (0, 3):
        answer = _ask(rule, _updates(_matrix(_count(rule), 1)), rounds)
        assert answer.update.shape == (1,) and answer.update.isfinite().all(), f"D = 1 gives {answer.update}"


@_clause
def gives_identical_rows_back(rule: Aggregator) -> None:
    if not rule.returns_identical:
        return
    row = _matrix(1, 50, dtype=torch.float64)
    found = _ask(rule, _updates(row.repeat(_count(rule), 1))).update
    assert _close(found, row[0], tolerance=1e-6), "identical rows do not give that row back"


@_clause
def does_not_depend_on_the_order_of_the_clients(rule: Aggregator) -> None:
    count = _count(rule)
    matrix = _matrix(count, 60, dtype=torch.float64)
    updates = _updates(matrix)
    order = torch.randperm(count, generator=_rng(9)).tolist()
    shuffled = updates.select(order)
    for rounds in (0, 3):
        state = _ask(rule, updates, rounds).state if rounds else rule.init(60)
        straight, permuted = (rule.aggregate(u, state, _rng(1)) for u in (updates, shuffled))
        assert _close(permuted.update, straight.update, tolerance=1e-9), "the order of the clients changes the result"
        assert set(permuted.suspects) == set(straight.suspects), "the order of the clients changes the suspects"
        for name, values in straight.clients.items():
            expected = values[order] if values.ndim == 1 else values[order][:, order]
            assert _close(permuted.clients[name], expected, tolerance=1e-9), f"{name} does not follow the clients"


@_clause
def scales_with_the_updates(rule: Aggregator) -> None:
    if not rule.scales:
        return
    matrix = _matrix(_count(rule), 45, dtype=torch.float64)
    base = _ask(rule, _updates(matrix)).update
    for factor in (1e-3, 8.0, 1e4):
        found = _ask(rule, _updates(matrix * factor)).update
        assert _close(found, base * factor, tolerance=1e-5), f"{factor}·updates do not give {factor}·result"


@_clause
def stays_finite_for_huge_and_tiny_values(rule: Aggregator) -> None:
    count = _count(rule)
    for dtype in (torch.float32, torch.float64):
        base = _matrix(count, 30, dtype=dtype)
        mixed = base * torch.tensor([1e30, 1e-30, 1.0])[torch.arange(count) % 3, None].to(dtype)
        zeros = torch.zeros_like(base)
        jumping = (base, base * 1e30, base, base * 1e-30, mixed, base)
        for matrices in ([base * 1e30] * 4, [base * 1e-30] * 4, [mixed] * 4, [zeros] * 4, jumping):
            server = Server(rule)
            for matrix in matrices:
                out = server.aggregate(matrix)
                assert not out.rejected and out.update.isfinite().all(), "a finite update gave NaN or Inf"
                assert out.clients["weight"].isfinite().all(), "a finite update gave a weight that is not"


@_clause
def follows_screening(rule: Aggregator) -> None:
    count = _count(rule)
    matrix = _matrix(count + 2, 30)
    matrix[0, 7], matrix[1, 2] = torch.nan, -torch.inf
    ids = [f"client-{k:03d}" for k in range(count + 2)]
    out = Server(rule).aggregate(matrix, ids)
    alone = Server(rule).aggregate(matrix[2:], ids[2:])
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
        for direction in (torch.ones(40), -honest.mean(dim=0), _matrix(1, 40, seed=3)[0]):
            bad = (size * direction.double() / direction.double().norm()).repeat(outliers, 1)
            bad += torch.arange(outliers)[:, None] * bad / 10  # no two of them are the same
            for rounds in (0, 3):
                result = _ask(rule, _updates(torch.cat([honest, bad])), rounds).update
                worst = max(worst, float((result - honest.mean(dim=0)).norm()))
        return worst

    return error(1e6), error(1e9)
