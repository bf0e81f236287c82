"""Sparse: aggressive on the few sensitive parameters, hidden on all the others."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.alie import largest_shift
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("sparse")
@dataclass(frozen=True, kw_only=True)
class Sparse(Attack):
    """A large shift of the few parameters that the network is most sensitive to, a small one of the others.

    g_b = μ − (c·m + z·(1 − m))∘σ, where m marks the share of the parameters with the largest sensitivity |w∘μ|, chosen
    in the first round and kept: the hybrid sparse attack of Özfatura et al. (2024, "Aggressive or imperceptible, or
    both"). They choose m by pruning an untrained network (FORCE, layer by layer); |w∘μ| is the sensitivity that this
    and SNIP begin with, and all that can be seen from outside of the network. Their program has c = 1.5 and ALIE's z
    for K and B, about 0.3 there: here both are larger, in about the same ratio, with the z of `alie`.
    """

    needs: ClassVar[tuple[str, ...]] = ("model",)

    share: float = param(0.005, gt=0, le=1, help="of the parameters that are shifted far; at least one is")
    scale: float = param(5.0, help="c: standard deviations from the mean for these")
    strength: float | None = param(1.0, help="z: for all others; none: the z that ALIE takes from K and B")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean = honest.mean(dim=0)
        if not state:
            sensitivity = (knowledge.model.to(mean) * mean).abs()
            marked = sensitivity.argsort(descending=True, stable=True)[: max(round(self.share * len(mean)), 1)]
            state = {"sensitive": torch.zeros_like(mean, dtype=torch.bool).index_fill_(0, marked, True)}
        z = largest_shift(len(honest), knowledge.num_byzantine) if self.strength is None else self.strength
        shift = torch.full_like(mean, z).masked_fill_(state["sensitive"], self.scale)
        return copies(mean - shift * honest.std(dim=0, correction=0), knowledge), state
