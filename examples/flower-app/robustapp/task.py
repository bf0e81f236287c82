"""The model and the data; nothing here knows of federations.

In a deployment every message to a site starts a new process, which spends most of its time on imports. So this does
without torch.optim and sklearn.datasets: each would take longer to import than the training takes.
"""

from importlib.metadata import distribution

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
EPOCHS, BATCH, LEARNING_RATE = 5, 32, 0.5


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def load_training(site: int, sites: int) -> tuple[Tensor, Tensor]:
    """The training images that one of several sites holds, and what they show."""
    images, labels, is_test = _digits()
    return images[~is_test][site::sites], labels[~is_test][site::sites]


def load_test() -> tuple[Tensor, Tensor]:
    images, labels, is_test = _digits()
    return images[is_test], labels[is_test]


def _digits() -> tuple[Tensor, Tensor, Tensor]:
    """The handwritten digits of 8×8 pixels that come with scikit-learn; every fifth is a test image."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(str(file), delimiter=",", dtype=np.float32))
    return table[:, :-1] / 16, table[:, -1].long(), torch.arange(len(table)) % 5 == 0


def train(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Gradient descent in a fixed order: the model and the site determine the result. The loss of the last batch."""
    torch.set_num_threads(1)  # several would add up in any order
    parameters = list(model.parameters())
    loss = torch.zeros(())
    for _ in range(EPOCHS):
        for start in range(0, len(labels), BATCH):
            batch = slice(start, start + BATCH)
            loss = functional.cross_entropy(model(images[batch]), labels[batch])
            slopes = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, slope in zip(parameters, slopes, strict=True):
                    parameter.sub_(slope, alpha=LEARNING_RATE)
    return loss.item()


def macro_f1(model: nn.Module) -> float:
    """The mean over the classes of 2·TP/(true + predicted) on the test images."""
    images, truth = load_test()
    with torch.no_grad():
        found = model(images).argmax(dim=1)
    counts = torch.bincount(CLASSES * truth + found, minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    return float((2 * counts.diagonal() / (counts.sum(dim=0) + counts.sum(dim=1))).mean())
