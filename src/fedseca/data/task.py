"""What is learnt: how wrong an output is, and how good a model is in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional


class Task(ABC):
    """From the outputs of a network and the labels to a loss and metrics; one of your own is a subclass of it."""

    score: ClassVar[str]
    """The metric that judges a run: the larger the better, 1 at best."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers a network gives for a sample."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """What training makes small; `reduction` is `mean` or `sum` over the samples, as in torch.nn.functional."""

    @abstractmethod
    def metrics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, float]:
        """Of the whole test set, by name; the score is one of them."""

    @property
    def num_classes(self) -> int | None:
        """How many classes the labels are of; None where they are no classes."""
        return None


@dataclass(frozen=True)
class Classification(Task):
    """Which of some classes: cross-entropy, macro-F1 and accuracy. Labels are whole numbers from 0 on."""

    score: ClassVar[str] = "f1"

    classes: int

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def num_classes(self) -> int | None:
        return self.classes

    def loss(self, outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        return functional.cross_entropy(outputs, labels, reduction=reduction)

    def metrics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, float]:
        cells = labels * self.classes + outputs.argmax(dim=1)
        counts = torch.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)
        return {"f1": macro_f1(counts), "accuracy": float(counts.trace()) / len(labels)}


@dataclass(frozen=True)
class Regression(Task):
    """How much: squared error and R². Labels are real numbers, one for each sample or several."""

    score: ClassVar[str] = "r2"

    values: int = 1

    @property
    def outputs(self) -> int:
        return self.values

    def loss(self, outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        loss = functional.mse_loss(outputs, labels.reshape(outputs.shape), reduction=reduction)
        return loss / self.values if reduction == "sum" else loss

    def metrics(self, outputs: Tensor, labels: Tensor) -> Mapping[str, float]:
        return {"r2": r_squared(outputs, labels.reshape(outputs.shape))}


def macro_f1(confusion: Tensor) -> float:
    """The mean over the classes of 2·TP/(true + predicted), from counts of (truth, prediction).

    A class that neither occurs nor is predicted has no F1 and is left out.
    """
    involved = confusion.sum(dim=0) + confusion.sum(dim=1)
    f1 = 2 * confusion.diagonal().double() / involved
    return float(f1[involved > 0].mean())


def r_squared(outputs: Tensor, labels: Tensor) -> float:
    """1 − squared error / squared deviation from the mean, averaged over the values of a sample.

    1 is perfect, 0 as good as always saying the mean; a value that never varies is 1 if it is met and 0 if not.
    """
    truth = labels.double()
    errors = (outputs.double() - truth).square().sum(dim=0)
    spread = (truth - truth.mean(dim=0)).square().sum(dim=0)
    met = torch.where(errors.isnan(), errors, (errors == 0).double())
    return float(torch.where(spread > 0, 1 - errors / spread, met).mean())
