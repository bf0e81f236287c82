"""Samples of what people have in hand: pairs of arrays, and torch's Datasets."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedseca.data.samples import InMemory, Inputs, Lazy, Normalisation, Samples
from fedseca.data.task import Classification, Regression, Task
from fedseca.errors import InputError, in_one_line

_LOOKED_AT = 64
"""How many inputs of a Dataset its fingerprint is made of."""
Given = tuple[Any, Any] | TorchDataset[Any]
"""Inputs and labels; or a Dataset whose items are an input and its label."""


def samples_of(name: str, train: Given, test: Given, train_sites: Any = None) -> tuple[Samples, Samples]:
    """Both splits, normalised by the training split."""
    splits = []
    for what, given in (("train", train), ("test", test)):
        inputs, labels = _read(given, f"{name}: {what}")
        if not len(labels):
            raise InputError(f"{name}: {what} holds no samples")
        splits.append((inputs, labels))
    (inputs, labels), (test_inputs, test_labels) = splits
    if inputs.shape != test_inputs.shape:
        found = f"{size(inputs.shape)} in train, {size(test_inputs.shape)} in test"
        raise InputError(f"{name}: all inputs must have one shape; found {found}")
    if labels.shape[1:] != test_labels.shape[1:]:
        found = f"{size(tuple(labels.shape))} in train, {size(tuple(test_labels.shape))} in test"
        raise InputError(f"{name}: all labels must have one shape; found {found}")
    if isinstance(inputs, InMemory) and isinstance(test_inputs, InMemory):
        kinds = [str(each.values.dtype).removeprefix("torch.") for each in (inputs, test_inputs)]
        if kinds[0] != kinds[1]:
            raise InputError(f"{name}: inputs must be of one kind; found {kinds[0]} in train, {kinds[1]} in test")
        seen = _normalisation(inputs.values)
        inputs, test_inputs = InMemory(inputs.values, seen), InMemory(test_inputs.values, seen)
    sites = None if train_sites is None else _whole(train_sites, len(labels), f"{name}: train_sites")
    return Samples(inputs, labels, sites), Samples(test_inputs, test_labels)


def task_of(name: str, train: Samples, test: Samples, num_classes: int | None = None) -> Task:
    """Whole labels are classes, real ones a regression."""
    if train.labels.is_floating_point() != test.labels.is_floating_point():
        raise InputError(f"{name}: labels must be whole in both splits, or real in both")
    if train.labels.is_floating_point():
        if num_classes is not None:
            raise InputError(f"{name}: labels must be whole numbers 0 to {num_classes - 1}; found real numbers")
        return Regression(1 if train.labels.ndim == 1 else train.labels.shape[1])
    if num_classes is None:
        # A network gets an output for every class, and more classes than samples are a slip, not a data set.
        num_classes = min(int(torch.cat([train.labels, test.labels]).max()) + 1, len(train))
    check_classes(name, train, test, num_classes)
    return Classification(num_classes)


def check_classes(name: str, train: Samples, test: Samples, num_classes: int) -> None:
    """That all labels are classes."""
    for what, split in (("train", train), ("test", test)):
        if split.labels.is_floating_point():
            raise InputError(f"{name}: {what} labels must be whole numbers 0 to {num_classes - 1}; found real numbers")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= num_classes:
            found = low if low < 0 else high
            raise InputError(f"{name}: {what} labels must be 0 to {num_classes - 1}; found {found}")


def size(shape: tuple[int, ...]) -> str:
    """`3×32×32`."""
    return "×".join(map(str, shape)) or "a single number"


def _read(given: Given, what: str) -> tuple[Inputs, Tensor]:
    if isinstance(given, TorchDataset):
        return _read_lazily(given, what)
    try:
        inputs, labels = given
    except (TypeError, ValueError):
        raise InputError(
            f"{what} must be a pair of arrays (inputs, labels) or a torch Dataset; found {type(given).__name__}"
        ) from None
    values = _numbers(inputs, f"{what} inputs")
    if values.ndim < 2 or not values.numel():
        raise InputError(f"{what} inputs must be (samples, …), at least one; found {size(tuple(values.shape))}")
    if values.is_floating_point():
        values = values.to(torch.float32)
        broken = (~values.isfinite()).flatten(1).any(dim=1).nonzero()
        if len(broken):
            raise InputError(
                f"{what} inputs must be finite; the first that are not are those of sample {int(broken[0])}"
            )
    elif values.dtype != torch.uint8:
        values = values.to(torch.int64)
    return InMemory(values), _labels(labels, len(values), what)


def _labels(given: Any, count: int, what: str) -> Tensor:
    labels = _numbers(given, f"{what} labels")
    if labels.ndim not in (1, 2) or len(labels) != count:
        raise InputError(f"{what}: {size(tuple(labels.shape))} labels for {count:,} samples; each needs one")
    if not labels.is_floating_point():
        if labels.ndim != 1:
            raise InputError(f"{what} labels must be one class for each sample; found {size(tuple(labels.shape))}")
        return labels.to(torch.int64)
    if not labels.isfinite().all():
        raise InputError(f"{what} labels must be finite")
    return labels.to(torch.float32)


def _whole(given: Any, count: int, what: str) -> Tensor:
    values = _numbers(given, what)
    if values.is_floating_point() or values.shape != (count,):
        raise InputError(f"{what} must be one whole number for each of {count:,} samples")
    return values.to(torch.int64)


def _numbers(given: Any, what: str) -> Tensor:
    """A tensor of numbers; a column of words is refused in one line."""
    if isinstance(given, Tensor):
        values = given.detach().cpu()
    else:
        try:
            array = np.asarray(given)
        except ValueError:  # rows of different lengths
            raise InputError(f"{what} must be numbers of one shape; found rows of different lengths") from None
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"{what} must be numbers; found {array.dtype} (turn words into numbers: one-hot, or codes)"
            )
        # Byte orders and unsigned kinds that torch does not know.
        wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
        values = torch.tensor(array.astype(np.int64 if wide else array.dtype.newbyteorder("=")))
    if values.is_complex() or values.is_quantized:
        raise InputError(f"{what} must be real numbers; found {values.dtype}")
    return values.to(torch.uint8) if values.dtype == torch.bool else values


class _Items(Protocol):
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...


class _InputsOf:
    """The inputs of a torch Dataset, one by one."""

    def __init__(self, items: _Items, what: str, shape: tuple[int, ...] | None = None) -> None:
        self.items, self.what, self.shape = items, what, shape

    def __getitem__(self, index: int) -> Tensor:
        value, _ = _item(self.items, index, self.what)
        found = _numbers(value, f"{self.what} item {index}")
        if self.shape is not None and tuple(found.shape) != self.shape:
            raise InputError(f"{self.what}: item {index} is {size(tuple(found.shape))}, the first {size(self.shape)}")
        return found.to(torch.float32) if found.is_floating_point() or found.dtype == torch.uint8 else found.long()


def _item(items: _Items, index: int, what: str) -> tuple[Any, Any]:
    try:
        item = items[index]
    except Exception as problem:  # whatever its author's code raises, a file that is broken say
        raise InputError(f"{what}: item {index} cannot be read: {in_one_line(problem, where=False)}") from problem
    try:
        value, label = item
    except (TypeError, ValueError) as problem:
        raise InputError(f"{what}: item {index} must be an input and its label: {problem}") from None
    return value, label


def _read_lazily(items: Any, what: str) -> tuple[Inputs, Tensor]:
    """Only the labels are read now: from its `targets` where it has them, else item by item."""
    count = len(items) if hasattr(items, "__len__") else 0
    if not count:
        raise InputError(f"{what} must be a Dataset that has a length and holds samples")
    shape = tuple(_InputsOf(items, what)[0].shape)
    inputs = _InputsOf(items, what, shape)
    given = getattr(items, "targets", None)
    labels = _labels([_item(items, k, what)[1] for k in range(count)] if given is None else given, count, what)
    # All its inputs may be too many to be read for a fingerprint: some of them and all labels must do.
    digest = hashlib.blake2b(repr((type(items).__qualname__, count, shape)).encode())
    for index in sorted({k * (count - 1) // (_LOOKED_AT - 1) for k in range(_LOOKED_AT)}):
        digest.update(inputs[index].contiguous().numpy().tobytes())
    return Lazy(inputs, torch.arange(count), shape, digest.digest()), labels


def _normalisation(values: Tensor) -> Normalisation | None:
    """By the mean and the deviation of each channel or feature; of whole numbers none."""
    if values.dtype == torch.uint8 and values.ndim > 2:
        return _of_bytes(values)
    if not values.is_floating_point():
        return None
    flat = values.double().transpose(0, 1).flatten(1)
    std = flat.std(dim=1, correction=0)
    return Normalisation(flat.mean(dim=1).float(), torch.where(std > 0, std, 1.0).float())


def _of_bytes(pixels: Tensor) -> Normalisation:
    """Exactly and without a copy in floats: a byte has only 256 values."""
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
    return Normalisation(torch.stack(means).float(), torch.where(std > 0, std, 1.0).float())
