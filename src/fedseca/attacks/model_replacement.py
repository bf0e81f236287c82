"""Model replacement: so many times the attacker's own update that the average becomes the attacker's model."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register
from fedseca.declare import param
from fedseca.updates import State


@register("model_replacement")
@dataclass(frozen=True, kw_only=True)
class ModelReplacement(Attack):
    """What training on wrong labels gave, so many times over that it replaces the average.

    g_b = K/B·(own update): if the honest updates cancel, the mean of all is the mean of the attackers' own, so that
    the new global model is theirs (Bagdasaryan et al. 2020: G + n/η·(X − G) for one attacker; with a server learning
    rate η give `factor` K/(B·η)). They train on wrong labels; the paper's own are those of a backdoor.
    """

    needs: ClassVar[tuple[str, ...]] = ("own",)

    labels: str = param(
        "flip", choices=("flip", "next", "true"), help="trained on: C − 1 − y, y + 1 modulo C, or the true y"
    )
    factor: float | None = param(None, gt=0, help="how many times its own update; none: K/B")

    def poison(self, labels: Tensor, num_classes: int) -> Tensor:
        if self.labels == "true":
            return labels
        return num_classes - 1 - labels if self.labels == "flip" else (labels + 1) % num_classes

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        byzantine = knowledge.num_byzantine
        factor = (len(honest) + byzantine) / max(byzantine, 1) if self.factor is None else self.factor
        return factor * knowledge.own, state
