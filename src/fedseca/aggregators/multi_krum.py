"""Multi-Krum: the clients in the densest neighbourhood."""

from dataclasses import dataclass

from fedseca.aggregators.krum import Krum
from fedseca.declare import param
from fedseca.parts import register


@register("multi_krum")
@dataclass(frozen=True, kw_only=True)
class MultiKrum(Krum):
    """The mean of the clients that are closest to their nearest neighbours: Krum with m > 1.

    Without `select`, all but `num_byzantine` are averaged. Cost: O(K²·D).
    """

    select: int | None = param(None, ge=1, help="m: how many of the best are averaged; none: K − num_byzantine")  # type: ignore[assignment]

    def min_clients(self) -> int:
        return max(self.num_byzantine + 3, self.select or 1)

    def chosen(self, num_clients: int) -> int:
        return self.select or num_clients - self.num_byzantine
