"""Breast cancer (Wisconsin), a table that comes with scikit-learn."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from fedseca.data.base import Dataset, DataSource, Facts, held_out, register
from fedseca.errors import MissingDependency


@register("breast_cancer")
@dataclass(frozen=True, kw_only=True)
class BreastCancer(DataSource):
    """569 tumours, malignant or benign, by 30 measurements of their cells, inside scikit-learn (Street et al. 1993)."""

    how_to_get: ClassVar[str] = "it comes with scikit-learn (pip install 'fedseca[simulation]')"
    facts: ClassVar[Facts | None] = Facts(455, 114, 2, (30,))

    def is_here(self, data_dir: Path | None = None) -> bool:
        return importlib.util.find_spec("sklearn") is not None

    def load(self, data_dir: Path | None = None) -> Dataset:
        try:
            from sklearn.datasets import load_breast_cancer
        except ImportError:
            raise MissingDependency("breast_cancer needs scikit-learn: pip install 'fedseca[simulation]'") from None
        values, labels = (torch.from_numpy(each) for each in load_breast_cancer(return_X_y=True))
        is_test = held_out(labels)
        train, test = ((values[part], labels[part]) for part in (~is_test, is_test))
        return Dataset.of(self.name, train, test, num_classes=2)
