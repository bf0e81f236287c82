"""How good a model is on the pooled test set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_BATCH = 128


@dataclass(frozen=True)
class Metrics:
    """Of one model on one test set. The loss is None where it is not finite."""

    f1: float
    accuracy: float
    loss: float | None


def evaluate(model: nn.Module, images: Tensor, labels: Tensor, num_classes: int) -> Metrics:
    """Macro-F1, accuracy and cross-entropy of a model."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64)
    confusion = torch.zeros(num_classes * num_classes, dtype=torch.int64)
    with torch.inference_mode():
        for start in range(0, len(labels), _BATCH):
            truth = labels[start : start + _BATCH]
            logits = model(images[start : start + _BATCH])
            loss += functional.cross_entropy(logits, truth, reduction="sum").double().cpu()
            cells = truth * num_classes + logits.argmax(dim=1)
            confusion += torch.bincount(cells.cpu(), minlength=num_classes * num_classes)
    counts = confusion.reshape(num_classes, num_classes)
    mean_loss = float(loss) / len(labels)
    return Metrics(
        f1=macro_f1(counts),
        accuracy=float(counts.trace()) / len(labels),
        loss=mean_loss if torch.isfinite(loss) else None,
    )


def macro_f1(confusion: Tensor) -> float:
    """The mean over the classes of 2·TP/(true + predicted), from counts of (truth, prediction).

    A class that neither occurs nor is predicted has no F1 and is left out.
    """
    involved = confusion.sum(dim=0) + confusion.sum(dim=1)
    f1 = 2 * confusion.diagonal().double() / involved
    return float(f1[involved > 0].mean())
