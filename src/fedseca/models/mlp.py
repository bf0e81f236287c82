"""A multilayer perceptron, for tables."""

import math
from dataclasses import dataclass

from torch import nn

from fedseca.declare import param
from fedseca.models.base import Model
from fedseca.parts import register


@register("mlp")
@dataclass(frozen=True, kw_only=True)
class MLP(Model):
    """Hidden layers with ReLU between the inputs, of whatever shape, and the outputs."""

    hidden: int = param(32, ge=1, help="units of a hidden layer")
    depth: int = param(2, ge=1, le=100, help="hidden layers")
    dropout: float = param(0.0, ge=0, lt=1, help="share of the hidden units that a step of training leaves out")

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for _ in range(self.depth):
            layers += [nn.Linear(inputs, self.hidden), nn.ReLU()]
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            inputs = self.hidden
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))
