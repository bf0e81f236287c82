"""An attack in one file: the honest mean, with its largest coordinates turned around.

    fedseca --plugin examples/attacks/top_flip.py run --attack top_flip --set attack.share=0.05

`fedseca.testing.check_attack("top_flip")` holds it to the contract that every attack of the package keeps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca import Attack, Knowledge, State, param, register


@register("top_flip")
@dataclass(frozen=True, kw_only=True)
class TopFlip(Attack):
    """The honest mean with the sign of its largest coordinates turned: what survives a sparsification is wrong."""

    share: float = param(0.1, gt=0, le=1, help="share of the coordinates that is turned")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean = honest.mean(dim=0)
        largest = mean.abs().argsort(descending=True)[: max(1, int(self.share * len(mean)))]
        mean[largest] *= -1
        return mean.repeat(knowledge.num_byzantine, 1), state
