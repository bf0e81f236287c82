"""The contract of a family of models: from the shape of the images to a network, seeded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from fedseca.declare import Declared
from fedseca.parts import Registry


@dataclass(frozen=True, kw_only=True)
class Model(Declared, ABC):
    """A family of networks for images; its hyperparameters pick one of them."""

    @abstractmethod
    def layers(self, shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        """The network for images of a shape (C, H, W); its weights are drawn from torch's generator."""

    def build(self, shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
        """The network with the weights that this seed draws."""
        with torch.random.fork_rng(devices=[]):  # layers draw from the global generator, which is left as it was
            torch.manual_seed(seed)
            return self.layers(shape, num_classes)


MODELS: Registry[Model] = Registry("model", Model)
