"""Logistic regression: one linear layer."""

import math
from dataclasses import dataclass

from torch import nn

from fedseca.models.base import Model
from fedseca.parts import register


@register("logistic")
@dataclass(frozen=True, kw_only=True)
class Logistic(Model):
    """One linear layer from the inputs, of whatever shape, to the outputs."""

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))
