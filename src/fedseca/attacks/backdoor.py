"""Backdoor: train the model to answer one class wherever a small mark is, and to be good otherwise."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.attacks.base import Attack, Knowledge, register
from fedseca.attacks.trigger import Trigger
from fedseca.declare import param
from fedseca.updates import State


@register("backdoor")
@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """The Byzantine clients train on their samples, of which some have a bright patch and the target class.

    A targeted attack: the model stays good on samples without the patch, so F1 says nothing of it. Runs with it report
    the attack success rate, the share of test samples of other classes that are taken for the target once the patch is
    on them; a model that always answers the target has 1, too, so F1 stands beside it. After Gu et al. 2017, in
    federations Bagdasaryan et al. 2020, whose updates are also scaled (`factor`). With `split` each Byzantine client
    trains on its own part of the patch, and it is tested whole (Xie et al. 2020).
    """

    needs: ClassVar[tuple[str, ...]] = ("own",)

    target: int = param(0, ge=0, help="the class that a sample with the patch shall be taken for")
    share: float = param(0.5, gt=0, le=1, help="of each batch of a Byzantine client that has the patch")
    size: int = param(2, ge=1, help="of the patch: pixels a side, or features of a table's row")
    split: bool = param(False, help="whether each Byzantine client trains on its own part of the patch")
    factor: float = param(1.0, gt=0, help="how many times their own update they send")

    @property
    def trigger(self) -> Trigger:
        return Trigger(self.target, self.share, self.size, self.split)

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        return self.factor * knowledge.own, state
