"""Samples of any kind, in memory or read one by one, and tasks with a loss and metrics of their own."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from torch.utils.data import TensorDataset

from fedseca.cli.tables import score, sparkline
from fedseca.data import Classification, Dataset, Regression, Samples, Task
from fedseca.data.base import DataSource
from fedseca.data.samples import InMemory, Lazy
from fedseca.data.task import r_squared
from fedseca.errors import InputError
from fedseca.federation import Federation, Scenario, simulate


def pair(count: int = 20, width: int = 3, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(count).normal(5, 3, (count, width))
    return values, np.arange(count) % classes


class Made(DataSource):
    """A data set that is made in a test."""

    name = "made"

    def __init__(self, data: Dataset) -> None:
        self.data = data

    @classmethod
    def hyperparameters(cls):
        return {}

    def load(self, data_dir=None) -> Dataset:
        return self.data


def scenario(data: Dataset, **changes) -> Scenario:
    usual = {"model": "mlp", "partition": "iid", "clients": 3, "byzantine": 1, "rounds": 2, "attack": "ipm"}
    return Scenario(**{**usual, **changes}, dataset=Made(data))


# Pairs of arrays


def test_features_are_normalised_by_what_training_may_see():
    train, test = pair(40), pair(10)
    data = Dataset.of("mine", train, test)
    mean, std = train[0].mean(axis=0), train[0].std(axis=0)
    np.testing.assert_allclose(data.train.inputs.read().numpy(), (train[0] - mean) / std, atol=1e-5)
    np.testing.assert_allclose(data.test.inputs.read().numpy(), (test[0] - mean) / std, atol=1e-5)
    assert data.shape == (3,) and data.num_classes == 2 and data.train.inputs.read().dtype == torch.float32


def test_reading_changes_nothing():
    data = Dataset.of("mine", (torch.full((4, 2), 3.0), torch.tensor([0, 1, 0, 1])), pair(4, 2))
    before = data.fingerprint()
    for _ in range(2):
        assert data.train.inputs.read().tolist() == [[0, 0]] * 4  # a feature that never varies
    assert data.fingerprint() == before


def test_tokens_stay_what_they_are():
    tokens = np.array([[5, 1, 900], [7, 0, 2]], dtype=np.uint16)
    data = Dataset.of("mine", (tokens, [0, 1]), (tokens, [1, 0]))
    assert data.train.inputs.read().tolist() == tokens.tolist() and data.train.inputs.read().dtype == torch.int64


REFUSED: dict[str, tuple[Any, str]] = {
    "words": ((np.array([["a"], ["b"]]), [0, 1]), r"mine: train inputs must be numbers; found <U1"),
    "objects": (([[1.0, "x"], [2.0, "y"]], [0, 1]), r"mine: train inputs must be numbers; found <U"),
    "complex": ((np.ones((2, 2), complex), [0, 1]), r"mine: train inputs must be numbers; found complex128"),
    "NaN": ((np.array([[1.0], [np.nan]]), [0, 1]), r"must be finite; the first that are not are those of sample 1"),
    "one dimension": ((np.ones(4), [0, 1, 0, 1]), r"train inputs must be \(samples, …\), at least one; found 4"),
    "nothing": ((np.ones((0, 3)), []), r"train inputs must be \(samples, …\), at least one; found 0×3"),
    "too few labels": ((np.ones((3, 2)), [0, 1]), r"mine: train: 2 labels for 3 samples; each needs one"),
    "labels below 0": ((np.ones((2, 2)), [0, -1]), r"train labels must be 0 to 1; found -1"),
    "one class each": ((np.ones((2, 2)), [0, 7]), r"train labels must be 0 to 1; found 7"),
    "labels that are NaN": ((np.ones((2, 2)), [0.5, np.nan]), r"train labels must be finite"),
    "no pair": (7, r"train must be a pair of arrays \(inputs, labels\) or a torch Dataset; found int"),
    "other width": ((np.ones((2, 5)), [0, 1]), r"one shape; found 5 in train, 2 in test"),
    "classes or values": ((np.ones((2, 2)), [0.5, 1.5]), r"labels must be whole in both splits, or real in both"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_data_set_is_one_line(case):
    train, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as problem:
        Dataset.of("mine", train, (np.ones((2, 2)), [0, 1]))
    assert "\n" not in str(problem.value)


def test_sites_must_fit():
    with pytest.raises(InputError, match="train_sites must be one whole number for each of 20 samples"):
        Dataset.of("mine", pair(), pair(4), train_sites=[0, 1])


# Torch's Datasets


class Squares(TensorDataset):
    """Reads nothing before it is asked to, and counts."""

    def __init__(self, count: int, *, broken: int | None = None) -> None:
        super().__init__(torch.arange(count * 4.0).reshape(count, 4), torch.arange(count) % 2)
        self.targets, self.reads, self.broken = self.tensors[1], 0, broken

    def __getitem__(self, index):
        self.reads += 1
        inputs, label = super().__getitem__(index)
        return (inputs[:3] if index == self.broken else inputs), label


def test_a_torch_dataset_is_read_when_it_is_needed():
    train = Squares(300)
    data = Dataset.of("lazy", train, Squares(6))
    assert isinstance(data.train.inputs, Lazy) and train.reads <= 66 and data.shape == (4,)
    some = torch.tensor([7, 3, 3])
    assert torch.equal(data.train.inputs.read(some), train.tensors[0][some])
    assert torch.equal(data.train.select(torch.tensor([9, 4])).inputs.read(), train.tensors[0][[9, 4]])


def test_workers_read_the_same():
    data = Dataset.of("lazy", Squares(30), Squares(6))
    state = torch.random.get_rng_state()
    order = list(torch.split(torch.randperm(30, generator=torch.Generator().manual_seed(0)), 7))
    alone, helped, again = (list(data.train.inputs.batches(order, workers)) for workers in (0, 2, 2))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(alone, helped, again, strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_item_of_another_shape_is_one_line():
    data = Dataset.of("lazy", Squares(300, broken=11), Squares(6))
    with pytest.raises(InputError, match="lazy: train: item 11 is 3, the first 4"):
        data.train.inputs.read()


class Torn(Squares):
    def __getitem__(self, index):
        if index == 11:
            raise OSError("cannot identify\nimage file")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_that_cannot_be_read_is_one_line(workers):
    data = Dataset.of("lazy", Torn(300), Squares(6))
    told = "^lazy: train: item 11 cannot be read: OSError: cannot identify image file$"
    with pytest.raises(InputError, match=told):
        list(data.train.inputs.batches([torch.arange(9, 13)], workers))


def test_a_run_is_the_same_in_memory_and_lazily():
    lazy = Dataset.of("lazy", Squares(60), Squares(20))
    train, test = (Samples(InMemory(split.inputs.read()), split.labels) for split in (lazy.train, lazy.test))
    kept = Dataset("lazy", train, test, lazy.task)
    first, second = simulate(scenario(lazy), workers=2), simulate(scenario(kept))
    assert first.f1 == second.f1 and [r["loss"] for r in first.rounds] == [r["loss"] for r in second.rounds]


# Tasks


def line(count: int) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(count).normal(size=(count, 3))
    return values, values @ np.array([1.0, -2.0, 0.5]) + 0.1


def test_r_squared_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(50, 2, generator=generator)
    found = truth + 0.3 * torch.randn(50, 2, generator=generator)
    assert r_squared(found, truth) == pytest.approx(r2_score(truth, found))
    assert r_squared(torch.ones(3, 1), torch.ones(3, 1)) == 1 and r_squared(torch.zeros(3, 1), torch.ones(3, 1)) == 0


def test_a_regression_learns_a_line_and_is_scored_by_r_squared(tmp_path):
    data = Dataset.of("line", line(300), line(100))
    assert isinstance(data.task, Regression) and data.num_classes is None
    changes = {"attack": "none", "byzantine": 0, "rounds": 30, "learning_rate": 0.01, "aggregator": "fedavg"}
    history = simulate(scenario(data, **changes), folder=tmp_path / "run")
    assert history.metric == "r2" and history.metrics == ("r2",)
    assert history.score > 0.95 and history.scores[0] < history.score
    assert "r2_last5" in history.result() and "r2_last5=" in repr(history)


def test_a_loss_is_summed_over_samples_and_averaged_over_values():
    outputs, labels = torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.zeros(2, 2)
    assert Regression(2).loss(outputs, labels, "sum") == 5 and Regression(2).loss(outputs, labels) == 2.5
    assert Regression().loss(torch.tensor([[2.0]]), torch.tensor([0.0])) == 4


def test_attacks_on_classes_say_where_they_make_no_sense():
    data = Dataset.of("line", line(30), line(10))
    with pytest.raises(InputError, match="labelflip changes classes, and the labels of line are no classes"):
        Federation(scenario(data, attack="labelflip"))
    Federation(scenario(data, attack="labelflip", byzantine=0))
    with pytest.raises(InputError, match="dirichlet: deals by class, and these labels are real numbers; take iid"):
        Federation(scenario(data, partition="dirichlet"))


class Ordinal(Task):
    """Grades 0, 1, 2, learnt as one number."""

    score = "within_one"

    @property
    def outputs(self) -> int:
        return 1

    def loss(self, outputs, labels, reduction="mean"):
        return torch.nn.functional.mse_loss(outputs[:, 0], labels.float(), reduction=reduction)

    def metrics(self, outputs, labels):
        error = (outputs[:, 0] - labels).abs()
        return {"within_one": float((error <= 1).double().mean()), "error": float(error.mean())}


def test_a_task_of_your_own(tmp_path):
    data = Dataset.of("grades", pair(60, classes=3), pair(30, classes=3), task=Ordinal())
    history = simulate(scenario(data), folder=tmp_path / "run")
    assert history.metrics == ("within_one", "error") and 0 <= history.score <= 1
    assert all(math.isfinite(record["loss"]) for record in history.rounds)


class ScoreLast(Ordinal):
    def metrics(self, outputs, labels):
        return dict(reversed(super().metrics(outputs, labels).items()))


class NoScore(Ordinal):
    def metrics(self, outputs, labels):
        return {"error": 0.0}


def test_the_score_judges_wherever_it_stands():
    train, test = pair(60, classes=3), pair(30, classes=3)
    first, last = (simulate(scenario(Dataset.of("grades", train, test, task=each()))) for each in (Ordinal, ScoreLast))
    assert last.metric == "within_one" and first.scores == last.scores
    with pytest.raises(TypeError, match=r"NoScore\.metrics must have its score, within_one, and no loss; found error"):
        simulate(scenario(Dataset.of("grades", train, test, task=NoScore())))


def test_labels_are_checked_for_a_given_task_too():
    with pytest.raises(InputError, match="mine: test labels must be 0 to 2; found 5"):
        Dataset.of("mine", pair(9, classes=3), (pair(4)[0], [0, 1, 2, 5]), task=Classification(3))
    with pytest.raises(InputError, match="mine: train labels must be whole numbers 0 to 2; found real"):
        Dataset.of("mine", line(9), line(4), task=Classification(3))


def test_both_splits_are_of_one_kind():
    bytes_, floats = np.zeros((9, 4), np.uint8), np.zeros((9, 4), np.float32)
    with pytest.raises(InputError, match="mine: inputs must be of one kind; found uint8 in train, float32 in test"):
        Dataset.of("mine", (bytes_, np.arange(9) % 2), (floats, np.arange(9) % 2))
    values = np.zeros(9, np.float32)
    with pytest.raises(InputError, match="mine: all labels must have one shape; found 9×2 in train, 9 in test"):
        Dataset.of("mine", (floats, np.zeros((9, 2), np.float32)), (floats, values))
    with pytest.raises(InputError, match="mine: train inputs must be numbers of one shape; found rows of different"):
        Dataset.of("mine", ([[1.0], [1.0, 2.0]], [0, 1]), (floats, np.arange(9) % 2))


def test_a_table_of_whole_numbers_says_what_to_do():
    tokens = (torch.arange(80).view(20, 4), torch.arange(20) % 2)
    with pytest.raises(
        InputError, match=r"mlp cannot train on made: .*; its inputs are whole numbers, as tokens are: of"
    ):
        Federation(scenario(Dataset.of("mine", tokens, tokens), model="mlp"))


def test_a_value_that_never_varies_and_a_model_of_nan():
    same = torch.ones(5, 1)
    assert (
        r_squared(same, same) == 1 and r_squared(same * 2, same) == 0 and math.isnan(r_squared(same * math.nan, same))
    )


def test_what_layers_draw_depends_on_the_scenario_alone():
    data = Dataset.of("mine", pair(60), pair(20))
    drawn = scenario(data, model={"name": "mlp", "dropout": 0.5})
    first = simulate(drawn)
    torch.rand(3)  # somebody else's draws
    state = torch.random.get_rng_state()
    second = simulate(drawn)
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's draws change"
    assert [r["loss"] for r in first.rounds] == [r["loss"] for r in second.rounds]


def test_a_model_that_has_no_score_is_told_as_nothing():
    data = Dataset.of("line", line(30), line(10))
    changes = {"attack": "none", "byzantine": 0, "aggregator": "fedavg", "server_learning_rate": 1e38}
    history = simulate(scenario(data, **changes))
    assert history.rounds[-1]["r2"] is None and history.rounds[-1]["loss"] is None and math.isnan(history.score)
    assert history.result()["r2_last5"] is None and sparkline([math.nan, 1.0]) == " █" and str(score(math.nan)) == "–"


def test_a_network_for_images_names_what_it_was_given():
    with pytest.raises(InputError, match=r"cnn takes images .* and an input is 3; take mlp"):
        Federation(scenario(Dataset.of("mine", pair(), pair(4)), model="cnn"))


def test_what_nobody_can_learn_and_sites_that_share_a_client_are_told():
    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    unseen = Dataset.of("mine", (features, np.arange(40) % 2), (features[:4], [0, 1, 2, 3]))
    notes = Federation(scenario(unseen)).notes
    assert notes == ("no training sample is of class 2, 3, which the test set has: nobody can learn it",)
    sites = Dataset.of(
        "mine", (features, np.arange(40) % 2), (features[:4], [0, 1, 0, 1]), train_sites=np.arange(40) % 7
    )
    (note,) = Federation(scenario(sites, partition="site")).notes
    assert note.startswith("7 sites share ") and "--clients 7" in note
