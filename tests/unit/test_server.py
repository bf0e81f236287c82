"""The server remembers, saves and restores, and refuses what is not its own."""

import json
import os

import pytest
import torch

import fedseca
from fedseca.errors import InputError, StateError


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
    assert records["c"] == {"client": "c", "admitted": False, "reason": "1 Inf, first at coordinate 0"}
    assert set(records["a"]) >= {"norm", "weight", "rho", "clip_factor", "adopted"}
    assert out.clients["concordance"].shape == (3, 3)
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
    assert torch.allclose(one.clients["score"][positions], other.clients["score"])


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


def test_another_number_of_coordinates_is_refused_where_something_is_remembered():
    server = fedseca.Server("cclip")
    server.aggregate(rounds(1)[0])
    with pytest.raises(InputError, match="remembers updates of 12 coordinates; found 3"):
        server.aggregate(torch.randn(5, 3))
    free = fedseca.Server("cwmed")
    free.aggregate(rounds(1)[0])
    assert free.aggregate(torch.randn(5, 3)).update.shape == (3,)


def damage(folder, how):
    manifest = folder / "server.json"
    (tensors,) = folder.glob("state-*.safetensors")
    if how == "no manifest":
        manifest.unlink()
    elif how == "no tensors":
        tensors.unlink()
    elif how == "half a manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif how == "not an object":
        manifest.write_text("[1, 2]")
    elif how == "half the tensors":
        tensors.write_bytes(tensors.read_bytes()[:-5])
    elif how == "changed tensors":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(bytes(content))
    elif how == "elsewhere":
        saved = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(saved | {"tensors": "../../etc/passwd"}))
    elif how == "no round":
        saved = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(saved | {"round": None}))


FAULTS = ["no manifest", "no tensors", "half a manifest", "not an object"]
FAULTS += ["half the tensors", "changed tensors", "elsewhere", "no round"]


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


@pytest.mark.parametrize("cut", [1, 2])
def test_a_save_that_is_cut_off_leaves_the_old_state(tmp_path, monkeypatch, cut):
    server = fedseca.Server("fedseca")
    server.aggregate(rounds(1)[0])
    server.save(tmp_path)
    server.aggregate(rounds(2)[1])
    replace, calls = os.replace, []

    def dying(*args):
        calls.append(args)
        if len(calls) == cut:
            raise KeyboardInterrupt
        return replace(*args)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        server.save(tmp_path)
    monkeypatch.undo()
    assert fedseca.Server("fedseca").load(tmp_path).round == 1
    server.save(tmp_path)
    assert fedseca.Server("fedseca").load(tmp_path).round == 2
    assert sorted(p.name.partition("-")[0] for p in tmp_path.iterdir()) == ["server.json", "state"]


def test_bad_settings_of_the_server_itself():
    with pytest.raises(InputError, match=r"buffers must be median \| aggregate; found 'mean'"):
        fedseca.Server("fedavg", buffers="mean")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="learning_rate must be a finite number above 0; found -1"):
        fedseca.Server("fedavg", learning_rate=-1)


def test_optional_libraries_are_named_when_they_are_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyod.models.copod", None)
    with pytest.raises(fedseca.FedsecaError, match=r"copod_dos needs PyOD: pip install 'fedseca\[detectors\]'"):
        fedseca.aggregate(torch.randn(5, 4), rule="copod_dos")
