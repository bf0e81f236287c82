"""The server remembers, saves and restores, and refuses what is not its own."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedseca
from fedseca import Aggregation
from fedseca.errors import InputError, LooksLikeModels, StateError
from tests.unit.checkpoints import opened, sealed


def rounds(number: int, clients: int = 5, dim: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(clients, dim, generator=generator) for _ in range(number)]


def test_a_round_moves_the_model_against_the_update():
    before = torch.tensor([10.0, 20.0])
    models = torch.tensor([[9.0, 21.0], [8.0, 22.0]])
    out = fedseca.Server("fedavg", learning_rate=0.5).aggregate(models, before=before)
    assert out.update.tolist() == [1.5, -1.5]
    assert out.model.tolist() == [9.25, 20.75]
    assert fedseca.Server("fedavg").aggregate(models).model is None


def test_records_tell_of_every_client():
    matrix = torch.randn(4, 30)
    matrix[2, 0] = torch.inf
    out = fedseca.Server("fedseca").aggregate(matrix, ["a", "b", "c", "d"])
    records = {record["client"]: record for record in out.records()}
    assert records["c"] == {"client": "c", "verdict": "left out", "reason": "1 Inf, first at coordinate 0"}
    assert [records[client]["verdict"] for client in "abd"] == ["used"] * 3 and out.suspects == ()
    assert all("reason" not in records[client] for client in "abd")
    assert set(records["a"]) == {"client", "verdict", "norm", "weight", "rho", "clip_factor", "adopted"}
    assert out.diagnostics["concordance"].shape == (3, 3)
    assert out.clients is out.diagnostics  # by the name that they had before
    json.dumps(fedseca.Server("fldetector").aggregate(matrix).records(), allow_nan=False)


def test_memory_follows_the_client_and_not_its_place():
    """FLDetector remembers each client's last update: the same clients in another order get the same scores."""
    straight, shuffled = fedseca.Server("fldetector"), fedseca.Server("fldetector")
    order = [3, 1, 4, 0, 2]
    for t, matrix in enumerate(rounds(5)):
        one = straight.aggregate(matrix, [f"site {k}" for k in range(5)])
        other = (
            shuffled.aggregate(matrix[order], [f"site {k}" for k in order])
            if t % 2
            else shuffled.aggregate(matrix, [f"site {k}" for k in range(5)])
        )
        assert torch.allclose(one.update, other.update)
    positions = [one.client_ids.index(c) for c in other.client_ids]
    assert torch.allclose(one.diagnostics["score"][positions], other.diagnostics["score"])


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        (("fedseca", {}), ("krum", {}), "rule='fedseca', this server has rule='krum'"),
        (("fedseca", {}), ("fedseca", {"sparsity": 0.5}), "sparsity=0.9, this server has sparsity=0.5"),
        (("fedseca", {}), ("fedseca", {"seed": 3}), "seed=0, this server has seed=3"),
    ],
)
def test_a_state_of_another_server_is_refused(tmp_path, saved, other, message):
    first = fedseca.Server(saved[0], **saved[1])
    first.aggregate(rounds(1)[0])
    first.save(tmp_path)
    second = fedseca.Server(other[0], **other[1])
    with pytest.raises(StateError, match=message):
        second.load(tmp_path)
    with pytest.raises(StateError, match=message):
        second.load_state_dict(first.state_dict())
    assert second.round == 0


def test_state_dict_is_a_copy():
    server = fedseca.Server("fedseca")
    server.aggregate(rounds(1)[0])
    saved = server.state_dict()
    saved["state"]["momentum"].fill_(99)
    assert not (server.state_dict()["state"]["momentum"] == 99).any()
    restored = fedseca.Server("fedseca")
    fresh = server.state_dict()
    restored.load_state_dict(fresh)
    fresh["state"]["momentum"].fill_(99)
    assert not (restored.state_dict()["state"]["momentum"] == 99).any()


