"""Bucketing: the means of small random groups of clients, which differ less than the clients do."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.steps.base import Mix, StepBefore
from fedseca.updates import State, Updates

BUCKET = diagnostic("bucket", help="the number of the bucket it was put into")


@register("bucketing")
@dataclass(frozen=True, kw_only=True)
class Bucketing(StepBefore):
    """The clients are put into random buckets, and each bucket speaks with the mean of its clients.

    The clients, in the order of their ids, are shuffled and cut into ⌈K/S⌉ buckets of S; the last may be smaller, and
    is averaged over its own (Karimireddy et al. 2022). Cost: O(K·D) more in each read.
    """

    keeps_clients: ClassVar[bool] = False
    diagnostics = (BUCKET,)

    size: int = param(2, ge=1, help="S: clients in a bucket")

    def min_clients(self, rows: int) -> int:
        return (rows - 1) * self.size + 1

    def fewest_rows(self, num_clients: int) -> int:
        return math.ceil(num_clients / self.size)

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        return behind(self.fewest_rows(num_clients))  # each client can spoil one bucket

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        ordered = updates.by_id()
        shuffled = [ordered[i] for i in torch.randperm(len(ordered), generator=rng, device="cpu").tolist()]
        buckets = [shuffled[i : i + self.size] for i in range(0, len(shuffled), self.size)]
        numbers = torch.empty(len(updates), dtype=torch.float64)
        for index, bucket in enumerate(buckets):
            numbers[bucket] = index
        return Mix.means(buckets, [str(index) for index in range(len(buckets))], bucket=numbers)
