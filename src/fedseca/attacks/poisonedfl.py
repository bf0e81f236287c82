"""PoisonedFL: the same random direction in every round, as long as the server lets through."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks._directions import unit
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("poisonedfl")
@dataclass(frozen=True, kw_only=True)
class PoisonedFL(Attack):
    """One random vector of signs for the whole training; it looks at no honest update, only at the global model.

    With u = w_t − w_(t−1), what the model did, and k∘s, what was sent before (both as changes of the model)
        v = |u − ‖u‖/‖k∘s‖·k∘s|, then v/‖v‖       what of the last change was not the attack's own
        k ← c·‖u‖·v and g_b = −k∘s                 (Xie et al. 2025)
    Every e rounds, c ← β·c unless the signs of what the model did in them match s in more coordinates than chance
    explains, or β·c is below a limit. Chance is Binomial(D, ½), here by its normal approximation, which gives the
    thresholds of the authors' program. In the first round, when nothing is known, the update is 0, as there.
    """

    needs: ClassVar[tuple[str, ...]] = ("model",)

    strength: float = param(8.0, gt=0, help="c in the first rounds: how many times the model's last change")
    every: int = param(50, ge=1, help="e: rounds after which success is looked at")
    decay: float = param(0.7, gt=0, le=1, help="β: what c is multiplied by after failure")
    least: float = param(0.5, ge=0, help="c is not made smaller than this")
    significance: float = param(0.01, gt=0, lt=1, help="p-value below which the attack has succeeded")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        model = knowledge.model.clone()
        if not state:
            signs = (2 * torch.randint(2, (len(model),), generator=rng) - 1).to(honest)
            state = {
                "signs": signs,
                "model": model,
                "checked": model.clone(),
                "sent": torch.zeros_like(signs),
                "strength": torch.tensor(self.strength, dtype=torch.float64),
                "rounds": torch.tensor(0),
            }
            return copies(state["sent"], knowledge), state
        signs, sent = state["signs"], state["sent"]
        change = (model - state["model"]).to(honest)
        length, sent_length = float(change.norm()), float(sent.norm())
        left = change - length / sent_length * sent if sent_length > 0 else change
        strength, rounds, checked = float(state["strength"]), int(state["rounds"]) + 1, state["checked"]
        if rounds == self.every:
            failed = not self.succeeded(int(((model - checked).sign() == signs).sum()), len(signs))
            strength *= self.decay if failed and self.decay * strength >= self.least else 1
            rounds, checked = 0, model.clone()
        sent = strength * length * unit(left.abs()) * signs
        after = {
            "signs": signs,
            "model": model,
            "checked": checked,
            "sent": sent,
            "strength": torch.tensor(strength, dtype=torch.float64),
            "rounds": torch.tensor(rounds),
        }
        return copies(-sent, knowledge), after

    def succeeded(self, matching: int, dim: int) -> bool:
        """P(X ≤ matching) ≥ 1 − p for X ~ Binomial(D, ½), with the continuity correction of ½."""
        return NormalDist(dim / 2, math.sqrt(dim) / 2).cdf(matching + 0.5) >= 1 - self.significance
