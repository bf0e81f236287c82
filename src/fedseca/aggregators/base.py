"""The contract of every rule: a pure function of the updates and what was remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedseca.declare import Declared, Diagnostic, diagnostic
from fedseca.updates import State, Updates

WEIGHT = diagnostic("weight", help="its share of the result", share=True)
ADOPTED = diagnostic("adopted", help="share of its surviving coordinates that entered the result", share=True)
CLIP_FACTOR = diagnostic("clip_factor", heading="clip", help="what its update was multiplied by to be short enough")


@dataclass(frozen=True, repr=False)
class Aggregation:
    """What a rule answers."""

    update: Tensor
    """The aggregate g̃ (D), in the updates' dtype, on their device."""
    diagnostics: Mapping[str, Tensor]
    """What the rule says of the clients, by name: one number for each client (K), or for each pair (K × K). `weight`
    is always there: the share with which the client entered the result."""
    state: State = field(default_factory=dict)
    """What to hand in next round."""
    suspects: tuple[str, ...] = ()
    """The ids of the clients that the rule itself calls malicious."""
    row_weight: Tensor | None = None
    """The weight of the row that stood for each client (K), if steps mixed the rows: clients that share a row have
    little weight each, and are not distrusted for that."""

    def __repr__(self) -> str:
        clients, said = len(self.diagnostics["weight"]), ", ".join(self.diagnostics)
        return f"Aggregation(update of {self.update.numel()} numbers; of {clients} clients: {said})"

    @property
    def clients(self) -> Mapping[str, Tensor]:
        """The diagnostics, by the name that they had before."""
        return self.diagnostics


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
    alone: ClassVar[Mapping[str, Any]] = {}
    """Hyperparameters for one call without memory (`fedseca.aggregate`), unless they are given."""
    diagnostics: ClassVar[tuple[Diagnostic, ...]] = (WEIGHT,)
    """What it says of each client."""

    def min_clients(self) -> int:
        """The fewest clients that the equations are defined for."""
        return 1

    def tolerates(self, num_clients: int) -> int:
        """How many of the clients may send anything at all without moving the result beyond a bound."""
        return 0

    def after_leaving_out(self, count: int, num_clients: int) -> Aggregator:
        """The rule for the clients that are left, after so many were left out for what they had sent.

        They are taken for some of the B that are assumed malicious, so that at least B less them is assumed of the
        others: the largest number with which the bound holds among these; or else with which the equations are
        defined, so that nobody can make every round void by sending what cannot be used.
        """
        told = max(self._told().values(), default=0)
        if count == 0 or told == 0:
            return self
        fewest = max(told - count, 0)
        rules = [self, *(self._assuming(number) for number in range(told - 1, fewest - 1, -1))]
        defined = [(rule, told - less) for less, rule in enumerate(rules) if rule.min_clients() <= num_clients]
        bounded = (rule for rule, number in defined if number and rule.tolerates(num_clients) >= number)
        return next(bounded, defined[0][0] if defined else self)

    def assumed_byzantine(self) -> int | None:
        """How many Byzantine clients it reckons with, if it was told a number."""
        return max(self._told().values(), default=None)

    def _told(self) -> dict[str, int]:
        """The numbers of Byzantine clients that it, or parts of it, were told."""
        return {path: value for path, value in self.values().items() if path.rpartition(".")[2] == "num_byzantine"}

    def _assuming(self, num_byzantine: int) -> Aggregator:
        """The same rule that assumes at most so many Byzantine clients."""
        return self.remade(**{path: min(num_byzantine, value) for path, value in self._told().items()})

    def way_out(self, num_clients: int) -> str:
        """Of so few clients that it refuses them: the number of Byzantine ones with which it would not."""
        others = {
            number: self._assuming(number)
            for number in range(min(num_clients, max(self._told().values(), default=-1)) + 1)
        }
        working = [number for number, other in others.items() if other.min_clients() <= num_clients]
        if not working:
            return ""
        bounded = max((number for number in working if others[number].tolerates(num_clients) >= number), default=0)
        promise = "" if bounded == working[-1] else f", and its bound holds up to {bounded}"
        return f"with {num_clients} clients num_byzantine can be at most {working[-1]}{promise}"

    def init(self, dim: int) -> State:
        """What is remembered before the first round; empty for a rule without memory."""
        return {}

    @abstractmethod
    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        """The aggregate of screened updates, at least `min_clients()` of them."""
