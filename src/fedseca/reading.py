"""Every form in which clients arrive, read into arrays by name. What is wrong with one client stays its own trouble."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from fedseca.errors import InputError, printable
from fedseca.files import open_regular
from fedseca.layout import Arrays, Layout, Malformed, is_finite
from fedseca.npy import is_sent, read_sent

LONGEST_ID = 200
"""Characters of a client's id: it stands in every table, line of an audit and saved state."""


@dataclass(frozen=True)
class MappedFile:
    """A client's file that is read where it lies, and what it looked like when it was opened."""

    path: str
    seen: tuple[int, int, int]

    @classmethod
    def at(cls, path: str) -> MappedFile:
        found = os.stat(path)
        return cls(path, (found.st_ino, found.st_size, found.st_mtime_ns))

    def changed(self) -> bool:
        """Whether it is another file by now, or was written to."""
        try:
            return MappedFile.at(self.path) != self
        except OSError:
            return True


_CLIENTS = "a vector, a state dict, a list of arrays, a module, an ArrayRecord or a safetensors file"


@dataclass(frozen=True)
class Unreadable:
    """Stands for an answer that came and could not be decoded."""

    reason: str


class Form(NamedTuple):
    """In what the arrays of a client come, and the aggregate is handed back."""

    container: Literal["dict", "list", "record"] = "dict"
    """By name (a vector has none); by place; or Flower's ArrayRecord."""
    numpy: bool = False
    """NumPy's arrays, or else torch's tensors."""


class Client(NamedTuple):
    """One client as it arrived: its arrays and their layout, or what is wrong with them."""

    arrays: Arrays | Malformed
    layout: Layout | None = None
    form: Form = Form()
    label: str | None = None
    """The file it came from, if it came from one."""
    file: MappedFile | None = None
    """The same, if it is read in place."""

    @property
    def well_formed(self) -> bool:
        return not isinstance(self.arrays, Malformed)

    @property
    def ordered(self) -> bool:
        """Whether the order of its keys means anything: the safetensors format keeps none."""
        return self.label is None


def read_clients(source: Any, *, in_place: bool = False) -> list[Client]:
    """The clients in any of the accepted forms.

    Of a file a private copy is made first, so that nobody can change it while it is read; `in_place` maps the file
    itself, which must not change then.
    """
    if isinstance(source, np.ndarray | Tensor):
        if source.ndim != 2:
            raise InputError(f"updates must be a (clients, coordinates) matrix; found shape {tuple(source.shape)}")
        return _read_matrix(source)
    if isinstance(source, Sequence) and not isinstance(source, str | bytes):
        clients = [_read_client(item, in_place) for item in source]
        labels = _short_names([c.label for c in clients])
        return [c._replace(label=label) for c, label in zip(clients, labels, strict=True)]
    raise InputError(
        f"updates must be a (clients, coordinates) matrix, or a sequence with {_CLIENTS} for each client; "
        f"found {type(source).__name__}"
    )


def _read_matrix(source: np.ndarray[Any, Any] | Tensor) -> list[Client]:
    """The rows of a matrix, which are all alike: what holds of one holds of all."""
    try:
        rows = as_tensor(source).unbind()
        layout = Layout.of({"": rows[0]}) if rows else None
    except Malformed as problem:
        return [Client(problem) for _ in range(len(source))]
    form = Form(numpy=isinstance(source, np.ndarray))
    return [Client({"": row}, layout, form) for row in rows]


def _short_names(paths: list[str | None]) -> list[str | None]:
    """The file's stem, or its folder and stem, whichever tells all files apart; else the path."""
    given = [Path(path) for path in paths if path is not None]
    for short in (lambda p: p.stem, lambda p: f"{p.parent.name}/{p.stem}"):
        if len({short(path) for path in given}) == len(given):
            return [None if path is None else short(Path(path)) for path in paths]
    return paths


