"""Compiling the kernels before they are needed: in an image of a server, say."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedseca import ops
from fedseca.ops.plan import MergePlan
from fedseca.updates import Updates

DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""What is computed in: of updates in float16 and bfloat16 it is float32."""


def _weights(updates: Updates) -> Tensor:
    return torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)


def _merge(updates: Updates) -> None:
    ones = torch.ones(len(updates), dtype=torch.float64)
    ops.elect_and_merge(updates, MergePlan(clip_factor=ones, threshold=ones, ballots=ones.long()))


def _other_forms(updates: Updates) -> None:
    """Numbers that are written otherwise than they are computed with are brought into a buffer first."""
    narrow = torch.bfloat16 if updates.dtype == torch.float32 else torch.float32
    last = updates.row(0).to(narrow)
    ops.weighted_sum(Updates.collect([*updates, last]), _weights(updates.select([0, *range(len(updates))])))


PIECES: dict[str, Callable[[Updates], object]] = {
    "merge": _merge,
    "signs and quantiles": lambda updates: ops.survey(updates, 0.9),
    "norms": ops.extent,
    "medians and trimmed means": ops.median,
    "means near the median": lambda updates: ops.mean_near_median(updates, 20),
    "sums": lambda updates: ops.weighted_sum(updates, _weights(updates)),
    "distances to a mean": lambda updates: ops.residual_norms(updates, _weights(updates)),
    "distances of few clients": lambda updates: ops.squared_distances(updates.select(range(5))),
    "distances of many clients": ops.squared_distances,
    "other forms of rows": _other_forms,
    "mixes of rows": lambda updates: ops.extent(updates.mixed([[0, 1], [2]], [[0.5, 0.5], [1.0]], ["a", "b"])),
}
"""What rules are made of, the longest to compile first."""


def compile_piece(name: str, dtype: str) -> float:
    """Have a piece compiled for a dtype, or found where it was kept; the seconds that it took."""
    start = time.perf_counter()
    matrix = torch.randn(30, 3000, generator=torch.Generator().manual_seed(0)).to(DTYPES[dtype])
    PIECES[name](Updates.collect(matrix))
    return time.perf_counter() - start
