"""One voice: clients that say the same have one vote together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.steps.base import Mix, StepBefore
from fedseca.updates import State, Updates


@register("one_voice")
@dataclass(frozen=True, kw_only=True)
class OneVoice(StepBefore):
    """Clients whose signs are nearly the same share one voice: their mean is one row.

    cos(i, j) = Σ sgn(g_i)·sgn(g_j) / √(n_i·n_j), where n counts the coordinates that are not 0. Pairs above the
    threshold are joined, transitively; each group is one row. All from exact whole numbers: a tie is a tie. Attackers
    who send copies, of each other or of an honest client, gain nothing by their number. It promises no bound: a
    malicious client that joins honest ones moves their row as far as it likes (unless `clipping` stands before it).
    Cost: O(K²·D/32), one read.
    """

    keeps_clients: ClassVar[bool] = False
    diagnostics = (diagnostic("voice", help="the number of the group that it speaks with"),)

    threshold: float = param(0.9, ge=0, lt=1, help="cosine of the signs above which two clients share a voice")

    def fewest_rows(self, num_clients: int) -> int:
        return 1  # one client that is like everybody joins them all

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        return 0

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        groups, agreement = [[k] for k in range(len(updates))], None
        if not nobody_alike(updates, self.threshold):
            agreement = ops.sign_agreement(updates)
            groups = joined(alike(agreement, self.threshold))
        ids = [min(updates.client_ids[k] for k in group) for group in groups]
        numbers = torch.empty(len(updates), dtype=torch.float64)
        for number, index in enumerate(sorted(range(len(ids)), key=ids.__getitem__)):
            numbers[groups[index]] = number
        # Where nobody is joined, the rule behind need not count again.
        return replace(Mix.means(groups, ids, voice=numbers), agreement=agreement)


def nobody_alike(updates: Updates, threshold: float) -> bool:
    """Whether a quarter of the coordinates proves already that no two clients are alike, however the others are.

    Of a quarter, Σ sgn·sgn = a with n_i and n_j nonzeros. If all r others agree, which is the most they can do, the
    cosine is (a + r)/√((n_i + r)·(n_j + r)).
    """
    some = updates.first(updates.dim // 4)
    if some.dim == 0:
        return False
    left = updates.dim - some.dim
    agreement = ops.sign_agreement(some).double()
    nonzeros = agreement.diagonal() + left
    most = (agreement + left) / (nonzeros[:, None] * nonzeros[None, :]).sqrt()
    return bool((most.fill_diagonal_(0) <= threshold * (1 - 1e-9)).all())


def alike(agreement: Tensor, threshold: float) -> Tensor:
    """Which pairs have a cosine of signs above the threshold (K × K); a row of zeros is like no other."""
    nonzeros = agreement.diagonal()
    limit = threshold * (nonzeros.double()[:, None] * nonzeros.double()[None, :]).sqrt()
    above = agreement > limit
    # Within rounding of the limit whole numbers decide: agreement² > threshold²·n_i·n_j.
    exact = Fraction(str(threshold)) ** 2
    for i, j in ((agreement - limit).abs() <= 1e-9 * limit).nonzero().tolist():
        above[i, j] = int(agreement[i, j]) ** 2 > exact * int(nonzeros[i]) * int(nonzeros[j])
    return above


def joined(pairs: Tensor) -> list[list[int]]:
    """The groups that pairs join, transitively, each in ascending order, in the order of their first."""
    groups: list[list[int]] = []
    left = dict.fromkeys(range(len(pairs)))
    while left:
        group = [next(iter(left))]
        del left[group[0]]
        for reached in group:  # which grows meanwhile
            found = [k for k in pairs[reached].nonzero().flatten().tolist() if k in left]
            for k in found:
                del left[k]
            group += found
        groups.append(sorted(group))
    return groups
