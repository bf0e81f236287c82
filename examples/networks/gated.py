"""A network in one file: layers of your own, built for the shape of the data.

    fedseca --plugin examples/networks/gated.py run --dataset breast_cancer --model gated

`fedseca.testing.check_model("gated")` holds it to the contract that every model of the package keeps.
"""

import math
from dataclasses import dataclass

from torch import nn

from fedseca import param, register
from fedseca.models import Model


@register("gated")
@dataclass(frozen=True, kw_only=True)
class Gated(Model):
    """A hidden layer, each unit of which is opened or closed by another (Dauphin et al. 2017)."""

    hidden: int = param(24, ge=1, help="units of the hidden layer")

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 2 * self.hidden), nn.GLU(), nn.Linear(self.hidden, outputs)
        )
