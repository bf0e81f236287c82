"""One clause of a contract, bound to what it is about; and the updates that the checks are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedseca.declare import Declared
from fedseca.errors import InputError, ParameterError
from fedseca.updates import Updates


class Named(Protocol):
    """What a contract is about."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
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
    for path, declared in subject.hyperparameters().items():
        for bad in declared.bad_values():
            try:
                subject.remade(**{path: bad})
            except ParameterError as refused:
                assert declared.name in str(refused) and declared.allowed in str(refused), f"unclear: {refused}"
            else:
                raise AssertionError(f"{path}={bad!r} was accepted, allowed is {declared.allowed}")


def device() -> torch.device:
    """Where the checks are run: `FEDSECA_TEST_DEVICE`, the CPU if it is not set."""
    name = os.environ.get("FEDSECA_TEST_DEVICE", "cpu")
    try:
        return torch.ones(1, device=name).device
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).partition("\n")[0]
        raise InputError(f"FEDSECA_TEST_DEVICE={name!r} cannot be used here: {reason}") from None


def matrix(clients: int, dim: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Clients that share a direction and differ by noise; no two numbers are equal."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(clients, dim, generator=generator, dtype=torch.float64)
    return (direction + 0.7 * noise).to(device(), dtype)


def updates_of(rows: Tensor, client_ids: list[str] | None = None) -> Updates:
    """The rows as the updates of clients."""
    return Updates.collect(rows, client_ids or [f"client-{k:03d}" for k in range(len(rows))])


def generator(seed: int = 0) -> torch.Generator:
    """As a server hands one in."""
    return torch.Generator().manual_seed(seed)


def close(found: Tensor, expected: Tensor, *, tolerance: float = 1e-5) -> bool:
    """Whether two tensors agree, by the scale of the second."""
    scale = float(expected.double().nan_to_num().abs().max()) if expected.numel() else 0.0
    return torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)
