"""LabelFlip: train on wrong labels."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedseca.attacks.base import Attack, register


@register("labelflip")
@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """The Byzantine clients train as the honest ones do, but on flipped labels.

    y ↦ C − 1 − y for labels 0 … C−1 (Biggio et al. 2012). With an odd number of classes the middle one stays.
    """

    needs: ClassVar[tuple[str, ...]] = ("own",)

    def poison(self, labels: Tensor, num_classes: int) -> Tensor:
        return num_classes - 1 - labels
