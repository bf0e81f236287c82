"""What is kept on disk: whatever is changed in it, and whatever does not belong there, is refused in one line."""

import json
import random
import re
import shutil
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import fedseca
from fedseca.checkpoint import FORMAT, read_checkpoint, whole_number, write_checkpoint
from fedseca.errors import InputError, StateError
from fedseca.federation import Scenario, simulate
from fedseca.federation.folder import read_model
from tests.unit.checkpoints import opened, sealed, unsealed


def a_server() -> fedseca.Server:
    server = fedseca.Server("fedseca")
    server.aggregate(torch.randn(5, 60, generator=torch.Generator().manual_seed(0)))
    return server


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    a_server().save(tmp_path)
    return tmp_path / "server.safetensors"


def refused(folder: Path) -> str:
    """Why a server is not loaded; it stays as it was."""
    fresh = fedseca.Server("fedseca")
    with pytest.raises(StateError) as problem:
        fresh.load(folder)
    assert fresh.round == 0 and fresh.state_dict()["state"] == {}
    assert "\n" not in str(problem.value) and str(problem.value).startswith(str(folder))
    return str(problem.value)


def test_what_is_written_is_read(tmp_path):
    parts = {"model": {"w": torch.randn(3, 4), "half": torch.randn(5).bfloat16(), "n": torch.tensor(7)}, "empty": {}}
    manifest = {"round": 3, "note": 'a "digest":"' + 64 * "0" + '" in a text', "nested": {"a": [1, None]}}
    write_checkpoint(tmp_path / "file", manifest, parts)
    found = read_checkpoint(tmp_path / "file")
    assert found.manifest == manifest | {"format": FORMAT} and found.path == tmp_path / "file"
    assert found.parts.keys() == {"model"}
    for name, value in parts["model"].items():
        assert torch.equal(found.parts["model"][name], value) and found.parts["model"][name].dtype == value.dtype
    write_checkpoint(tmp_path / "file", {}, {})
    assert read_checkpoint(tmp_path / "file").parts == {}


def test_what_was_read_cannot_be_changed(tmp_path):
    write_checkpoint(tmp_path / "file", {}, {})
    with pytest.raises(FrozenInstanceError):
        read_checkpoint(tmp_path / "file").manifest = {"round": 7}  # type: ignore[misc]


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1])
def test_a_number_of_rounds(number):
    assert whole_number(number) == number


@pytest.mark.parametrize("number", [-1, 2**63, 1.0, True, "1", None])
def test_what_is_no_number_of_rounds(number):
    with pytest.raises(ValueError, match=f"a number of rounds must be a whole number; found {number!r}"):
        whole_number(number)


def test_a_name_that_looks_like_a_digest_is_only_a_name(tmp_path):
    """What is hashed is found by where it stands in the header: nothing that is kept can stand in for it."""
    nasty = '"digest":"' + 64 * "0" + '"'
    write_checkpoint(tmp_path / "file", {nasty: nasty}, {nasty: {nasty: torch.ones(2)}})
    found = read_checkpoint(tmp_path / "file")
    assert found.manifest[nasty] == nasty and torch.equal(found.parts[nasty][nasty], torch.ones(2))


def header_length(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def test_every_flipped_bit_shows(saved):
    content = saved.read_bytes()
    header, tensors = header_length(content), range(8 * header_length(content), 8 * len(content))
    assert len(tensors) == 8 * 4 * 60
    bits = [*range(8 * header), *random.Random(0).sample(tensors, 400)]
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        saved.write_bytes(flipped)
        refused(saved.parent)
    saved.write_bytes(content)
    assert fedseca.Server("fedseca").load(saved.parent).round == 1  # the negative control


def test_every_length_but_its_own_shows(saved):
    content = saved.read_bytes()
    for length in range(0, len(content), 7):
        saved.write_bytes(content[:length])
        refused(saved.parent)
    for more in (b"\0", b"\n", content):
        saved.write_bytes(content + more)
        refused(saved.parent)


def test_an_edited_manifest_shows(saved):
    manifest, tensors = opened(saved)
    assert manifest["server"]["round"] == 1
    edited = manifest | {"server": manifest["server"] | {"round": 2}}
    (digest,) = re.findall(rb'"digest":"([0-9a-f]{64})"', saved.read_bytes())
    for wrong in (digest.decode(), 64 * "0", "", "f" * 63, "é" * 32):
        saved.write_bytes(unsealed(edited, tensors, wrong))
        assert "it is damaged, or was changed after it was written" in refused(saved.parent)
    saved.write_bytes(sealed(edited, tensors))
    assert fedseca.Server("fedseca").load(saved.parent).round == 2  # the negative control


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not safetensors at all",
        save({}),
        save({"w": torch.ones(2)}),
        save({}, {"digest": "0" * 64}),
        save({}, {"manifest": "{}"}),
        save({}, {"manifest": "{"}),
        save({}, {"manifest": "[" * 100_000}),
        sealed([], {}),
        sealed("text", {}),
        sealed({}, {}),
        sealed({"format": FORMAT + 1}, {}),
        sealed({"format": None}, {}),
    ],
    ids=range(13),
)
def test_what_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "server.safetensors").write_bytes(content)
    refused(tmp_path)


