"""Fang's attack on Krum: as far against the mean as Krum still chooses."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.attacks._directions import distances, unit
from fedseca.attacks.base import Attack, Knowledge, copies, register
from fedseca.declare import param
from fedseca.updates import State


@register("fang_krum")
@dataclass(frozen=True, kw_only=True)
class FangKrum(Attack):
    """A step of the same size in every coordinate against the honest mean, the largest that Krum would choose.

    g_1 = −λ·sgn(μ), with its supporters beside it; λ is halved until Krum, told B, chooses it, from
        λ = √(min_k Σ_{k→i} ‖g_k − g_i‖² / ((K−2B−1)·D)) + max_k ‖g_k‖/√D
    over the K−B−2 nearest honest clients i of k: more than that Krum never chooses (Fang et al. 2020, full knowledge).
    Here D counts the coordinates with a sign. Their programs take distances where the paper has squared ones. The
    paper's supporters are 0.01 away; here that is a share of the row's length, since updates have any scale.
    """

    threshold: float = param(1e-5, gt=0, help="the search ends when λ is smaller")
    spread: float = param(0.01, ge=0, help="how far from the first row the others are, in lengths of it")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        against, byzantine = -honest.mean(dim=0).sign(), knowledge.num_byzantine
        square = float(against.square().sum())
        if byzantine == 0 or square == 0:
            return copies(torch.zeros_like(against), knowledge), state
        lengths = torch.stack([row.double().norm() for row in honest])
        products = torch.stack([row.double() @ against.double() for row in honest])
        apart = distances(honest).double().square().fill_diagonal_(torch.inf)
        neighbours = max(len(honest) - 2, 1)  # K − B − 2

        def is_chosen(strength: float) -> bool:
            # ‖g_k − λ·a‖² = ‖g_k‖² − 2λ·g_kᵀa + λ²·‖a‖²
            to_honest = (lengths.square() - 2 * strength * products + strength * strength * square).clamp(min=0)
            own = torch.cat([to_honest.new_zeros(byzantine - 1), to_honest])
            others = torch.cat([apart, to_honest[:, None].expand(-1, byzantine)], dim=1)
            least = others.sort(dim=1).values[:, :neighbours].sum(dim=1).min()
            return bool(own.sort().values[:neighbours].sum() < least)

        nearest = apart.sort(dim=1).values[:, : min(neighbours, len(honest) - 1)].sum(dim=1).min()
        room = float(nearest) / (max(len(honest) - byzantine - 1, 1) * square)
        strength = math.sqrt(room) + float(lengths.max()) / math.sqrt(square)
        strength = min(strength, torch.finfo(honest.dtype).max)  # half of infinity is infinity: it would never end
        while strength > self.threshold and not is_chosen(strength):
            strength /= 2
        rows = copies(strength * against, knowledge)
        for row in rows[1:]:
            beside = unit(torch.randn(len(row), generator=rng).to(row))
            row += self.spread * strength * math.sqrt(square) * beside
        return rows, state
