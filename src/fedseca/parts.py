"""What is known by name, and the one grammar in which parts and their hyperparameters are given.

A part is given as its name (`"krum"`), as a table (`{"name": "krum", "num_byzantine": 2}`) or as an object. A
hyperparameter of a part has a path: `sparsity` of a rule, `nnm.num_byzantine` of one part of a chain,
`aggregator.nnm.num_byzantine` of a part of a scenario. Command line, TOML, grids and pages all read these here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fedseca.declare import Declared, Hyperparameter, unknown
from fedseca.errors import ParameterError, UnknownName
from fedseca.plugins import load_installed

T = TypeVar("T", bound=Declared)


class Registry(Mapping[str, type[T]], Generic[T]):
    """Names and the classes behind them. Being registered means being listed and being tested."""

    def __init__(self, kind: str, base: type[Any] = Declared, *, apart_from: Registry[Any] | None = None) -> None:
        """`apart_from`: what stands in the same names, so that no name may mean both."""
        self.kind, self.base = kind, base
        self._classes: dict[str, type[T]] = {}
        self._others: list[Registry[Any]] = [] if apart_from is None else [apart_from]
        if apart_from is not None:
            apart_from._others.append(self)
        if base is not Declared:
            _REGISTRIES.append(self)

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: make the class known under `name`."""

        def add(cls: type[T]) -> type[T]:
            if missing := ", ".join(sorted(getattr(cls, "__abstractmethods__", ()))):
                raise TypeError(f"{self.kind} {name!r}: {cls.__name__} must define {missing}")
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"{self.kind}: a name has letters, digits, _ and -; found {name!r}")
            for registry in (self, *self._others):
                known = registry._classes.get(name)
                if known is not None:
                    by = f"{known.__module__}.{known.__name__}"
                    raise ValueError(f"{registry.kind} {name!r} is registered already, by {by}")
            cls.name = name
            self._classes[name] = cls
            return cls

        return add

    def __getitem__(self, name: str) -> type[T]:
        try:
            if name not in self._classes:
                load_installed()
            return self._classes[name]
        except (KeyError, TypeError):
            raise UnknownName(unknown(self.kind, name, self)) from None

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._classes:
            load_installed()
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        load_installed()
        return iter(sorted(self._classes))

    def __len__(self) -> int:
        load_installed()
        return len(self._classes)

    def make(self, name: str, /, **values: Any) -> T:
        """An instance by name. An unknown hyperparameter is an error that lists the known ones."""
        cls = self[name]
        for given in values:
            cls.declared(given)
        return cls(**values)

    def parts(self, name: str) -> list[type[Any]]:
        """The classes that a name stands for: one, unless it is a chain."""
        return [self[name]]

    def hyperparameters(self, name: str) -> dict[str, Hyperparameter]:
        """What can be set of what the name stands for, by path."""
        return self[name].hyperparameters()

    def declared(self, name: str, path: str) -> Hyperparameter:
        """One hyperparameter by its path; an unknown one is an error that lists the known ones."""
        return self[name].declared(path)

    def read(self, value: Any, default: str) -> T | None:
        """What a value stands for: a name, a table (without a name, of the default) or an object; else None."""
        if isinstance(value, self.base):
            return value  # type: ignore[no-any-return]
        if not isinstance(value, str | Mapping):
            return None
        given = table(value, default)
        name = given.pop("name")
        return self.make(name, **given) if isinstance(name, str) else None


