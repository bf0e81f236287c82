"""The primitives against plain float64 torch or NumPy, and where naive ways go wrong."""

import dataclasses
import inspect
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedseca import ops
from fedseca.ops import cpu, reference
from fedseca.updates import Updates
from tests.oracle.matrices import generic, matrices


def collect(matrix: torch.Tensor) -> Updates:
    return Updates.collect(matrix)


@given(matrix=matrices(torch.float32))
def test_norms_and_dots(matrix):
    exact = matrix.double()
    assert torch.allclose(ops.norms(collect(matrix)), exact.norm(dim=1), rtol=1e-12)
    scale = float(exact.abs().max()) ** 2
    assert torch.allclose(ops.dots(collect(matrix), collect(matrix[:1])), exact @ exact[:1].T, atol=1e-12 * scale)


@given(matrix=matrices(torch.float32), data=st.data())
def test_sums_and_residuals(matrix, data):
    weights = torch.tensor([data.draw(st.floats(0, 1)) for _ in matrix], dtype=torch.float64)
    exact = matrix.double()
    centre, scale = weights @ exact, float(exact.abs().max())
    found = ops.weighted_sum(collect(matrix), weights / len(matrix))
    assert torch.allclose(found.double(), centre / len(matrix), rtol=1e-6, atol=1e-6 * scale)
    residuals = ops.residual_norms(collect(matrix), weights)
    assert torch.allclose(residuals, (exact - centre).norm(dim=1), rtol=1e-9, atol=1e-9 * scale)
    shift = exact[0] / 2
    paired = ops.paired_distances(collect(matrix), collect(matrix.flip(0)), shift)
    assert torch.allclose(paired, (exact - exact.flip(0) - shift).norm(dim=1), rtol=1e-9, atol=1e-9 * scale)


@given(matrix=matrices(torch.float32))
def test_selections(matrix):
    count = len(matrix)
    chosen = ops.median(collect(matrix))
    assert torch.equal(chosen.update, matrix.sort(dim=0).values[(count - 1) // 2])
    assert chosen.share.sum() == pytest.approx(1)
    trim = (count - 1) // 2
    trimmed = ops.trimmed_mean(collect(matrix), trim)
    exact = matrix.double().sort(dim=0).values[trim : count - trim].mean(dim=0)
    assert torch.allclose(trimmed.update.double(), exact, rtol=1e-6, atol=float(matrix.abs().max()) * 1e-7)
    assert trimmed.share.sum() == pytest.approx(1)


def test_the_share_of_a_selection_is_the_share_of_the_selected_values():
    matrix = torch.tensor([[1.0, 5.0, 3.0, 2.0], [2.0, 4.0, 3.0, 1.0], [3.0, 3.0, 3.0, 0.0]])
    # coordinates 0, 1 and 3 are client 1's, coordinate 2 is everybody's
    assert ops.median(collect(matrix)).share.tolist() == pytest.approx([1 / 6, 4 / 6, 1 / 6])
    assert ops.trimmed_mean(collect(matrix), 1).share.tolist() == pytest.approx([1 / 6, 4 / 6, 1 / 6])
    assert ops.trimmed_mean(collect(matrix), 0).share.tolist() == pytest.approx([1 / 3] * 3)


@given(matrix=matrices(torch.float32))
def test_sign_agreement_is_exact(matrix):
    signs = matrix.sign().long()
    assert torch.equal(ops.sign_agreement(collect(matrix)), signs @ signs.T)


@given(matrix=matrices(torch.float32), quantile=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0]))
def test_quantiles_are_numpys(matrix, quantile):
    expected = np.quantile(matrix.double().abs().numpy(), quantile, axis=1)
    assert np.array_equal(ops.magnitude_quantiles(collect(matrix), quantile).numpy(), expected)


def test_quantiles_of_more_coordinates_than_torch_quantile_takes():
    dim = (1 << 24) + 5
    row = torch.arange(dim, dtype=torch.float64).flip(0).neg()
    with pytest.raises(RuntimeError, match="too large"):
        row.quantile(0.9)
    found = ops.magnitude_quantiles(collect(row[None]), 0.9)
    assert float(found) == pytest.approx(0.9 * (dim - 1), rel=1e-15)


