"""Handwritten digits of 8×8 pixels, which come with scikit-learn."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from fedseca.data.base import Dataset, DataSource, Facts, held_out, register
from fedseca.errors import MissingDependency


@register("digits")
@dataclass(frozen=True, kw_only=True)
class Digits(DataSource):
    """Handwritten digits of 8×8 pixels with values 0 to 16, inside scikit-learn (Alpaydin & Kaynak 1998)."""

    how_to_get: ClassVar[str] = "it comes with scikit-learn (pip install 'fedseca[simulation]')"
    facts: ClassVar[Facts | None] = Facts(1437, 360, 10, (1, 8, 8))

    def is_here(self, data_dir: Path | None = None) -> bool:
        return importlib.util.find_spec("sklearn") is not None

    def load(self, data_dir: Path | None = None) -> Dataset:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise MissingDependency("digits needs scikit-learn: pip install 'fedseca[simulation]'") from None
        bunch = load_digits()
        pixels = torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1)
        labels = torch.from_numpy(bunch.target).to(torch.int64)
        is_test = held_out(labels)
        train, test = ((pixels[part], labels[part]) for part in (~is_test, is_test))
        return Dataset.of(self.name, train, test, num_classes=10)