def test_this_version_reads_format_2_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(sealed({"format": 2, "contents": "of its own"}, {}))
    assert read_checkpoint(path).manifest["contents"] == "of its own"
    for other in (1, 3):
        path.write_bytes(sealed({"format": other}, {}))
        with pytest.raises(StateError, match=f"its format is {other}, this version reads 2"):
            read_checkpoint(path)


def test_a_file_of_others_is_not_taken_for_one_of_an_earlier_version(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(save({"w": torch.ones(2)}, {"manifest": "{}"}))
    with pytest.raises(StateError, match="it is not a checkpoint, or it is damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize("metadata", [["digest"], {"digest": 3}, {"digest": "0" * 64, "manifest": {}}, None, "text"])
def test_a_header_that_is_none_of_ours_is_refused(tmp_path, metadata):
    header = json.dumps({"__metadata__": metadata}).encode()
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(StateError, match="its header is not that of a checkpoint"):
        read_checkpoint(tmp_path / "file")


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(StateError, match="there is no such file"):
        read_checkpoint(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="cannot be read"):
        read_checkpoint(tmp_path / "folder")
    assert "there is no saved server (server.safetensors)" in refused(tmp_path)
    assert "there is no saved server" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StateError, match="is a file; a server is saved into a folder"):
        a_server().save(tmp_path / "file")


def test_the_folder_that_a_server_is_saved_into_is_made(tmp_path):
    a_server().save(tmp_path / "a" / "b")
    assert fedseca.Server("fedseca").load(tmp_path / "a" / "b").round == 1


def test_a_server_of_another_seed_is_told_what_differs(saved):
    with pytest.raises(StateError, match=r"server.safetensors: cannot be resumed .*seed=0, this server has seed=3"):
        fedseca.Server("fedseca", seed=3).load(saved.parent)


# --- the version before ------------------------------------------------------------------------------------------


def of_the_version_before(manifest: Any, tensors: dict[str, torch.Tensor]) -> bytes:
    old = {name: value for name, value in manifest.items() if name != "format"}
    return save(tensors, {"manifest": json.dumps(old | {"contents": "0123456789abcdef"})})


def test_a_checkpoint_of_the_version_before_is_refused_and_says_what_to_do(saved):
    saved.write_bytes(of_the_version_before(*opened(saved)))
    told = refused(saved.parent)
    assert "was written by an earlier version of fedseca, which alone can resume it" in told


def test_a_server_of_the_version_before_is_refused_and_says_what_to_do(tmp_path):
    manifest = {"rule": "fedseca", "round": 1, "tensors": "state-0123456789abcdef.safetensors"}
    (tmp_path / "server.json").write_text(json.dumps(manifest))
    (tmp_path / manifest["tensors"]).write_bytes(save({"momentum": torch.ones(3)}))
    told = refused(tmp_path)
    assert "was saved by an earlier version of fedseca (server.json); go on with that version, or begin" in told
    a_server().save(tmp_path)  # what is saved there now is what counts
    assert fedseca.Server("fedseca").load(tmp_path).round == 1
    assert (tmp_path / "server.json").exists()


# --- the checkpoint of a run -------------------------------------------------------------------------------------

SCENARIO = Scenario(rounds=6, train_images=60, test_images=30, attack="mimic")


class _Cut(Exception):
    pass


def _cut_after_five(history):
    if len(history.rounds) == 5:
        raise _Cut


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory) -> Path:
    """A run of which five rounds are written down, and the fourth is the last that was kept."""
    folder: Path = tmp_path_factory.mktemp("runs") / "cut"
    with pytest.raises(_Cut):
        simulate(SCENARIO, folder=folder, checkpoint_every=2, on_round=_cut_after_five)
    assert opened(folder / "checkpoint.safetensors")[0]["round"] == 4
    return folder