def test_values_in_order_do_not_stall_the_quantile():
    """A client that sorts its update must not make the server work in quadratic time (hours, here)."""
    row = torch.arange(1 << 22, dtype=torch.float32)
    for order in (row, row.flip(0)):
        assert float(ops.magnitude_quantiles(collect(order[None]), 0.5)) == pytest.approx(((1 << 22) - 1) / 2)


def test_distances_of_close_clients_are_not_lost_to_cancellation():
    """A spread of 1e-4 relative at a million coordinates ranks the clients; the expanded square in float32 does not."""
    dim, generator = 1_000_000, torch.Generator().manual_seed(0)
    common = torch.randn(dim, generator=generator)
    spreads = torch.tensor([0.0, 1.0, 1.1, 1.2, 1.3, 1.4]) * 1e-4
    matrix = common + spreads[:, None] * torch.randn(6, dim, generator=generator)
    expected = torch.cdist(matrix.double(), matrix.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    found = ops.squared_distances(collect(matrix))
    assert torch.allclose(found, expected, rtol=1e-9)
    assert found[0, 1:].argsort().tolist() == [0, 1, 2, 3, 4]
    squares = matrix.square().sum(dim=1)
    naive = squares[:, None] + squares[None] - 2 * matrix @ matrix.T
    assert not torch.allclose(naive.double(), expected, rtol=0.1)  # the negative control


def test_distances_of_scaled_rows():
    matrix = generic(4, 9, 0)
    scale = 1 / matrix.norm(dim=1)
    cosine = (matrix @ matrix.T) * scale[:, None] * scale
    assert torch.allclose(ops.squared_distances(collect(matrix), scale) / 2, 1 - cosine, atol=1e-12)


@pytest.mark.parametrize("elements", [4, 10, 64])
def test_no_primitive_depends_on_where_blocks_are_cut(monkeypatch, elements):
    matrix = generic(4, 37, 5, torch.float32)
    matrix[:, 20] = 0
    updates = collect(matrix)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    plan = ops.MergePlan(
        clip_factor=weights, threshold=ops.magnitude_quantiles(updates, 0.5), ballots=torch.tensor([1, 2, 0, 3])
    )

    def everything():
        merge = ops.elect_and_merge(updates, plan)
        return [
            ops.norms(updates),
            ops.dots(updates, updates),
            ops.squared_distances(updates),
            ops.residual_norms(updates, weights),
            ops.weighted_sum(updates, weights),
            ops.sign_agreement(updates),
            ops.median(updates).update,
            ops.median(updates).share,
            ops.trimmed_mean(updates, 1).update,
            ops.trimmed_mean(updates, 1).share,
            merge.update,
            merge.share,
            merge.adopted,
            merge.survived,
        ]

    whole = everything()
    original = Updates.blocks
    monkeypatch.setattr(Updates, "blocks", lambda self: original(self, elements))
    for expected, found in zip(whole, everything(), strict=True):
        assert torch.allclose(expected.double(), found.double(), rtol=1e-12)


def test_large_values_do_not_overflow_float32():
    matrix = torch.tensor([[3e38, -3e38], [3e38, 3e38], [-3e38, 3e38]])
    assert ops.norms(collect(matrix)).isfinite().all()
    assert ops.squared_distances(collect(matrix)).isfinite().all()
    assert ops.weighted_sum(collect(matrix), torch.full((3,), 1 / 3, dtype=torch.float64)).isfinite().all()
    assert ops.trimmed_mean(collect(matrix), 0).update.isfinite().all()


HELPERS = {"takes", "quantile_ranks", "interpolate", "with_weight"}  # both modules need them; they are no primitives


def test_every_compiled_primitive_has_a_twin_that_reads_like_its_equation():
    for module in (cpu, reference):
        functions = dict(inspect.getmembers(module, inspect.isfunction))
        own = {name for name, function in functions.items() if function.__module__ == module.__name__}
        public = {name for name in own if not name.startswith("_")} - HELPERS
        assert public <= set(ops.__all__), public - set(ops.__all__)
        assert all(hasattr(reference, name) for name in public)


# --- backends ----------------------------------------------------------------------------------------------------


def backend(monkeypatch, **offered: Any) -> None:
    """Put a module in front of the backends."""
    module = ModuleType("mine")
    vars(module).update(offered)
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setattr(ops, "BACKENDS", ["mine", *ops.BACKENDS])


def test_the_backends_in_their_order():
    assert ops.BACKENDS == ["fedseca.ops.cpu", "fedseca.ops.reference"]
    assert cpu.takes(collect(torch.ones(2, 3))) and reference.takes(collect(torch.ones(2, 3)))
    assert all(callable(getattr(ops, name)) for name in ops.__all__ if name != "BACKENDS")


def test_a_backend_in_front_does_what_it_has_and_the_next_one_the_rest(monkeypatch):
    matrix = generic(3, 9, 1, torch.float32)
    expected = ops.median(collect(matrix)).update
    asked = []

    def weighted_sum(updates, weights, dtype=None):
        asked.append(dtype)
        return torch.full((updates.dim,), 7.0)

    backend(monkeypatch, takes=lambda updates: True, weighted_sum=weighted_sum)
    assert ops.weighted_sum(collect(matrix), torch.ones(3), dtype=torch.float64).tolist() == [7.0] * 9
    assert asked == [torch.float64]
    assert torch.equal(ops.median(collect(matrix)).update, expected)


@pytest.mark.parametrize("way", ["does not take these", "is not able to", "does not have it"])
def test_what_a_backend_cannot_do_the_next_one_does(monkeypatch, way):
    matrix = generic(3, 9, 1, torch.float32)
    expected = ops.norms(collect(matrix))

    def never(updates, *, exactly=True):
        assert way == "is not able to", "it was asked all the same"
        return NotImplemented

    offered = {} if way == "does not have it" else {"extent": never}
    backend(monkeypatch, takes=lambda updates: way != "does not take these", **offered)
    assert torch.equal(ops.norms(collect(matrix)), expected)


def test_without_any_backend_the_reference_answers(monkeypatch):
    matrix = generic(4, 9, 1, torch.float32)
    monkeypatch.setattr(ops, "BACKENDS", [])
    assert torch.equal(ops.median(collect(matrix)).update, reference.median(collect(matrix)).update)


def test_an_election_without_ballots_falls_back_for_that_primitive_alone():
    """The compiled backend does not have the ablation: it says so, and the reference does it."""
    updates = collect(generic(4, 9, 1, torch.float32))
    factors = torch.ones(4, dtype=torch.float64)
    plan = ops.MergePlan(clip_factor=factors, threshold=None, ballots=None, shares=factors / 4)
    assert cpu.elect_and_merge(updates, plan) is NotImplemented
    assert torch.equal(ops.elect_and_merge(updates, plan).update, reference.elect_and_merge(updates, plan).update)


def test_what_was_measured_is_not_read_again():
    updates = collect(generic(3, 9, 1, torch.float32))
    unreadable: Any = (None,) * 3
    known = dataclasses.replace(
        updates, rows=unreadable, norms=torch.tensor([1.0, 2.0, 3.0]), agreement=torch.full((3, 3), 9)
    )
    assert ops.norms(known).tolist() == [1, 2, 3]
    assert torch.equal(ops.sign_agreement(known), torch.full((3, 3), 9))
    assert torch.equal(reference.sign_agreement(known), torch.full((3, 3), 9))
    survey = ops.survey(known, None)
    assert isinstance(survey, ops.SignSurvey) and torch.equal(survey.agreement, torch.full((3, 3), 9))


@given(matrix=matrices(torch.float32))
def test_rows_without_weight_are_not_read(matrix):
    updates = collect(matrix)
    weights = torch.zeros(len(matrix), dtype=torch.float64)
    weights[0] = 0.5
    unread = dataclasses.replace(updates, rows=(updates.rows[0], *[None] * (len(matrix) - 1)))  # type: ignore[arg-type]
    for found in (ops.weighted_sum(unread, weights), reference.weighted_sum(unread, weights)):
        assert torch.allclose(found.double(), matrix[0].double() / 2, rtol=1e-6)
    assert not ops.weighted_sum(updates, torch.zeros(len(matrix), dtype=torch.float64)).any()
