"""How good a model is on the pooled test set."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedseca.attacks import Trigger
from fedseca.data import Samples, Task
from fedseca.federation.precision import mixed
from fedseca.federation.scenario import Precision

_BATCH = 128
SUCCESS = "attack_success_rate"
"""Its name among the metrics."""


def evaluate(
    model: nn.Module,
    samples: Samples,
    task: Task,
    device: torch.device,
    workers: int = 0,
    precision: Precision = "fp32",
) -> dict[str, float | None]:
    """The metrics of the task by name, and the mean `loss`; None for what is not finite."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64)
    answers: list[Tensor] = []
    with torch.inference_mode():
        for inputs, labels in samples.batches(torch.split(torch.arange(len(samples)), _BATCH), workers):
            with mixed(precision, device):
                outputs = model(inputs.to(device))
            if precision != "fp32":
                outputs = outputs.float()
            loss += task.loss(outputs, labels.to(device), reduction="sum").double().cpu()
            answers.append(outputs.cpu())
    metrics = task.metrics(torch.cat(answers), samples.labels)
    if task.score not in metrics or "loss" in metrics:
        wanted = f"must have its score, {task.score}, and no loss"
        raise TypeError(f"{type(task).__name__}.metrics {wanted}; found {', '.join(metrics)}")
    found = {task.score: metrics[task.score], **metrics, "loss": float(loss) / len(samples)}  # what judges stands first
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def attack_success_rate(
    model: nn.Module,
    samples: Samples,
    trigger: Trigger,
    brightest: Tensor,
    device: torch.device,
    workers: int = 0,
    precision: Precision = "fp32",
) -> float | None:
    """Which share of the samples that are not of the target class is taken for it once the trigger is on them."""
    others = torch.nonzero(samples.labels != trigger.target).flatten()
    if not len(others):
        return None
    model.eval()
    fooled = 0
    with torch.inference_mode():
        for inputs, _ in samples.batches(torch.split(others, _BATCH), workers):
            with mixed(precision, device):
                outputs = model(trigger.put(inputs, brightest).to(device))
            fooled += int((outputs.argmax(dim=1) == trigger.target).sum())
    return fooled / len(others)
