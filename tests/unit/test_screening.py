"""Whatever a client sends, the round goes on with the others, and a person can read why it was left out."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

import fedseca
from fedseca.errors import InputError, NotEnoughClients, by_reason
from fedseca.screening import look_like_models, screen


def good(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "fc.weight": torch.randn(2, 3, generator=generator),
        "fc.bias": torch.randn(2, generator=generator),
        "bn.running_var": torch.rand(2, generator=generator),
        "bn.num_batches_tracked": torch.tensor(4),
    }


def changed(**changes):
    """A good client with some arrays replaced (`fc__bias=…`), or left out (None)."""
    state = good(9) | {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in state.items() if value is not None}


NAN, INF = float("nan"), float("inf")

BAD_STATES = {
    "NaN": (
        changed(fc__weight=torch.tensor([[1.0, NAN, 2], [NAN, 3, INF]])),
        "2 NaN and 1 Inf, first at fc.weight[0, 1]",
    ),
    "Inf": (changed(fc__bias=torch.tensor([1.0, -INF])), "1 Inf, first at fc.bias[1]"),
    "NaN buffer": (changed(bn__running_var=torch.tensor([1.0, NAN])), "1 NaN, first at buffer bn.running_var[1]"),
    "shape": (changed(fc__bias=torch.ones(3)), "shape (3,) of 'fc.bias', expected (2,)"),
    "transposed": (changed(fc__weight=torch.ones(3, 2)), "shape (3, 2) of 'fc.weight', expected (2, 3)"),
    "missing": (changed(fc__bias=None), "missing key 'fc.bias'"),
    "several missing": (changed(fc__bias=None, fc__weight=None, x=torch.ones(1)), "missing key 'fc.weight' and 1 more"),
    "extra": (changed(backdoor=torch.ones(3)), "extra key 'backdoor'"),
    "reordered": (dict(reversed(good(3).items())), "keys reordered, first at 'bn.num_batches_tracked'"),
    "integer weights": (changed(fc__bias=torch.ones(2).long()), "dtype int64 of 'fc.bias', expected floating point"),
    "float counter": (
        changed(bn__num_batches_tracked=torch.tensor(4.0)),
        "dtype float32 of 'bn.num_batches_tracked', expected integer",
    ),
    "complex": (changed(fc__bias=torch.ones(2, dtype=torch.complex64)), "dtype complex64 is not supported"),
    "sparse": (changed(fc__bias=torch.ones(2).to_sparse()), "'fc.bias' is a sparse, nested or data-less tensor"),
    "meta": (changed(fc__bias=torch.ones(2, device="meta")), "'fc.bias' is a sparse, nested or data-less tensor"),
    "nested": (
        changed(fc__bias=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)),
        "'fc.bias' is a sparse, nested or data-less tensor",
    ),
    "a class": (dict, "cannot be read: TypeError"),
    "text": (changed(fc__bias="hello"), "'fc.bias' is a str, expected a tensor or array"),
    "object array": (changed(fc__bias=np.array([None, {}])), "'fc.bias' dtype object is not supported"),
    "empty": ({}, "empty: no floating-point coordinate in it"),
    "only counters": ({"n": torch.tensor(1)}, "empty: no floating-point coordinate in it"),
    "no coordinates": ({"w": torch.ones(0)}, "empty: no floating-point coordinate in it"),
    "nothing": (
        None,
        "is a NoneType, expected a vector, a state dict, a list of arrays, a module, an ArrayRecord or a ",
    ),
    "a number": (3.0, "is a float, expected a vector"),
    "a vector": (torch.ones(10), "missing key 'fc.weight' and 3 more"),
    "key that is no text": ({1: torch.ones(3)}, "key 1 is not a name"),
    "too large for float32": (
        changed(fc__bias=torch.tensor([1e300, 0], dtype=torch.float64)),
        "1 Inf, first at fc.bias[0]",
    ),
}


@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("fault", BAD_STATES)
def test_a_bad_client_is_left_out_and_the_others_are_aggregated(fault, position):
    bad, reason = BAD_STATES[fault]
    clients = [good(k) for k in range(3)]
    expected = fedseca.Server("cwmed").aggregate(clients).update
    clients.insert(position, bad)
    ids = ["a", "b", "c"]
    ids.insert(position, "mallory")
    out = fedseca.Server("cwmed").aggregate(clients, ids)
    assert [r.client_id for r in out.rejected] == ["mallory"]
    assert reason in out.rejected[0].reason
    assert out.client_ids == ("a", "b", "c")
    assert all(torch.equal(out.update[name], expected[name]) for name in expected)


@pytest.mark.parametrize("fault", BAD_STATES)
def test_with_the_global_model_at_hand_even_a_majority_of_bad_clients_decides_nothing(fault):
    bad, _ = BAD_STATES[fault]
    out = fedseca.Server("fedavg").aggregate([bad, bad, good(1), bad], before=good(0))
    assert out.client_ids == ("2",) and len(out.rejected) == 3
    assert all(torch.allclose(out.model[name], good(1)[name]) for name in good(1))


BAD_VECTORS = [
    (torch.ones(4), "shape (4,), expected (3,)"),
    (torch.ones(3, 1), "shape (3, 1) is not one-dimensional"),
    (torch.tensor(1.0), "shape () is not one-dimensional"),
    (torch.ones(3).int(), "dtype int32 is not floating point"),
    (torch.ones(3).bool(), "dtype bool is not floating point"),
    (torch.ones(0), "empty"),
    (np.array(["a", "b", "c"]), "dtype <U1 is not supported"),
    (torch.tensor([1.0, NAN, NAN]), "2 NaN, first at coordinate 1"),
    ({"w": torch.ones(3)}, "missing key ''"),
    ([1.0, 2.0, 3.0], "is a list"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_VECTORS)
def test_bad_vectors(bad, reason):
    clients = [torch.ones(3), bad, torch.ones(3) * 3]
    out = fedseca.Server("fedavg").aggregate(clients)
    assert len(out.rejected) == 1 and reason in out.rejected[0].reason
    assert torch.equal(out.update, torch.full((3,), 2.0))


def test_two_answers_of_one_client_count_once():
    out = fedseca.Server("fedavg").aggregate(torch.tensor([[1.0], [2.0], [9.0]]), ["a", "b", "a"])
    assert out.update == 1.5
    assert [str(r) for r in out.rejected] == ["a (duplicate id, the first is kept)"]


def test_garbage_in_a_clients_name_does_not_displace_it():
    out = fedseca.Server("fedavg").aggregate(torch.tensor([[NAN], [2.0], [4.0], [8.0]]), ["a", "b", "a", "a"])
    assert out.client_ids == ("b", "a") and out.update == 3
    assert [r.reason for r in out.rejected] == ["1 NaN, first at coordinate 0", "duplicate id, the first is kept"]


def test_a_second_answer_that_is_bad_is_told_what_is_bad_in_it():
    out = fedseca.Server("fedavg").aggregate(torch.tensor([[2.0], [NAN], [INF]]), ["a", "a", "a"])
    assert [r.reason for r in out.rejected] == ["1 NaN, first at coordinate 0", "1 Inf, first at coordinate 0"]


def test_of_several_bad_arrays_the_first_place_is_told_and_all_are_counted():
    bad = changed(fc__weight=torch.tensor([[1.0, 2, 3], [4, INF, NAN]]), fc__bias=torch.tensor([NAN, -INF]))
    out = fedseca.Server("fedavg").aggregate([good(0), good(1), bad])
    assert out.rejected[0].reason == "2 NaN and 2 Inf, first at fc.weight[1, 1]"


def test_a_value_must_fit_the_precision_of_its_own_array():
    honest = [{"w": torch.ones(2).half(), "n": torch.ones(1)} for _ in range(4)]
    liar = {"w": torch.tensor([1e30, 0]), "n": torch.ones(1)}
    out = fedseca.Server("fedavg").aggregate([*honest, liar])
    assert out.rejected[0].reason == "1 Inf, first at w[0]" and out.update["w"].tolist() == [1, 1]


def test_a_multitude_of_extra_keys_is_one_short_reason():
    keys = {f"layer.{k}": torch.ones(1) for k in range(500)}
    flood = keys | {f"extra.{k}": torch.ones(0) for k in range(20_000)}
    out = fedseca.Server("fedavg").aggregate([keys, keys, flood])
    assert out.rejected[0].reason == "extra key 'extra.0' and 19999 more"


def test_arrays_of_unusual_memory_are_read_as_they_are():
    inside = np.zeros(4, [("a", "i1"), ("b", "f4")])
    inside["b"] = [1, 2, 3, 4]
    counter = np.array(7, dtype=">i8")
    state = {"w": inside["b"], "num_batches_tracked": counter}
    out = fedseca.Server("fedavg").aggregate([state, {"w": np.ones(4, np.float32), "num_batches_tracked": np.array(9)}])
    assert not out.rejected and out.update["w"].tolist() == [1, 1.5, 2, 2.5] and out.update["num_batches_tracked"] == 7


def test_a_client_does_not_gain_votes_by_answering_often():
    bad = {"zzz": torch.ones(7)}
    out = fedseca.Server("fedavg").aggregate([*[bad] * 4, good(0), good(1)], ["m"] * 4 + ["a", "b"])
    assert out.client_ids == ("a", "b")


def test_without_a_majority_nobody_decides_what_is_expected():
    odd = [{"zzz": torch.ones(7)}] * 2
    with pytest.raises(NotEnoughClients, match=r"0 of 5 .*no majority of the clients sent the same arrays"):
        fedseca.aggregate([*odd, None, good(0), good(1)])
    model = fedseca.aggregate([*odd, None, good(0), good(1)], rule="fedavg", before=good(2))
    assert model.keys() == good(2).keys()


def test_the_order_of_the_global_model_is_no_clients_fault(tmp_path):
    save_file(good(0), tmp_path / "before.safetensors")
    for before in (tmp_path / "before.safetensors", dict(sorted(good(0).items()))):
        swapped = {name: good(3)[name] for name in ("fc.bias", "fc.weight", "bn.running_var", "bn.num_batches_tracked")}
        out = fedseca.Server("fedavg").aggregate([good(1), good(2), swapped], before=before)
        assert [r.reason for r in out.rejected] == ["keys reordered, first at 'fc.bias'"]
        assert list(out.model) == list(good(1))


def test_precision_is_no_fault_and_a_minority_does_not_decide_it():
    rows = [torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2), torch.ones(2).half()]
    out = fedseca.Server("fedavg").aggregate(rows)
    assert not out.rejected and out.update.dtype == torch.float32


def test_clients_that_differ_in_precision_alone_are_one_majority():
    honest = [torch.ones(2).to(dtype) for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]
    out = fedseca.Server("fedavg").aggregate([*[torch.ones(5)] * 3, *honest])
    assert len(out.rejected) == 3 and out.update.shape == (2,)


@pytest.mark.parametrize("dim", [1, 8])
@pytest.mark.parametrize("value", [1e200, -1e308])
@pytest.mark.parametrize("rule", ["rfa", "huber", "cclip", "krum", "fedseca", "copod_dos"])
def test_one_float64_client_cannot_overflow_the_distances(value, rule, dim):
    matrix = torch.randn(6, dim, dtype=torch.float64)
    matrix[2, 0] = value
    out = fedseca.Server(rule).aggregate(matrix)
    assert "too large to compute with" in out.rejected[0].reason and out.update.isfinite().all()


def test_an_update_too_large_for_half_precision_is_left_out():
    before = torch.full((2,), 60000.0).half()
    models = torch.stack([before, before, -before])
    out = fedseca.Server("fedavg").aggregate(models, before=before)
    assert [r.reason for r in out.rejected] == ["2 Inf, first at coordinate 0"] and torch.equal(out.model, before)


@pytest.mark.parametrize("weight", [0.0, -1.0, NAN, INF, "a", [1], 1j, None, 10**400])
def test_a_declared_weight_is_screened_too(weight):
    out = fedseca.Server("fedavg").aggregate(torch.tensor([[1.0], [5.0], [3.0]]), weights=[1, weight, 1])
    assert out.update == 2 and "expected a finite number above 0" in out.rejected[0].reason


def test_too_few_clients_are_named_with_the_reason_and_nothing_changes():
    server = fedseca.Server("krum", num_byzantine=4)
    matrix = torch.randn(5, 7)
    matrix[1, 3], matrix[4, 0] = NAN, INF
    with pytest.raises(NotEnoughClients) as refused:  # two were left out, so that B = 2 might be: that needs 5
        server.aggregate(matrix, ["a", "b", "c", "d", "e"])
    assert str(refused.value) == (
        "krum needs at least 7 clients, 3 of 5 were admitted; with 3 clients num_byzantine can be at most 0; "
        "left out: b (1 NaN, first at coordinate 3); e (1 Inf, first at coordinate 0)"
    )
    assert (refused.value.required, refused.value.admitted) == (7, 3) and server.round == 0


def test_a_reason_is_told_once_of_all_the_clients_that_it_is_of():
    with pytest.raises(NotEnoughClients) as refused:
        fedseca.aggregate([torch.ones(k + 1) for k in range(14)])
    message = str(refused.value)
    assert message.count("no majority") == 1 and "left out: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 more (no " in message
    assert by_reason([("a", "late"), ("b", "NaN"), ("c", "late")]) == [("a and c", "late"), ("b", "NaN")]
    assert by_reason([]) == [] and by_reason([(str(k), "x") for k in range(11)])[0][0].endswith("8, 9 and 10")


def test_nobody_at_all():
    with pytest.raises(NotEnoughClients, match="0 of 0"):
        fedseca.aggregate([])
    with pytest.raises(NotEnoughClients, match=r"0 of 2 were admitted; left out: 0 and 1 \(is a NoneType"):
        fedseca.aggregate([None, None])


def test_files_that_are_broken(tmp_path):
    for k in range(3):
        save_file(good(k), tmp_path / f"good-{k}.safetensors")
    content = save(good(5))
    broken = {
        "cut": content[:-3],
        "header": b"\xff" * 8 + content[8:],
        "empty": b"",
        "nameless": save({"": torch.ones(3)}),
        "pickle": b"\x80\x04\x95\x00cposix\nsystem\n(S'touch pwned'\ntR.",
    }
    for name, bad in broken.items():
        (tmp_path / f"{name}.safetensors").write_bytes(bad)
    out = fedseca.Server("fedavg").aggregate(sorted(tmp_path.iterdir()))
    assert out.client_ids == ("good-0", "good-1", "good-2")
    assert {r.client_id for r in out.rejected} == set(broken)
    for rejection in out.rejected:
        expected = "key '' is not a name" if rejection.client_id == "nameless" else "not a readable safetensors file"
        assert rejection.reason.startswith(expected)


def test_the_order_of_keys_in_files_means_nothing(tmp_path):
    save_file(good(1), tmp_path / "a.safetensors")
    out = fedseca.Server("fedavg").aggregate([tmp_path / "a.safetensors"], before=good(0))
    assert not out.rejected and list(out.model) == list(good(0))


def test_a_reason_cannot_carry_escape_sequences_or_a_novel():
    nasty = {"\x1b[2Jw\nx" + "y" * 5000: torch.ones(1)}
    out = fedseca.Server("fedavg").aggregate([good(0), good(1), good(2) | nasty, {**good(2), "fc.bias": "\x1b"}])
    assert len(out.rejected) == 2
    for rejection in out.rejected:
        assert rejection.reason.isprintable() and len(rejection.reason) <= 200
    ids = ["a", "\x1b[2J", "\udcff"]
    assert fedseca.Server("fedavg").aggregate(torch.ones(3, 1), ids).client_ids == ("a", r"\x1b[2J", r"\udcff")


def test_the_callers_own_mistakes_are_errors():
    with pytest.raises(InputError, match="the global model before the round holds NaN or Inf"):
        screen(torch.ones(2, 3), before=torch.tensor([1.0, NAN, 2]))
    with pytest.raises(InputError, match="the global model before the round: empty"):
        screen(torch.ones(2, 3), before=torch.ones(0))
    with pytest.raises(InputError, match="2 updates but 1 weights"):
        screen(torch.ones(2, 3), weights=[1.0])


def test_norms_are_measured_on_the_way():
    matrix = torch.randn(3, 1000)
    assert torch.allclose(screen(matrix).norms, matrix.double().norm(dim=1), rtol=1e-12)


def alike(
    apart: float, *, clients: int = 5, dim: int = 1000, where: slice = slice(None)
) -> list[dict[str, torch.Tensor]]:
    """Rows that share a part so many times longer than what tells them apart, which is as long in each but one."""
    common = torch.zeros(dim)
    common[where] = apart * dim**0.5 / len(range(dim)[where]) ** 0.5
    own = torch.tensor([1.0 if 2 * k < clients - 1 else -1.0 for k in range(clients - 1)] + [0.0])
    return [{"w": common + each} for each in own]


@pytest.mark.parametrize("clients", [3, 5])
def test_rows_look_like_models_where_what_they_share_is_six_times_longer_than_what_tells_them_apart(clients):
    assert look_like_models(screen(alike(6.01, clients=clients)).updates)
    assert not look_like_models(screen(alike(6.0, clients=clients)).updates)
    assert not look_like_models(screen(alike(-5.0, clients=clients)).updates)
    for scale in (1e-6, 1e6):
        assert look_like_models(screen([{"w": scale * row["w"]} for row in alike(7.0, clients=clients)]).updates)


@pytest.mark.parametrize("clients", [64, 65, 129, 200])
def test_of_many_clients_some_are_looked_at(clients):
    own = torch.linspace(-1, 1, clients)
    assert look_like_models(screen([{"w": torch.full((20,), 20.0) + each} for each in own]).updates)
    assert not look_like_models(screen([{"w": torch.full((20,), 1.0) + each} for each in own]).updates)


def test_what_cannot_be_models_does_not_look_like_them():
    assert not look_like_models(screen(alike(60.0)[:2]).updates), "two tell nothing"
    assert not look_like_models(screen([row["w"] for row in alike(60.0)]).updates), "a vector has no arrays"
    assert not look_like_models(screen([{"w": torch.ones(9)}] * 4).updates), "they do not differ at all"


@pytest.mark.parametrize("dim", [10, 256, 257, 300])
@pytest.mark.parametrize("where", [slice(0, 5), slice(-5, None)])
def test_what_rows_share_is_found_from_the_first_coordinate_to_the_last(dim, where):
    assert look_like_models(screen(alike(20.0, dim=dim, where=where)).updates)


def test_of_long_rows_some_thousand_coordinates_are_looked_at():
    dim = 100_000
    assert look_like_models(screen(alike(12.0, dim=dim)).updates)
    assert look_like_models(screen(alike(12.0, dim=dim, where=slice(0, dim, 2))).updates)
    assert not look_like_models(screen(alike(12.0, dim=dim, where=slice(300, 600))).updates), "between two looks"


@pytest.mark.parametrize(("norm", "admitted"), [(1e150, 1), (1.01e150, 0)])
def test_the_longest_update_that_can_be_computed_with(norm, admitted):
    found = screen(torch.tensor([[norm]], dtype=torch.float64))
    assert len(found.updates) == admitted
    if not admitted:
        assert found.rejected[0].reason == "norm 1.01e+150 is too large to compute with (allowed: up to 1e+150)"


@pytest.mark.parametrize(("arrays", "tensors", "numpy"), [(1, 0, True), (0, 1, False), (2, 1, True), (1, 1, False)])
def test_the_answer_has_the_form_that_most_admitted_clients_sent(arrays, tensors, numpy):
    broken = [np.full(2, NAN, np.float32)] * 5
    found = screen([*[np.ones(2, np.float32)] * arrays, *[torch.ones(2)] * tensors, *broken])
    assert found.form.numpy == numpy


def test_a_file_that_changes_while_it_is_read_in_place_is_an_error(tmp_path):
    for k in range(2):
        save_file(good(k), tmp_path / f"{k}.safetensors")
    files = sorted(tmp_path.iterdir())
    found = screen(files, in_place=True)
    found.check_unchanged()
    assert len(found.files) == 2 and screen(files).files == ()
    files[1].write_bytes(files[1].read_bytes() + b"\0")
    with pytest.raises(InputError, match=r"1.safetensors: was changed while it was aggregated.* without in_place"):
        found.check_unchanged()


def test_later_rounds_have_the_arrays_of_the_first():
    expected = screen([good(0)]).updates.layout
    for before in (good(2), dict(reversed(good(2).items()))):  # its order is no matter
        assert not screen([good(1)], before=before, expected=expected).rejected
    with pytest.raises(InputError, match=r"before the round is not that of earlier rounds: missing key 'fc\.bias'"):
        screen([good(1)], before=changed(fc__bias=None), expected=expected)
    found = screen([good(1), changed(fc__bias=None), changed(fc__bias=None)], expected=expected)
    assert [r.reason for r in found.rejected] == ["missing key 'fc.bias'"] * 2, "whatever the majority sends"


def test_what_was_screened_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        screen(torch.ones(2, 3)).rejected = ()  # type: ignore[misc]


def test_files_of_torch_save_are_told_what_they_are(tmp_path):
    for k, zipped in enumerate((True, False)):
        torch.save({"w": torch.ones(3)}, tmp_path / f"{k}.pt", _use_new_zipfile_serialization=zipped)
    found = screen([tmp_path / "0.pt", tmp_path / "1.pt"])
    assert all("torch.save wrote it: write it with safetensors" in each.reason for each in found.rejected)
