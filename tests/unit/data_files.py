"""Small files in the forms of the real data sets, made here so that no test needs a download."""

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def write_idx(path: Path, array) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def make_fashion(folder: Path, ending: str = ".gz", train: int = 30, test: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("t10k", test)):
        write_idx(folder / f"{split}-images-idx3-ubyte{ending}", rng.integers(0, 256, (count, 28, 28)))
        write_idx(folder / f"{split}-labels-idx1-ubyte{ending}", np.arange(count) % 10)
    return folder


def cifar_batches(count: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {name: (rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % 10) for name in BATCHES}


def pickled_batch(pixels, labels) -> bytes:
    """The opcodes that Python 2 wrote the original with: byte strings, a list, an array rebuilt from its bytes."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows = pixels.reshape(len(pixels), -1)
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + string(b"b") + b"\x87R"
    state = b"(" + number(1) + number(rows.shape[0]) + number(rows.shape[1]) + b"\x86" + dtype + b"\x89"
    array += state + string(rows.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    remembered = b"r" + struct.pack("<I", 300)
    pairs = string(b"batch_label") + string(b"a batch") + remembered + string(b"data") + array
    return b"\x80\x02}(" + pairs + string(b"labels") + listed + b"u."


def make_cifar_batches(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in cifar_batches().items():
        (folder / name).write_bytes(pickled_batch(pixels, labels))
    return folder


def make_cifar_archive(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        contents = {"readme.html": b"<a>"} | {name: pickled_batch(*batch) for name, batch in cifar_batches().items()}
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


def make_cifar_png(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    batches = cifar_batches()
    for name, (pixels, _) in batches.items():
        Image.fromarray(pixels.transpose(0, 2, 3, 1).reshape(len(pixels), 1024, 3)).save(folder / f"{name}.png")
    train = [int(label) for name in BATCHES[:5] for label in batches[name][1]]
    (folder / "train_lables.json").write_text(json.dumps(train))
    (folder / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))
    return folder


def own_arrays(**changes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    arrays = {
        "train_images": torch.randint(0, 256, (20, 3, 4, 5), generator=generator, dtype=torch.uint8),
        "train_labels": torch.arange(20, dtype=torch.int32) % 4,
        "test_images": torch.randint(0, 256, (8, 3, 4, 5), generator=generator, dtype=torch.uint8),
        "test_labels": torch.arange(8) % 4,
        "train_sites": torch.arange(20) % 3,
    } | changes
    return {name: value.contiguous() for name, value in arrays.items() if value is not None}


def make_arrays(folder: Path, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(own_arrays(**changes), folder / "arrays.safetensors")
    return folder


def heart_row(rng, **values) -> list[str]:
    """A patient, in the columns of the original files."""
    row: dict[str, Any] = {
        "age": rng.integers(30, 80),
        "sex": rng.integers(2),
        "cp": rng.integers(1, 5),
        "trestbps": rng.integers(100, 180),
        "chol": rng.integers(150, 350),
        "fbs": rng.integers(2),
        "restecg": rng.integers(3),
        "thalach": rng.integers(90, 190),
        "exang": rng.integers(2),
        "oldpeak": round(float(rng.uniform(0, 4)), 1),
        "slope": rng.integers(1, 4),
        "ca": rng.integers(4),
        "thal": rng.choice([3, 6, 7]),
        "num": rng.integers(5),
    }
    return [str(value) for value in {**row, **values}.values()]


def make_heart(folder: Path, patients: int = 15, **values: Any) -> Path:
    """The four files; `values` stand in the first row of Cleveland."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        missing = {"ca": "?", "chol": "0"} if hospital == "switzerland" else {}
        rows = [heart_row(rng, **missing) for _ in range(patients)]
        if hospital == "cleveland" and values:
            rows[0] = heart_row(rng, **values)
        (folder / f"processed.{hospital}.data").write_text("".join(",".join(row) + "\n" for row in rows))
    return folder


MAKERS = {
    "fashion_mnist, compressed": ("fashion_mnist", make_fashion),
    "fashion_mnist, plain": ("fashion_mnist", lambda folder: make_fashion(folder, "")),
    "cifar10, archive": ("cifar10", make_cifar_archive),
    "cifar10, batches": ("cifar10", make_cifar_batches),
    "cifar10, png": ("cifar10", make_cifar_png),
    "arrays": ("arrays", make_arrays),
}