def test_where_something_is_remembered_later_rounds_must_have_the_arrays_of_the_first(tmp_path):
    first = [{"a": torch.tensor([2.0]), "b": torch.tensor([4.0])}] * 3
    swapped = [{"b": torch.tensor([4.0]), "a": torch.tensor([2.0])}] * 3
    server = fedseca.Server("fedseca", sparsity=0.0)
    server.aggregate(first)
    server.save(tmp_path)
    for remembering in (server, fedseca.Server("fedseca", sparsity=0.0).load(tmp_path)):
        with pytest.raises(fedseca.NotEnoughClients, match="keys reordered"):
            remembering.aggregate(swapped)
        # Whatever a majority sends later, the honest minority is what counts.
        out = remembering.aggregate([*swapped, torch.ones(3), *first[:1]])
        assert out.update == {"a": torch.tensor([1.5]), "b": torch.tensor([3.0])} and len(out.rejected) == 4
    with pytest.raises(InputError, match="not that of earlier rounds: missing key 'a'"):
        server.aggregate(first, before={"b": torch.ones(1)})
    free = fedseca.Server("cwmed")
    free.aggregate(first)
    assert free.aggregate(torch.randn(5, 3)).update.shape == (3,)


def test_a_result_that_is_not_finite_is_not_returned_and_not_remembered():
    server = fedseca.Server("fedseca", learning_rate=10.0, sparsity=0.0, momentum=0.1)
    with pytest.raises(fedseca.FedsecaError, match=r"the aggregate is not finite$"):
        server.aggregate(torch.full((3, 2), 2e38), before=torch.full((2,), 1e38))
    assert server.round == 0 and server.state_dict()["state"] == {}


def test_fldetector_survives_a_client_that_changes_its_size_wildly():
    """One wild round must not poison the memory for the honest rounds after it."""
    generator = torch.Generator().manual_seed(0)
    for dim in (1, 6):
        for dtype, scales in ((torch.float32, (1, 1e37, 1, 1e-37, 1)), (torch.float64, (1e-200, 1e140, 1, 1e-150, 1))):
            server = fedseca.Server("fldetector")
            for scale in (*scales, 1, 1, 1):
                matrix = torch.randn(5, dim, generator=generator, dtype=torch.float64)
                matrix[4] *= scale
                assert server.aggregate(matrix.to(dtype)).update.isfinite().all()


def test_the_answer_is_numpy_where_most_clients_are():
    arrays = [np.ones(3, np.float32)] * 3
    assert isinstance(fedseca.aggregate([*arrays, torch.ones(3)], rule="fedavg"), np.ndarray)
    assert isinstance(fedseca.aggregate([*arrays[:1], torch.ones(3)], rule="fedavg"), torch.Tensor)
    model = fedseca.aggregate(arrays, rule="fedavg", before=torch.zeros(3).bfloat16())
    assert model.dtype == np.float32 and model.tolist() == [1, 1, 1]


def test_lists_of_arrays_come_back_as_lists():
    """Flower's and ByzFL's habit; an integer array among them is a counter."""
    generator = torch.Generator().manual_seed(0)
    before = [np.zeros((2, 3), np.float32), np.int64(7), np.zeros(4)]
    clients = [
        [torch.randn(2, 3, generator=generator).numpy(), np.int64(9), torch.randn(4, generator=generator).numpy()]
        for _ in range(5)
    ]
    named = [{f"{place}": np.asarray(array) for place, array in enumerate(client)} for client in clients]
    expected = fedseca.aggregate(named, rule="cwmed", before={f"{k}": np.asarray(v) for k, v in enumerate(before)})
    for form, kind in ((list, np.ndarray), (tuple, np.ndarray)):
        found = fedseca.aggregate([form(client) for client in clients], rule="cwmed", before=before)
        assert type(found) is list and all(type(array) is kind for array in found)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected.values(), strict=True)) and found[1] == 9
    floats = fedseca.aggregate([[np.ones(2), np.float64(3)]] * 3, rule="fedavg")  # a float to Python, too
    assert floats[1] == 3 and type(floats[1]) is np.ndarray
    tensors = fedseca.aggregate([[torch.ones(2), torch.ones(1)]] * 3, rule="fedavg")
    assert type(tensors) is list and [t.tolist() for t in tensors] == [[1, 1], [1]]
    bad = [*clients, [*clients[0][:2], "w"], clients[0][:2], [[1.0, 2.0]]]
    out = fedseca.Server("cwmed").aggregate(bad, before=before)
    assert len(out.client_ids) == 5 and [r.reason for r in out.rejected] == [
        "'array 2' is a str, expected a tensor or array",
        "missing key 'array 2'",
        "'array 0' is a list, expected a tensor or array",
    ]


