"""`Updates.part`: a range of coordinates of all clients is again updates, read from where they lie."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from fedseca import ops
from fedseca.ops import reference
from fedseca.updates import Updates


@dataclass(frozen=True)
class _Slow:
    """A row of somebody else's kind."""

    values: torch.Tensor

    def read(self, start, stop):
        return self.values[start:stop]


def forms(matrix: torch.Tensor) -> dict[str, Updates]:
    """The same rows in the forms that rows have."""
    models = [{"a": row[:6].reshape(2, 3), "b": row[6:7].reshape(()), "c": row[7:]} for row in matrix]
    before = {"a": torch.full((2, 3), 2.0), "b": torch.tensor(-1.0), "c": torch.arange(13.0)}
    trained = [{name: before[name] - value for name, value in model.items()} for model in models]
    plain = Updates.collect(matrix)
    halves = [[k, (k + 1) % len(matrix)] for k in range(len(matrix))]
    undone = Updates.collect(torch.linalg.solve(_halves(len(matrix)), matrix.double()).float())
    crooked = [model | {"a": model["a"].T.contiguous().T} for model in models]
    return {
        "matrix": plain,
        "models": Updates.collect(models),
        "trained": Updates.collect(trained, before=before),
        "crooked": Updates.collect(crooked),
        "mixed": undone.mixed(halves, [[0.25, 0.75]] * len(matrix), plain.client_ids),
        "foreign": plain.with_rows([_Slow(row) for row in matrix], plain.client_ids),
    }


def _halves(count: int) -> torch.Tensor:
    weights = torch.zeros(count, count, dtype=torch.float64)
    for k in range(count):
        weights[k, k], weights[k, (k + 1) % count] = 0.25, 0.75
    return weights


@pytest.mark.parametrize("large", [False, True])
def test_a_part_is_the_columns_of_the_matrix(monkeypatch, large):
    if large:  # what does not fit into a block is not gathered when it is collected
        monkeypatch.setattr("fedseca.updates.BLOCK_ELEMENTS", 8)
    matrix = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    for name, updates in forms(matrix).items():
        for start, stop in itertools.combinations((0, 2, 6, 7, 8, 19, 20), 2):
            part, expected = updates.part(start, stop), matrix[:, start:stop]
            assert (len(part), part.dim, part.client_ids) == (3, stop - start, updates.client_ids), name
            assert torch.allclose(part.matrix(), expected, atol=1e-5), (name, start, stop)
            assert torch.allclose(part.part(0, 1).matrix(), expected[:, :1], atol=1e-5), "a part of a part"
            for primitives in (ops, reference):
                assert torch.allclose(primitives.extent(part)[0], expected.double().norm(dim=1), atol=1e-5), name
                weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
                found = primitives.weighted_sum(part, weights)
                assert torch.allclose(found, weights.float() @ expected, atol=1e-5), (name, start, stop)


def test_a_part_is_no_copy_and_knows_nothing_of_the_whole():
    matrix = torch.randn(4, 30)
    updates = Updates.collect(matrix).measured(matrix.double().norm(dim=1))
    part = updates.part(10, 20)
    matrix[2, 15] = 7.0
    assert part.row(2)[5] == 7.0
    assert part.norms is None and ops.norms(part).tolist() == pytest.approx(matrix[:, 10:20].norm(dim=1).tolist())
    assert updates.part(0, 30) is updates
