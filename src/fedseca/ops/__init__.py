"""The primitives that every rule is written in. Each streams over blocks of coordinates.

`reference.py` has all of them in plain torch, for any device, reading like the equations; their signatures and
equations stand there. A backend is a module that offers faster twins of some: `cpu.py` for updates in the CPU's memory.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from torch import Tensor

from fedseca.ops import reference
from fedseca.ops.plan import Merge, MergePlan, Selection, SignSurvey
from fedseca.ops.reference import clip_factors, ranks
from fedseca.updates import Updates

__all__ = [
    "BACKENDS",
    "Merge",
    "MergePlan",
    "Selection",
    "SignSurvey",
    "clip_factors",
    "columns",
    "dots",
    "elect_and_merge",
    "extent",
    "extreme_distances",
    "magnitude_quantiles",
    "mean_near_median",
    "median",
    "norms",
    "paired_distances",
    "ranks",
    "residual_norms",
    "sign_agreement",
    "squared_distances",
    "survey",
    "trimmed_mean",
    "weighted_sum",
]

BACKENDS = ["fedseca.ops.cpu", "fedseca.ops.reference"]
"""The names of the backends, in the order in which they are asked; a plugin may put its own in front.

A backend has `takes(updates)`, whether it can read these updates, and functions with the names and the arguments of
those in `reference.py`. The next backend does what it does not have, and what it answers `NotImplemented` to.
A backend is imported when it is first asked: the compiled one brings a compiler, which not every use needs.
"""

P = ParamSpec("P")
R = TypeVar("R")


def _primitive(reference_function: Callable[Concatenate[Updates, P], R]) -> Callable[Concatenate[Updates, P], R]:
    """The function with the same signature that asks the backends one after the other."""
    name = reference_function.__name__

    @functools.wraps(reference_function)
    def ask(updates: Updates, /, *arguments: P.args, **options: P.kwargs) -> R:
        for module in BACKENDS:
            backend = sys.modules.get(module) or importlib.import_module(module)
            offered: Callable[Concatenate[Updates, P], R] | None = getattr(backend, name, None)
            if offered is not None and backend.takes(updates):
                answer = offered(updates, *arguments, **options)
                if answer is not NotImplemented:
                    return answer
        return reference_function(updates, *arguments, **options)

    return ask


extent = _primitive(reference.extent)
dots = _primitive(reference.dots)
squared_distances = _primitive(reference.squared_distances)
residual_norms = _primitive(reference.residual_norms)
paired_distances = _primitive(reference.paired_distances)
extreme_distances = _primitive(reference.extreme_distances)
weighted_sum = _primitive(reference.weighted_sum)
columns = _primitive(reference.columns)
survey = _primitive(reference.survey)
sign_agreement = _primitive(reference.sign_agreement)
magnitude_quantiles = _primitive(reference.magnitude_quantiles)
median = _primitive(reference.median)
trimmed_mean = _primitive(reference.trimmed_mean)
mean_near_median = _primitive(reference.mean_near_median)
elect_and_merge = _primitive(reference.elect_and_merge)


def norms(updates: Updates) -> Tensor:
    """‖g_k‖₂ (K); rows that screening has measured are not read again"""
    if updates.norms is None:
        return extent(updates, exactly=False)[0]
    unknown = np.isnan(updates.norms.numpy()).nonzero()[0].tolist()
    if not unknown:
        return updates.norms
    known = updates.norms.clone()
    known[unknown] = extent(updates.select(unknown), exactly=False)[0]
    return known
