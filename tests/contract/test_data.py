"""The contract suite over every data set that needs no file, over tables that are made here, and over the example."""

from pathlib import Path

import pytest
import torch

from fedseca.data import DATASETS, Dataset, DataSource
from fedseca.plugins import load_plugin
from fedseca.testing import check_dataset, dataset_checks
from tests.unit.data_files import MAKERS, make_heart
from tests.unit.image_files import make_eurosat, make_fedisic

EXAMPLE = Path(__file__).parents[2] / "examples" / "data" / "wine.py"
load_plugin(EXAMPLE)


@pytest.mark.parametrize("name", [name for name in DATASETS if not DATASETS[name].has_files])
def test_contract(name):
    check_dataset(name)


def test_contract_of_what_lies_in_files(tmp_path):
    made = {"heart_disease": make_heart, "arrays": MAKERS["arrays"][1], "cifar10": MAKERS["cifar10, png"][1]}
    made |= {"eurosat": make_eurosat, "fedisic": make_fedisic}
    for name, make in made.items():
        check_dataset(name, make(tmp_path / name))


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 35


class Honest(DataSource):
    """What the broken ones below are made of."""

    name = "honest"

    @classmethod
    def hyperparameters(cls):
        return {}

    def load(self, data_dir: Path | None = None) -> Dataset:
        values, labels = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
        return Dataset.of(self.name, (values, labels), (values[:9], labels[:9]))


class Draws(Honest):
    def load(self, data_dir: Path | None = None) -> Dataset:
        return Dataset.of(
            self.name, (torch.randn(30, 4), torch.arange(30) % 3), (torch.randn(9, 4), torch.arange(9) % 3)
        )


class Unseen(Honest):
    def load(self, data_dir: Path | None = None) -> Dataset:
        values = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
        return Dataset.of(self.name, (values, torch.arange(30) % 2), (values, torch.arange(30) % 3), num_classes=3)


class Infinite(Honest):
    def load(self, data_dir: Path | None = None) -> Dataset:
        data = super().load()
        data.train.inputs.values[3, 1] = torch.inf  # type: ignore[attr-defined]
        return data


class BeyondItsClasses(Honest):
    def load(self, data_dir: Path | None = None) -> Dataset:
        data = super().load()
        data.train.labels[7] = 3
        return data


def test_an_honest_one_passes():
    assert len(list(dataset_checks(Honest()))) >= 6
    check_dataset(Honest())


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Draws, "is_the_same_whenever_it_is_loaded"),
        (Unseen, "labels_are_those_of_the_task: AssertionError: classes .2. are tested and never trained"),
        (Infinite, "both_splits_hold_samples_of_one_shape: AssertionError: inputs must be finite"),
        (BeyondItsClasses, "labels_are_those_of_the_task"),
    ],
)
def test_a_broken_one_is_told_which_clause(broken, clause):
    with pytest.raises(AssertionError, match=clause):
        check_dataset(broken())
