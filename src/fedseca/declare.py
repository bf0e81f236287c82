"""Hyperparameters and diagnostics, declared once.

A rule or an attack is a frozen dataclass whose fields are made with `param`. The constructor's check, the command
line, `fedseca list`, the docs' tables and the bad values of the contract suite are all derived from that declaration.
So are headings and help wherever a diagnostic is shown: in tables, on the page, in CSV and in TensorBoard.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from fedseca.errors import ParameterError

_METADATA = "fedseca.param"


def param(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[str, ...] | None = None,
    registry: Parts | None = None,
    later: bool = False,
    help: str,
) -> Any:
    """A hyperparameter's one declaration: default, bounds or choices, and a line of help.

    With a `registry` the value is one of what is registered there: given by name, as a mapping of its name and
    hyperparameters, or made already. `later`: it was added to a part of which runs are kept; at its default it is not
    written down, so that they keep their names.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    declared = {"bounds": bounds, "choices": choices, "registry": registry, "later": later, "help": help}
    return dataclasses.field(default=default, metadata={_METADATA: declared})


_COMPARE: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("≥", lambda value, bound: value >= bound),
    "gt": (">", lambda value, bound: value > bound),
    "le": ("≤", lambda value, bound: value <= bound),
    "lt": ("<", lambda value, bound: value < bound),
}


@dataclass(frozen=True)
class Hyperparameter:
    """One declared hyperparameter of one class."""

    owner: str
    name: str
    type: type
    optional: bool
    default: Any
    bounds: Mapping[str, float]
    choices: tuple[str, ...] | None
    registry: Parts | None
    later: bool
    help: str
    sound: bool = False
    """Whether the default is as it would be after a check: then it need not be checked again each time."""

    @property
    def allowed(self) -> str:
        """What the value may be, for people."""
        if self.registry is not None:
            text = " | ".join(self.registry)
        elif self.choices is not None:
            text = " | ".join(self.choices)
        elif self.type is bool:
            text = "true | false"
        else:
            limits = [f"{_COMPARE[kind][0]} {bound:g}" for kind, bound in self.bounds.items()]
            text = " ".join([{"int": "integer"}.get(self.type.__name__, self.type.__name__), ", ".join(limits)]).strip()
        return f"{text} | none" if self.optional else text

    def _refuse(self, found: Any) -> ParameterError:
        return ParameterError(f"{self.owner}: {self.name} must be {self.allowed}; found {found!r}")

    def check(self, value: Any) -> Any:
        """The value in its declared type, or a `ParameterError` that says what is allowed."""
        if self.sound and value is self.default:
            return value
        if value is None and self.optional:
            return None
        if self.registry is not None:
            made = self.registry.read(value, self.default)
            if made is None:
                raise self._refuse(value)
            return made
        expected = {int: numbers.Integral, float: numbers.Real}.get(self.type, self.type)
        valid = isinstance(value, expected) and (self.type is bool or not isinstance(value, bool))
        if valid and self.type is float:
            valid = _is_finite(value)
        if not valid:
            raise self._refuse(value)
        if self.choices is not None and value not in self.choices:
            raise self._refuse(value)
        if any(not _COMPARE[kind][1](value, bound) for kind, bound in self.bounds.items()):
            raise self._refuse(value)
        return self.type(value)

    def parse(self, text: str) -> Any:
        """The value written as `text` on a command line."""
        word = text.strip().lower()
        if self.optional and word == "none":
            return None
        if self.registry is not None:
            return self.check(text.strip())
        if self.type is bool:
            if word not in ("true", "false"):
                raise self._refuse(text)
            return word == "true"
        try:
            value = self.type(text.strip())
        except ValueError:
            raise self._refuse(text) from None
        return self.check(value)

    def bad_values(self) -> Iterator[Any]:
        """Values that must be refused, generated from the declaration."""
        yield from ([], object())
        if not self.optional:
            yield None
        if self.registry is not None:
            yield {"name": 3}
            return
        if self.type is not str:
            yield "many"
        if self.choices is not None:
            yield "no such " + self.name
        if self.type is not bool:
            yield True
        if self.type is int:
            yield from (0.5, math.nan)
        if self.type is float:
            yield from (math.nan, math.inf, -math.inf, 10**400)
        for kind, bound in self.bounds.items():
            step = 1 if self.type is int else 1e-6
            yield self.type(bound + {"ge": -step, "gt": 0, "le": step, "lt": 0}[kind])


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer beyond every float
        return False


class Parts(Protocol):
    """What a hyperparameter may be chosen from: a registry."""

    def __iter__(self) -> Iterator[str]: ...

    def read(self, value: Any, default: str) -> Declared | None:
        """What a value stands for: a name, a table or an object; None if it is none of these."""
        ...


