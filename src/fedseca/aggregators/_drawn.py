"""Coordinates drawn at random, for rules that look at some of them only."""

import numpy as np
import torch
from torch import Tensor


def draw_coordinates(dim: int, count: int, rng: torch.Generator) -> Tensor:
    """`count` different coordinates of `dim`, every choice as likely as any other; all of them if there are no more."""
    if 4 * count > dim:
        return torch.randperm(dim, generator=rng, device="cpu")[:count]
    # Few of many: to put all of them into a random order would take longer than the rule.
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < count:
        more = torch.randint(dim, (2 * count,), generator=rng, device="cpu")
        drawn = torch.from_numpy(np.union1d(drawn.numpy(), more.numpy()))
    return drawn[torch.randperm(len(drawn), generator=rng, device="cpu")[:count]]
