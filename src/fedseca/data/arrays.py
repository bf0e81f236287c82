"""A data set of the user's own, from one safetensors file: how real sites' data come in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import safe_open
from torch import Tensor

from fedseca.data._folders import FolderSource, lacking
from fedseca.data.base import Dataset, checked_labels, reading, register
from fedseca.errors import InputError, printable

FILE = "arrays.safetensors"
NEEDED = ("train_images", "train_labels", "test_images", "test_labels")
NEEDED_OTHERWISE = ("train_inputs", "train_labels", "test_inputs", "test_labels")
SITES = "train_sites"
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@register("arrays")
@dataclass(frozen=True, kw_only=True)
class Arrays(FolderSource):
    """Your own samples with their labels, and the site of each where there are sites.

    Images are bytes (N, C, H, W). Other inputs are real numbers (rows of a table), or whole ones (tokens); real labels
    are a regression.
    """

    how_to_get: ClassVar[str] = (
        f"make {FILE} of train_images and test_images (uint8, N×C×H×W) or train_inputs and test_inputs (any numbers), "
        "train_labels and test_labels (0, 1, …) and, for the partition site, train_sites (whole numbers); give its "
        "folder as --data-dir"
    )

    def lacks(self, folder: Path) -> list[str] | None:
        return lacking(folder, (FILE,))

    def read(self, folder: Path) -> Dataset:
        path = folder / FILE
        with reading(path):
            tensors = _read(path)
            if "train_inputs" in tensors:
                return _of_any_kind(self.name, tensors, path)
            train, test = (_images(tensors, split, path) for split in ("train", "test"))
            if train.shape[1:] != test.shape[1:]:
                raise InputError(
                    f"{path}: train_images are {_size(train[0])}, test_images {_size(test[0])}; resize one"
                )
            labels = _integers(tensors, "train_labels", len(train), path)
            test_labels = _integers(tensors, "test_labels", len(test), path)
            num_classes = int(torch.cat([labels, test_labels]).max()) + 1
            # A model gets an output for every class, and more classes than images are a slip, not a data set.
            num_classes = min(num_classes, len(train))
            labels = checked_labels(labels, path, len(train), num_classes)
            test_labels = checked_labels(test_labels, path, len(test), num_classes)
            unseen = sorted(set(test_labels.tolist()) - set(labels.tolist()))
            if unseen:
                some = ", ".join(map(str, unseen[:5]))
                raise InputError(
                    f"{path}: test_labels has classes that train_labels lacks ({some}); nobody could learn them"
                )
            sites = _integers(tensors, SITES, len(train), path) if SITES in tensors else None
        return Dataset.of(self.name, (train, labels), (test, test_labels), num_classes=num_classes, train_sites=sites)


def _of_any_kind(name: str, tensors: dict[str, Tensor], path: Path) -> Dataset:
    train, test = ((tensors[f"{split}_inputs"], tensors[f"{split}_labels"]) for split in ("train", "test"))
    # Made under the name of the file, which is what a fault is of.
    return replace(Dataset.of(str(path), train, test, train_sites=tensors.get(SITES)), name=name)


def _read(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        if not any(names.issuperset(needed) and names <= {*needed, SITES} for needed in (NEEDED, NEEDED_OTHERWISE)):
            found = printable(", ".join(sorted(names)) or "none", limit=120)
            raise InputError(
                f"{path}: must hold {', '.join(NEEDED)} (or inputs in the place of images) and perhaps {SITES}; "
                f"found {found}"
            )
        return {name: file.get_tensor(name) for name in names}


def _images(tensors: dict[str, Tensor], split: str, path: Path) -> Tensor:
    images = tensors[f"{split}_images"]
    if images.dtype != torch.uint8 or images.ndim != 4 or images.numel() == 0:
        found = f"{str(images.dtype).removeprefix('torch.')} {_size(images)}"
        raise InputError(f"{path}: {split}_images must be uint8 (N, C, H, W), at least one; found {found}")
    return images


def _integers(tensors: dict[str, Tensor], name: str, count: int, path: Path) -> Tensor:
    """One whole number for each image."""
    values = tensors[name]
    if values.dtype not in INTEGERS or values.shape != (count,):
        found = f"{str(values.dtype).removeprefix('torch.')} {_size(values)}"
        raise InputError(f"{path}: {name} must be one whole number for each of {count:,} images; found {found}")
    return values.to(torch.int64)


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a single number"