_REGISTRIES: list[Registry[Any]] = []


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: make a rule, a step, an attack, a data set, a partition or a model known under `name`."""

    def add(cls: type[T]) -> type[T]:
        for registry in _REGISTRIES:
            if issubclass(cls, registry.base):
                return registry.register(name)(cls)
        bases = ", ".join(registry.base.__name__ for registry in _REGISTRIES)
        raise TypeError(f"{cls.__name__} cannot be registered: it must be a subclass of one of {bases}")

    return add


def table(value: Any, default: str) -> dict[str, Any]:
    """A part as its name and hyperparameters by path; a table inside of a table is that of a part of a chain."""
    if isinstance(value, Declared):
        return value.describe()
    if not isinstance(value, Mapping):
        return {"name": value}
    flat: dict[str, Any] = {"name": default}
    for key, inner in value.items():
        flat |= {f"{key}.{name}": each for name, each in inner.items()} if isinstance(inner, Mapping) else {key: inner}
    return flat


def flat(described: Declared) -> dict[str, Any]:
    """All that it holds by path: `aggregator` is the name of a part, `aggregator.sparsity` a hyperparameter of it."""
    values: dict[str, Any] = {}
    for name in described.values(complete=True):
        value = getattr(described, name)
        if isinstance(value, Declared):
            values[name] = value.name
            values |= {f"{name}.{inner}": each for inner, each in value.values(complete=True).items()}
        else:
            values[name] = value
    return values


class Grammar:
    """The paths of something that is made of parts, of a scenario: its own fields, and those of the parts chosen."""

    def __init__(
        self, owner: type[Declared], aliases: Mapping[str, str], takes_back: Mapping[str, str] | None = None
    ) -> None:
        """`aliases` are other words for a field: `rule` for `aggregator`. What is put under a field that `takes_back`
        names unsays what stood under the other: how many clients, which clients."""
        self.owner, self.aliases, self.takes_back = owner, aliases, takes_back or {}

    @property
    def parts(self) -> dict[str, Registry[Any]]:
        """The fields that are parts, with what they may be chosen from."""
        fields = self.owner.hyperparameters().items()
        return {name: field.registry for name, field in fields if isinstance(field.registry, Registry)}

    def field(self, name: str) -> Hyperparameter:
        """One field by its name or by another word for it."""
        return self.owner.declared(self.aliases.get(name, name))

    def renamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by field, where other words for a field are understood; the same field twice is an error."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            field = self.field(name).name
            if field in found:
                raise ParameterError(f"{self.owner.name}: {field} is given twice, as {name!r} too; give it once")
            found[field] = value
        return found

    def table(self, part: str, value: Any) -> dict[str, Any]:
        """A part as its name and hyperparameters; with no value, the default."""
        default = self.owner.declared(part).default
        return table(default if value is None else value, default)

    def names(self, part: str, values: Sequence[Any]) -> list[str]:
        return [self.table(part, value)["name"] for value in values]

    def locate(self, path: str, chosen: Mapping[str, Sequence[Any]]) -> str:
        """The whole path of a short one: `sparsity` is `aggregator.sparsity`, `nnm.size` is `aggregator.nnm.size`.

        `chosen` are the values of each part, one or several; a part that is not there has its default. A path that
        nothing chosen has, or more than one part, is an error that says what is meant.
        """
        first, dot, rest = path.partition(".")
        full = self.aliases.get(first, first) + dot + rest
        if full in self.owner.hyperparameters():
            return full
        known = [
            f"{part}.{each}"
            for part, registry in self.parts.items()
            for name in self.names(part, chosen.get(part) or [None])
            for each in registry.hyperparameters(name)
        ]
        if full in known:
            return full
        found = sorted({each for each in known if each.partition(".")[2] == path})
        if len(found) == 1:
            return found[0]
        if found:
            raise ParameterError(f"{path!r} is a hyperparameter of more than one part; say which: {', '.join(found)}")
        names = {part: self.names(part, chosen.get(part) or [None]) for part in self.parts}
        shorts = dict.fromkeys([*self.owner.hyperparameters(), *(each.partition(".")[2] for each in known)])
        parts = ", ".join(dict.fromkeys(name for each in names.values() for name in each))
        inside = self._inside(path, full, names) if dot else None
        if inside is None and dot and first not in self.owner.hyperparameters():
            known_parts = [*self.parts, *(name for each in names.values() for name in each)]
            raise ParameterError(f"{path!r}: {unknown(f'part of this {self.owner.name}', first, known_parts)}")
        if inside is None:
            raise ParameterError(f"{unknown(f'hyperparameter of {self.owner.name}', path, shorts)}; its parts: {parts}")
        return inside

    def _inside(self, path: str, full: str, names: Mapping[str, Sequence[str]]) -> str | None:
        """The whole path of `part.name`, whose part is chosen; that it has no such name is the part's own error."""
        first, _, rest = path.partition(".")
        for field, registry in self.parts.items():
            for chosen in names[field]:
                parts = [each.name for each in registry.parts(chosen)]
                if full.partition(".")[0] == field or first in parts:
                    inner = path if first in parts and parts != [first] else rest
                    registry.declared(chosen, inner)
                    return f"{field}.{inner}"
        return None

    def shown(self, described: Declared, path: str) -> str:
        """What it has under a path, for people; a bare hyperparameter of a chain is that of each part that has it."""
        values = flat(described)
        if path in values:
            return str(values[path])
        field, _, name = path.partition(".")
        inside = [(each.split(".")[1:], value) for each, value in values.items() if each.startswith(f"{field}.")]
        found = {where[0]: value for where, value in inside if where[1:] == [name]}
        if len(set(map(repr, found.values()))) == 1:
            return str(next(iter(found.values())))
        return ", ".join(f"{part} {value}" for part, value in found.items()) or "–"

    def put(self, values: dict[str, Any], path: str, value: Any, *, lenient: bool = False) -> None:
        """Set a field, or a hyperparameter of the part that is chosen by then; text is read as what is set says.

        `lenient`: a hyperparameter that the chosen part does not have is passed over.
        """
        part, _, inner = path.partition(".")
        field, registry = self.owner.declared(part), self.parts.get(part)
        if not inner:
            values.pop(self.takes_back.get(part, ""), None)
            if registry is None:
                values[part] = field.parse(value) if isinstance(value, str) else value
            elif part not in values or self.table(part, values[part])["name"] != value:  # else its table stays
                values[part] = value
            return
        if registry is None:
            raise ParameterError(f"{self.owner.name}: {part} has no hyperparameters of its own; found {path!r}")
        given = self.table(part, values.get(part))
        if lenient and inner not in registry.hyperparameters(given["name"]):
            return
        declared = registry.declared(given["name"], inner)
        values[part] = {**given, inner: declared.parse(value) if isinstance(value, str) else value}
