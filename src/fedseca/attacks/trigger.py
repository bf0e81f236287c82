"""What a targeted attack plants: a mark on a sample that makes a poisoned model answer one class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Trigger:
    """A bright patch in the last corner of an image, or over the last features of a table's row."""

    target: int
    """The class that a sample with the patch shall be taken for."""
    share: float
    """Of each batch of a Byzantine client: how much of it is marked, one sample at least."""
    size: int
    """Of the patch: so many pixels a side, or so many features."""
    split: bool = False
    """Whether each Byzantine client trains on a part of the patch, and only their model knows the whole."""

    def put(self, inputs: Tensor, brightest: Tensor, member: int = 0, members: int = 1) -> Tensor:
        """Inputs (N, …) with the patch, or with what is the part of one of `members` in it where they split it.

        `brightest` is the value of the patch, one for each place of the first dimension of an input: for each channel
        of images, for each feature of rows.
        """
        places = self._places(inputs.shape[1:])
        if self.split and members > 1:
            of_channel = places.reshape(places.shape[0] if places.ndim > 1 else 1, -1)
            parts = min(members, int(of_channel[0].sum()))
            order = of_channel.cumsum(dim=1).reshape(places.shape) - 1
            places = places & (order % parts == member % parts)
        value = brightest.to(inputs).reshape(-1, *(1 for _ in inputs.shape[2:]))
        return torch.where(places.to(inputs.device), value, inputs)

    def mark(
        self, inputs: Tensor, labels: Tensor, brightest: Tensor, member: int, members: int
    ) -> tuple[Tensor, Tensor]:
        """A batch to train on: its first samples with the patch and the class it stands for. Batches are drawn."""
        marked = torch.arange(len(inputs), device=inputs.device) < max(1, round(self.share * len(inputs)))
        of_inputs = marked.reshape(-1, *(1 for _ in inputs.shape[1:]))
        with_patch = torch.where(of_inputs, self.put(inputs, brightest, member, members), inputs)
        return with_patch, torch.where(marked.to(labels.device), self.target, labels)

    def _places(self, shape: torch.Size) -> Tensor:
        """Which numbers of an input the patch covers."""
        covered = torch.zeros(shape, dtype=torch.bool)
        corner = covered
        for dimension in range(1, len(shape)) or [0]:  # the first dimension of an image are its channels
            length = min(self.size, shape[dimension])
            corner = corner.narrow(dimension, shape[dimension] - length, length)
        corner.fill_(True)
        return covered
