"""A grid: every combination of what is varied, each one a scenario."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedseca.declare import Declared, Registry, unknown
from fedseca.errors import ParameterError
from fedseca.federation import Scenario


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
    for axis, value in sorted(zip(axes, chosen, strict=True), key=lambda pair: "." in pair[0].name):
        _put(values, axis.name, value)
    return Scenario.of(values)


def _combination(base: Mapping[str, Any], axes: Sequence[Axis], chosen: Sequence[Any]) -> str:
    """For people: the rule, the attack and what else is varied, `aggregator=krum attack=ipm clients=3`.

    A hyperparameter that the chosen rule (attack …) does not have is no part of the combination.
    """
    values = {axis.name: value for axis, value in zip(axes, chosen, strict=True)}
    names = {
        part: _table(part, values.get(part, base.get(part, Scenario.declared(part).default)))["name"]
        for part in _parts()
    }
    words = []
    for place, value in ({"aggregator": None, "attack": None} | values).items():
        part, _, name = place.partition(".")
        if not name or name in _registry(part)[names[part]].hyperparameters():
            words.append(f"{place}={names.get(place, value)}")
    return " ".join(words)


def _put(values: dict[str, Any], place: str, value: Any) -> None:
    """Set a field, or a hyperparameter of the part that is chosen by then."""
    part, _, name = place.partition(".")
    field = Scenario.declared(part)
    if not name:
        read = isinstance(value, str) and field.registry is None
        stays = field.registry is not None and part in values and _table(part, values[part])["name"] == value
        if not stays:  # the base's table of the same name stays
            values[part] = field.parse(value) if read else value
        return
    table = _table(part, values.get(part, field.default))
    declared = _registry(part)[table["name"]].hyperparameters().get(name)
    if declared is not None:
        values[part] = {**table, name: declared.parse(value) if isinstance(value, str) else value}


def _table(part: str, value: Any) -> dict[str, Any]:
    """A part as its name and hyperparameters; without a name, of the default."""
    if isinstance(value, Declared):
        return value.describe()
    return {"name": Scenario.declared(part).default, **value} if isinstance(value, Mapping) else {"name": value}


def _registry(part: str) -> Registry[Any]:
    registry = Scenario.declared(part).registry
    if registry is None:
        raise ParameterError(f"{part} has no hyperparameters of its own")
    return registry


def place(name: str, base: Mapping[str, Any], axes: Sequence[Axis]) -> str:
    """Where a name that is varied belongs: `seed` is a field, `sparsity` is `aggregator.sparsity`.

    A name that no chosen part has, or more than one, is an error that says what is meant.
    """
    fields = Scenario.hyperparameters()
    if name in fields:
        return name
    known = {
        f"{part}.{each}" for part in _parts() for cls in _chosen(part, base, axes) for each in cls.hyperparameters()
    }
    if name in known:
        return name
    found = sorted(each for each in known if each.partition(".")[2] == name)
    if len(found) == 1:
        return found[0]
    if found:
        raise ParameterError(f"{name!r} is varied in more than one part; say which: {', '.join(found)}")
    raise ParameterError(unknown("name to vary", name, [*fields, *sorted({each.partition(".")[2] for each in known})]))


def _parts() -> Iterator[str]:
    return (name for name, declared in Scenario.hyperparameters().items() if declared.registry is not None)


def _chosen(part: str, base: Mapping[str, Any], axes: Sequence[Axis]) -> list[type[Declared]]:
    """The rules (attacks …) that stand in the grid."""
    varied = [value for axis in axes if axis.name == part for value in axis.values]
    default = base.get(part, Scenario.declared(part).default)
    return [_registry(part)[_table(part, value)["name"]] for value in varied or [default]]
