"""Optimal ALIE: as many standard deviations as hurt the server's rule most."""

from dataclasses import dataclass

from torch import Tensor

from fedseca.attacks._line_search import LineSearch
from fedseca.attacks.base import register


@register("opt_alie")
@dataclass(frozen=True, kw_only=True)
class OptALIE(LineSearch):
    """ALIE with the strength that hurts the server's rule most, which the attacker knows and asks.

    g_b = μ − z·σ with the z of the grid after which ‖μ − RAggr(honest ∪ attack)‖ is largest, as in the experiments of
    NNM (Allouah et al. 2023), of ARC (Allouah et al. 2025) and in ByzFL, which look for z by growing and shrinking
    steps, also 16 of them. The grid does not stop at a z that a rule rejects. `questions` questions in each round.
    """

    def line(self, honest: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        return mean, -honest.std(dim=0, correction=0)