def _read_client(item: Any, in_place: bool = False) -> Client:
    label = os.fspath(item) if isinstance(item, str | os.PathLike) else None
    try:
        file = MappedFile.at(label) if in_place and label is not None else None
        arrays, form = _read_arrays(item, in_place)
        return Client(arrays, Layout.of(arrays), form, label, file)
    except Malformed as problem:
        return Client(problem, label=label)
    except InputError:  # the server's own trouble: there is no room for a copy
        raise
    except Exception as problem:  # a client may be anything, and must not end the round whatever it is
        return Client(Malformed(f"cannot be read: {type(problem).__name__}: {problem}"), label=label)


def _read_arrays(item: Any, in_place: bool) -> tuple[Arrays, Form]:
    if isinstance(item, Unreadable):
        raise Malformed(item.reason)
    if isinstance(item, str | os.PathLike):
        return (_map_file(item) if in_place else _map_copy(item)), Form()
    if isinstance(item, np.ndarray | Tensor):
        return {"": as_tensor(item)}, Form(numpy=isinstance(item, np.ndarray))
    if isinstance(item, torch.nn.Module):
        item = item.state_dict()
    if isinstance(item, list | tuple) and any(map(_is_number, item)):
        raise Malformed(f"is a {type(item).__name__} of numbers, expected {_CLIENTS}")
    if isinstance(item, list | tuple):
        named = {f"array {place}": value for place, value in enumerate(item)}
    elif hasattr(item, "items"):
        named = item
    else:
        raise Malformed(f"is a {type(item).__name__}, expected {_CLIENTS}")
    arrays: dict[str, Tensor] = {}
    for name, value in named.items():
        _check_name(name)
        try:
            arrays[name] = as_tensor(value)
        except Malformed as problem:
            raise Malformed(f"{name!r} {problem}") from None
    values = named.values()
    if arrays and all(map(is_sent, values)):
        return arrays, Form("record", numpy=True)
    is_numpy = all(isinstance(value, np.ndarray | np.generic) for value in values)
    return arrays, Form("dict" if named is item else "list", is_numpy)


def _is_number(value: Any) -> bool:
    """One of Python's own; one of NumPy's is an array without dimensions."""
    return isinstance(value, int | float) and not isinstance(value, np.generic)


def _map_copy(path: str | os.PathLike[str]) -> Arrays:
    """A safetensors file as tensors on a mapped copy that nobody else has a name for.

    A file that is cut off while it is mapped would end the process, and one that is written to after it was screened
    would carry what it likes into the model. The copy lies on the disk (`TMPDIR`), so the memory stays bounded.
    """
    folder = tempfile.mkdtemp(prefix="fedseca-")
    try:
        copy = os.path.join(folder, "client.safetensors")
        _copy_file(path, copy)
        return _map_file(copy)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the mapping keeps the bytes, and the last array frees them


def _copy_file(path: str | os.PathLike[str], copy: str) -> None:
    """As many bytes as it has now; where the file system can, without moving them."""
    try:
        source = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as problem:
        raise Malformed(f"not a readable safetensors file: {problem.strerror}") from None
    found = os.fstat(source)
    if not stat.S_ISREG(found.st_mode):
        os.close(source)
        raise Malformed("not a readable safetensors file: it is not a regular file")
    with open(source, "rb", buffering=0) as reading:
        try:
            with open(copy, "xb", buffering=0) as writing:
                _move(reading, writing, found.st_size)
        except OSError as problem:
            raise InputError(
                f"{tempfile.gettempdir()}: no private copy of {os.fspath(path)} can be written there "
                f"({problem.strerror}); set TMPDIR to a larger folder, or read the files in place"
            ) from None


def _move(reading: IO[bytes], writing: IO[bytes], size: int) -> None:
    left, together = size, hasattr(os, "copy_file_range")
    while left > 0:
        if together:
            try:
                moved = os.copy_file_range(reading.fileno(), writing.fileno(), min(left, 1 << 30))
            except OSError as problem:
                if problem.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                    raise
                together = False
                continue
        else:
            moved = writing.write(reading.read(min(left, 1 << 22)))
        if not moved:  # it was cut off meanwhile
            return
        left -= moved


