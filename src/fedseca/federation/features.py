"""What the frozen layers of a network give for each sample: computed once, and kept on the disk."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedseca.data._folders import data_root
from fedseca.data.samples import InMemory, Inputs
from fedseca.errors import InputError
from fedseca.files import locked, write_atomically

_LOG = logging.getLogger(__name__)
_FOLDER = "features"
_BATCH = 64
_NAME, _DIGEST = "features", "digest"


def features(frozen: nn.Module, inputs: Inputs, device: torch.device, workers: int = 0) -> InMemory:
    """The outputs of frozen layers for inputs, as inputs of what is trained after them.

    They are kept in the data folder ($FEDSECA_DATA, or the user's cache), under a digest of the layers, their weights
    and the inputs; a file that is damaged is made again. Whatever the precision of the training, these are fp32.
    """
    path = data_root() / _FOLDER / f"{_key(frozen, inputs)}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):  # of the cells of a grid, one computes and the others wait
            found = _kept(path, len(inputs))
            if found is None:
                _LOG.warning(
                    "computing once what the frozen layers give for %s samples, to keep it in %s",
                    f"{len(inputs):,}",
                    path,
                )
                found = _computed(frozen, inputs, device, workers)
                write_atomically(path, save({_NAME: found}, {_DIGEST: _digest(found)}))
    except OSError as problem:
        raise InputError(
            f"{problem.filename or path}: what the frozen layers give cannot be kept: {problem.strerror or problem}; "
            "set FEDSECA_DATA to a folder with room in which can be written"
        ) from None
    return InMemory(found)


def _key(frozen: nn.Module, inputs: Inputs) -> str:
    digest = hashlib.blake2b(repr(frozen).encode(), digest_size=16)
    for name, value in frozen.state_dict().items():
        digest.update(name.encode())
        digest.update(_bytes(value))
    for part in inputs.content():
        digest.update(part)
    if inputs.normalisation is not None:
        digest.update(_bytes(torch.cat(inputs.normalisation)))
    return digest.hexdigest()


def _kept(path: Path, count: int) -> Tensor | None:
    """The features of a file; None if there is none, or if it is damaged."""
    if not os.path.exists(path):
        return None
    try:
        with safe_open(path, framework="pt") as file:
            found: Tensor = file.get_tensor(_NAME)
            promised = (file.metadata() or {}).get(_DIGEST)
    except SafetensorError:
        return None
    return found if len(found) == count and _digest(found) == promised else None


def _computed(frozen: nn.Module, inputs: Inputs, device: torch.device, workers: int) -> Tensor:
    # Convolutions on the CPU take little more than half the time with the channels last.
    frozen = frozen.to(device).to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload]  # not in the stubs
    found: Tensor | None = None
    start = 0
    with torch.no_grad():
        for batch in inputs.batches(torch.split(torch.arange(len(inputs)), _BATCH), workers):
            batch = batch.to(device)
            outputs = frozen(batch.to(memory_format=torch.channels_last) if batch.ndim == 4 else batch)
            if found is None:
                found = torch.empty(len(inputs), *outputs.shape[1:])
            found[start : start + len(outputs)] = outputs
            start += len(outputs)
    assert found is not None
    return found


def _digest(values: Tensor) -> str:
    return hashlib.blake2b(_bytes(values), digest_size=16).hexdigest()


def _bytes(values: Tensor) -> memoryview:
    content: Any = values.detach().cpu().contiguous().reshape(-1).numpy()
    return memoryview(content).cast("B")
