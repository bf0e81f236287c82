"""Images as a network takes them: read one by one from files, of one size, normalised; and light augmentation."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedseca.data.base import Dataset, checked_labels, reading
from fedseca.data.samples import Batches, InMemory, Inputs, Lazy, Normalisation, Samples
from fedseca.data.task import Classification
from fedseca.errors import InputError, MissingDependency

LARGEST_SIDE = 1024
"""In pixels, of what a network is fed with."""
_IMAGENET = Normalisation(torch.tensor([0.485, 0.456, 0.406]) * 255, torch.tensor([0.229, 0.224, 0.225]) * 255)
"""Of red, green and blue."""
_MOST_SHIFT = 8
"""An augmented image is shifted by at most its side divided by this."""

AUGMENT_HELP = "half of the training images are flipped, and each is shifted by up to an eighth of its side"


def pillow(what: str) -> ModuleType:
    """Pillow's `Image`, or a line that says what needs it."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependency(f"{what} needs Pillow: pip install 'fedseca[simulation]'") from None
    return Image


def read_jpeg(path: Path) -> Any:
    """A JPEG file in red, green and blue."""
    pil = pillow("reading images")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pil.DecompressionBombWarning)
        with pil.open(path, formats=["JPEG"]) as image:
            return image.convert("RGB")


@dataclass(frozen=True)
class ImageFiles:
    """Images in files, in bytes: the middle square of each, of one size."""

    folder: Path
    names: tuple[str, ...]
    """Inside the folder."""
    decode: Callable[[Path], Any]
    """From a file to an image of Pillow in red, green and blue."""
    side: int

    def __getitem__(self, index: int) -> Tensor:
        path = self.folder / self.names[index]
        with reading(path):
            image = self.decode(path)
            short = min(image.size)
            left, top = ((length - short) // 2 for length in image.size)
            square = image.resize(
                (self.side, self.side),
                pillow("resizing images").Resampling.BILINEAR,
                box=(left, top, left + short, top + short),
            )
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(square), 2, 0)))

    def fingerprint(self) -> bytes:
        """Of the names and the content of all files: of two that are not compressed the size tells nothing."""
        digest = hashlib.blake2b(repr((self.side, len(self.names))).encode())
        for name in self.names:
            with reading(self.folder / name):
                content = (self.folder / name).read_bytes()
            digest.update(repr((name, len(content))).encode())
            digest.update(content)
        return digest.digest()


def dataset_of_files(
    name: str,
    files: ImageFiles,
    labels: Iterable[int],
    is_test: Tensor,
    *,
    num_classes: int,
    sites: Tensor | None = None,
    augment: bool = False,
    notes: Iterable[str] = (),
) -> Dataset:
    """A data set whose images are read when they are needed, and normalised as ImageNet is.

    `is_test` says which of them are the test set.
    """
    classes = checked_labels(torch.tensor(list(labels)), files.folder, len(files.names), num_classes)
    shape, fingerprint = (3, files.side, files.side), files.fingerprint()
    if is_test.all() or not is_test.any():
        what = "training" if is_test.all() else "test"
        raise InputError(f"{files.folder}: holds no {what} images; found {len(files.names):,} images in all")
    train, test = (part.nonzero().flatten() for part in (~is_test, is_test))
    train_images, test_images = (Lazy(files, part, shape, fingerprint, _IMAGENET) for part in (train, test))
    return Dataset(
        name,
        Samples(train_images, classes[train], None if sites is None else sites[train]),
        Samples(test_images, classes[test]),
        Classification(num_classes),
        flip_and_shift if augment else None,
        tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class Resized(Inputs):
    """Images in memory that are brought to another size when they are taken: all of them at once would not fit."""

    images: InMemory
    side: int

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (self.images.shape[0], self.side, self.side)

    @property
    def normalisation(self) -> Normalisation | None:  # type: ignore[override]
        return self.images.normalisation

    def normalised(self, normalisation: Normalisation) -> Resized:
        return Resized(self.images.normalised(normalisation), self.side)

    def __len__(self) -> int:
        return len(self.images)

    def select(self, indices: Tensor) -> Resized:
        return Resized(self.images.select(indices), self.side)

    def batches(self, order: Batches, workers: int = 0) -> Iterator[Tensor]:
        size = (self.side, self.side)
        for batch in self.images.batches(order):
            yield functional.interpolate(batch, size, mode="bilinear", align_corners=False, antialias=True)

    def content(self) -> Iterable[bytes | memoryview]:
        return (repr(self.side).encode(), *self.images.content())


def flip_and_shift(images: Tensor, rng: torch.Generator) -> Tensor:
    """A batch (N, C, H, W), of which half is flipped from left to right and each image shifted.

    What a shift lays bare is filled with the pixels of the edge.
    """
    count, _, height, width = images.shape
    down, right = height // _MOST_SHIFT, width // _MOST_SHIFT
    tops = torch.randint(2 * down + 1, (count,), generator=rng).tolist()
    lefts = torch.randint(2 * right + 1, (count,), generator=rng).tolist()
    flipped = (torch.rand(count, generator=rng) < 0.5).tolist()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (down, down), (right, right)), mode="edge")
    changed = np.empty_like(images.numpy())
    for number, (top, left, flip) in enumerate(zip(tops, lefts, flipped, strict=True)):
        shifted = padded[number, :, top : top + height, left : left + width]
        changed[number] = shifted[:, :, ::-1] if flip else shifted
    return torch.from_numpy(changed)
