"""COPOD-DOS: clients whose distances to the others look unlikely are weighed down."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic
from fedseca.errors import MissingDependency
from fedseca.parts import register
from fedseca.updates import State, Updates


@register("copod_dos")
@dataclass(frozen=True, kw_only=True)
class CopodDos(Aggregator):
    """The mean of all clients, each weighed by how unremarkable its distances to the others are.

    r = (COPOD(M^S) + COPOD(M^E))/2 with M^S_ij = 1 − cos(g_i, g_j) and M^E_ij = ‖g_i − g_j‖; the weights are
    softmax(−r) (Alkhunaizi et al. 2022). They fall with an outlier's rank, not with its size, so they give no bound.
    Cost: O(K²·D). Needs PyOD.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # the softmax tells alike clients far apart, too
    diagnostics = (WEIGHT, diagnostic("score", symbol="r", help="outlier score of its distances to the others"))

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        euclidean = ops.squared_distances(updates).sqrt()
        score = (_copod(cosine_distances(updates)) + _copod(euclidean)) / 2
        weight = torch.softmax(-score, dim=0)
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight, "score": score})


def _copod(distances: Tensor) -> Tensor:
    """The outlier score of each row of a distance matrix; a higher one is more of an outlier."""
    try:
        from pyod.models.copod import COPOD
    except ImportError:
        raise MissingDependency("copod_dos needs PyOD: pip install 'fedseca[detectors]'") from None
    # The score does not depend on the scale, but the cube of a huge distance would overflow.
    scaled = distances / distances.max().clamp(min=torch.finfo(torch.float64).tiny)
    return torch.from_numpy(COPOD().fit(scaled.numpy()).decision_scores_).double()
