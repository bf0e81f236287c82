"""The contract of a family of models: from the shape of the inputs to a network, seeded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fedseca.data.samples import Normalisation
from fedseca.declare import Declared
from fedseca.errors import InputError
from fedseca.parts import Registry


@dataclass(frozen=True, kw_only=True)
class Model(Declared, ABC):
    """A family of networks; its hyperparameters pick one of them."""

    only_images: ClassVar[bool] = False
    """Whether it takes nothing but images (C, H, W)."""

    @abstractmethod
    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The network for inputs of a shape, with one output for each class; its weights are drawn from torch's
        generator. The shape is (C, H, W) of an image, (F) of a row of a table, (T) of a row of tokens."""

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """The network with the weights that this seed draws."""
        if self.only_images and len(shape) != 3:
            found = "×".join(map(str, shape))
            raise InputError(f"{self.name} takes images (channels × height × width), and an input is {found}; take mlp")
        with torch.random.fork_rng(devices=[]):  # layers draw from the global generator, which is left as it was
            torch.manual_seed(seed)
            return self.layers(shape, outputs)

    def split(self, network: nn.Module) -> tuple[nn.Module | None, nn.Module]:
        """What of a network stays as it is, if anything, and what is trained on what that gives for each sample."""
        return None, network

    def normalisation(self) -> Normalisation | None:
        """Of the bytes of images, as its weights were learnt with it; None: that of the data it is given."""
        return None

    def fingerprint(self) -> str | None:
        """A short digest of the file that it takes weights from, if any: a run is not resumed with others."""
        return None


MODELS: Registry[Model] = Registry("model", Model)
