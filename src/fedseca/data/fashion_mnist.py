"""Fashion-MNIST from its four idx files, compressed or not."""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedseca.data._folders import FolderSource, lacking, run_tool
from fedseca.data.base import Dataset, Facts, checked_labels, reading, register
from fedseca.errors import InputError

PACKAGE = "dataset-fashion-mnist"
SIDE = 28
MOST_ITEMS = 1_000_000  # what a damaged header may promise at most
FILES = tuple(f"{split}-{kind}" for split in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))


@register("fashion_mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(FolderSource):
    """Pictures of clothes, grey, 28×28 (Xiao et al. 2017)."""

    how_to_get: ClassVar[str] = (
        f"fedseca data get fashion_mnist, or apt install {PACKAGE}, or --data-dir with a folder that holds the four "
        "idx files of github.com/zalandoresearch/fashion-mnist"
    )
    facts: ClassVar[Facts | None] = Facts(60_000, 10_000, 10, (1, SIDE, SIDE))
    subfolders: ClassVar[tuple[str, ...]] = ("FashionMNIST/raw",)  # torchvision's
    system_folders: ClassVar[tuple[str, ...]] = ("/usr/share/datasets/fashion-mnist",)

    def lacks(self, folder: Path) -> list[str] | None:
        return lacking(folder, FILES, ("", ".gz"))

    def read(self, folder: Path) -> Dataset:
        return Dataset.of(self.name, _read_split(folder, "train"), _read_split(folder, "t10k"), num_classes=10)

    def fetch(self, folder: Path) -> None:
        # apt-get checks the package's signature, and neither command needs root.
        otherwise = "instead, put the four idx files of github.com/zalandoresearch/fashion-mnist into --data-dir"
        work = folder / "work"
        work.mkdir()
        run_tool(["apt-get", "download", PACKAGE], work, otherwise)
        run_tool(["dpkg-deb", "-x", *(file.name for file in work.glob("*.deb")), "."], work, otherwise)
        for file in sorted(work.rglob("*-ubyte*")):
            os.replace(file, folder / file.name)
        shutil.rmtree(work)


def _read_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    images_file, labels_file = (_existing(folder / name) for name in FILES if name.startswith(split))
    images, labels = _read_idx(images_file, (SIDE, SIDE)), _read_idx(labels_file, ())
    return images.unsqueeze(1), checked_labels(labels, labels_file, len(images), 10)


def _existing(path: Path) -> Path:
    return path if os.path.isfile(path) else path.with_name(f"{path.name}.gz")


def _read_idx(path: Path, item: tuple[int, ...]) -> Tensor:
    """An idx file of bytes: a magic number with the count of dimensions, the dimensions, the bytes."""
    dimensions = 1 + len(item)
    with reading(path), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        header = file.read(4 + 4 * dimensions)
        if len(header) != 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
            raise InputError(f"{path}: is not an idx file of bytes in {dimensions} dimension{'s' * (dimensions > 1)}")
        count, *found = struct.unpack(f">{dimensions}I", header[4:])
        if tuple(found) != item or count > MOST_ITEMS:
            wanted, shape = ("×".join(map(str, part)) for part in ((f"≤{MOST_ITEMS:,}", *item), (count, *found)))
            raise InputError(f"{path}: its header must say {wanted}; found {shape}")
        size = count * math.prod(item)
        content = file.read(size + 1)
    if len(content) != size:
        amount = "more" if len(content) > size else f"{len(content):,}"
        raise InputError(f"{path}: its header promises {size:,} bytes; found {amount}")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(count, *item).copy())