def _map_file(path: str | os.PathLike[str]) -> Arrays:
    """A safetensors file as tensors on the mapped file: nothing is loaded until it is read."""
    try:
        with safe_open(path, framework="pt") as file:
            # The format keeps no order, so all files are read in the order of the names.
            arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise Malformed(f"not a readable safetensors file: {reason}{_other_format(path)}") from None
    for name in arrays:
        _check_name(name)
    return arrays


def _other_format(path: str | os.PathLike[str]) -> str:
    """A word on files that are often meant: they hold pickles, which are never read."""
    with suppress(OSError), os.fdopen(open_regular(Path(path)), "rb") as file:
        if file.read(4) in (b"PK\x03\x04", b"\x80\x02\x8a\x0a"):
            return "; torch.save wrote it: write it with safetensors.torch.save_file"
    return ""


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise Malformed(f"key {name!r} is not a name")


def as_tensor(value: Any) -> Tensor:
    """A tensor or NumPy array as a plain detached tensor, on the same memory where that can be."""
    if isinstance(value, Tensor):
        return _plain(value)
    if isinstance(value, np.generic):  # what NumPy makes of the difference of two counters
        value = np.asarray(value)
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
    if is_sent(value):
        return as_tensor(read_sent(value))
    raise Malformed(f"is a {type(value).__name__}, expected a tensor or array")


def _plain(value: Tensor) -> Tensor:
    """What a tensor holds, as a tensor of torch's own kind whose memory is there.

    Kernels read this memory: a shape that promises more than there is would end the process.
    """
    if value.layout != torch.strided or value.is_nested or value.device.type == "meta":
        raise Malformed("is a sparse, nested or data-less tensor, expected a dense one")
    with torch._C.DisableTorchFunctionSubclass():  # a subclass has its own idea of every operation
        plain = value.detach().as_subclass(Tensor)
        if plain._is_zerotensor():
            raise Malformed("is a tensor without data of its own, expected a dense one")
        plain = plain.resolve_conj().resolve_neg()  # a view that only says it is negated reads as if it were not
        last = sum((size - 1) * step for size, step in zip(plain.shape, plain.stride(), strict=True))
        needed = (plain.storage_offset() + last + 1) * plain.element_size() if plain.numel() else 0
        storage = plain.untyped_storage()
        if storage.nbytes() < needed or (needed and storage.data_ptr() == 0):
            raise Malformed(f"holds {storage.nbytes()} bytes where its shape {tuple(plain.shape)} needs {needed}")
    return plain


def read_before(before: Any) -> Arrays:
    """The global model that the clients started from: the caller's own, so a fault in it is an error."""
    client = _read_client(before)
    file = "" if client.label is None else f"{client.label}: "
    if isinstance(client.arrays, Malformed):
        raise InputError(f"{file}the global model before the round: {client.arrays}")
    if not all(map(is_finite, client.arrays.values())):
        raise InputError(f"{file}the global model before the round holds NaN or Inf")
    return client.arrays


def identify(clients: Sequence[Client], client_ids: Sequence[object] | None) -> tuple[list[Client], list[str]]:
    """The clients and their ids as printable text: those given, else the file's name, else the position.

    A client whose id cannot be shown, or is too long, goes by its position, and is left out for that.
    """
    if client_ids is not None and len(client_ids) != len(clients):
        raise InputError(f"{len(clients)} updates but {len(client_ids)} client ids")
    found, ids = list(clients), []
    for index, client in enumerate(clients):
        text: str | None = client.label or str(index)
        if client_ids is not None:
            text = _text(client_ids[index])
        if text is None or len(text) > LONGEST_ID:
            why = "cannot be shown" if text is None else f"has {len(text)} characters (allowed: {LONGEST_ID})"
            found[index] = client._replace(arrays=Malformed(f"its id {why}"))
            text = f"client at place {index}"
        ids.append(printable(text))
    return found, ids


def _text(client_id: object) -> str | None:
    try:
        return str(client_id)
    except Exception:  # an id may be anything
        return None
