"""Which of the admitted clients of a round are suspect, and why: one pure function that everybody shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from fedseca.declare import Declared, param


@dataclass(frozen=True, kw_only=True)
class Thresholds(Declared):
    """From where on a client stands out."""

    name: ClassVar[str] = "suspicion"

    weight: float = param(1 / 3, ge=0, lt=1, help="suspect with that share of the median weight or less")
    norm: float = param(5.0, gt=1, help="suspect with so many times the median norm or more")


_USUAL = Thresholds()


def suspicion(
    client_ids: Sequence[str],
    norms: Sequence[float],
    weights: Sequence[float] | None,
    named: Collection[str] = (),
    thresholds: Thresholds | None = None,
) -> dict[str, str]:
    """The suspects among the clients, each with the reason.

    `named` are those that the rule itself calls malicious. `weights` are None where a low weight says nothing of a
    client: where the rule picks a few of many, or the caller decided what each weighs.
    """
    limits = thresholds or _USUAL
    usual_norm = median(norms) if norms else 0.0
    usual_weight = median(weights) if weights else 0.0
    found = {}
    for k, client_id in enumerate(client_ids):
        if client_id in named:
            found[client_id] = "the rule calls it malicious"
        elif weights is not None and usual_weight > 0 and weights[k] <= limits.weight * usual_weight:
            found[client_id] = f"weight {weights[k]:.3g}, where the median is {usual_weight:.3g}"
        elif usual_norm > 0 and norms[k] >= limits.norm * usual_norm:
            found[client_id] = f"norm {norms[k]:.3g}, where the median is {usual_norm:.3g}"
    return found
