"""FLTrust: the server trains on a few samples of its own, and trusts who goes its way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.errors import InputError
from fedseca.parts import register
from fedseca.updates import State, Updates

_NOTHING = 1e-10
"""A cosine up to it is rounding: if there were no other, noise alone would choose the clients."""


ROOT = "server"
"""The id of the server's own update, if it has one."""


@register("fltrust")
@dataclass(frozen=True, kw_only=True)
class FLTrust(Aggregator):
    """The mean of the clients' directions, weighed by their cosine with an update that the server made itself.

    TS_k = max[0, cos(g_k, g₀)]; g̃ = Σ_k TS_k·(‖g₀‖/‖g_k‖)·g_k / Σ_k TS_k (Cao et al. 2021). g₀, the server's own update
    from a small trusted data set, is handed in as that of one more client, whose id is `root`; it has no weight itself.
    Give that id to no client. If nobody is trusted, g̃ = 0 (some programs take the mean then). A round without a root is
    an error, or the coordinate-wise median stands in for g₀ (not the paper's: then a majority must be honest).
    Steps that mix rows hide the root. Cost: O(K·D), two reads.
    """

    diagnostics = (
        WEIGHT,
        diagnostic("trust", symbol="TS", heading="trust TS", help="cosine with the server's own update, 0 if negative"),
        diagnostic("rooted", help="1 if the round had an update of the server's own, 0 if the median stood in for it"),
    )

    root: str = param(ROOT, help="the id under which the server's own update is handed in")
    without_root: str = param(
        "median", choices=("median", "error"), help="a round without it: the median stands in, or it is an error"
    )
    average_root: bool = param(False, help="average the server's own update in, too, with TS = 1")

    def tolerates(self, num_clients: int) -> int:
        # The result is no longer than g₀: with a root, whatever all the others send.
        return num_clients - 1 if self.without_root == "error" else (num_clients - 1) // 2

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        reference, is_root = self.reference(updates)
        norms, length = ops.norms(updates), ops.norms(reference)
        cosine = ops.dots(updates, reference)[:, 0] / torch.where(norms > 0, norms, 1.0)
        cosine = cosine / torch.where(length > 0, length, 1.0)
        trust = torch.where(cosine > _NOTHING, cosine, 0.0)
        weight = trust if self.average_root else torch.where(is_root, 0.0, trust)
        weight = weight / weight.sum() if weight.any() else weight

        length = length.clamp(max=torch.finfo(updates.dtype).max)  # no number of the result is larger
        scale = torch.where(norms > 0, length / norms, 0.0)
        update = ops.weighted_sum(updates, weight * scale)
        said = {"weight": weight, "trust": trust, "rooted": is_root.any().double().expand(len(updates)).clone()}
        # The root has no weight, and is not distrusted for that.
        return Aggregation(update, said, row_weight=torch.where(is_root, weight.max(), weight))

    def reference(self, updates: Updates) -> tuple[Updates, Tensor]:
        """g₀ as updates of one row; and which of the clients it is, if it is one."""
        is_root = torch.tensor([client_id == self.root for client_id in updates.client_ids])
        if is_root.any():
            return updates.select([int(is_root.int().argmax())]), is_root
        if self.without_root == "error":
            raise InputError(
                f"fltrust: the round has no update of the server's own; hand it in as that of the client {self.root!r}"
                " (root=…), or set without_root=median"
            )
        return updates.with_rows([updates.vector_row(ops.median(updates).update)], [self.root]), is_root
