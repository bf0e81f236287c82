"""CAF: weights are taken from the clients that make the covariance large."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._ordered import OrderedAggregator
from fedseca.aggregators.base import Aggregation
from fedseca.declare import param
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("caf")
@dataclass(frozen=True, kw_only=True)
class CovarianceFilter(OrderedAggregator):
    """The weighted mean whose covariance is least, while weight is taken from those who stand out along its top axis.

    From c = 1, while Σ_i c_i > K − 2B: c_i ← c_i·(1 − τ_i/max τ) with τ_i = ⟨g_i − μ_c, v⟩², v the top eigenvector of
    the covariance Σ_i c_i·(g_i − μ_c)(g_i − μ_c)ᵀ/Σ_i c_i. The result is the μ_c of the least top eigenvalue
    (Allouah et al. 2025: Covariance-bound Agnostic Filter). The maximum is over clients that still have weight, so each
    turn takes out at least one. The eigenvector is exact; ByzFL and ByzPy take one to three power iterations.
    Cost: O(K²·D + K⁴), two reads: all turns work on the distances between the clients.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # some always lose their weight

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")

    def min_clients(self) -> int:
        return 2 * self.num_byzantine + 1

    def tolerates(self, num_clients: int) -> int:
        # While the covariance is larger than honest clients can make it, a malicious minority loses more weight than
        # the honest do: before 2B are lost, it has none left or the covariance is bounded, and with it the mean.
        return self.num_byzantine if num_clients >= self.min_clients() else 0

    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        weight = self.weights(ops.squared_distances(updates))
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight})

    def weights(self, distances: Tensor) -> Tensor:
        """c/Σc of the least top eigenvalue, from the squared distances of all pairs."""
        count = len(distances)
        remaining = torch.ones(count, dtype=torch.float64)
        best, least = remaining / count, math.inf
        while remaining.sum() > count - 2 * self.num_byzantine + 1e-9:
            share = remaining / remaining.sum()
            used = share.nonzero().flatten()
            spread, outlying = top_axis(distances[used][:, used], share[used])
            if spread < least:
                best, least = share, spread
            if spread == 0:  # those who are left are all the same
                break
            remaining[used] *= 1 - outlying / outlying.max()
            remaining[remaining < 1e-12] = 0  # what rounding left of a weight is none
        return best


def top_axis(distances: Tensor, share: Tensor) -> tuple[float, Tensor]:
    """The top eigenvalue λ of the rows' covariance with these weights, and τ_i = ⟨g_i − μ, v⟩² up to a factor."""
    scale = float(distances.max())
    if scale == 0:
        return 0.0, torch.zeros_like(share)
    # A_ij = ⟨g_i − μ, g_j − μ⟩ = ½·(Σ_k p_k·d_ik + Σ_k p_k·d_jk − d_ij − Σ_kl p_k·p_l·d_kl). From distances, not from
    # products of rows: what sets close clients apart would be lost in these.
    scaled = distances / scale
    mean = scaled @ share
    products = (mean[:, None] + mean - scaled - share @ mean) / 2
    # √p_i·A_ij·√p_j has the eigenvalues of the covariance, and u there is v = Σ_i √p_i·u_i·(g_i − μ)/√λ
    root = share.sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * products * root)
    return float(values[-1]) * scale, (products @ (root * vectors[:, -1])).square()
