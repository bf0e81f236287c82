"""A grid: every combination of what is varied, each one a scenario."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedseca.errors import ParameterError
from fedseca.federation import Scenario
from fedseca.federation.scenario import GRAMMAR


@dataclass(frozen=True)
class Axis:
    """What is varied: a field of a scenario (`seed`), or a hyperparameter of a part of it (`aggregator.sparsity`).

    Values may be the words of a command line; they are read as what is varied says.
    """

    name: str
    values: tuple[Any, ...]


def scenarios(base: Mapping[str, Any], axes: Sequence[Axis] = ()) -> list[Scenario]:
    """Every combination of the axes over a base, in their order, each once.

    A hyperparameter is varied for the rules (attacks …) that have it; the others stand once, as they are. Where some
    combinations are impossible, the error names the first.
    """
    made: dict[str, Scenario] = {}
    impossible: list[tuple[tuple[Any, ...], ParameterError]] = []
    combinations = list(itertools.product(*(axis.values for axis in axes)))
    for chosen in combinations:
        try:
            scenario = _scenario(base, axes, chosen)
        except ParameterError as problem:
            impossible.append((chosen, problem))
        else:
            made.setdefault(scenario.id, scenario)
    if impossible:
        chosen, why = impossible[0]
        if len(combinations) == 1:
            raise why
        count = f"{len(impossible)} of {len(combinations)} combinations"
        raise ParameterError(f"{count} cannot be run; the first is {_combination(base, axes, chosen)}: {why}")
    return list(made.values())


def _scenario(base: Mapping[str, Any], axes: Sequence[Axis], chosen: Sequence[Any]) -> Scenario:
    values = dict(base)
    # Parts first: whether there is a hyperparameter to be set depends on them.
    for axis, value in sorted(zip(axes, chosen, strict=True), key=lambda pair: "." in pair[0].name):
        GRAMMAR.put(values, axis.name, value, lenient=True)
    return Scenario.of(values)


def _combination(base: Mapping[str, Any], axes: Sequence[Axis], chosen: Sequence[Any]) -> str:
    """For people: the rule, the attack and what else is varied, `aggregator=krum attack=ipm clients=3`.

    A hyperparameter that the chosen rule (attack …) does not have is no part of the combination.
    """
    values = {axis.name: value for axis, value in zip(axes, chosen, strict=True)}
    names = {part: GRAMMAR.table(part, values.get(part, base.get(part)))["name"] for part in GRAMMAR.parts}
    words = []
    for path, value in ({"aggregator": None, "attack": None} | values).items():
        part, _, name = path.partition(".")
        if not name or name in GRAMMAR.parts[part].hyperparameters(names[part]):
            words.append(f"{path}={names.get(path, value)}")
    return " ".join(words)


def place(name: str, base: Mapping[str, Any], axes: Sequence[Axis]) -> str:
    """Where a name that is varied belongs: `seed` is a field, `sparsity` is `aggregator.sparsity`."""
    chosen = {part: [value] for part, value in base.items() if part in GRAMMAR.parts}
    chosen |= {axis.name: list(axis.values) for axis in axes if axis.name in GRAMMAR.parts}
    return GRAMMAR.locate(name, chosen)
