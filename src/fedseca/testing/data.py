"""The contract of every data set, clause by clause."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fedseca.data import DATASETS, PARTITIONS, Dataset, DataSource
from fedseca.errors import InputError
from fedseca.models import MODELS
from fedseca.testing.check import Check, Clause, generator, hold, refuses_bad_hyperparameters

_SOME = 64
"""How many samples are looked at, where all might take long."""


@dataclass(frozen=True)
class _Loaded:
    """A data set that was loaded once, for all clauses."""

    source: DataSource
    data_dir: Path | None
    data: Dataset

    @property
    def name(self) -> str:
        return self.source.name


_CLAUSES: list[Clause[_Loaded]] = []


def dataset_checks(dataset: str | DataSource, data_dir: str | Path | None = None) -> Iterator[Check[_Loaded]]:
    """The checks of one data set; with a name, it has its default hyperparameters."""
    source = DATASETS.make(dataset) if isinstance(dataset, str) else dataset
    folder = None if data_dir is None else Path(data_dir)
    loaded = _Loaded(source, folder, source.loaded(folder))
    return (Check(loaded, clause) for clause in _CLAUSES)


def check_dataset(dataset: str | DataSource, data_dir: str | Path | None = None) -> None:
    """Hold a data set to the contract: the first clause it breaks is an AssertionError that says which."""
    try:
        checks = dataset_checks(dataset, data_dir)
    except InputError as problem:
        raise AssertionError(f"can be loaded: {problem}") from problem
    hold(checks)


def _clause(clause: Clause[_Loaded]) -> Clause[_Loaded]:
    _CLAUSES.append(clause)
    return clause


@_clause
def refuses_what_is_not_declared(loaded: _Loaded) -> None:
    refuses_bad_hyperparameters(loaded.source)


@_clause
def both_splits_hold_samples_of_one_shape(loaded: _Loaded) -> None:
    for split in (loaded.data.train, loaded.data.test):
        assert len(split) == len(split.inputs) == len(split.labels) > 0
        some = torch.arange(min(_SOME, len(split)))
        inputs = split.inputs.read(some)
        assert inputs.shape == (len(some), *loaded.data.shape), f"{tuple(inputs.shape)} is not {loaded.data.shape}"
        assert inputs.dtype in (torch.float32, torch.int64, torch.uint8), f"inputs are {inputs.dtype}"
        assert not inputs.is_floating_point() or bool(inputs.isfinite().all()), "inputs must be finite"


@_clause
def labels_are_those_of_the_task(loaded: _Loaded) -> None:
    classes = loaded.data.num_classes
    for split in (loaded.data.train, loaded.data.test):
        if classes is None:
            assert split.labels.is_floating_point() and bool(split.labels.isfinite().all())
        else:
            assert split.labels.dtype == torch.int64
            assert int(split.labels.min()) >= 0 and int(split.labels.max()) < classes
    if classes is not None:
        unseen = set(loaded.data.test.labels.tolist()) - set(loaded.data.train.labels.tolist())
        assert not unseen, f"classes {sorted(unseen)[:5]} are tested and never trained"


@_clause
def is_the_same_whenever_it_is_loaded(loaded: _Loaded) -> None:
    assert loaded.source.load(loaded.data_dir).fingerprint() == loaded.data.fingerprint()


@_clause
def samples_stay_what_they_are_however_they_are_read(loaded: _Loaded) -> None:
    train = loaded.data.train
    order = torch.randperm(len(train), generator=generator())[:_SOME]
    whole = train.inputs.read(order)
    one_by_one = torch.cat(list(train.inputs.batches(list(torch.split(order, 1)))))
    chosen = train.select(order)
    assert torch.equal(one_by_one, whole) and torch.equal(chosen.inputs.read(), whole)
    assert torch.equal(chosen.labels, train.labels[order])


@_clause
def can_be_dealt_to_clients(loaded: _Loaded) -> None:
    train = loaded.data.train
    ways = ["iid", *(["dirichlet"] if loaded.data.num_classes is not None else [])]
    for way in ways:
        parts = PARTITIONS.make(way).split(train, min(3, len(train)), generator())
        assert torch.cat(parts).sort().values.tolist() == list(range(len(train)))
    if train.sites is not None:
        assert train.sites.shape == (len(train),) and train.sites.dtype == torch.int64
        PARTITIONS.make("site").split(train, len(set(train.sites.tolist())), generator())


@_clause
def a_network_can_learn_from_it(loaded: _Loaded) -> None:
    """A linear layer on some samples, a few steps: the loss falls."""
    data = loaded.data
    some = torch.randperm(len(data.train), generator=generator())[:_SOME]
    inputs, labels = data.train.inputs.read(some).float(), data.train.labels[some]
    network = MODELS.make("logistic").build(data.shape, data.task.outputs, seed=0)
    # Adam moves every weight by about the rate: all inputs together must not move an output too far.
    optimizer = torch.optim.Adam(network.parameters(), lr=min(0.5, 2 / math.prod(data.shape)))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = data.task.loss(network(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[1:]) < losses[0], f"the loss never falls below {losses[0]:g}"
    with torch.no_grad():
        found = data.task.metrics(network(inputs), labels)
    assert data.task.score in found and "loss" not in found, f"the metrics need {data.task.score!r}, and no loss"
