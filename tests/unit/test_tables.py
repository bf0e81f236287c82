"""Tables: what is filled in and from whom, what is held out, and what is refused."""

from typing import Any

import pytest
import torch

from fedseca.data import DATASETS, Dataset
from fedseca.data.heart_disease import CATEGORIES, COLUMNS, HOSPITALS
from fedseca.data.samples import InMemory
from fedseca.errors import InputError
from fedseca.federation import Scenario, simulate
from tests.unit.data_files import make_heart

FEATURES = [
    f"{name}={each}" if name in CATEGORIES else name for name in COLUMNS for each in CATEGORIES.get(name, (None,))
]


def load(folder) -> Dataset:
    return DATASETS.make("heart_disease").load(folder)


def features(split) -> torch.Tensor:
    assert isinstance(split.inputs, InMemory)
    return split.inputs.values


def column(split, name: str) -> torch.Tensor:
    return features(split)[:, FEATURES.index(name)]


def test_every_hospital_holds_a_fifth_back(tmp_path):
    data = load(make_heart(tmp_path, patients=40))
    assert data.shape == (len(FEATURES),) == (22,) and data.num_classes == 2
    assert data.train.sites is not None
    assert torch.bincount(data.train.sites).tolist() == [32] * len(HOSPITALS) and len(data.test) == 32


def test_each_patient_keeps_its_values(tmp_path):
    """The one of 99 years, whichever split it is in, is the one that was written."""
    data = load(make_heart(tmp_path, age=99, cp=3, thal=6, oldpeak=2.5, num=0))
    (split,) = (each for each in (data.train, data.test) if 99 in column(each, "age"))
    (row,) = (column(split, "age") == 99).nonzero().flatten().tolist()
    assert [float(column(split, f"cp={each}")[row]) for each in (1, 2, 3, 4)] == [0, 0, 1, 0]
    assert [float(column(split, f"thal={each}")[row]) for each in (3, 6, 7)] == [0, 1, 0]
    assert float(column(split, "oldpeak")[row]) == 2.5 and int(split.labels[row]) == 0


@pytest.mark.parametrize("missing", ["?", "-9", "-9.0"])
def test_what_is_missing_is_filled_from_the_training_patients(tmp_path, missing):
    """By hand: the lower median of a number; a test patient has no say in it."""
    data = load(make_heart(tmp_path, patients=15, chol=missing, num=0, age=99))
    chol = column(data.train, "chol")
    assert data.train.sites is not None
    elsewhere = chol[(data.train.sites != 2) & (column(data.train, "age") != 99)]
    expected = elsewhere.sort().values[(len(elsewhere) - 1) // 2]
    unknown = torch.cat([chol[data.train.sites == 2], column(data.test, "chol")[-3:]])
    assert not (chol == 0).any() and (chol[data.train.sites == 2] == expected).all()
    assert expected in unknown


def test_a_test_patient_has_no_say_in_what_is_filled_in(tmp_path):
    """Of the first hospital the first row is a test patient: whatever its blood pressure is, nothing else changes."""
    first, other = (load(make_heart(tmp_path / str(value), trestbps=value, num=0)) for value in (101, 399))
    assert torch.equal(features(first.train), features(other.train))
    assert (features(first.test) != features(other.test)).sum() == 1


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a word": ({"age": "old"}, "line 1: age must be a number, or ? where it is missing; found 'old'"),
    "a category that is none": ({"thal": "5"}, "line 1: thal must be one of 3, 6, 7; found 5"),
    "neither yes nor no": ({"sex": "2"}, "line 1: sex must be one of 0, 1; found 2"),
    "no outcome": ({"num": "?"}, "line 1: num is missing; every patient needs it"),
    "beyond all bounds": ({"chol": "1e99"}, "line 1: chol must be a number of this world; found 1e+99"),
    "infinite": ({"age": "inf"}, "line 1: age must be a number of this world; found inf"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_table_is_one_line(tmp_path, case):
    values, message = BROKEN[case]
    with pytest.raises(InputError) as problem:
        load(make_heart(tmp_path, **values))
    assert str(problem.value) == f"{tmp_path / 'processed.cleveland.data'}: {message}"


def test_another_table_under_its_name(tmp_path):
    file = make_heart(tmp_path) / "processed.va.data"
    file.write_text("1,2,3\n")
    with pytest.raises(InputError, match=r"processed.va.data: line 1 must have 14 columns \(age, .*num\); found 3"):
        load(tmp_path)
    file.write_text("\n")
    with pytest.raises(InputError, match=r"processed.va.data: holds no patients"):
        load(tmp_path)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"processed.va.data: cannot be read"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(InputError, match=r"heart_disease in .* lacks processed.va.data; put processed.cleveland.data"):
        load(tmp_path)


def test_a_hospital_each(tmp_path):
    """Four clients, one for each hospital, of which the second is malicious."""
    scenario = Scenario(
        dataset="heart_disease",
        model="mlp",
        partition="site",
        clients=4,
        byzantine_clients="1",
        rounds=2,
        attack="nonfinite",
    )
    history = simulate(scenario, data_dir=make_heart(tmp_path))
    assert [line["rejected"] for line in history.by_client()] == [0, 2, 0, 0]
    assert history.metrics == ("f1", "accuracy")
