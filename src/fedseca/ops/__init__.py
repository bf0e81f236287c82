"""The primitives that every rule is written in. Each streams over blocks of coordinates."""

from fedseca.ops.reference import (
    Merge,
    MergePlan,
    Selection,
    clip_factors,
    dots,
    elect_and_merge,
    magnitude_quantiles,
    median,
    norms,
    paired_distances,
    residual_norms,
    share_of,
    sign_agreement,
    squared_distances,
    trimmed_mean,
    weighted_sum,
)

__all__ = [
    "Merge",
    "MergePlan",
    "Selection",
    "clip_factors",
    "dots",
    "elect_and_merge",
    "magnitude_quantiles",
    "median",
    "norms",
    "paired_distances",
    "residual_norms",
    "share_of",
    "sign_agreement",
    "squared_distances",
    "trimmed_mean",
    "weighted_sum",
]
