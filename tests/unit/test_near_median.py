"""The mean around the median: compiled as in reference.py, bit for bit where values are selected; and both as said."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseca import ops
from fedseca.ops import cpu, reference, rows
from fedseca.ops.warm import PIECES
from fedseca.updates import Updates
from tests.oracle import selection_equations as oracle
from tests.oracle.matrices import assert_close, matrices
from tests.unit.test_cpu import CLIENTS, DIMS, DTYPES, KINDS, SEEDS, SIZES, WRITTEN, arrays, close, mixed, values


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch):
    """Tasks so small that there are several, and threads for all of them."""
    monkeypatch.setattr(cpu, "TASK", 1500)
    monkeypatch.setattr(cpu, "_WORTH_A_THREAD", 0)


def kept_numbers(clients: int) -> set[int]:
    """One, a few, half, all but some, all."""
    return {1, min(3, clients), (clients + 1) // 2, max(1, clients - clients // 4), clients}


def same(updates: Updates, plain: Updates, scale: float | torch.Tensor) -> None:
    for keep in kept_numbers(len(updates)):
        ours, theirs = cpu.mean_near_median(updates, keep), reference.mean_near_median(plain, keep)
        assert ours.update.dtype == updates.dtype
        assert close(ours.update, theirs.update.to(updates.dtype), scale), keep
        assert torch.equal(ours.share, theirs.share), keep
        if keep == 1:  # the median itself
            assert torch.equal(ours.update, theirs.update.to(updates.dtype))
            assert torch.equal(ours.update, cpu.median(updates).update)


@settings(max_examples=40)
@given(clients=CLIENTS, dim=DIMS, kind=KINDS, seed=SEEDS, dtype=DTYPES)
def test_compiled_as_in_the_reference(clients, dim, kind, seed, dtype):
    matrix = values(kind, clients, dim, seed, dtype)
    updates = Updates.collect(matrix)
    assert cpu.takes(updates)
    same(updates, updates, matrix.double().abs().amax(dim=0))


@settings(max_examples=20)
@given(clients=CLIENTS, dim=DIMS, seed=SEEDS, dtype=DTYPES)
def test_values_that_lie_symmetrically(clients, dim, seed, dtype):
    """Small whole numbers: at both ends of the window there are values that are equally far from the median."""
    matrix = torch.randint(-3, 4, (clients, dim), generator=torch.Generator().manual_seed(seed)).to(dtype)
    same(Updates.collect(matrix), Updates.collect(matrix), 1.0)
    exact = Updates.collect(matrix)
    for keep in kept_numbers(clients):  # sums of whole numbers are exact
        found = [backend.mean_near_median(exact, keep).update.double() * keep for backend in (cpu, reference)]
        assert torch.equal(found[0].round(), found[1].round())


@settings(max_examples=20)
@given(
    clients=st.sampled_from([1, 2, 5, 8, 17, 33]),
    dim=DIMS,
    kind=st.sampled_from(["normal", "zeros", "ties", "sparse"]),
    seed=SEEDS,
    dtype=DTYPES,
)
def test_mixed_rows(clients, dim, kind, seed, dtype):
    updates = mixed(Updates.collect(values(kind, clients, dim, seed, dtype)), seed)
    plain = torch.stack(updates.read(0, dim))
    same(updates, Updates.collect(plain), plain.double().abs().amax(dim=0))


@pytest.mark.parametrize("written", WRITTEN, ids=str)
@pytest.mark.parametrize("with_before", [False, True])
def test_every_form_is_worked_on_as_the_rows_it_stands_for(monkeypatch, written, with_before):
    monkeypatch.setattr("fedseca.updates.BLOCK_ELEMENTS", 3000)  # else small updates are read at once
    monkeypatch.setattr(rows, "_PIECE", 5 * 3000)
    sent = [arrays(row.to(written[k % len(written)])) for k, row in enumerate(values("zeros", 6, sum(SIZES), 4))]
    before = arrays(values("normal", 1, sum(SIZES), 5)[0].to(written[0])) if with_before else None
    found = Updates.collect(sent, before=before)
    assert rows.Rows.of(found).table is not None
    dense = torch.stack([found.row(k) for k in range(6)])
    # of narrow numbers the last bit may be rounded the other way
    scale = 3e4 if found.dtype in (torch.float16, torch.bfloat16) else dense.double().abs().amax(dim=0)
    same(found, Updates.collect(dense), scale)


@pytest.mark.parametrize("mix", [False, True])
def test_the_number_of_threads_changes_nothing(mix):
    updates = Updates.collect(values("zeros", 9, 20_011, 1))
    updates = mixed(updates, 3) if mix else updates
    answers = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        answers.append(ops.mean_near_median(updates, 6))
    torch.set_num_threads(1)
    for other in answers[1:]:
        assert torch.equal(other.update, answers[0].update) and torch.equal(other.share, answers[0].share)


@pytest.mark.parametrize("backend", [cpu, reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(matrix=matrices(torch.float32), data=st.data())
def test_as_it_is_said(backend, dtype, matrix, data):
    """From the median outward, the nearer one first, and of two that are equally far the one below."""
    keep = data.draw(st.integers(1, len(matrix)))
    found = backend.mean_near_median(Updates.collect(matrix.to(dtype)), keep)
    precise = 1e-6 if dtype == torch.float32 else 1e-12
    assert_close(found.update, oracle.mean_near_median(matrix.tolist(), keep), precise, matrix.abs().max(dim=0).values)
    assert_close(found.share, oracle.shares_near_median(matrix.tolist(), keep), 1e-12)


@pytest.mark.parametrize("backend", [cpu, reference])
@pytest.mark.parametrize(
    ("column", "keep", "expected"),
    [
        ([0.0, 2.0, 4.0], 2, 1.0),
        ([4.0, 3.0, 2.0, 1.0, 0.0], 4, 1.5),
        ([1.0, 2.0, 9.0, 10.0], 2, 1.5),
        ([8.0, 9.0, 10.0, 0.0], 3, 9.0),
        ([5.0, 5.0, 5.0, 1.0], 2, 5.0),
        ([-0.0, 0.0, 1.0], 2, 0.0),
        ([1e30, 1.0, 2.0, -1e30], 3, -1e30 / 3),  # as float64 numbers, both are equally far from 1
    ],
)
def test_by_hand(backend, column, keep, expected):
    for order in (column, column[::-1]):
        matrix = torch.tensor(order, dtype=torch.float64)[:, None]
        assert backend.mean_near_median(Updates.collect(matrix), keep).update.tolist() == pytest.approx([expected])


def test_no_window_depends_on_where_blocks_are_cut(monkeypatch):
    updates = Updates.collect(values("ties", 7, 301, 2))
    whole = reference.mean_near_median(updates, 4)
    original = Updates.blocks
    monkeypatch.setattr(Updates, "blocks", lambda self: original(self, 70))
    cut = reference.mean_near_median(updates, 4)
    assert torch.equal(cut.update, whole.update) and torch.equal(cut.share, whole.share)


def test_large_values_do_not_overflow():
    matrix = torch.tensor([[3e38, -3e38], [3e38, 3e38], [-3e38, 3e38]])
    for backend in (cpu, reference):
        assert backend.mean_near_median(Updates.collect(matrix), 3).update.isfinite().all()


def test_it_is_compiled_beforehand():
    assert "means near the median" in PIECES


@given(matrix=matrices(torch.float32))
def test_distances_to_the_extremes(matrix):
    exact = matrix.double()
    found = ops.extreme_distances(Updates.collect(matrix))
    for distances, extreme in zip(found, (exact.amax(dim=0), exact.amin(dim=0)), strict=True):
        assert torch.allclose(distances, (exact - extreme).norm(dim=1), rtol=1e-9, atol=0)
