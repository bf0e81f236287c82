"""A batch of CIFAR's original files, which are pickles, read without running anything that the file names.

A pickle is a program: it may name any function of any library and call it. Here every name becomes an inert stand-in,
and calling a stand-in only writes down that it was called. What was written down is then checked to describe one
array of bytes, and the array is made from those bytes here.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedseca.data.base import reading
from fedseca.errors import InputError, printable

_RECONSTRUCT = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_ENCODE = "_codecs.encode"
_DTYPE = "numpy.dtype"
_NAMES = {*_RECONSTRUCT, _ENCODE, _DTYPE, "numpy.ndarray"}


def read_batch(content: bytes, path: Path) -> tuple[np.ndarray[Any, Any], list[int]]:
    """uint8 (n, 3072) and n labels of one batch; an `InputError` that names `path` for anything else."""
    with reading(path):
        _refuse_traps(content)
        batch = _InertUnpickler(content).load()
        if not isinstance(batch, dict):
            raise InputError(f"{path}: is not a batch of CIFAR-10: a dictionary with data and labels")
        fields = {_as_bytes(key): value for key, value in batch.items()}
        try:
            data, labels = _as_array(fields[b"data"]), fields[b"labels"]
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path}: is not a batch of CIFAR-10: data (uint8, n × 3072) and labels") from None
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
            raise InputError(f"{path}: labels must be a list of whole numbers 0 to 9")
        if len(labels) != len(data) or not labels:
            raise InputError(f"{path}: {len(labels):,} labels for {len(data):,} images; each image needs one")
    return data, labels


class _Call:
    """That a name was called, with what, and what state was set on the result. Nothing happened."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Name:
    """In place of whatever the file names."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: object) -> _Call:
        return _Call(self.name, arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("a name has no state")


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NAMES:
            raise pickle.UnpicklingError(f"it names {_quoted(module, name)}, which no batch of CIFAR-10 does; not run")
        return _Name(f"{module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside of the file")


def _quoted(module: str, name: str) -> str:
    return printable(f"{module}.{name}", limit=80)


_MOST_TUPLES = 16
"""That are not the arguments of a call; a batch has about five: shapes, and the state of the array and its dtype."""


def _refuse_traps(content: bytes) -> None:
    """What the unpickler would do before it asks for a name.

    It makes room for a memo of any size that a (damaged) number asks for, takes extensions from a table that other
    libraries may have filled, and hashes keys: tuples in tuples without end, or each twice in the next, stop it.
    """
    last, tuples = "", 0
    memo: dict[int, bool] = {}  # what is remembered, and whether it is a tuple
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        argument = -1 if argument is None else argument
        if "PUT" in name and not 0 <= argument <= len(content):
            raise pickle.UnpicklingError(f"it remembers more than it holds ({argument:,})")
        if name.startswith("EXT") or name in ("DUP", "POP", "FROZENSET", "EMPTY_SET", "ADDITEMS"):
            raise pickle.UnpicklingError(f"it uses {name}, which no batch of CIFAR-10 does")
        if "GET" in name and memo.get(argument):
            raise pickle.UnpicklingError("it uses a tuple twice, which no batch of CIFAR-10 does")
        if "PUT" in name or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else argument] = last.startswith("TUPLE")
            continue
        tuples += name.startswith("TUPLE") - (name == "REDUCE" and last.startswith("TUPLE"))
        last = name
        if tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError("it nests tuples as no batch of CIFAR-10 does")


def _as_bytes(value: object) -> bytes:
    """Bytes as Python 2 wrote them, or as Python 3 writes them for Python 2: `_codecs.encode(text, "latin1")`."""
    if isinstance(value, _Call) and value.name == _ENCODE and len(value.arguments) == 2:
        text, encoding = value.arguments
        if isinstance(text, str) and encoding == "latin1":
            return text.encode("latin1")
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _as_array(made: object) -> np.ndarray[Any, Any]:
    """The array that a recorded call of NumPy's `_reconstruct` describes, if it is uint8 (n, 3072)."""
    if not isinstance(made, _Call) or made.name not in _RECONSTRUCT:
        raise TypeError
    _, shape, dtype, fortran_order, raw = made.state
    if not isinstance(dtype, _Call) or dtype.name != _DTYPE or _as_bytes(dtype.arguments[0]) != b"u1" or fortran_order:
        raise TypeError
    count, size = shape
    if type(count) is not int or type(size) is not int or size != 3072:
        raise TypeError
    return np.frombuffer(_as_bytes(raw), dtype=np.uint8).reshape(count, size)
