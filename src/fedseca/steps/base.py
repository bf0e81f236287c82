"""The contract of every step: before a rule it mixes the clients' rows, after it it changes the aggregate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.declare import Declared, Diagnostic
from fedseca.errors import FedsecaError
from fedseca.parts import Registry
from fedseca.updates import State, Updates


@dataclass(frozen=True)
class Mix:
    """M ≤ K weighted mixes of the rows of K clients: what a step before a rule answers. They are never built."""

    members: Sequence[Sequence[int]]
    """For each mix: whose rows it is made of, as places among the clients."""
    weights: Sequence[Sequence[float]]
    """For each mix: what each of these rows is multiplied by."""
    row_of: Sequence[int]
    """For each client: the mix that stands for it. What the rule says of that mix is said of the client."""
    ids: Sequence[str]
    """For each mix: the id under which a rule may remember it."""
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    """What the step found, by name: one number for each client (K), or for each pair (K × K)."""
    state: State = field(default_factory=dict)
    """What to hand in next round."""
    agreement: Tensor | None = None
    """The sign agreement of the clients' rows, if the step has counted it."""

    @classmethod
    def scaled(cls, updates: Updates, factors: Tensor, **diagnostics: Tensor) -> Mix:
        """Each client's row times a factor of its own."""
        places = range(len(updates))
        return cls([[k] for k in places], [[float(f)] for f in factors], places, updates.client_ids, diagnostics)

    @classmethod
    def means(
        cls,
        groups: Sequence[Sequence[int]],
        ids: Sequence[str],
        *,
        row_of: Sequence[int] | None = None,
        **diagnostics: Tensor,
    ) -> Mix:
        """The mean of each group. Unless `row_of` says otherwise, each client is in one group, which stands for it."""
        if row_of is None:
            places = {k: index for index, group in enumerate(groups) for k in group}
            row_of = [places[k] for k in range(len(places))]
        return cls(groups, [[1 / len(group)] * len(group) for group in groups], row_of, ids, diagnostics)

    def rows(self, updates: Updates) -> Updates:
        """What the rule sees in the place of the clients' rows."""
        known = updates if self.agreement is None else replace(updates, agreement=self.agreement)
        mixed = known.mixed(self.members, self.weights, self.ids)
        stays = list(self.row_of) == list(range(len(self.members)))
        return replace(mixed, weights=updates.weights if stays else None)

    def shares(self) -> list[tuple[int, int, float]]:
        """(mix, client, its part in the mix): the parts in a mix sum to 1, however the rows were scaled."""
        parts = []
        for mix, (members, weights) in enumerate(zip(self.members, self.weights, strict=True)):
            largest = max(map(abs, weights), default=0.0)
            sizes = [abs(weight) / largest if largest > 0 else 1.0 for weight in weights]  # the sum must not overflow
            total = math.fsum(sizes)
            parts += [(mix, k, size / total) for k, size in zip(members, sizes, strict=True)]
        return parts

    def of_clients(self, of_mixes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What was said of the mixes, said of the clients; and what the step found.

        A client's `weight` is its part in each mix times the mix's weight; all else is that of the mix that stands for
        it.
        """
        rows = torch.tensor(list(self.row_of), dtype=torch.int64)
        said = {name: values[rows] if values.ndim == 1 else values[rows][:, rows] for name, values in of_mixes.items()}
        weight = torch.zeros(len(rows), dtype=torch.float64)
        mixes, clients, parts = zip(*self.shares(), strict=True)
        of_mix = of_mixes["weight"].double()[list(mixes)] * torch.tensor(parts, dtype=torch.float64)
        weight.index_add_(0, torch.tensor(clients), of_mix)
        return {**said, "weight": weight, **self.diagnostics}


@dataclass(frozen=True, kw_only=True)
class Step(Declared, ABC):
    """A part of a chain that is not the rule: `StepBefore` or `StepAfter`.

    As rules, steps are frozen, and change none of their arguments: what they remember goes in and comes out.
    """

    diagnostics: ClassVar[tuple[Diagnostic, ...]] = ()
    """What it says of each client."""

    def init(self, dim: int) -> State:
        """What is remembered before the first round; empty for a step without memory."""
        return {}


@dataclass(frozen=True, kw_only=True)
class StepBefore(Step):
    """Turns K rows into M ≤ K weighted mixes of rows, which the rule sees in their place."""

    keeps_clients: ClassVar[bool] = True
    """The mix k stands for the client k, whatever the rows are: M = K."""
    scales: ClassVar[bool] = True
    """c·updates give c·mixes for c > 0."""
    returns_identical: ClassVar[bool] = True
    """K times the same row gives mixes that are that row."""
    low_weight_is_distrust: ClassVar[bool] = True
    """A client whose part in the mixes is far smaller than the others' was found to be unlike them."""

    def min_clients(self, rows: int) -> int:
        """The fewest clients that the equations are defined for and that leave so many rows, if that can be known."""
        return rows

    def fewest_rows(self, num_clients: int) -> int:
        """The fewest rows that so many clients leave, whatever they send."""
        return num_clients

    @abstractmethod
    def tolerates(self, num_clients: int, behind: Callable[[int], int]) -> int:
        """How many clients may send anything at all, if what stands behind tolerates `behind(M)` of M rows."""

    @abstractmethod
    def mix(self, updates: Updates, state: State, rng: torch.Generator) -> Mix:
        """The mixes of screened updates, at least `min_clients` of them."""


@dataclass(frozen=True, kw_only=True)
class StepAfter(Step):
    """Changes the aggregate that the rule gave. It must not carry it beyond the bound that the rule promises."""

    alone: ClassVar[Mapping[str, object]] = {}
    """Hyperparameters for one call without memory (`fedseca.aggregate`), unless they are given."""

    @abstractmethod
    def apply(self, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The aggregate (D) that leaves the chain, and what to hand in next round."""


STEPS: Registry[Step] = Registry("step", Step)


def check_mix(step: Step, mix: object, clients: int) -> None:
    """A step may come from anyone: what it answers must be mixes of the rows that it was given."""
    if not isinstance(mix, Mix):
        raise FedsecaError(f"{step.name}.mix must answer a Mix; found {type(mix).__name__}")
    mixes = len(mix.members)
    problems = {
        "from 1 to K mixes": not 1 <= mixes <= clients,
        "weights and an id for each mix": not len(mix.weights) == len(mix.ids) == mixes,
        "the places of clients as members": any(not 0 <= k < clients for group in mix.members for k in group),
        "a weight for each member": list(map(len, mix.members)) != list(map(len, mix.weights)),
        "a member in each mix": not all(map(len, mix.members)),
        "a mix for each client in row_of": len(mix.row_of) != clients or any(not 0 <= m < mixes for m in mix.row_of),
        "what it declares as diagnostics": {each.name for each in step.diagnostics} != set(mix.diagnostics),
    }
    for needed, missing in problems.items():
        if missing:
            raise FedsecaError(f"{step.name}.mix must answer {needed}; it was given K = {clients} clients")
