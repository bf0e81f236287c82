"""An array in NumPy's file format, as Flower sends it: read without trusting a byte of it and without a copy."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from fedseca.errors import printable
from fedseca.layout import Malformed

_STYPE = "numpy.ndarray"


def is_sent(value: Any) -> bool:
    """Whether this is an array as Flower's records hold it: bytes, and what they are said to be."""
    return isinstance(getattr(value, "stype", None), str) and isinstance(getattr(value, "data", None), bytes)


def read_sent(array: Any) -> np.ndarray[Any, Any]:
    """The array on its bytes. The header inside of them counts: what the message says beside it is only a claim."""
    if array.stype != _STYPE:
        raise Malformed(f"is of type {printable(str(array.stype), limit=40)!r}, expected {_STYPE!r}")
    try:
        return _on_its_bytes(array.data)
    except Malformed:
        raise
    except Exception as problem:
        raise Malformed(f"is not an array ({printable(str(problem), limit=60)})") from None


def _on_its_bytes(data: bytes) -> np.ndarray[Any, Any]:
    header = io.BytesIO(data)
    if np.lib.format.read_magic(header) != (1, 0):
        raise ValueError("another version of the format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
    if dtype.hasobject or dtype.kind not in "fiub":
        raise Malformed(f"has dtype {printable(str(dtype), limit=40)}, expected numbers")
    if any(type(length) is not int or length < 0 for length in shape):
        raise Malformed(f"has the shape {printable(str(shape), limit=60)}")
    start, size = header.tell(), math.prod(shape) * dtype.itemsize
    if len(data) != start + size:
        found = f"{len(data) - start} bytes where its shape {printable(str(shape), limit=60)} needs {size}"
        raise Malformed(f"holds {found}")
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape, order="F" if fortran else "C")
