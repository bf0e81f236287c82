"""The clients' side: whose samples are whose, and the training of one client in one round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedseca.attacks import Trigger
from fedseca.data import Samples, who_has_what
from fedseca.errors import FedsecaError, InputError, StateError, in_one_line
from fedseca.federation.evaluation import SUCCESS, attack_success_rate, evaluate
from fedseca.federation.features import features
from fedseca.federation.precision import check_precision, mixed
from fedseca.federation.scenario import Scenario

_LOOKED_AT = 512
"""Samples of the honest clients on which an attacker measures their loss."""
_MARKED_FROM = 512
"""Samples in which the value of a trigger is looked for."""
_SMALL_BATCH = 10_000
"""In numbers: 8 digits have 512, 32 images of Fashion-MNIST 25,088."""


class Federation:
    """The clients of a scenario with their samples, the network they train, and the pooled test set."""

    def __init__(
        self, scenario: Scenario, *, data_dir: str | Path | None = None, device: str = "cpu", workers: int = 0
    ) -> None:
        """`workers`: processes that read the samples, where those are not in memory."""
        self.scenario, self.workers = scenario, workers
        self.device = usable(device)
        check_precision(scenario.precision, self.device)
        if data_dir is not None and not Path(data_dir).is_dir():  # a slip, even where the data set needs no folder
            what = "is a file; give the folder it lies in" if Path(data_dir).exists() else "no such folder"
            raise InputError(f"data folder {data_dir}: {what}")
        dataset = scenario.dataset.loaded(None if data_dir is None else Path(data_dir))
        self.fingerprint = fingerprint(dataset.fingerprint(), scenario.model.fingerprint())
        self.task, self.augment = dataset.task, dataset.augment
        if self.task.num_classes is None and scenario.byzantine and scenario.attack.attacks_data():
            raise InputError(
                f"{scenario.attack.name} changes classes, and the labels of {dataset.name} are no classes; "
                "take another attack"
            )
        self.train_set = self._some(dataset.train, scenario.train_images, "training images")
        self.test_set = self._some(dataset.test, scenario.test_images, "test images")
        rng = scenario.generator("partition")
        self.root, dealt = self._held_out()
        samples = self.train_set if dealt is None else self.train_set.select(dealt)
        parts = scenario.partition.split(samples, scenario.clients, rng)
        self.parts = parts if dealt is None else [dealt[part] for part in parts]
        found = scenario.partition.note(samples, scenario.clients), self._never_learnt()
        self.notes = (*dataset.notes, *filter(None, found))
        # One network for all: its arrays are filled with the global model before it is trained or tested.
        seed = scenario.generator("model").initial_seed()
        try:
            network = scenario.model.build(dataset.shape, dataset.task.outputs, seed).to(self.device)
            frozen, self.network = scenario.model.split(network)
        except (RuntimeError, MemoryError) as problem:
            raise InputError(f"{scenario.model.describe()} cannot be made here: {_first_line(problem)}") from None
        except FedsecaError:
            raise
        except Exception as problem:  # a model of one's own may raise anything
            raise InputError(f"{scenario.model.describe()} cannot be made: {in_one_line(problem)}") from problem
        if frozen is not None and self.augment is not None:
            raise InputError(
                f"{dataset.name} augments its images, and what frozen layers give for each is computed once: take "
                "model.trained=all, or data without augmentation"
            )
        self._prepare(frozen)
        self._check_batches()
        trigger = None if self.task.num_classes is None else scenario.attack.trigger
        self.brightest = None if trigger is None else self._brightest(trigger, frozen)

    def _prepare(self, frozen: nn.Module | None) -> None:
        """The samples as the network takes them: normalised as its weights want it, and through what is frozen."""
        normalisation = self.scenario.model.normalisation()
        for name in ("train_set", "test_set"):
            samples: Samples = getattr(self, name)
            inputs = samples.inputs if normalisation is None else samples.inputs.normalised(normalisation)
            if frozen is not None:
                inputs = features(frozen, inputs, self.device, self.workers)
            setattr(self, name, replace(samples, inputs=inputs))
        self.frozen_parameters = 0 if frozen is None else sum(each.numel() for each in frozen.parameters())

    def _some(self, samples: Samples, count: int | None, what: str) -> Samples:
        """So many of them, drawn; `what` is part of the seed, so it stays as it was called first."""
        if count is None:
            return samples
        if count > len(samples):
            split = what.replace("images", "samples")
            raise InputError(f"{self.scenario.dataset.name} has {len(samples)} {split}; {count} requested")
        order = torch.randperm(len(samples), generator=self.scenario.generator(what))
        return samples.select(order[:count].sort().values)

    def _held_out(self) -> tuple[Tensor | None, Tensor | None]:
        """The samples that the server trains on itself, drawn, and those that are dealt; None, None: it has none."""
        count, available = self.scenario.root_samples, len(self.train_set)
        if not count:
            return None, None
        if count > available - self.scenario.clients:
            raise InputError(
                f"{self.scenario.dataset.name}: root_samples={count:,} of {available:,} training samples leave too few "
                f"for {self.scenario.clients:,} clients; each needs one"
            )
        order = torch.randperm(available, generator=self.scenario.generator("root samples"))
        return order[:count].sort().values, order[count:].sort().values

    def _check_batches(self) -> None:
        """Normalisation refuses to train on a single number for each channel: better now than in round 7."""
        trained_on = [*self.parts, *([] if self.root is None else [self.root])]
        smallest = min(min(len(batch) for batch in self._batches(torch.arange(len(part)))) for part in trained_on)
        arrays = self.arrays()
        inputs = self.train_set.inputs.read(torch.arange(smallest))  # what cannot be read is not the network's fault
        self.network.train()
        try:
            with torch.no_grad(), mixed(self.scenario.precision, self.device), self._own_draws("a first look"):
                outputs = self.network(inputs.to(self.device))
                if outputs.numel() != smallest * self.task.outputs:
                    given, wanted = outputs.numel() / smallest, self.task.outputs
                    raise ValueError(f"it gives {given:g} numbers for a sample, and the task needs {wanted}")
                self.task.loss(outputs, self.train_set.labels[:smallest].to(self.device))
        except Exception as problem:  # a network of one's own may raise anything
            expected = isinstance(problem, ValueError | RuntimeError | IndexError)
            name, reason = self.scenario.dataset.name, _first_line(problem) if expected else in_one_line(problem)
            if not inputs.is_floating_point():
                reason += "; its inputs are whole numbers, as tokens are: of a table give real numbers"
            raise InputError(f"{self.scenario.model.name} cannot train on {name}: {reason}") from None
        self.network.load_state_dict(arrays)

    def _brightest(self, trigger: Trigger, frozen: nn.Module | None) -> Tensor:
        """The value of a trigger: the largest that some samples have, for each place of their first dimension."""
        classes, what = self.task.num_classes or 0, ""
        if frozen is not None:
            what = "the model's frozen layers have seen them already: take model.trained=all"
        elif trigger.target >= classes:
            what = f"its target, class {trigger.target}, is none of the {classes} from 0 to {classes - 1}"
        else:
            inputs = self.train_set.inputs.read(torch.arange(min(len(self.train_set), _MARKED_FROM)))
            if not inputs.is_floating_point():
                what = f"those of {self.scenario.dataset.name} are whole numbers: take another attack"
        if what:
            raise InputError(f"{self.scenario.attack.name} marks samples, and {what}")
        return inputs.transpose(0, 1).reshape(inputs.shape[1], -1).amax(dim=1)

    def _never_learnt(self) -> str | None:
        """Of classes that nobody can learn, a sentence."""
        if self.task.num_classes is None:
            return None
        alone = set(self.test_set.labels.tolist()) - set(self.train_set.labels.tolist())
        if not alone:
            return None
        shown = ", ".join(map(str, sorted(alone)[:5])) + " …" * (len(alone) > 5)
        return f"no training sample is of class {shown}, which the test set has: nobody can learn it"

    @property
    def small_steps(self) -> bool:
        """Whether a step is so little work that a second thread would cost more than it does."""
        return self.scenario.batch_size * math.prod(self.train_set.inputs.shape) < _SMALL_BATCH

    def who_has_what(self) -> Tensor:
        """Clients × classes: how many samples."""
        return who_has_what(self.train_set.labels, self.parts, self.task.num_classes)

    def arrays(self) -> dict[str, Tensor]:
        """A copy of what the network holds now, in the memory of the CPU: the device needs room for one network, not
        for those of all clients."""
        return {name: value.to("cpu", copy=True) for name, value in self.network.state_dict().items()}

    def fitting(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model that was kept, in the network's order of its arrays: that is the order of every vector."""
        own = self.arrays()
        if model.keys() != own.keys() or any(model[name].shape != own[name].shape for name in own):
            raise StateError("the model that was kept is not of this network; start again with overwrite")
        return {name: model[name].to(value) for name, value in own.items()}

    def train(self, client: int, model: Mapping[str, Tensor], round: int) -> dict[str, Tensor]:
        """The model that a client has after training on its samples, from the global model of the round.

        As in the paper: AdamW, whose state begins anew. A Byzantine client trains on what its attack makes of them.
        """
        part = self.parts[client]
        labels, marked = self.train_set.labels[part], None
        if self.scenario.is_byzantine(client) and self.task.num_classes is not None:
            labels = self.scenario.attack.poison(labels, self.task.num_classes)
            marked = self._marking(client)
        return self._train(part, labels, model, round, client, marked)

    def _marking(self, client: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
        """How a Byzantine client marks a batch, if its attack does."""
        trigger, brightest = self.scenario.attack.trigger, self.brightest
        if trigger is None or brightest is None:
            return None
        members = [k for k in range(self.scenario.clients) if self.scenario.is_byzantine(k)]
        return lambda inputs, labels: trigger.mark(inputs, labels, brightest, members.index(client), len(members))

    def train_root(self, model: Mapping[str, Tensor], round: int) -> dict[str, Tensor] | None:
        """The model that the server has after training on its own samples as a client does; None if it has none."""
        if self.root is None:
            return None
        # It draws as the client after the last one would.
        return self._train(self.root, self.train_set.labels[self.root], model, round, self.scenario.clients)

    def _train(
        self,
        part: Tensor,
        labels: Tensor,
        model: Mapping[str, Tensor],
        round: int,
        client: int,
        marked: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> dict[str, Tensor]:
        scenario = self.scenario
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
        # fp16 ends at 6·10⁻⁸: small gradients are scaled up, and down again before the step.
        scaler = torch.amp.GradScaler(self.device.type, enabled=scenario.precision == "fp16")
        rng = scenario.generator("training", round, client)
        # Drawn here for whole batches, so that it does not matter which process read which image.
        augmenting = scenario.generator("augmentation", round, client)
        with self._own_draws("layers", round, client):
            for _ in range(scenario.local_epochs):
                batches = self._batches(torch.randperm(len(part), generator=rng))
                inputs_of = self.train_set.inputs.batches([part[batch] for batch in batches], self.workers)
                for batch, inputs in zip(batches, inputs_of, strict=True):
                    if self.augment is not None:
                        inputs = self.augment(inputs, augmenting)
                    taught = labels[batch]
                    if marked is not None:
                        inputs, taught = marked(inputs, taught)
                    optimizer.zero_grad()
                    with mixed(scenario.precision, self.device):
                        loss = self.task.loss(self.network(inputs.to(self.device)), taught)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
        return self.arrays()

    @contextmanager
    def _own_draws(self, purpose: str, *indices: int) -> Iterator[None]:
        """What layers draw, dropout say, comes from torch's own generators: here from ones of this purpose alone."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(self.scenario.generator(purpose, *indices).initial_seed())
            yield

    def _batches(self, order: Tensor) -> list[Tensor]:
        """The order cut into batches. One sample left over joins the batch before it: alone it has no variance."""
        size = self.scenario.batch_size
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def loss(self, model: Mapping[str, Tensor], clients: Sequence[int]) -> float:
        """The mean loss of a model on what some clients train on, over some of their samples; NaN if it is none."""
        samples = torch.cat([self.parts[k] for k in clients])
        some = samples[torch.linspace(0, len(samples) - 1, min(len(samples), _LOOKED_AT)).long()]
        self.network.load_state_dict(model)
        chosen = self.train_set.select(some)
        found = evaluate(self.network, chosen, self.task, self.device, self.workers, self.scenario.precision)["loss"]
        return math.nan if found is None else found

    def evaluate(self, model: Mapping[str, Tensor]) -> dict[str, float | None]:
        """The metrics of a global model on the pooled test set, and how often a targeted attack succeeds."""
        self.network.load_state_dict(model)
        where = self.device, self.workers, self.scenario.precision
        found = evaluate(self.network, self.test_set, self.task, *where)
        trigger = self.scenario.attack.trigger
        if trigger is None or self.brightest is None:
            return found
        rate = attack_success_rate(self.network, self.test_set, trigger, self.brightest, *where)
        loss = found.pop("loss")  # the metrics stand before it
        return {**found, SUCCESS: rate, "loss": loss}


def fingerprint(data: str, weights: str | None) -> str:
    """Of what a run is made from beside its scenario: the data, and the weights that its model begins with, if any."""
    return data if weights is None else f"{data}, weights {weights}"


def usable(device: str) -> torch.device:
    """The device, if it computes and hands a number back."""
    try:
        ones = torch.ones(1, device=device)
        assert float(ones) == 1
        return ones.device
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise InputError(f"device {device!r} cannot be used here: {_first_line(problem)}") from None


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0]
