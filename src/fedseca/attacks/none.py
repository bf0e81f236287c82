"""No attack: the negative control of every other."""

from dataclasses import dataclass
from typing import ClassVar

from fedseca.attacks.base import Attack, register


@register("none")
@dataclass(frozen=True, kw_only=True)
class NoAttack(Attack):
    """The Byzantine clients behave like honest ones."""

    needs: ClassVar[tuple[str, ...]] = ("own",)
    harms: ClassVar[bool] = False
