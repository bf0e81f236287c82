"""A step in one file: the shortest updates are left out before the rule sees them.

    fedseca --plugin examples/steps/drop_shortest.py list steps
    fedseca --plugin examples/steps/drop_shortest.py run --aggregator drop_shortest+cwmed --set drop_shortest.share=0.3

`fedseca.testing.check_step("drop_shortest")` holds it to the contract that every step of the package keeps, alone and
with every rule behind it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedseca import Mix, State, StepBefore, Updates, diagnostic, ops, param, register


@register("drop_shortest")
@dataclass(frozen=True, kw_only=True)
class DropShortest(StepBefore):
    """Clients that have learnt next to nothing have no say: the row of each is that of the next longer one.

    The ⌊s·K⌋ shortest rows are replaced by the shortest of the others. Cost: O(K·D), one read.
    """

    low_weight_is_distrust = False  # some clients are always the shortest
    diagnostics = (diagnostic("dropped", help="1 if its update was among the shortest, else 0"),)

    share: float = param(0.2, ge=0, lt=1, help="s: share of the clients whose updates are dropped")

    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        # The row that stands for those dropped may be a malicious one: then it has as many voices more.
        return max(0, behind(num_clients) - math.floor(self.share * num_clients))

    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        norms = ops.norms(updates)
        by_length = sorted(updates.by_id(), key=lambda k: float(norms[k]))
        count = math.floor(self.share * len(updates))
        rows = list(range(len(updates)))
        dropped = torch.zeros(len(updates), dtype=torch.float64)
        for k in by_length[:count]:
            rows[k], dropped[k] = by_length[count], 1
        ones = [[1.0]] * len(rows)
        return Mix([[row] for row in rows], ones, range(len(rows)), updates.client_ids, {"dropped": dropped})
