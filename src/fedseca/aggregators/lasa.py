"""LASA: layer by layer, the clients whose sparse updates are neither unusually long nor unusually one-sided."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates

_ROUNDING = 1e-10
"""Of a number: by how much less two of them differ, if only rounding tells them apart."""


@register("lasa")
@dataclass(frozen=True, kw_only=True)
class LASA(Aggregator):
    """The mean of each layer over the clients whose length and share of positive signs there are near the median.

    ĝ_k = g_k·min[1, τ/‖g_k‖] with τ = median_k ‖g_k‖; g̈_k keeps the ⌊(1−s)·D⌋ largest |ĝ_k^j|. In each layer l, x_k is
    ‖g̈_k^l‖ or the sign purity ½·(1 + Σ_j sgn/Σ_j |sgn|); clients with |x_k − median x|/σ(x) ≤ λ in both are averaged;
    if there are none, all are (Xu et al. 2025). A layer is an array; a plain vector is one layer. The authors' program
    makes only arrays of two or four dimensions sparse; others average what is not sparse. Cost: O(K·D), three reads.
    """

    returns_identical: ClassVar[bool] = False  # what is averaged is sparse
    low_weight_is_distrust: ClassVar[bool] = False  # with λ = 1 many an honest client is beyond it
    diagnostics = (
        WEIGHT,
        CLIP_FACTOR,
        diagnostic("layers", help="share of the layers in which it was averaged", share=True),
    )

    sparsity: float = param(0.3, ge=0, lt=1, help="s: share of each client's smallest gradients that is dropped")
    norm_bound: float = param(1.0, gt=0, help="λ_n: how far from the median length, in standard deviations")
    sign_bound: float = param(1.0, gt=0, help="λ_s: how far from the median sign purity, in standard deviations")

    def tolerates(self, num_clients: int) -> int:
        # Whoever is averaged was clipped to the median length before.
        return (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        norms = ops.norms(updates)
        clip_factor = ops.clip_factors(float(norms.median()), norms)
        threshold = self.thresholds(updates)
        update = torch.empty(updates.dim, dtype=updates.dtype, device=updates.device)
        weight, averaged = torch.zeros(2, len(updates), dtype=torch.float64)
        layers = [(a, b) for a, b in zip(updates.layout.offsets, updates.layout.offsets[1:], strict=False) if b > a]
        for start, stop in layers:
            layer = updates.part(start, stop)
            kept = self.kept(*_survey(layer, threshold, clip_factor))
            share = (clip_factor[kept] / len(kept))[:, None]
            for where, block in _sparse_blocks(layer.select(kept), threshold[kept]):
                update[start + where.start : start + where.stop] = (block * share.to(block)).sum(dim=0).to(update.dtype)
            weight[kept] += (stop - start) / updates.dim / len(kept)
            averaged[kept] += 1 / len(layers)
        return Aggregation(update, {"weight": weight, "clip_factor": clip_factor, "layers": averaged})

    def thresholds(self, updates: Updates) -> Tensor:
        """The magnitude from which on a coordinate is one of its client's ⌊(1−s)·D⌋ largest, or as large (K)."""
        size = updates.dim
        count = max(1, int((1 - self.sparsity) * size + 1e-9))
        if count == size:
            return torch.zeros(len(updates), dtype=torch.float64)
        # Half way between the smallest that is kept and the largest that is not, which rounding does not move.
        return ops.magnitude_quantiles(updates, (size - count - 0.5) / (size - 1))

    def kept(self, lengths: Tensor, purity: Tensor) -> list[int]:
        """The clients that are averaged in a layer."""
        near = (_deviation(lengths) <= self.norm_bound) & (_deviation(purity) <= self.sign_bound)
        return near.nonzero()[0].tolist() or list(range(len(lengths)))


def _sparse_blocks(layer: Updates, threshold: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Block by block what is kept of each row, in the dtype that sums are made in."""
    for where, block in layer.blocks():
        wide = block.to(torch.float32 if block.device.type == "mps" else torch.float64)
        yield where, torch.where(wide.abs() >= threshold[:, None].to(wide), wide, 0)


def _survey(layer: Updates, threshold: Tensor, clip_factor: Tensor) -> tuple[Tensor, Tensor]:
    """‖g̈_k‖ (K), and which share of its signs is positive (K), ½·(1 + Σ sgn/Σ |sgn|); ½ if it is zero."""
    squares, positive, signs = torch.zeros(3, len(layer), dtype=torch.float64)
    for _, kept in _sparse_blocks(layer, threshold):
        squares += kept.square().sum(dim=1).cpu()
        positive += (kept > 0).sum(dim=1).cpu()
        signs += (kept != 0).sum(dim=1).cpu()
    signs = torch.where(clip_factor > 0, signs, 0.0)  # what is clipped to nothing has none
    return squares.sqrt() * clip_factor, torch.where(signs > 0, positive / signs.clamp(min=1), 0.5)


def _deviation(values: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """|x_k − median x|/σ(x) (K), of the middle of the two middle values; 0 where all are the same."""
    given = values.numpy()
    spread = given.std()
    if spread <= _ROUNDING * np.abs(given).max():
        return np.zeros_like(given)
    deviation: np.ndarray[tuple[int], np.dtype[np.float64]] = np.abs(given - np.median(given)) / spread
    return deviation * (1 - _ROUNDING)  # who is on the border is within it
