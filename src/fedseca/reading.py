"""Every form in which clients arrive, read into arrays by name. What is wrong with one client stays its own trouble."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from fedseca.errors import InputError, printable
from fedseca.layout import Arrays, Layout, Malformed


@dataclass(frozen=True)
class Client:
    """One client as it arrived: its arrays or what is wrong with them."""

    arrays: Arrays | Malformed
    is_numpy: bool = False
    label: str | None = None
    """The file it came from, if it came from one."""

    @property
    def well_formed(self) -> bool:
        return not isinstance(self.arrays, Malformed)

    @property
    def ordered(self) -> bool:
        """Whether the order of its keys means anything: the safetensors format keeps none."""
        return self.label is None


def read_clients(source: Any) -> list[Client]:
    """The clients in any of the accepted forms."""
    if isinstance(source, np.ndarray | Tensor):
        if source.ndim != 2:
            raise InputError(f"updates must be a (clients, coordinates) matrix; found shape {tuple(source.shape)}")
        return [_read_client(row) for row in source]
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        clients = [_read_client(item) for item in source]
        labels = _short_names([c.label for c in clients])
        return [replace(c, label=label) for c, label in zip(clients, labels, strict=True)]
    raise InputError(
        "updates must be a (clients, coordinates) matrix or a sequence of vectors, state dicts or safetensors files; "
        f"found {type(source).__name__}"
    )


def _short_names(paths: list[str | None]) -> list[str | None]:
    """The file's stem, or its folder and stem, whichever tells all files apart; else the path."""
    given = [Path(path) for path in paths if path is not None]
    for short in (lambda p: p.stem, lambda p: f"{p.parent.name}/{p.stem}"):
        if len({short(path) for path in given}) == len(given):
            return [None if path is None else short(Path(path)) for path in paths]
    return paths


def _read_client(item: Any) -> Client:
    label = os.fspath(item) if isinstance(item, str | os.PathLike) else None
    try:
        arrays, is_numpy = _read_arrays(item)
        Layout.of(arrays)
        return Client(arrays, is_numpy, label)
    except Malformed as problem:
        return Client(problem, label=label)
    except Exception as problem:  # a client may be anything, and must not end the round whatever it is
        return Client(Malformed(f"cannot be read: {type(problem).__name__}: {problem}"), label=label)


def _read_arrays(item: Any) -> tuple[Arrays, bool]:
    if isinstance(item, str | os.PathLike):
        return _read_file(item), False
    if isinstance(item, np.ndarray | Tensor):
        return {"": as_tensor(item)}, isinstance(item, np.ndarray)
    if not hasattr(item, "items"):
        raise Malformed(f"is a {type(item).__name__}, expected a vector, a state dict or a safetensors file")
    arrays: dict[str, Tensor] = {}
    for name, value in item.items():
        _check_name(name)
        try:
            arrays[name] = as_tensor(value)
        except Malformed as problem:
            raise Malformed(f"{name!r} {problem}") from None
    return arrays, all(isinstance(value, np.ndarray) for value in item.values())


def _read_file(path: str | os.PathLike[str]) -> Arrays:
    """A safetensors file as tensors on the mapped file: nothing is loaded until it is read."""
    try:
        with safe_open(path, framework="pt") as file:
            # The format keeps no order, so all files are read in the order of the names.
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise Malformed(f"not a readable safetensors file: {reason}") from None
    for name in arrays:
        _check_name(name)
    return arrays


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise Malformed(f"key {name!r} is not a name")


def as_tensor(value: Any) -> Tensor:
    """A tensor or NumPy array as a detached tensor, on the same memory where that can be."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested or value.device.type == "meta":
            raise Malformed("is a sparse, nested or data-less tensor, expected a dense one")
        return value.detach()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise Malformed(f"dtype {value.dtype} is not supported")
        if not value.dtype.isnative or any(s < 0 or s % value.itemsize for s in value.strides):
            value = value.astype(value.dtype.newbyteorder("="), order="C")
        with warnings.catch_warnings():
            # Read-only arrays are fine: nothing here ever writes to a client's memory.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            try:
                return torch.from_numpy(value)
            except TypeError:
                raise Malformed(f"dtype {value.dtype} is not supported") from None
    raise Malformed(f"is a {type(value).__name__}, expected a tensor or array")


def read_before(before: Any) -> Arrays:
    """The global model that the clients started from: the caller's own, so a fault in it is an error."""
    client = _read_client(before)
    if isinstance(client.arrays, Malformed):
        raise InputError(f"the global model before the round: {client.arrays}")
    if not all(bool(torch.isfinite(value).all()) for value in client.arrays.values()):
        raise InputError("the global model before the round holds NaN or Inf")
    return client.arrays


def identify(clients: Sequence[Client], client_ids: Sequence[object] | None) -> list[str]:
    """The clients' ids as printable text: those given, else the file's name, else the position."""
    if client_ids is None:
        ids = [c.label if c.label is not None else str(index) for index, c in enumerate(clients)]
    elif len(client_ids) != len(clients):
        raise InputError(f"{len(clients)} updates but {len(client_ids)} client ids")
    else:
        ids = [str(client_id) for client_id in client_ids]
    return [printable(client_id) for client_id in ids]
