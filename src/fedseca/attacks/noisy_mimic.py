"""Noisy mimic: copies of one honest client that do not look like copies."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Knowledge, register
from fedseca.attacks.mimic import Mimic
from fedseca.declare import param
from fedseca.updates import State


@register("noisy_mimic")
@dataclass(frozen=True, kw_only=True)
class NoisyMimic(Mimic):
    """The honest client that `mimic` copies, with the signs of a share of its coordinates turned.

    g_b^j = −g_k*^j for ⌊q·D⌉ coordinates j, drawn for each Byzantine client and round anew. The cosine of the signs is
    then 1 − 2q with the client that is copied and about (1 − 2q)² between two copies: 0.8 and 0.64 for q = 0.1, which
    escapes rules that look for copies, while most of each row still says what k* says.
    """

    share: float = param(0.1, ge=0, le=1, help="q: share of the coordinates whose sign is turned")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        rows, state = super().craft(honest, knowledge, state, rng)
        count = round(self.share * honest.shape[1])
        for row in rows:
            turned = torch.randperm(len(row), generator=rng)[:count].to(row.device)
            row[turned] = -row[turned]
        return rows, state
