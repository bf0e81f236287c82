"""How good a model is on the pooled test set."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedseca.data import Samples, Task
from fedseca.federation.precision import mixed
from fedseca.federation.scenario import Precision

_BATCH = 128


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
