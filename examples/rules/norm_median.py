"""A rule of one's own, in one file: the mean of all clients after each was shortened to the median length.

    fedseca --plugin examples/rules/norm_median.py list
    fedseca --plugin examples/rules/norm_median.py aggregate A.safetensors B.safetensors --rule norm_median -o OUT

From Python, importing this file is enough; `fedseca.testing.check_aggregator("norm_median")` holds it to the contract.
"""

from dataclasses import dataclass

import torch

from fedseca import Aggregation, Aggregator, State, Updates, diagnostic, ops, param, register


@register("norm_median")
@dataclass(frozen=True, kw_only=True)
class NormMedian(Aggregator):
    """The mean of the clients after each was shortened to a multiple of the median length.

    g̃ = 1/K·Σ_k g_k·min[1, c·τ/‖g_k‖] with τ = median_k ‖g_k‖. Cost: O(K·D), two reads.
    """

    diagnostics = (
        *Aggregator.diagnostics,
        diagnostic("clip_factor", heading="clip", help="what its update was multiplied by to be short enough"),
    )

    slack: float = param(1.0, gt=0, help="c: how many median lengths a client may have")

    def tolerates(self, num_clients: int) -> int:
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        norms = ops.norms(updates)
        radius = self.slack * float(norms.median())
        factor = torch.where(norms > radius, radius / norms, 1.0)
        weight = factor / len(updates)
        return Aggregation(ops.weighted_sum(updates, weight), {"weight": weight, "clip_factor": factor})


def dense(updates: Updates, slack: float) -> torch.Tensor:
    """The same as one first writes it, with one K × D matrix in memory; `for row in updates` gives the rows."""
    norms = (rows := updates.matrix().double()).norm(dim=1, keepdim=True)
    return torch.mean(rows * (slack * norms.median() / norms).clamp(max=1), dim=0)
