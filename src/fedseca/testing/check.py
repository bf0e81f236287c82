"""One clause of a contract, bound to one rule or attack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedseca.declare import Declared
from fedseca.errors import ParameterError

T = TypeVar("T", bound=Declared)
Clause = Callable[[T], None]


@dataclass(frozen=True)
class Check(Generic[T]):
    """Call it: a clause that does not hold is an AssertionError."""

    subject: T
    clause: Clause[T]

    def __call__(self) -> None:
        self.clause(self.subject)

    def __str__(self) -> str:
        return f"{self.subject.name}-{self.clause.__name__}"


def hold(checks: Iterable[Check[T]]) -> None:
    """Run checks until one fails: an AssertionError that says which clause was broken."""
    for check in checks:
        try:
            check()
        except Exception as broken:  # whatever goes wrong, the clause is named
            raise AssertionError(f"{check}: {type(broken).__name__}: {broken}") from broken


def refuses_bad_hyperparameters(subject: Declared) -> None:
    """A clause of every contract: values out of what is declared are refused, and the message says what is allowed."""
    for declared in subject.hyperparameters().values():
        for bad in declared.bad_values():
            try:
                type(subject)(**{**subject.values(), declared.name: bad})
            except ParameterError as refused:
                assert declared.name in str(refused) and declared.allowed in str(refused), f"unclear: {refused}"
            else:
                raise AssertionError(f"{declared.name}={bad!r} was accepted, allowed is {declared.allowed}")
