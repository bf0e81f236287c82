"""`Updates`: every form an update comes in is the same matrix, read in blocks, never written to."""

import dataclasses
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedseca
from fedseca import ops
from fedseca.errors import InputError
from fedseca.plugins import load_plugin
from fedseca.updates import MixedRow, Updates

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def matrix_of(updates: Updates) -> torch.Tensor:
    return torch.cat([block for _, block in updates.blocks()], dim=1)


def states(matrix: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """The same rows as state dicts of three arrays."""
    return [{"a": row[:6].reshape(2, 3), "b": row[6:7].reshape(()), "c": row[7:]} for row in matrix]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_form_is_the_same_matrix(tmp_path, dtype):
    matrix = torch.randn(4, 20).to(dtype)
    for k, state in enumerate(states(matrix)):
        save_file(state, tmp_path / f"site-{k}.safetensors")
    files = sorted(tmp_path.iterdir())
    forms: dict[str, Any] = {
        "matrix": matrix,
        "vectors": list(matrix),
        "state dicts": states(matrix),
        "files": files,
        "paths as text": [str(file) for file in files],
        "column-major": matrix.T.contiguous().T,
        "transposed arrays": [s | {"a": s["a"].T.contiguous().T} for s in states(matrix)],
    }
    if dtype is not torch.bfloat16:
        forms |= {
            "array": matrix.numpy(),
            "arrays": list(matrix.numpy()),
            "reversed": matrix.numpy()[:, ::-1].copy()[:, ::-1],
        }
    for name, form in forms.items():
        updates = Updates.collect(form)
        assert torch.equal(matrix_of(updates), matrix.to(updates.compute_dtype)), name
        assert (len(updates), updates.dim, updates.dtype) == (4, 20, dtype), name
        assert updates.compute_dtype == (torch.float64 if dtype is torch.float64 else torch.float32)


@pytest.mark.parametrize("elements", [1, 3, 7, 40, 10_000])
def test_blocks_cover_every_coordinate_once(elements):
    matrix = torch.randn(3, 25)
    for form in (matrix, states(matrix)):
        blocks = list(Updates.collect(form).blocks(elements))
        assert torch.equal(torch.cat([block for _, block in blocks], dim=1), matrix)
        assert [where.start for where, _ in blocks] == [0, *(where.stop for where, _ in blocks[:-1])]


# --- mixes -------------------------------------------------------------------------------------------------------


def test_mixed_rows_are_the_weighted_sums_of_their_rows():
    matrix = torch.randn(4, 25)
    weights = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 1, 0], [0.1, -2, 3, 0.25]], dtype=torch.float64)
    members = [[0, 1], [2], [0, 1, 2, 3]]
    shares = [[0.5, 0.5], [1.0], [0.1, -2.0, 3.0, 0.25]]
    for form in (matrix, states(matrix)):
        mixed = Updates.collect(form).mixed(members, shares, ["a", "b", "c"])
        expected = (weights @ matrix.double()).float()
        assert mixed.client_ids == ("a", "b", "c") and mixed.recipe is not None and mixed.dim == 25
        assert torch.equal(matrix_of(mixed), expected)
        assert torch.equal(torch.cat([block for _, block in mixed.blocks(7)], dim=1), expected)
        assert all(torch.equal(mixed.row(m), expected[m]) for m in range(3))
        assert torch.equal(torch.stack(mixed.read(3, 20)), expected[:, 3:20])
        assert torch.equal(torch.stack(mixed.read(3, 20, 4)), expected[:, 3:20:4])
        again = mixed.mixed([[0, 2], [1]], [[1.0, 2.0], [3.0]], ["x", "y"])  # a mix of mixes
        both = torch.tensor([[1, 0, 2], [0, 3, 0]], dtype=torch.float64)
        assert torch.allclose(matrix_of(again), (both @ weights @ matrix.double()).float())
        assert all(not isinstance(source, MixedRow) for row in again.rows for source in getattr(row, "sources", ()))


def test_what_was_not_mixed_stays_as_it_was():
    updates = dataclasses.replace(Updates.collect(torch.randn(3, 8)), norms=torch.tensor([1.0, 2.0, 3.0]))
    same = updates.mixed([[0], [1], [2]], [[1.0]] * 3, ["a", "b", "c"])
    assert same.recipe is None and same.rows == updates.rows and same.norms is updates.norms
    scaled = updates.mixed([[0], [1], [2]], [[0.5], [1.0], [-2.0]], ["a", "b", "c"])
    assert scaled.norms is not None and scaled.norms.tolist() == [0.5, 2.0, 6.0]
    some = updates.mixed([[0, 1], [2]], [[0.5, 0.5], [1.0]], ["a", "b"])
    assert some.norms is not None and some.norms.isnan().tolist() == [True, False]
    mean = (updates.row(0).double() + updates.row(1)) / 2
    assert ops.norms(some).tolist() == pytest.approx([float(mean.norm()), 3.0])  # only the mix is measured


