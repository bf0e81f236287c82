"""Concordant flip: agree with everybody in most signs, and disagree where it matters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("concordant_flip")
@dataclass(frozen=True, kw_only=True)
class ConcordantFlip(Attack):
    """The honest mean with the signs of its largest coordinates turned, few enough to agree with all in most signs.

    g_b^j = −μ^j for the n largest |μ^j|, μ^j for the others; n = ⌊q·D⌋ with q < ½, where D counts the coordinates with
    a sign. Without a share, n is the largest for which the sign concordance Σ_j sgn(g_b^j)·sgn(g_k^j) stays positive
    with the mean and with every honest client with which the mean's is. A rule that trusts whoever has more signs in
    common with others than not, as FedSECA does, trusts such a row fully.
    """

    share: float | None = param(
        None, gt=0, lt=0.5, help="q: share of the coordinates that is turned; none: as many as no client disagrees with"
    )

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        mean = honest.mean(dim=0)
        order = mean.abs().argsort(descending=True, stable=True)
        with_sign = int((mean != 0).sum())
        most = max((with_sign - 1) // 2, 0)
        count = _unnoticed(honest, mean, order, most) if self.share is None else min(int(self.share * with_sign), most)
        row = mean.clone()
        row[order[:count]] = -row[order[:count]]
        return copies(row, knowledge), state


def _unnoticed(honest: Tensor, mean: Tensor, order: Tensor, most: int) -> int:
    """The largest n ≤ most after which no concordance that was positive has ceased to be."""
    kept = torch.ones(most + 1, dtype=torch.bool, device=mean.device)
    signs = mean.sign().to(torch.int64)
    for client in honest:  # one by one: the products of all of them would be a second matrix
        agrees = (client.sign().to(torch.int64) * signs)[order]
        concordance = agrees.sum()
        if concordance > 0:
            kept[1:] &= concordance - 2 * agrees[:most].cumsum(dim=0) > 0
    return int(kept.nonzero().max())
