"""Fang's attack on trimmed mean and median: just beyond the honest extremes, on the wrong side."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register
from fedseca.declare import param
from fedseca.updates import State


@register("fang_trim")
@dataclass(frozen=True, kw_only=True)
class FangTrim(Attack):
    """Each coordinate of the model beyond all honest ones, on the side that it was not going to move to.

    Where the mean of the honest models decreases a parameter, w_b is drawn uniformly from [w_max, b·w_max], or from
    [w_max, w_max/b] if w_max ≤ 0; where it increases one, from [w_min/b, w_min], or from [b·w_min, w_min] if w_min ≤ 0
    (Fang et al. 2020, full knowledge), for each client and coordinate anew. The paper has local models, public programs
    updates in their place (`of="updates"`): shorter steps, the same for a rule that trims as many as there are.
    A parameter that does not move is left to the mean.
    """

    needs: ClassVar[tuple[str, ...]] = ("model",)

    factor: float = param(2.0, gt=1, help="b: how far beyond the extremes")
    of: str = param("models", choices=("models", "updates"), help="what is drawn beyond its extremes")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean = honest.mean(dim=0)
        # w_k = w − g_k; updates are what models would be around 0.
        base = knowledge.model.to(mean) if self.of == "models" else torch.zeros_like(mean)
        top, bottom = base - honest.amin(dim=0), base - honest.amax(dim=0)
        above = torch.where(top > 0, self.factor * top, top / self.factor)
        below = torch.where(bottom > 0, bottom / self.factor, self.factor * bottom)
        decreases, increases = mean > 0, mean < 0
        near = torch.where(decreases, top, torch.where(increases, bottom, base))
        far = torch.where(decreases, above, torch.where(increases, below, base))
        draws = torch.rand(knowledge.num_byzantine, len(mean), generator=rng).to(mean)
        return base - (near + draws * (far - near)), state