@dataclasses.dataclass
class Counted:
    """A row that counts how often it is read."""

    values: torch.Tensor
    times: int = 0
    in_memory = True

    def read(self, start: int, stop: int) -> torch.Tensor:
        self.times += 1
        return self.values[start:stop]


def test_a_row_that_is_in_many_mixes_is_read_once():
    rows = [Counted(row) for row in torch.randn(4, 10)]
    updates = Updates.collect(torch.zeros(4, 10)).with_rows(rows, list("abcd"))
    mixed = updates.mixed([[0, 1, 2]] * 3 + [[3]], [[0.25, 0.5, 0.25]] * 3 + [[1.0]], list("abcd"))
    mixed.read(0, 10)
    assert [row.times for row in rows] == [1, 1, 1, 1]


def test_a_whole_mixed_row_is_read_in_blocks(monkeypatch):
    """Or else a rule that reads whole rows would hold all the rows that each is made of."""
    monkeypatch.setattr("fedseca.updates.BLOCK_ELEMENTS", 40)
    longest = 0

    @dataclass(frozen=True)
    class Watched:
        values: torch.Tensor
        in_memory = False

        def read(self, start, stop):
            nonlocal longest
            longest = max(longest, stop - start)
            return self.values[start:stop]

    rows = torch.randn(4, 103)
    mixed = MixedRow(tuple(Watched(row) for row in rows), (0.25,) * 4)
    assert torch.equal(mixed.read(0, 103), (rows.double().sum(dim=0) / 4).float()) and longest == 10
    assert torch.equal(mixed.read(7, 9), mixed.read(0, 103)[7:9]) and mixed.read(5, 5).numel() == 0


def test_a_mean_of_what_cancels_out_is_zero():
    """A third of each would leave a rest, which has a sign."""
    matrix = torch.tensor([[0.1], [0.2], [-0.3]], dtype=torch.float64)
    matrix[2] = -(matrix[0] + matrix[1])
    mixed = Updates.collect(matrix).mixed([[0, 1, 2]], [[1 / 3] * 3], ["all"])
    assert mixed.row(0).item() == 0


def test_models_become_pseudo_gradients():
    before, models = torch.randn(12, dtype=torch.float64), torch.randn(3, 12, dtype=torch.float64)
    assert torch.equal(matrix_of(Updates.collect(models, before=before)), before - models)


def test_ids_are_text_and_files_are_named_by_their_stem(tmp_path):
    for folder, name in itertools.product("xy", ("site", "other")):
        (tmp_path / folder).mkdir(exist_ok=True)
        save_file({"w": torch.ones(2)}, tmp_path / folder / f"{name}-{folder if name == 'other' else ''}.safetensors")
    files = sorted(tmp_path.glob("*/*"))
    ids = Updates.collect(files).client_ids
    assert ids == ("x/other-x", "x/site-", "y/other-y", "y/site-")
    assert Updates.collect(files[::2]).client_ids == ("other-x", "other-y")
    assert Updates.collect([files[0], files[0]]).client_ids == (str(files[0]), str(files[0]))
    assert Updates.collect(torch.ones(2, 1), [7, "b"]).client_ids == ("7", "b")
    with pytest.raises(InputError, match="2 updates but 1 client ids"):
        Updates.collect(torch.ones(2, 1), ["only one"])


def test_files_stay_mapped(tmp_path):
    """Reading the header of a large file brings nothing of it into memory."""
    save_file({"w": torch.zeros(24_000_000)}, tmp_path / "large.safetensors")

    def anonymous() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    before = anonymous()
    updates = Updates.collect([tmp_path / "large.safetensors"])
    for _, block in updates.blocks():
        assert not block.any()
    assert anonymous() - before < 40_000  # kB; the file has 96 MB


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", ["fedavg", "cwmed", "krum", "fedseca"])
def test_the_answer_has_the_form_of_the_question_and_its_own_memory(rule, dtype):
    matrix = torch.randn(5, 20).to(dtype)
    expected = fedseca.aggregate(matrix, rule=rule)
    assert expected.dtype == dtype
    original = matrix.clone()
    questions: list[Any] = [list(matrix), states(matrix)]
    if dtype is not torch.bfloat16:
        questions += [matrix.numpy(), list(matrix.numpy())]
    for question in questions:
        answer = fedseca.aggregate(question, rule=rule)
        if isinstance(answer, dict):
            assert [tuple(v.shape) for v in answer.values()] == [(2, 3), (), (13,)]
            assert {v.dtype for v in answer.values()} == {dtype}
            answer = torch.cat([v.reshape(-1) for v in answer.values()])
        assert isinstance(answer, np.ndarray) == isinstance(question[0], np.ndarray)
        assert torch.equal(torch.as_tensor(answer), expected)
        answer[...] = 7
        assert torch.equal(matrix, original)


