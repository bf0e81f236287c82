"""Samples: what a network is fed with and what it should answer; in memory, or read one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from fedseca.errors import FedsecaError

Batches = Sequence[Tensor]
"""The indices of some samples, batch after batch."""


class Normalisation(NamedTuple):
    """What is taken from, and what divides, each place of a sample's first dimension: float32."""

    mean: Tensor
    std: Tensor

    def apply(self, batch: Tensor) -> Tensor:
        """A batch, normalised; it may be changed itself."""
        by_place = (-1, *(1 for _ in batch.shape[2:]))
        return batch.to(torch.float32).sub_(self.mean.view(by_place)).div_(self.std.view(by_place))


class Inputs(ABC):
    """The inputs of samples, all of one shape."""

    shape: tuple[int, ...]
    """Of one of them."""
    normalisation: Normalisation | None = None
    """What is done to them when they are taken, so that pixels may stay bytes."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def select(self, indices: Tensor) -> Inputs:
        """Those at `indices`."""

    @abstractmethod
    def batches(self, order: Batches, workers: int = 0) -> Iterator[Tensor]:
        """Batch after batch, as a network takes them; `workers` processes read them where that is work."""

    def read(self, indices: Tensor | None = None) -> Tensor:
        """All of them in one batch, or those at `indices`."""
        return next(self.batches([torch.arange(len(self)) if indices is None else indices]))

    def normalised(self, normalisation: Normalisation) -> Inputs:
        """The same with another normalisation of each channel, if they are images in bytes."""
        return self

    @abstractmethod
    def content(self) -> Iterable[bytes | memoryview]:
        """What tells them from others."""


@dataclass(frozen=True, eq=False)
class InMemory(Inputs):
    """Inputs as one tensor: bytes of images, features, tokens."""

    values: Tensor
    """(N, …)"""
    normalisation: Normalisation | None = None

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.values)

    def select(self, indices: Tensor) -> InMemory:
        return replace(self, values=self.values[indices])

    def take(self, indices: Tensor) -> Tensor:
        """Those at `indices`, as a network takes them."""
        some = self.values[indices]
        # A tensor of indices gave a copy, which may be changed.
        return some if self.normalisation is None else self.normalisation.apply(some)

    def batches(self, order: Batches, workers: int = 0) -> Iterator[Tensor]:
        return map(self.take, order)

    def normalised(self, normalisation: Normalisation) -> InMemory:
        fits = self.values.dtype == torch.uint8 and len(self.shape) == 3 and self.shape[0] == len(normalisation.mean)
        return replace(self, normalisation=normalisation) if fits else self

    def content(self) -> Iterable[bytes | memoryview]:
        return _content(self.values)


class Readable(Protocol):
    """Inputs that are read one by one; a torch `Dataset` of inputs is one."""

    def __getitem__(self, index: int) -> Tensor:
        """A tensor of one shape, float32 or whole numbers: as a network takes it, but for a normalisation."""
        ...


@dataclass(eq=False)
class Lazy(Inputs):
    """Inputs that are read when they are needed, by processes of their own."""

    source: Readable
    indices: Tensor
    """Which of the source's inputs these are."""
    shape: tuple[int, ...]
    fingerprint: bytes
    """Of what the source reads: its files, and what it makes of them."""
    normalisation: Normalisation | None = None
    """If the source gives the bytes of images: a quarter of what would pass between processes."""
    _loader: DataLoader[Tensor | FedsecaError] | None = field(default=None, repr=False)
    _order: _Order = field(default_factory=lambda: _Order(), repr=False)
    _workers: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, indices: Tensor) -> Lazy:
        return Lazy(self.source, self.indices[indices], self.shape, self.fingerprint, self.normalisation)

    def normalised(self, normalisation: Normalisation) -> Lazy:
        if self.normalisation is None or len(self.normalisation.mean) != len(normalisation.mean):
            return self
        return Lazy(self.source, self.indices, self.shape, self.fingerprint, normalisation)

    def batches(self, order: Batches, workers: int = 0) -> Iterator[Tensor]:
        if self._loader is None or workers != self._workers:
            # Its processes stay: to begin them takes longer than a small client's training.
            self._workers = workers
            self._loader = DataLoader(
                _Reader(self.source),
                batch_sampler=self._order,
                collate_fn=_batch,
                num_workers=workers,
                persistent_workers=workers > 0,
                generator=torch.Generator(),  # otherwise it draws from that of everybody
            )
        self._order.batches = [self.indices[batch].tolist() for batch in order]
        return self._checked(iter(self._loader))

    def _checked(self, found: Iterator[Tensor | FedsecaError]) -> Iterator[Tensor]:
        for batch in found:
            if isinstance(batch, FedsecaError):
                try:
                    raise batch
                finally:
                    # It holds this frame: if the frame held it, too, both would last until they are looked for, and
                    # the processes that read would be waited for until they answer no more, for seconds.
                    del batch, found, self
            yield batch if self.normalisation is None else self.normalisation.apply(batch)

    def content(self) -> Iterable[bytes | memoryview]:
        return (self.fingerprint, *_content(self.indices))


class _Order:
    """What is read next; filled anew for every client."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Reader(TorchDataset[Any]):
    """What cannot be read is handed on: torch would put a process's whole traceback into the message."""

    def __init__(self, source: Readable) -> None:
        self.source = source

    def __getitem__(self, index: int) -> Tensor | FedsecaError:
        try:
            return self.source[index]
        except FedsecaError as problem:
            return problem


def _batch(items: list[Tensor | FedsecaError]) -> Tensor | FedsecaError:
    problem = next((item for item in items if isinstance(item, FedsecaError)), None)
    if problem is not None:
        return problem
    batch: Tensor = default_collate(items)
    return batch


@dataclass(frozen=True, eq=False)
class Samples:
    """One split of a data set."""

    inputs: Inputs
    labels: Tensor
    """int64 (N): the classes; or float32 (N) or (N, T): the values of a regression"""
    sites: Tensor | None = None
    """int64 (N): which site a sample came from, where the data has sites"""

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Samples:
        """Those at `indices`."""
        sites = None if self.sites is None else self.sites[indices]
        return Samples(self.inputs.select(indices), self.labels[indices], sites)

    def batches(self, order: Batches, workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Batch after batch: inputs, and their labels."""
        return zip(self.inputs.batches(order, workers), (self.labels[batch] for batch in order), strict=True)

    def content(self) -> Iterator[bytes | memoryview]:
        """What tells them from others."""
        yield from self.inputs.content()
        for part in (self.labels, self.sites):
            if part is not None:
                yield from _content(part)


def _content(tensor: Tensor) -> Iterable[bytes | memoryview]:
    values: Any = tensor.cpu().contiguous().view(-1).numpy()
    return repr((tensor.dtype, tuple(tensor.shape))).encode(), values.data
