"""Divide-and-Conquer: clients that stand out along the direction of the largest spread are left out."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._drawn import draw_coordinates
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import WEIGHT, Aggregation
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("dnc")
@dataclass(frozen=True, kw_only=True)
class DivideAndConquer(OrderedAggregator):
    """The mean of the clients that stand out least in the direction in which the clients differ most.

    R times: b coordinates are drawn; on them s_k = ⟨g_k − μ, v⟩², μ the mean and v the top right singular vector of the
    centred rows; the ⌈c·B⌉ clients of largest s are dropped. The clients kept in all repeats are averaged
    (Shejwalkar & Houmansadr 2021; Blades averages those kept in any). If there are none, those kept most often are.
    There is no bound: one outlier can hide another, and coordinates that were not drawn are not looked at.
    Cost: O(R·K²·b + K·D); K·b numbers are held in memory.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # some are always dropped
    diagnostics = (
        WEIGHT,
        diagnostic("score", symbol="s", help="its squared part in the direction of the largest spread"),
    )

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")
    repeats: int = param(1, ge=1, help="R: how often coordinates are drawn")
    coordinates: int = param(10_000, ge=1, help="b: how many coordinates are drawn, at most all")
    filter_fraction: float = param(1.0, gt=0, help="c: c·B clients are dropped in each repeat")

    @property
    def dropped(self) -> int:
        """⌈c·B⌉, whatever rounding did to the product."""
        return math.ceil(self.filter_fraction * self.num_byzantine - 1e-9)

    def min_clients(self) -> int:
        return self.dropped + 1

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        kept, score = torch.zeros(2, len(updates), dtype=torch.float64)
        for _ in range(self.repeats):
            drawn = draw_coordinates(updates.dim, min(self.coordinates, updates.dim), rng)
            found = outlier_scores(ops.columns(updates, drawn))
            kept[ops.ranks(found).argsort(stable=True)[: len(updates) - self.dropped]] += 1
            score += found / self.repeats
        best = (kept == kept.max()).double()
        weight = best / best.sum()
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight, "score": score})


def outlier_scores(rows: Tensor) -> Tensor:
    """⟨g_k − μ, v⟩² (K), v the top right singular vector of the centred rows.

    With g_k − μ = Σ_i σ_i·u_i^k·v_i it is σ²·(u^k)² of the largest σ, and u is an eigenvector of a K×K matrix.
    """
    values = rows.cpu().double()
    scale = float(values.abs().max())
    if scale == 0:
        return torch.zeros(len(values), dtype=torch.float64)
    centred = values / scale
    centred -= centred.mean(dim=0)
    squares, vectors = torch.linalg.eigh(centred @ centred.T)
    # What is left of it in rounding is none: rows that are all the same have no direction.
    spread = float(squares[-1]) if squares[-1] > 1e-24 * centred.shape[1] else 0.0
    scores: Tensor = vectors[:, -1].square() * (spread * scale**2)
    return scores