@pytest.fixture
def folder(tmp_path: Path, cut_off: Path) -> Path:
    return shutil.copytree(cut_off, tmp_path / "run")


def not_resumed(folder: Path) -> str:
    """Why a run does not go on; its folder stays as it was."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(StateError) as problem:
        simulate(SCENARIO, folder=folder, resume=True)
    assert "\n" not in str(problem.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    return str(problem.value)


def test_it_goes_on_where_nothing_was_changed(folder):
    """The negative control of what follows."""
    path = folder / "checkpoint.safetensors"
    path.write_bytes(sealed(*opened(path)))
    assert simulate(SCENARIO, folder=folder, resume=True).f1 == simulate(SCENARIO).f1


def test_a_server_goes_on_from_the_checkpoint_of_a_run(cut_off):
    assert fedseca.Server("fedseca").load(cut_off).round == 4


@pytest.mark.parametrize("number", [0, 1, 3, 5, 6, 99])
def test_another_number_of_rounds_than_was_played_is_refused(folder, number):
    """The digest is right: a checkpoint of another time, or of another run."""
    path = folder / "checkpoint.safetensors"
    manifest, tensors = opened(path)
    path.write_bytes(sealed(manifest | {"round": number}, tensors))
    assert "its files and its checkpoint are not of the same rounds; overwrite it" in not_resumed(folder)


def test_a_checkpoint_that_was_kept_with_a_wrong_round_is_refused(folder):
    """The same by the server's own hand."""
    path = folder / "checkpoint.safetensors"
    found = read_checkpoint(path)
    server = fedseca.Server("fedseca")
    server.restore(found)
    others = {name: value for name, value in found.manifest.items() if name not in ("server", "format")}
    parts = {name: tensors for name, tensors in found.parts.items() if name != "server"}
    server.keep(path, others | {"round": 3}, parts)
    assert read_checkpoint(path).manifest["round"] == 3
    assert "its files and its checkpoint are not of the same rounds; overwrite it" in not_resumed(folder)
    server.keep(path, others, parts)
    assert len(simulate(SCENARIO, folder=folder, resume=True).rounds) == 6  # the negative control


@pytest.mark.parametrize("number", [3, 5])
def test_a_server_that_agrees_with_the_wrong_round_is_refused_by_the_audit(folder, number):
    path = folder / "checkpoint.safetensors"
    manifest, tensors = opened(path)
    manifest |= {"round": number, "server": manifest["server"] | {"round": number}}
    path.write_bytes(sealed(manifest, tensors))
    assert "overwrite" in not_resumed(folder)


def test_the_checkpoint_of_a_finished_run_is_not_that_of_one_that_was_cut_off(folder, tmp_path):
    simulate(SCENARIO, folder=tmp_path / "whole")
    shutil.copy(tmp_path / "whole" / "checkpoint.safetensors", folder)
    assert "its files and its checkpoint are not of the same rounds; overwrite it" in not_resumed(folder)


@pytest.mark.parametrize(
    "change",
    [{"round": bad} for bad in (None, "four", "4", 4.0, -1, 10**400, [4], True)]
    + [{"audit": None}, {"audit": "f" * 64}],
)
def test_a_manifest_that_makes_no_sense_is_refused(folder, change):
    path = folder / "checkpoint.safetensors"
    manifest, tensors = opened(path)
    path.write_bytes(sealed(manifest | change, tensors))
    assert "overwrite" in not_resumed(folder)


def test_the_checkpoint_of_a_run_of_the_version_before_is_refused_and_says_what_to_do(folder):
    path = folder / "checkpoint.safetensors"
    path.write_bytes(of_the_version_before(*opened(path)))
    told = not_resumed(folder)
    assert "was written by an earlier version of fedseca, which alone can resume it" in told and "overwrite" in told
    with pytest.raises(InputError, match="was written by an earlier version of fedseca") as problem:
        read_model(folder)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("fault", ["changed", "removed", "moved", "added"])
def test_an_audit_that_was_changed_is_not_gone_on_with(folder, fault):
    path = folder / "clients.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if fault == "changed":
        lines[7] = lines[7].replace(b'"byzantine":false', b'"byzantine":true ')
    elif fault == "removed":
        del lines[7]
    elif fault == "moved":
        lines[6], lines[7] = lines[7], lines[6]
    else:
        lines.insert(7, lines[7])
    assert b"".join(lines) != path.read_bytes()
    path.write_bytes(b"".join(lines))
    assert "overwrite" in not_resumed(folder)
