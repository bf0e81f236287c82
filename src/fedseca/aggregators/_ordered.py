"""Rules in which the order of the clients may decide, by a tie or by rounding."""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch

from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.updates import State, Updates


@dataclass(frozen=True, kw_only=True)
class OrderedAggregator(Aggregator):
    """A rule that sees the clients in the order of their ids: who answered first changes not one bit of the result."""

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        order = updates.by_id()
        answer = self.aggregate_in_order(updates.select(order), state, rng)
        places = torch.tensor(order).argsort()
        return replace(answer, diagnostics={name: each[places] for name, each in answer.diagnostics.items()})

    @abstractmethod
    def aggregate_in_order(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        """As `aggregate`, of clients in the order of their ids; one number for each of them is said."""
