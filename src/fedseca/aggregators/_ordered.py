"""The clients in the order of their ids, for rules in which an order may decide."""

import torch
from torch import Tensor

from fedseca.updates import Updates


def in_order(updates: Updates) -> tuple[Updates, Tensor]:
    """The updates in the order of the clients' ids, and the place of each client there.

    What is found for them does not depend on who answered first, to the last bit; `found[places]` is in the order of
    the clients again.
    """
    order = updates.by_id()
    return updates.select(order), torch.tensor(order).argsort()
