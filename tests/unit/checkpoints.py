"""Checkpoints taken apart and put together by hand, so that they say what no version would write."""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

_BLANK = "0" * 64


def opened(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """The manifest and the tensors of a checkpoint."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
    return json.loads(header["manifest"]), load(path.read_bytes())


def unsealed(manifest: Any, tensors: dict[str, Tensor], digest: str = _BLANK) -> bytes:
    """A checkpoint whose digest is a given one, right or wrong."""
    return save(tensors, {"manifest": json.dumps(manifest), "digest": digest})


def sealed(manifest: Any, tensors: dict[str, Tensor]) -> bytes:
    """A checkpoint whose digest is right: the SHA-256 of the file with 64 zeros in its place."""
    content = unsealed(manifest, tensors)
    field = b'"digest":"%b"'
    assert content.count(field % _BLANK.encode()) == 1
    digest = hashlib.sha256(content).hexdigest().encode()
    return content.replace(field % _BLANK.encode(), field % digest)
