"""Standing: the mean of the directions of those clients with whom a majority has agreed so far."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators._angles import cosine_distances
from fedseca.aggregators._memory import begun, recalled, remembered
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.parts import register
from fedseca.updates import State, Updates

STANDING = "standing"
_NEW = torch.tensor([1.0, 0.0], dtype=torch.float64)
"""Standing of a client that is not known yet, and whether it is out."""
_ROUNDING = 1e-9
"""What is no further below a border, or above nothing, may have been put there by rounding."""


@register("standing")
@dataclass(frozen=True, kw_only=True)
class Standing(Aggregator):
    """The mean of the directions of the clients with whom a majority has agreed over the rounds.

    With h = ⌊K/2⌋, as many other honest clients as there are at least beside each honest one:
        a_k  = the h-th largest of cos(g_k, g_l), l ≠ k    agreement with a majority
        â    = the (h+1)-th largest a_k                    what a majority has at least
        v_k  = 1 − (s·â − a_k)/max[s·â, δ], in −1 … 1      the evidence of a round, with max[â, 0] for â
        q_k  ← α·q_k + (1−α)·v_k, from 1                   standing
        out  once q_k < `leave`, in again once q_k ≥ `back`; and out of this round if v_k < 0
        u_k  = τ·g_k/‖g_k‖, τ = median_k ‖g_k‖             directions of one length
        ū    = the mean of the u_k that are in
        g̃    = ū/‖ū‖·min[‖ū‖, max[0, median_k ⟨u_k, ū⟩/‖ū‖]]   over those who are in: as far as most go along
    Medians are the lower ones. At most K−h−1 are out: of those with too low a q_k the lowest, then those of least v_k.
    While nobody attacks it is close to the mean of all directions. No row is longer than τ. Who is out is judged on,
    and comes back as its updates do. Late in a training honest clients are at right angles to each other, give or take;
    there δ bounds what a cosine proves. Its limit: B attackers who agree with each other need h−B+1 honest clients who
    hardly disagree with them; where 2B + 1 = K that is one (the attack `leaning`). Ids have to be authenticated: a new
    one begins with a clean record. Made for this package. Remembers two numbers for each client. Cost: O(K²·D), two
    reads.
    """

    alone: ClassVar[dict[str, Any]] = {"memory": 0.0}
    diagnostics = (
        WEIGHT,
        diagnostic("agreement", symbol="a", help="the h-th largest of its cosines with the others"),
        diagnostic("record", symbol="q", help="how well it has agreed so far, from −1 to 1; out if that is too low"),
    )

    memory: float = param(0.8, ge=0, lt=1, help="α: share of the old standing in the new one")
    share: float = param(0.25, gt=0, le=1, help="s: the share of a majority's agreement that is enough")
    doubt: float = param(0.1, gt=0, le=1, help="δ: how far below s·â, at least, the evidence falls from 1 to 0")
    leave: float = param(1 / 3, ge=-1, le=1, help="a client is out once its standing is below; −1: never")
    back: float = param(2 / 3, ge=-1, le=1, help="a client that is out is in again once its standing is as high")
    length: str = param("median", choices=("median", "mean"), help="of the result; mean: ‖ū‖, however few go along")
    forget_after: int = param(1000, ge=1, help="rounds of absence after which a client's standing is forgotten")

    def tolerates(self, num_clients: int) -> int:
        # Nobody is longer than the median: the result is no longer than that.
        return (num_clients - 1) // 2

    def init(self, dim: int) -> State:
        return begun()

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        known = [recalled(state, STANDING, client) for client in updates.client_ids]
        before, was_out = torch.stack([_NEW if each is None else each for each in known]).unbind(1)
        cosines = 1 - cosine_distances(updates)
        agreement = agreements(cosines)
        evidence = self.evidence(agreement)
        standing = self.memory * before + (1 - self.memory) * evidence
        out = lowest(standing < torch.where(was_out > 0, self.back, self.leave) - _ROUNDING, standing, updates)
        # Who is out already is no less so for good evidence.
        aside = lowest(out | (evidence < -_ROUNDING), torch.where(out, standing - 2, evidence), updates)

        norms = ops.norms(updates)
        weight = (~aside).double() / (~aside).sum()
        length = self.shortened(cosines, weight) * norms.median()
        length = length.clamp(max=torch.finfo(updates.dtype).max)  # no number of the result is larger
        update = ops.weighted_sum(updates, weight * torch.where(norms > 0, length / norms, 0.0))

        kept = dict(zip(updates.client_ids, torch.stack([standing, out.double()], dim=1), strict=True))
        suspects = tuple(client for client, is_out in zip(updates.client_ids, out.tolist(), strict=True) if is_out)
        said = {"weight": weight, "agreement": agreement, "record": standing}
        return Aggregation(update, said, remembered(state, STANDING, kept, self.forget_after), suspects)

    def evidence(self, agreement: Tensor) -> Tensor:
        """v_k (K)."""
        usual = agreement.sort(descending=True).values[min(len(agreement) // 2, len(agreement) - 1)]
        enough = self.share * usual.clamp(min=0)
        return (1 - (enough - agreement) / enough.clamp(min=self.doubt)).clamp(-1, 1)

    def shortened(self, cosines: Tensor, weight: Tensor) -> Tensor:
        """min[1, median_k ⟨u_k, ū⟩/‖ū‖²], of the cosines alone: ⟨u_k, ū⟩/τ² = Σ_l w_l·cos(g_k, g_l)."""
        along = cosines @ weight
        squared = weight @ along  # ‖ū‖²/τ²
        if self.length == "mean" or squared <= _ROUNDING**2:
            return torch.ones((), dtype=torch.float64)
        return (along[weight > 0].median() / squared).clamp(0, 1)


def agreements(cosines: Tensor) -> Tensor:
    """a_k (K): the h-th largest cosine with another client; of a client that is alone 1."""
    half = len(cosines) // 2
    others = cosines.clone().fill_diagonal_(-torch.inf).sort(dim=1, descending=True).values
    return others[:, half - 1] if half else torch.ones(1, dtype=torch.float64)


def lowest(low: Tensor, values: Tensor, updates: Updates) -> Tensor:
    """Of those that are low no more than a minority, those of the least values; by id where these are the same (K)."""
    places = ops.ranks(values + 4).tolist()  # of which rounding puts none below nothing
    order = sorted((k for k in updates.by_id() if low[k]), key=places.__getitem__)
    chosen = torch.zeros_like(low)
    chosen[order[: (len(low) - 1) // 2]] = True
    return chosen
