"""The one format for what is kept: numbers and names in a manifest, tensors in named parts, in one file.

It is replaced in one stroke. Its digest is that of every byte of the file, so that whatever was changed in it shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedseca.errors import StateError
from fedseca.files import PRIVATE, write_atomically

CHECKPOINT = "checkpoint.safetensors"
FORMAT = 2
_BLANK = b"0" * 64
_DIGEST = b'"digest":"%b"'
"""Where the digest stands in the file's header. A quote inside of another text is escaped, so it stands there once."""


@dataclass(frozen=True)
class Checkpoint:
    """What was kept."""

    path: Path
    manifest: Mapping[str, Any]
    parts: Mapping[str, dict[str, Tensor]]


def write_checkpoint(path: Path, manifest: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Replace what is there; cut off at any moment, the file holds the old or the new."""
    tensors = {
        f"{part}/{name}": value.detach().cpu().contiguous()
        for part, named in parts.items()
        for name, value in named.items()
    }
    told = json.dumps({**manifest, "format": FORMAT})
    content = bytearray(save(tensors, {"manifest": told, "digest": _BLANK.decode()}))
    place = content.index(_DIGEST % _BLANK) + len(_DIGEST % b"") - 1
    content[place : place + len(_BLANK)] = hashlib.sha256(content).hexdigest().encode()
    write_atomically(path, bytes(content), mode=PRIVATE)


def read_checkpoint(path: Path) -> Checkpoint:
    """What `write_checkpoint` wrote; anything else is a `StateError`."""
    try:
        content = path.read_bytes()
        header = _header(content)
        if "digest" not in header and "contents" in json.loads(header.get("manifest", "{}")):
            raise StateError(f"{path}: was written by an earlier version of fedseca, which alone can resume it")
        _check_digest(content, header["digest"])
        manifest = json.loads(header["manifest"])
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}, this version reads {FORMAT}")
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in load(content).items():
            part, _, name = key.partition("/")
            # A copy in memory of torch's own: where a vector lies decides how its sums are rounded.
            parts.setdefault(part, {})[name] = value.clone()
    except FileNotFoundError:
        raise StateError(f"{path}: there is no such file") from None
    except StateError:
        raise
    except LookupError:
        raise StateError(f"{path}: cannot be read (it is not a checkpoint, or it is damaged)") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, SafetensorError) as problem:
        raise StateError(f"{path}: cannot be read ({' '.join(str(problem).split())})") from None
    return Checkpoint(path, manifest, parts)


def whole_number(value: Any) -> int:
    """A number of rounds in a manifest; anything else is a ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"a number of rounds must be a whole number; found {value!r}")
    return value


def _header(content: bytes) -> dict[str, str]:
    """The texts in the header of a safetensors file: eight bytes say how long it is."""
    size = int.from_bytes(content[:8], "little")
    try:
        found = json.loads(content[8 : 8 + size])["__metadata__"]
    except ValueError:  # as json says it, it would be of another file
        raise LookupError from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its header is not that of a checkpoint")
    return found


def _check_digest(content: bytes, digest: str) -> None:
    """Whether the file is what was written: with the digest blanked out, its digest is that."""
    found = _DIGEST % digest.encode()
    if len(digest) != len(_BLANK) or hashlib.sha256(content.replace(found, _DIGEST % _BLANK, 1)).hexdigest() != digest:
        raise ValueError("it is damaged, or was changed after it was written")
