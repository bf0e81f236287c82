"""The clients' side: whose images are whose, and the training of one client in one round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedseca.data import Images, who_has_what
from fedseca.errors import InputError, StateError
from fedseca.federation.evaluation import Metrics, evaluate
from fedseca.federation.scenario import Scenario

_SMALL_BATCH = 10_000
"""In numbers: 8 digits have 512, 32 images of Fashion-MNIST 25,088."""


class Federation:
    """The clients of a scenario with their images, the network they train, and the pooled test set."""

    def __init__(self, scenario: Scenario, *, data_dir: str | Path | None = None, device: str = "cpu") -> None:
        self.scenario = scenario
        self.device = _usable(device)
        if data_dir is not None and not Path(data_dir).is_dir():  # a slip, even where the data set needs no folder
            raise InputError(f"data folder {data_dir}: no such folder")
        dataset = scenario.dataset.load(None if data_dir is None else Path(data_dir))
        self.fingerprint = dataset.fingerprint()
        self.num_classes = dataset.num_classes
        self.train_set = self._some(dataset.train, scenario.train_images, "training images")
        self.test_set = self._some(dataset.test, scenario.test_images, "test images")
        rng = scenario.generator("partition")
        self.parts = scenario.partition.split(self.train_set, scenario.clients, rng)
        self._test_floats = self.test_set.floats().to(self.device)
        self._test_labels = self.test_set.labels.to(self.device)
        # One network for all: its arrays are filled with the global model before it is trained or tested.
        seed = scenario.generator("model").initial_seed()
        try:
            self.network: nn.Module = scenario.model.build(dataset.shape, dataset.num_classes, seed).to(self.device)
        except (RuntimeError, MemoryError) as problem:
            raise InputError(f"{scenario.model.describe()} cannot be made here: {_first_line(problem)}") from None
        self._check_batches()

    def _some(self, images: Images, count: int | None, what: str) -> Images:
        if count is None:
            return images
        if count > len(images):
            raise InputError(f"{self.scenario.dataset.name} has {len(images)} {what}; {count} requested")
        order = torch.randperm(len(images), generator=self.scenario.generator(what))
        return images.select(order[:count].sort().values)

    def _check_batches(self) -> None:
        """Normalisation refuses to train on a single number for each channel: better now than in round 7."""
        smallest = min(min(len(batch) for batch in self._batches(torch.arange(len(part)))) for part in self.parts)
        arrays = self.arrays()
        self.network.train()
        try:
            with torch.no_grad():
                self.network(self.train_set.floats(torch.arange(smallest)).to(self.device))
        except (ValueError, RuntimeError) as problem:
            reason = _first_line(problem)
            raise InputError(f"{self.scenario.model.name} cannot train on these images: {reason}") from None
        self.network.load_state_dict(arrays)

    @property
    def small_steps(self) -> bool:
        """Whether a step is so little work that a second thread would cost more than it does."""
        return self.scenario.batch_size * self.train_set.pixels[0].numel() < _SMALL_BATCH

    def who_has_what(self) -> Tensor:
        """Clients × classes: how many images."""
        return who_has_what(self.train_set.labels, self.parts, self.num_classes)

    def arrays(self) -> dict[str, Tensor]:
        """A copy of what the network holds now."""
        return {name: value.clone() for name, value in self.network.state_dict().items()}

    def fitting(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model that was kept, in the network's order of its arrays: that is the order of every vector."""
        own = self.arrays()
        if model.keys() != own.keys() or any(model[name].shape != own[name].shape for name in own):
            raise StateError("the model that was kept is not of this network; start again with overwrite")
        return {name: model[name].to(value) for name, value in own.items()}

    def train(self, client: int, model: Mapping[str, Tensor], round: int) -> dict[str, Tensor]:
        """The model that a client has after training on its images, from the global model of the round.

        As in the paper: AdamW, whose state begins anew. A Byzantine client trains on the labels its attack makes.
        """
        scenario = self.scenario
        part = self.parts[client]
        images = self.train_set.floats(part).to(self.device)
        labels = self.train_set.labels[part]
        if scenario.is_byzantine(client):
            labels = scenario.attack.poison(labels, self.num_classes)
        labels = labels.to(self.device)
        self.network.load_state_dict(model)
        self.network.train()
        optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=scenario.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=scenario.weight_decay,
            fused=True,
        )
        rng = scenario.generator("training", round, client)
        for _ in range(scenario.local_epochs):
            for batch in self._batches(torch.randperm(len(part), generator=rng)):
                optimizer.zero_grad()
                loss = functional.cross_entropy(self.network(images[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return self.arrays()

    def _batches(self, order: Tensor) -> list[Tensor]:
        """The order cut into batches. One image left over joins the batch before it: alone it has no variance."""
        size = self.scenario.batch_size
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def evaluate(self, model: Mapping[str, Tensor]) -> Metrics:
        """Of a global model, on the pooled test set."""
        self.network.load_state_dict(model)
        return evaluate(self.network, self._test_floats, self._test_labels, self.num_classes)


def _usable(device: str) -> torch.device:
    """The device, if it computes and hands a number back."""
    try:
        ones = torch.ones(1, device=device)
        assert float(ones) == 1
        return ones.device
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InputError(f"device {device!r} cannot be used here: {_first_line(problem)}") from None


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0]
