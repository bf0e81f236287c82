"""A server's memory and what belongs to it, in one file that is replaced in one stroke and tells when it is damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedseca.errors import StateError
from fedseca.files import write_atomically
from fedseca.server import Server

_SERVER = "server"


@dataclass(frozen=True)
class Checkpoint:
    """What was kept: numbers and names in the manifest, tensors in named parts."""

    path: Path
    manifest: Mapping[str, Any]
    parts: Mapping[str, dict[str, Tensor]]

    def restore(self, server: Server) -> None:
        """Put a server back to where it was; one that was made otherwise is a `StateError`."""
        try:
            server.load_state_dict({**self.manifest[_SERVER], "state": self.parts.get(_SERVER, {})})
        except (KeyError, TypeError, StateError) as problem:
            raise StateError(f"{self.path}: cannot be gone on from ({problem})") from None


def write_checkpoint(
    path: Path, server: Server, parts: Mapping[str, Mapping[str, Tensor]], manifest: Mapping[str, Any]
) -> None:
    """Replace what is there; cut off at any moment, the file holds the old or the new."""
    saved = server.state_dict()
    tensors = {
        f"{part}/{name}": value.detach().cpu().contiguous()
        for part, named in {_SERVER: saved.pop("state"), **parts}.items()
        for name, value in named.items()
    }
    manifest = {**manifest, "contents": _digest(tensors), _SERVER: saved}
    write_atomically(path, save(tensors, {"manifest": json.dumps(manifest)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """What `write_checkpoint` wrote; anything else is a `StateError`."""
    parts: dict[str, dict[str, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            manifest = json.loads(file.metadata()["manifest"])
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                part, _, name = key.partition("/")
                # A copy in memory of torch's own: where a vector lies decides how its sums are rounded.
                tensors[key] = parts.setdefault(part, {})[name] = file.get_tensor(key).clone()
        if manifest["contents"] != _digest(tensors):
            raise ValueError("it is not what was written")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise StateError(f"{path}: cannot be read ({problem})") from None
    return Checkpoint(path, manifest, parts)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Of their bytes, whatever their dtype (NumPy has no bfloat16)."""
    digest = hashlib.blake2b(digest_size=8)
    for _, value in sorted(tensors.items()):
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