def test_read_only_arrays_and_gradients_are_welcome():
    array = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    array.setflags(write=False)
    tensor = torch.tensor(array, requires_grad=True)
    assert torch.equal(fedseca.aggregate(tensor), torch.from_numpy(fedseca.aggregate(array)))
    big_endian = array.astype(">f4")
    assert np.array_equal(fedseca.aggregate(big_endian), fedseca.aggregate(array))


def test_mixed_precisions_keep_their_own():
    clients = [{"w": torch.randn(4).half(), "norm": torch.randn(2)} for _ in range(5)]
    answer = fedseca.aggregate(clients, rule="fedavg")
    assert answer["w"].dtype == torch.float16 and answer["norm"].dtype == torch.float32


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.ones(3), r"matrix; found shape \(3,\)"),
        (torch.ones(3, 2, 2), r"matrix; found shape \(3, 2, 2\)"),
        ({"w": torch.ones(3)}, "found dict"),
        ("updates.safetensors", "found str"),
        (None, "found NoneType"),
        (torch.ones(3, 4).long(), "int64 is not floating point"),
        ([torch.ones(3), torch.ones(4)], r"client 1: shape \(4,\), expected \(3,\)"),
    ],
)
def test_what_is_no_update_is_refused(source, message):
    with pytest.raises(InputError, match=message):
        Updates.collect(source)


def network() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    net(torch.randn(6, 1, 3, 3) * 3)
    return net


def test_state_dicts_of_a_network_with_batchnorm():
    nets = [network() for _ in range(5)]
    means = torch.stack([net.state_dict()["1.running_mean"].clone() for net in nets])
    result = fedseca.aggregate([net.state_dict() for net in nets])
    nets[0].load_state_dict(result)
    assert torch.equal(result["1.running_mean"], means.sort(dim=0).values[2])
    assert list(result) == list(nets[0].state_dict())
    assert (result["1.running_var"] >= 0).all()
    assert result["1.num_batches_tracked"] == 1


def batchnorm_state(mean: float, variance: float, count: int = 3, weight: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.tensor([float(weight), -float(weight)]),
        "running_mean": torch.tensor([float(mean)]),
        "running_var": torch.tensor([float(variance)]),
        "num_batches_tracked": torch.tensor(count),
    }


def test_running_statistics_take_the_median_and_variances_stay_positive():
    before = batchnorm_state(0, 1, 0, weight=5)
    models = [batchnorm_state(m, v, c) for m, v, c in ((1, 2, 3), (2, -4, 9), (99, -5, 10**12))]
    model = fedseca.aggregate(models, rule="fedavg", before=before)
    assert model["running_mean"] == 2 and model["running_var"] == 0 and model["num_batches_tracked"] == 9
    assert torch.allclose(model["weight"], torch.tensor([1.0, -1.0]))


def test_running_statistics_can_be_aggregated_like_weights():
    before = batchnorm_state(0, 1, 0)
    models = [batchnorm_state(m, v) for m, v in ((1, 2), (2, 4), (6, -12))]
    model = fedseca.aggregate(models, rule="fedavg", before=before, buffers="aggregate")
    assert torch.allclose(model["running_mean"], torch.tensor([3.0]))
    assert model["running_var"] == 0  # the mean is −2


def test_weights_are_used_only_when_asked_for():
    matrix = torch.tensor([[1.0], [2.0], [6.0]])
    assert fedseca.aggregate(matrix, rule="fedavg") == 3
    assert fedseca.aggregate(matrix, rule="fedavg", weights=[1, 1, 2]) == 3.75
    assert fedseca.aggregate(matrix, rule="fedavg", weights=[1e308, 1e308, 1e308]) == 3
    with pytest.raises(InputError, match="krum weighs no client"):
        fedseca.aggregate(torch.randn(6, 4), rule="krum", weights=[1] * 6)


def test_the_example_rule_gives_the_same_both_ways():
    """Through the primitives, block by block; and with one dense matrix, as one writes it first."""
    load_plugin(Path(__file__).parents[2] / "examples" / "rules" / "norm_median.py")
    rule = fedseca.make_aggregator("norm_median", slack=0.7)
    updates = Updates.collect(torch.randn(7, 50, dtype=torch.float64) * torch.arange(1.0, 8)[:, None])
    answer = rule.aggregate(updates, {}, torch.Generator())
    dense = sys.modules[type(rule).__module__].dense(updates, 0.7)
    torch.testing.assert_close(answer.update, dense)
