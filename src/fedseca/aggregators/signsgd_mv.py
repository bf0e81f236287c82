"""signSGD with majority vote: only the direction of each coordinate counts."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("signsgd_mv")
@dataclass(frozen=True, kw_only=True)
class SignSGDMajorityVote(Aggregator):
    """A step of one size in each coordinate, in the direction that most clients vote for.

    g̃ = η·sgn Σ_k sgn(g_k), with sgn(0) = 0: a zero is no vote, and a tie elects 0 (Bernstein et al. 2019). One public
    program (blades) returns medians in its place. Cost: O(K·D), one read.
    """

    returns_identical: ClassVar[bool] = False  # of a row only the signs are left
    scales: ClassVar[bool] = False
    diagnostics = (WEIGHT, diagnostic("agreed", help="share of its votes that the majority shares", share=True))

    step: float = param(0.001, gt=0, help="η: how far each coordinate moves")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        ones = torch.ones(len(updates), dtype=torch.float64)
        plan = ops.MergePlan(clip_factor=ones, threshold=None, ballots=ones.long(), clamp=False)
        # What is merged is the mean of the gradients that agree with the elected sign: it has that sign.
        merge = ops.elect_and_merge(updates, plan)
        update = merge.update.sign_().mul_(self.step).to(updates.dtype)
        return Aggregation(update, {"weight": merge.share, "agreed": merge.adopted_share()})
