"""Nearest-neighbour mixing: each client speaks with the voice of its neighbours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca import ops
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.steps.base import Mix, StepBefore
from fedseca.updates import State, Updates


@register("nnm")
@dataclass(frozen=True, kw_only=True)
class NearestNeighbourMixing(StepBefore):
    """Each row becomes the mean of the rows nearest to it, itself among them.

    h_i = 1/(K−B)·Σ g_j over the K−B rows of least ‖g_i − g_j‖²; ties by the order of the clients' ids
    (Allouah et al. 2023). Cost: O(K²·D), a read for the distances, and K−B products for each number of a mix.
    """

    low_weight_is_distrust: ClassVar[bool] = False  # even among alike clients, some have the fewest neighbours
    diagnostics = (diagnostic("neighbours", help="in how many clients' mixes its row is, its own among them"),)

    num_byzantine: int = param(1, ge=0, help="B: clients assumed malicious")

    def min_clients(self, rows: int) -> int:
        return max(rows, self.num_byzantine + 1)

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        # With at most B malicious clients, no honest row is mixed with one that is farther than all honest ones.
        return min(behind(num_clients), self.num_byzantine)

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        order = torch.tensor(updates.by_id())
        distances = ops.squared_distances(updates).fill_diagonal_(-1.0)  # itself first, also among duplicates
        nearest = ops.ranks(distances)[:, order].argsort(dim=1, stable=True)[:, : len(updates) - self.num_byzantine]
        # Summed in the order of the ids: who has the same neighbours gets the same mix, to the last bit.
        groups = order[nearest.sort(dim=1).values]
        counted = torch.bincount(groups.flatten(), minlength=len(updates)).double()
        return Mix.means(groups.tolist(), updates.client_ids, row_of=range(len(updates)), neighbours=counted)
