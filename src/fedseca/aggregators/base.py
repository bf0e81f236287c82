"""The contract of every rule: a pure function of the updates and what was remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedseca.declare import Declared, Registry
from fedseca.updates import Updates

State = Mapping[str, Tensor]
"""What a rule remembers between rounds: tensors by name. Memory of a client is kept under `name/client id`."""


@dataclass(frozen=True)
class Aggregation:
    """What a rule answers."""

    update: Tensor
    """The aggregate g̃ (D), in the updates' dtype, on their device."""
    clients: Mapping[str, Tensor]
    """Diagnostics by name, one number for each client (K), or for each pair (K × K). `weight` is always there: the
    share with which the client entered the result."""
    state: State = field(default_factory=dict)
    """What to hand in next round."""
    suspects: tuple[str, ...] = ()
    """The ids of the clients that the rule itself calls malicious."""


@dataclass(frozen=True, kw_only=True)
class Aggregator(Declared, ABC):
    """A rule that turns K updates into one.

    A rule is frozen, and `aggregate` changes none of its arguments: an attacker who may ask the defence many times in
    a round must not be able to corrupt it by asking. What it remembers goes in and comes out as `state`.
    """

    # Traits: what the equations promise. The contract suite holds every rule to what it claims here.
    returns_identical: ClassVar[bool] = True
    """K times the same row gives that row back."""
    scales: ClassVar[bool] = True
    """c·updates give c·result for c > 0."""
    takes_weights: ClassVar[bool] = False
    """The caller may weigh the clients (`weights=`)."""
    low_weight_is_distrust: ClassVar[bool] = True
    """A client of far less `weight` than the others was found to be unlike them; not so if few of many are chosen."""

    def min_clients(self) -> int:
        """The fewest clients that the equations are defined for."""
        return 1

    def tolerates(self, num_clients: int) -> int:
        """How many of the clients may send anything at all without moving the result beyond a bound."""
        return 0

    def init(self, dim: int) -> State:
        """What is remembered before the first round; empty for a rule without memory."""
        return {}

    @abstractmethod
    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        """The aggregate of screened updates, at least `min_clients()` of them."""


AGGREGATORS: Registry[Aggregator] = Registry("rule", Aggregator)
register = AGGREGATORS.register


def make_aggregator(rule: str | Aggregator, /, *, memoryless: bool = False, **hyperparameters: Any) -> Aggregator:
    """A rule by its name and hyperparameters: `make_aggregator("krum", num_byzantine=2)`."""
    if isinstance(rule, Aggregator):
        if hyperparameters:
            raise TypeError("hyperparameters go with the name of a rule, not with a rule that is made already")
        return rule
    return AGGREGATORS.make(rule, memoryless=memoryless, **hyperparameters)