class Declared:
    """The base of whatever declares hyperparameters with `param`: checks them when it is made."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, declared in self._declared().items():
            object.__setattr__(self, name, declared.check(getattr(self, name)))

    @classmethod
    def _declared(cls) -> dict[str, Hyperparameter]:
        return _hyperparameters(cls, cls.name or cls.__name__)  # type: ignore[arg-type]  # a class is hashable

    @classmethod
    def hyperparameters(cls) -> dict[str, Hyperparameter]:
        """The declared hyperparameters by name."""
        return dict(cls._declared())

    @classmethod
    def declared(cls, name: str) -> Hyperparameter:
        """One hyperparameter by name; an unknown one is an error that lists the known ones."""
        known = cls.hyperparameters()
        if name not in known:
            raise ParameterError(unknown(f"hyperparameter of {cls.name}", name, known))
        return known[name]

    def values(self, *, complete: bool = False) -> dict[str, Any]:
        """This instance's hyperparameters, ready for JSON: with them it can be made again.

        `complete`: with those that were declared later, too, where they have their default.
        """
        values = {
            name: value
            for name, declared in self.hyperparameters().items()
            if (value := getattr(self, name)) != declared.default or complete or not declared.later
        }
        return {name: value.describe() if isinstance(value, Declared) else value for name, value in values.items()}

    def describe(self) -> dict[str, Any]:
        """Its name and hyperparameters, from which it can be made again."""
        return {"name": self.name, **self.values()}

    def remade(self, **changes: Any) -> Self:
        """The same with some hyperparameters changed."""
        return type(self)(**{**self.values(), **changes})


@functools.cache  # types are read from text, and every part of every scenario asks
def _hyperparameters(cls: type[Declared], owner: str) -> dict[str, Hyperparameter]:
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
        declared = field.metadata.get(_METADATA)
        if declared is None:
            raise TypeError(f"{cls.__name__}.{field.name} must be declared with param(...)")
        kind, optional = _plain_type(hints[field.name])
        bounds = {key: bound for key, bound in declared["bounds"].items() if bound is not None}
        one = Hyperparameter(
            owner=owner,
            name=field.name,
            type=kind,
            optional=optional,
            default=field.default,
            bounds=bounds,
            choices=declared["choices"],
            registry=declared["registry"],
            later=declared["later"],
            help=declared["help"],
        )
        found[field.name] = dataclasses.replace(one, sound=_is_sound(one))
    return found


def _is_sound(declared: Hyperparameter) -> bool:
    if declared.registry is not None:  # a name stands for what is made of it
        return False
    try:
        return type(declared.check(declared.default)) is type(declared.default)
    except ParameterError:  # it has to be given
        return False


def _plain_type(hint: Any) -> tuple[type, bool]:
    """`int | None` as (int, True); `int` as (int, False); a choice of words as (str, False)."""
    if typing.get_origin(hint) is typing.Literal:
        return str, False
    if isinstance(hint, types.UnionType):
        (kind,) = [part for part in typing.get_args(hint) if part is not type(None)]
        return kind, True
    return hint, False


def unknown(kind: str, found: object, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known one, then all of them."""
    names = list(known)
    by_letters = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(found).lower(), by_letters, n=1)
    hint = f"; did you mean {by_letters[near[0]]!r}?" if near else "."
    return f"unknown {kind} {found!r}{hint} Known: {', '.join(names) or 'none'}"


@dataclass(frozen=True)
class Diagnostic:
    """What is said of each client, or of each pair of clients, in a round."""

    name: str
    help: str
    """One line."""
    heading: str = ""
    """Over its column; its name, if not given."""
    symbol: str = ""
    """The paper's letter."""
    share: bool = False
    """Whether it is a part of a whole, shown in per cent."""
    pairs: bool = False
    """Whether there is a number for each pair of clients."""
    note: str = ""
    """A sentence or two beside its picture, where the numbers alone could be misread."""

    def __post_init__(self) -> None:
        if not self.heading:
            object.__setattr__(self, "heading", self.name.replace("_", " "))

    def show(self, value: float | None) -> str:
        """A value of it, for people."""
        if value is None:
            return "–"
        return f"{value:.1%}" if self.share else f"{value:.4g}"


def diagnostic(name: str, *, help: str, **shown: Any) -> Diagnostic:
    """A diagnostic's one declaration: `diagnostic("rho", symbol="ρ", heading="trust ρ", help="its say in a vote")`."""
    return Diagnostic(name, help, **shown)
