"""Mimic: all Byzantine clients copy one honest client, so that it is counted far too often."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks._directions import unit
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("mimic")
@dataclass(frozen=True, kw_only=True)
class Mimic(Attack):
    """A copy of the honest client that stands out most along the direction in which the honest clients differ most.

    With t rounds seen before (Karimireddy et al. 2022), during the warm-up
        μ ← t/(1+t)·μ + 1/(1+t)·mean(g_k)
        z ← t/(1+t)·z + 1/(1+t)·Σ_k (g_k − μ)(g_k − μ)ᵀz, then z ← z/‖z‖
        k* = argmax_k zᵀg_k
    from a random z. Afterwards k* stays. In a round in which k* is absent, the argmax of those present stands in.
    """

    warmup: int = param(5, ge=1, help="rounds in which the client to copy is still looked for")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        seen = int(state["seen"]) if state else 0
        direction = state["direction"] if state else unit(torch.randn(honest.shape[1], generator=rng).to(honest))
        chosen = next((name.partition("/")[2] for name in state if name.startswith("mimicked/")), None)
        if seen < self.warmup:
            previous = state["mean"] if state else torch.zeros_like(direction)
            mean = (seen * previous + honest.mean(dim=0)) / (1 + seen)
            apart = honest - mean
            turned = unit((seen * direction + apart.T @ (apart @ direction)) / (1 + seen))
            direction = turned if turned.any() else direction  # clients that do not differ tell no direction
            chosen = None
            state = {"seen": torch.tensor(seen + 1), "direction": direction, "mean": mean}
        if chosen in knowledge.honest_ids:
            row = honest[knowledge.honest_ids.index(chosen)]
        else:
            best = int((honest @ direction).argmax())
            row = honest[best]
            if chosen is None:
                state = {**state, f"mimicked/{knowledge.honest_ids[best]}": torch.tensor(True)}
        return copies(row, knowledge), state
