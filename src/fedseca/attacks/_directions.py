"""Which way to push: the three directions of Shejwalkar & Houmansadr (2021), shared by their attacks."""

import torch
from torch import Tensor

DIRECTIONS = ("unit", "sign", "std")


def unit(vector: Tensor) -> Tensor:
    """The vector at length 1; 0 stays 0."""
    length = float(vector.norm())
    return vector / length if length > 0 else vector


def direction(name: str, honest: Tensor) -> Tensor:
    """p: against the mean at length 1 (−μ/‖μ‖), against its signs (−sgn μ), or against the spread (−σ)."""
    mean = honest.mean(dim=0)
    if name == "unit":
        return -unit(mean)
    if name == "sign":
        return -mean.sign()
    return -honest.std(dim=0, correction=0)


def distances(honest: Tensor) -> Tensor:
    """‖g_i − g_j‖ of each pair of honest clients, from the differences: products would cancel for close clients."""
    return torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist")


def squared_distances(honest: Tensor) -> Tensor:
    """‖g_i − g_j‖² of each pair of honest clients."""
    return distances(honest).square()
