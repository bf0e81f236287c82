"""A chain of parts: steps before a rule, the rule, steps after it; and the registry that knows chains by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from fedseca.aggregators.base import Aggregation, Aggregator
from fedseca.declare import Declared, Diagnostic, Hyperparameter, unknown
from fedseca.errors import InputError, NotEnoughRows, ParameterError, UnknownName
from fedseca.parts import Registry
from fedseca.steps import STEPS, Mix, Step, StepAfter, StepBefore, check_mix
from fedseca.updates import State, Updates

PLUS = "+"
_FORM = "steps before, one rule, steps after"


@dataclass(frozen=True, kw_only=True, repr=False)
class Chain(Aggregator):
    """A rule with steps before and after it, which is a rule again: `nnm+cwmed`.

    Each step before mixes the rows that it is given; the rule sees the last mixes, and what it says of them is mapped
    back to the clients. Each part has its own memory and its own hyperparameters, under `part.name`.
    """

    before: tuple[StepBefore, ...] = ()
    rule: Aggregator
    after: tuple[StepAfter, ...] = ()

    def __post_init__(self) -> None:
        _check_parts(self.before, self.rule, self.after)
        plain = all(step.keeps_clients for step in self.before)
        traits = {
            "name": PLUS.join(part.name for part in self.parts),
            "returns_identical": self.rule.returns_identical
            and all(step.returns_identical for step in self.before)
            and not self.after,
            "scales": self.rule.scales and all(step.scales for step in self.before),
            "takes_weights": self.rule.takes_weights and plain,
            "low_weight_is_distrust": self.rule.low_weight_is_distrust
            and all(step.low_weight_is_distrust for step in self.before),
            "diagnostics": (*self.rule.diagnostics, *(each for step in self.before for each in self._said_by(step))),
        }
        for name, value in traits.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Chain({' + '.join(map(repr, self.parts))})"

    @property
    def parts(self) -> tuple[Step | Aggregator, ...]:
        """From left to right."""
        return (*self.before, self.rule, *self.after)

    def _said_by(self, step: StepBefore) -> list[Diagnostic]:
        """What a step says, under `step.name` where another part says something of that name."""
        parts: list[StepBefore | Aggregator] = [*self.before, self.rule]
        others = {each.name for part in parts if part is not step for each in part.diagnostics}
        return [
            replace(each, name=f"{step.name}.{each.name}", heading=f"{step.name} {each.heading}")
            if each.name in others
            else each
            for each in step.diagnostics
        ]

    def values(self, *, complete: bool = False) -> dict[str, Any]:
        told = ((part.name, part.values(complete=complete)) for part in self.parts)
        return {f"{part}.{name}": value for part, values in told for name, value in values.items()}

    def hyperparameters(self) -> dict[str, Hyperparameter]:  # type: ignore[override]  # of this chain, not of all
        return {f"{part.name}.{name}": each for part in self.parts for name, each in part.hyperparameters().items()}

    def declared(self, name: str) -> Hyperparameter:  # type: ignore[override]
        known = self.hyperparameters()
        if name not in known:
            raise ParameterError(unknown(f"hyperparameter of {self.name}", name, known))
        return known[name]

    def remade(self, **changes: Any) -> Chain:
        for path in changes:
            self.declared(path)
        values = {**self.values(), **changes}
        parts = {part.name: part.remade(**_of_part(part.name, values)) for part in self.parts}
        return Chain(
            before=tuple(parts[step.name] for step in self.before),  # type: ignore[misc]  # remade keeps the class
            rule=parts[self.rule.name],  # type: ignore[arg-type]
            after=tuple(parts[step.name] for step in self.after),  # type: ignore[misc]
        )

    def min_clients(self) -> int:
        fewest = self.rule.min_clients()
        for step in reversed(self.before):
            fewest = step.min_clients(fewest)
        return fewest

    def tolerates(self, num_clients: int) -> int:
        rows = num_clients
        for step in self.before:
            rows = step.fewest_rows(rows)
        if rows < self.rule.min_clients():  # clients could make every round void
            return 0
        return self._tolerated(num_clients, self.before)

    def _tolerated(self, rows: int, steps: Sequence[StepBefore]) -> int:
        if not steps:
            return self.rule.tolerates(rows) if rows >= self.rule.min_clients() else 0
        return steps[0].tolerates(rows, lambda left: self._tolerated(left, steps[1:]))

    def init(self, dim: int) -> State:
        return {f"{part.name}.{name}": value for part in self.parts for name, value in part.init(dim).items()}

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        memory: dict[str, State] = {}
        mixes: list[tuple[Updates, Mix]] = []
        rows = updates
        for step in self.before:
            mix = step.mix(rows, _of_part(step.name, state), rng)
            check_mix(step, mix, len(rows))
            names = [each.name for each in self._said_by(step)]
            said = {name: mix.diagnostics[each.name] for name, each in zip(names, step.diagnostics, strict=True)}
            mix = replace(mix, diagnostics=said)
            mixes.append((rows, mix))
            memory[step.name], rows = mix.state, mix.rows(rows)
        rule = self.rule
        if len(rows) < rule.min_clients():  # a step joined clients, which must not make every round void
            rule = rule.after_leaving_out(len(updates) - len(rows), len(rows))
        if len(rows) < rule.min_clients():
            raise NotEnoughRows(self.name, rule.name, rule.min_clients(), len(rows), len(updates))
        answer = rule.aggregate(rows, _of_part(self.rule.name, state), rng)
        memory[self.rule.name], update = answer.state, answer.update
        for after in self.after:
            update, memory[after.name] = after.apply(update, _of_part(after.name, state))
        for seen, mix in reversed(mixes):
            answer = mapped_back(answer, seen, mix)
        kept = {f"{part}.{name}": value for part, of_part in memory.items() for name, value in of_part.items()}
        return Aggregation(update, answer.diagnostics, kept, answer.suspects, answer.row_weight)


def _check_parts(before: Sequence[Any], rule: Any, after: Sequence[Any]) -> None:
    """Whether made parts can be a chain; a name is checked by `RuleRegistry.check`."""
    parts = (*before, rule, *after)
    for part, kind in (*((b, StepBefore) for b in before), (rule, Aggregator), *((a, StepAfter) for a in after)):
        if not isinstance(part, kind) or isinstance(part, Chain):
            raise InputError(f"a chain is {_FORM}; found {part!r} in the place of a {kind.__name__}")
    for part in parts:
        if sum(part.name == other.name for other in parts) > 1:
            raise InputError(f"chain: {part.name} stands in it more than once; each part may stand once")


def mapped_back(answer: Aggregation, updates: Updates, mix: Mix) -> Aggregation:
    """What a rule said of mixes of the updates' rows, said of their clients."""
    suspected = set(answer.suspects)
    suspects = tuple(c for c, row in zip(updates.client_ids, mix.row_of, strict=True) if mix.ids[row] in suspected)
    row_weight = answer.diagnostics["weight"] if answer.row_weight is None else answer.row_weight
    of_clients = mix.of_clients(answer.diagnostics)
    return Aggregation(answer.update, of_clients, answer.state, suspects, row_weight[list(mix.row_of)])


