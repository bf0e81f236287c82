"""Optimal IPM: as far backwards as hurts the server's rule most."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks._line_search import LineSearch
from fedseca.attacks.base import register


@register("opt_ipm")
@dataclass(frozen=True, kw_only=True)
class OptIPM(LineSearch):
    """IPM with the strength that hurts the server's rule most, which the attacker knows and asks.

    g_b = −ε·μ with the ε of the grid after which ‖μ − RAggr(honest ∪ attack)‖ is largest, as in the experiments of NNM
    (Allouah et al. 2023), of ARC (Allouah et al. 2025) and in ByzFL ("Fall of Empires"; some write (1 − ε)·μ, which
    only counts ε from another place). `questions` questions in each round.
    """

    def line(self, honest: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(mean), -mean
