"""TIES-Merging made robust: every client's sign counts the same."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators.base import ADOPTED, WEIGHT, Aggregation, Aggregator
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("ties")
@dataclass(frozen=True, kw_only=True)
class Ties(Aggregator):
    """The mean of the large gradients that agree with the majority's sign.

    u = sgn Σ_k sgn(g_k); v_k = g_k where |g_k^j| exceeds its γ-quantile, else 0; g̃^j is the mean of the v_k^j with
    u^j·v_k^j > 0 (Yadav et al. 2023, with sign counts in place of magnitudes). Cost: O(K·D), two reads.
    """

    returns_identical: ClassVar[bool] = False  # small gradients are dropped

    diagnostics = (WEIGHT, ADOPTED)

    sparsity: float = param(0.9, ge=0, lt=1, help="γ: share of each client's smallest gradients that is dropped")

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        ones = torch.ones(len(updates), dtype=torch.float64)
        threshold = ops.magnitude_quantiles(updates, self.sparsity) if self.sparsity > 0 else None
        plan = ops.MergePlan(clip_factor=ones, threshold=threshold, ballots=ones.long(), clamp=False)
        merge = ops.elect_and_merge(updates, plan)
        return Aggregation(merge.update.to(updates.dtype), {"weight": merge.share, "adopted": merge.adopted_share()})