def _of_part(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept under `part.name`, by name."""
    return {name.removeprefix(f"{part}."): value for name, value in values.items() if name.startswith(f"{part}.")}


class RuleRegistry(Registry[Aggregator]):
    """The rules by name; a name with + in it is a chain of steps and one rule."""

    def parts(self, name: str) -> list[type[Step] | type[Aggregator]]:
        """The classes that a name stands for, from left to right; a chain that cannot be is an error that says why."""
        if not isinstance(name, str) or PLUS not in name:
            return [STEPS[name]] if isinstance(name, str) and name in STEPS else [self[name]]
        names = [part.strip() for part in name.split(PLUS)]
        if not all(names):
            raise InputError(f"chain {name!r}: a part is empty; write steps and a rule with + between, as nnm+cwmed")
        for part in names:
            if part not in STEPS and part not in self:
                raise UnknownName(f"chain {name!r}: " + unknown("part", part, [*STEPS, *self]))
            if names.count(part) > 1:
                raise InputError(f"chain {name!r}: {part} stands in it more than once; each part may stand once")
        return [STEPS[part] if part in STEPS else self[part] for part in names]

    def check(self, name: str) -> list[type[Step] | type[Aggregator]]:
        """The parts of a name, which must be steps before, one rule, steps after, in this order."""
        parts = self.parts(name)
        if len(parts) == 1 and issubclass(parts[0], Aggregator):
            return parts
        rules = [part.name for part in parts if issubclass(part, Aggregator)]
        if not rules:
            whole = [*(p.name for p in parts if _place(p) == 0), "cwmed", *(p.name for p in parts if _place(p) == 2)]
            raise InputError(f"{name!r} has no rule; a chain is {_FORM}, as {PLUS.join(whole)}")
        if len(rules) > 1:
            raise InputError(f"chain {name!r}: {' and '.join(rules)} are both rules; a chain is {_FORM}")
        for left, right in pairwise(parts):
            if _place(left) > _place(right):
                wrong = f"{right.name} is a step before a rule, and cannot stand after {left.name}"
                if _place(left) == 2:
                    wrong = f"{left.name} is a step after a rule, and cannot stand before {right.name}"
                raise InputError(f"chain {name!r}: {wrong}; a chain is {_FORM}")
        return parts

    def hyperparameters(self, name: str) -> dict[str, Hyperparameter]:
        parts = self.parts(name)
        if len(parts) == 1:
            return parts[0].hyperparameters()
        found = {f"{part.name}.{key}": each for part in parts for key, each in part.hyperparameters().items()}
        for part in parts:
            found |= {key: each for key, each in part.hyperparameters().items() if key not in found}
        return found

    def declared(self, name: str, path: str) -> Hyperparameter:
        parts = self.parts(name)
        owner, dot, inner = path.rpartition(".")
        chosen = [part for part in parts if not dot or part.name == owner]
        if not chosen:
            raise ParameterError(f"{name} has no part {owner!r}; its parts are {', '.join(p.name for p in parts)}")
        for part in chosen:
            if inner in part.hyperparameters():
                return part.declared(inner)
        if len(chosen) == 1:
            return chosen[0].declared(inner)  # which says what is known
        known = {f"{part.name}.{key}": None for part in parts for key in part.hyperparameters()}
        raise ParameterError(unknown(f"hyperparameter of {name}", path, known))

    def make(self, name: str, /, **values: Any) -> Aggregator:
        parts = self.check(name)
        for path in values:
            self.declared(name, path)
        made: list[Declared] = []
        for part in parts:
            bare = {key: value for key, value in values.items() if key in part.hyperparameters()}
            made.append(part(**{**bare, **_of_part(part.name, values)}))
        before = tuple(part for part in made if isinstance(part, StepBefore))
        after = tuple(part for part in made if isinstance(part, StepAfter))
        (rule,) = (part for part in made if isinstance(part, Aggregator))
        return Chain(before=before, rule=rule, after=after) if len(made) > 1 else rule

    def alone(self, name: str) -> dict[str, Any]:
        """The hyperparameters for one call without memory, by path, unless they are given."""
        return {
            f"{part.name}.{key}": value
            for part in self.check(name)
            for key, value in getattr(part, "alone", {}).items()
        }


def _place(part: type[Step] | type[Aggregator]) -> int:
    return 0 if issubclass(part, StepBefore) else 1 if issubclass(part, Aggregator) else 2


AGGREGATORS = RuleRegistry("rule", Aggregator, apart_from=STEPS)


def make_aggregator(rule: str | Aggregator, /, **hyperparameters: Any) -> Aggregator:
    """A rule or a chain by its name and hyperparameters: `make_aggregator("nnm+krum", num_byzantine=2)`.

    In a chain a bare hyperparameter goes to every part that declares it, `part.name` to one.
    """
    if isinstance(rule, Aggregator):
        if hyperparameters:
            raise TypeError("hyperparameters go with the name of a rule, not with a rule that is made already")
        return rule
    return AGGREGATORS.make(rule, **hyperparameters)


def make_alone(rule: str | Aggregator, /, **hyperparameters: Any) -> Aggregator:
    """The same for one call without memory: what smooths over the rounds does nothing, unless it is given."""
    if isinstance(rule, Aggregator):
        return make_aggregator(rule, **hyperparameters)
    given = {path.rpartition(".")[2] for path in hyperparameters}
    unless_given = {k: v for k, v in AGGREGATORS.alone(rule).items() if k.rpartition(".")[2] not in given}
    return AGGREGATORS.make(rule, **unless_given, **hyperparameters)