def test_modules_are_their_state_dicts():
    def net(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

    before, clients = net(0), [net(seed) for seed in range(1, 6)]
    found = fedseca.aggregate(clients, before=before)
    expected = fedseca.aggregate([client.state_dict() for client in clients], before=before.state_dict())
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    before.load_state_dict(found)
    container = torch.nn.ParameterDict({"w": torch.ones(2)})  # a module that has items()
    assert fedseca.aggregate([container] * 3, rule="fedavg")["w"].tolist() == [1, 1]


def test_records_of_flower_come_back_as_records():
    flower = pytest.importorskip("flwr.app")
    arrays = [{"w": np.full((2, 2), k, np.float32), "n": np.int64(k)} for k in range(5)]
    records = [flower.ArrayRecord({name: flower.Array(np.asarray(a)) for name, a in c.items()}) for c in arrays]
    records[4]["w"].data = records[4]["w"].data[:-1]
    server = fedseca.Server("fedavg")
    out = server.aggregate(records, before=records[0])
    assert isinstance(out.model, flower.ArrayRecord) and isinstance(out.update, flower.ArrayRecord)
    assert out.model["w"].numpy().tolist() == [[1.5, 1.5]] * 2 and out.model["n"].numpy() == 1
    assert [r.reason for r in out.rejected] == ["'w' holds 15 bytes where its shape (2, 2) needs 16"]


def test_an_updates_variance_may_be_negative_but_a_models_may_not():
    before = {"running_var": torch.ones(1), "w": torch.ones(1)}
    models = [{"running_var": torch.tensor([3.0]), "w": torch.ones(1)}] * 3
    out = fedseca.Server("fedavg", buffers="aggregate").aggregate(models, before=before)
    assert out.update["running_var"] == -2 and out.model["running_var"] == 3


def test_low_precision_updates_are_remembered_in_full_precision():
    server = fedseca.Server("cclip")
    server.aggregate(torch.full((3, 2), 1 / 3).bfloat16())
    assert server.state_dict()["state"]["centre"].dtype == torch.float32


def test_saving_deletes_no_file_of_others(tmp_path):
    (tmp_path / "state-ohio.safetensors").write_bytes(b"mine")
    server = fedseca.Server("fedseca")
    for matrix in rounds(3):
        server.aggregate(matrix)
        server.save(tmp_path)
    assert (tmp_path / "state-ohio.safetensors").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.safetensors", "state-ohio.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        {"state": {}}, {"state": {"momentum": torch.ones(9)}}, {"state": {"momentum": torch.ones(1, 12)}},
        {"layout": None}, {"round": "x"},
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_this_rules_is_refused(change):
    server = fedseca.Server("fedseca")
    server.aggregate(rounds(1)[0])
    with pytest.raises(StateError, match="the saved state is broken"):
        fedseca.Server("fedseca").load_state_dict(server.state_dict() | change)


def test_a_state_that_says_no_hyperparameters_is_refused():
    server = fedseca.Server("fedseca")
    with pytest.raises(StateError, match=r"the saved state is of sparsity=None, this server has sparsity=0\.9"):
        server.load_state_dict(server.state_dict() | {"hyperparameters": None})


def test_one_call_draws_as_a_new_server_with_seed_0_does():
    matrix = torch.randn(9, 4)
    drawn = [fedseca.aggregate(matrix, rule="bucketing+cwmed", seed=seed) for seed in range(4)]
    assert torch.equal(fedseca.aggregate(matrix, rule="bucketing+cwmed"), drawn[0])
    assert torch.equal(fedseca.Server("bucketing+cwmed").aggregate(matrix).update, drawn[0])
    assert any(not torch.equal(drawn[0], other) for other in drawn[1:])


def damage(folder, how):
    """What is sealed anew has a digest that is right: it is the content that is wrong."""
    (path,) = folder.iterdir()
    content = path.read_bytes()
    manifest, tensors = opened(path)
    saved = manifest["server"]
    if how == "no file":
        path.unlink()
    elif how == "no tensors":
        path.write_bytes(sealed(manifest, {}))
    elif how == "half a manifest":
        path.write_bytes(content[:40])
    elif how == "not an object":
        path.write_bytes(sealed([1, 2], tensors))
    elif how == "no server":
        path.write_bytes(sealed({"format": manifest["format"]}, tensors))
    elif how == "a server that is none":
        path.write_bytes(sealed(manifest | {"server": [1, 2]}, tensors))
    elif how == "half the tensors":
        path.write_bytes(content[:-5])
    elif how == "changed tensors":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "no round":
        path.write_bytes(sealed(manifest | {"server": saved | {"round": None}}, tensors))
    elif how == "another format":
        path.write_bytes(sealed(manifest | {"format": 99}, tensors))


FAULTS = ["no file", "no tensors", "half a manifest", "not an object", "no server", "a server that is none"]
FAULTS += ["half the tensors", "changed tensors", "no round", "another format"]


def test_what_is_sealed_anew_and_not_changed_is_loaded(tmp_path):
    """The negative control of the faults below: it is not the seal that they are refused for."""
    server = fedseca.Server("fedseca")
    server.aggregate(rounds(1)[0])
    server.save(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(sealed(*opened(path)))
    assert fedseca.Server("fedseca").load(tmp_path).round == 1


@pytest.mark.parametrize("how", FAULTS)
def test_a_damaged_folder_is_refused_and_the_server_stays_as_it_was(tmp_path, how):
    server = fedseca.Server("fedseca")
    server.aggregate(rounds(1)[0])
    server.save(tmp_path)
    damage(tmp_path, how)
    fresh = fedseca.Server("fedseca")
    with pytest.raises(StateError) as refused:
        fresh.load(tmp_path)
    assert "\n" not in str(refused.value) and fresh.round == 0 and fresh.state_dict()["state"] == {}


@pytest.mark.parametrize(("step", "cut"), [("fsync", 1), ("replace", 1), ("fsync", 2)])
def test_a_save_that_is_cut_off_leaves_the_old_state_or_the_new_one(tmp_path, monkeypatch, step, cut):
    server = fedseca.Server("fedseca")
    server.aggregate(rounds(1)[0])
    server.save(tmp_path)
    server.aggregate(rounds(2)[1])
    whole, calls = getattr(os, step), []

    def dying(*args):
        calls.append(args)
        if len(calls) == cut:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(os, step, dying)
    with pytest.raises(KeyboardInterrupt):
        server.save(tmp_path)
    monkeypatch.undo()
    assert fedseca.Server("fedseca").load(tmp_path).round == cut  # the second sync comes after the stroke
    server.save(tmp_path)
    assert fedseca.Server("fedseca").load(tmp_path).round == 2
    assert [path.name for path in tmp_path.iterdir()] == ["server.safetensors"]


def test_bad_settings_of_the_server_itself():
    with pytest.raises(InputError, match=r"buffers must be median \| aggregate; found 'mean'"):
        fedseca.Server("fedavg", buffers="mean")  # type: ignore[arg-type]
    for rate in (-1, 0, float("inf"), float("nan")):
        with pytest.raises(InputError, match=f"learning_rate must be a finite number above 0; found {rate}"):
            fedseca.Server("fedavg", learning_rate=rate)
    for seed in (-1, 1.5, "0"):
        with pytest.raises(InputError, match="seed must be an integer ≥ 0"):
            fedseca.Server("fedavg", seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("clients", "last"), [(19, "18 "), (20, "19 "), (21, "… and 1 more"), (30, "… and 10 more")])
def test_of_many_clients_the_first_twenty_are_shown(clients, last):
    shown = repr(fedseca.Server("fedavg").aggregate(torch.ones(clients, 3))).splitlines()
    assert shown[0] == f"Round: {clients} admitted (0 suspect), 0 left out"
    assert shown[1].split() == ["client", "verdict", "norm", "weight"] and shown[-1].startswith(last)
    assert len(shown) == 2 + min(clients, 20) + (clients > 20)


def test_a_low_weight_is_held_against_a_client_only_where_the_rule_found_it_unlike_the_others():
    rows = torch.tensor([[1.0], [1.0], [1.0], [1.0], [4.0]])
    assert fedseca.Server("cwmed").aggregate(rows).suspects == ("4",)
    assert fedseca.Server("krum").aggregate(rows).suspects == ()  # it chooses one, and distrusts nobody
    weighed = fedseca.Server("rfa").aggregate(rows, weights=[9, 9, 9, 9, 1])
    assert weighed.suspects == ()  # the caller decided what each weighs


def test_models_in_the_place_of_updates_are_told_unless_it_is_said_what_they_started_from():
    start = {"w": torch.full((50,), 30.0)}
    models = [{"w": start["w"] + step} for step in torch.randn(5, 50)]
    with pytest.warns(LooksLikeModels, match="these look like models, not updates"):
        fedseca.Server("cwmed").aggregate(models)
    fedseca.Server("cwmed").aggregate(models, before=start)  # a warning would be an error


def test_updates_that_share_a_long_part_are_no_models_where_it_is_said_what_they_started_from():
    """All clients may well have gone far in one direction: only without a model before is that suspicious."""
    start = {"w": torch.zeros(50)}
    models = [{"w": torch.full((50,), 30.0) + step} for step in torch.randn(5, 50)]
    fedseca.Server("cwmed").aggregate(models, before=start)  # a warning would be an error


@pytest.mark.parametrize(
    "answer", [None, torch.zeros(4), Aggregation(torch.zeros(3), {}), Aggregation(torch.zeros(4, 1), {})]
)
def test_a_rule_that_answers_something_else_is_named(answer):
    class Confused(type(fedseca.make_aggregator("cwmed"))):  # type: ignore[misc]
        def aggregate(self, updates, state, rng):
            return answer

    with pytest.raises(TypeError, match=r"cwmed.aggregate must answer an Aggregation whose update has 4 numbers"):
        fedseca.Server(Confused()).aggregate(torch.randn(5, 4))


def test_a_round_shows_what_is_known_of_each_client():
    rows = torch.eye(3, 4).repeat(2, 1)
    rows[5] = torch.nan
    lines = str(fedseca.Server("fedseca").aggregate(rows)).splitlines()
    assert lines[0].startswith("Round: 5 admitted") and "–" in lines[-1] and "left out" in lines[-1]
    assert not any("–" in line for line in lines[:-1]) and len(lines) == 8


def test_copies_that_leave_a_rule_too_few_rows_void_the_round():
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    rows[1:] = rows[1]  # two voices; with three, Krum would assume that none of them is Byzantine
    server = fedseca.Server(fedseca.make_aggregator("one_voice+krum", num_byzantine=1))
    with pytest.raises(fedseca.NotEnoughClients, match="krum"):
        server.aggregate(rows)
    assert server.round == 0


def test_files_are_read_in_place_only_where_that_is_asked_for(tmp_path):
    for k in range(2):
        save_file({"w": torch.ones(3)}, tmp_path / f"{k}.safetensors")
    files = sorted(tmp_path.iterdir())
    assert fedseca.Server("fedavg").screen(files).files == ()
    assert len(fedseca.Server("fedavg", in_place=True).screen(files).files) == 2


def test_optional_libraries_are_named_when_they_are_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyod.models.copod", None)
    with pytest.raises(fedseca.FedsecaError, match=r"copod_dos needs PyOD: pip install 'fedseca\[detectors\]'"):
        fedseca.aggregate(torch.randn(5, 4), rule="copod_dos")
