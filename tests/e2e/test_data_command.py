"""`fedseca data` as people and programs use it: real processes, made files."""

import json
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from tests.e2e.command import run, run_each
from tests.unit.data_files import make_arrays, make_cifar_batches, make_cifar_png, make_fashion
from tests.unit.image_files import make_eurosat, make_fedisic, write_geotiff


def test_list_says_what_is_here_and_how_to_get_the_others(tmp_path):
    make_fashion(tmp_path)
    shown = run("data", "list", "--data-dir", tmp_path)
    assert shown.returncode == 0, shown.stderr
    for words in ("fashion_mnist  here", "cifar10        missing", "60,000", "1×28×28", "fedseca data get cifar10"):
        assert words in shown.stdout
    assert str(tmp_path) in shown.stdout.replace("\n", "").replace(" ", "")


def test_list_for_programs(tmp_path):
    make_arrays(tmp_path / "arrays")
    (tmp_path / "arrays.safetensors").write_bytes(b"ignored: the folder of its name comes first")
    listed = json.loads(run("data", "list", "--json", "--data-dir", tmp_path).stdout)["datasets"]
    assert {name: about["state"] for name, about in listed.items()} == {
        "arrays": "here",
        "breast_cancer": "here",
        "cifar10": "missing",
        "digits": "here",
        "eurosat": "missing",
        "fashion_mnist": "missing",
        "fedisic": "missing",
        "heart_disease": "missing",
    }
    assert listed["arrays"] | {"how_to_get": None} == {
        "state": "here",
        "folder": str(tmp_path / "arrays"),
        "train": 20,
        "test": 8,
        "classes": 4,
        "shape": [3, 4, 5],
        "problem": None,
        "how_to_get": None,
    }


def test_a_broken_set_does_not_hide_the_others(tmp_path):
    (tmp_path / "arrays.safetensors").write_bytes(b"\x1b[2J not safetensors")
    done = run("data", "list", "--data-dir", tmp_path)
    assert done.returncode == 0 and "arrays         broken" in done.stdout and "digits         here" in done.stdout
    assert "\x1b" not in done.stdout


BROKEN = """
import numpy as np, torch
from dataclasses import dataclass
from fedseca import register
from fedseca.data import Dataset, DataSource
from fedseca.models import Model
from torch.utils.data import Dataset as TorchDataset

class Items(TorchDataset):
    def __len__(self):
        return 9
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("row 7 is damaged")
        return torch.ones(3), index % 2

@register("no_column")
@dataclass(frozen=True, kw_only=True)
class NoColumn(DataSource):
    "Has no such column."
    def load(self, data_dir=None):
        return {}["age"]

@register("no_dataset")
@dataclass(frozen=True, kw_only=True)
class NoDataset(DataSource):
    "Answers something else."
    def load(self, data_dir=None):
        return 5

@register("damaged")
@dataclass(frozen=True, kw_only=True)
class Damaged(DataSource):
    "Has an item that cannot be read."
    def load(self, data_dir=None):
        return Dataset.of("damaged", Items(), Items())

@register("too_few")
@dataclass(frozen=True, kw_only=True)
class TooFew(Model):
    "Has one output, whatever is asked."
    def layers(self, shape, outputs):
        return torch.nn.Linear(shape[0], 1)

@register("no_layers")
@dataclass(frozen=True, kw_only=True)
class NoLayers(Model):
    "Cannot be made."
    def layers(self, shape, outputs):
        return shape.nothing
"""


def test_what_breaks_in_code_of_ones_own_is_one_line(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(BROKEN)
    with_it = ("--plugin", plugin)
    table = ("--preset", "breast_cancer", "--rounds", "1", "-o", tmp_path / "run")
    expected = {
        ("run", "--dataset", "no_column"): "data set no_column cannot be loaded: KeyError: 'age' (mine.py, line 22)",
        ("run", "--dataset", "no_dataset"): "data set no_dataset cannot be loaded: load must answer a Dataset, found 5",
        ("run", "--dataset", "damaged"): "damaged: train: item 7 cannot be read: ValueError: row 7 is damaged\n",
        ("run", *table, "--model", "too_few"): "it gives 1 numbers for a sample, and the task needs 2",
        ("run", *table, "--model", "no_layers"): "cannot be made: AttributeError: 'tuple' object has no attribute",
        ("data", "show", "no_column"): "data set no_column cannot be loaded: KeyError",
    }
    for command, message in expected.items():
        done = run(*with_it, *command)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert message in done.stderr
    listed = run(*with_it, "data", "list", "--json")
    states = {name: about["state"] for name, about in json.loads(listed.stdout)["datasets"].items()}
    assert states["digits"] == "here" and states["no_column"] == states["damaged"] == "broken"


def test_path_is_for_scripts(tmp_path):
    make_cifar_png(tmp_path / "cifar10")
    assert run("data", "path", "cifar10", "--data-dir", tmp_path).stdout == f"{tmp_path / 'cifar10'}\n"
    assert run("data", "path", "cifar10", FEDSECA_DATA=str(tmp_path)).stdout == f"{tmp_path / 'cifar10'}\n"


def test_get_of_what_is_here_does_nothing(tmp_path):
    make_fashion(tmp_path / "fashion_mnist")
    done = run("data", "get", "fashion_mnist", "--data-dir", tmp_path, PATH="")
    assert done.returncode == 0 and done.stdout == f"{tmp_path / 'fashion_mnist'}\n"
    digits = run("data", "get", "digits")
    assert digits.returncode == 0 and digits.stdout == "" and "digits is here" in digits.stderr


def test_show_who_has_what(tmp_path):
    options = ["--clients", "4", "--alpha", "0.1", "--seed", "3"]
    report = json.loads(run("data", "show", "digits", *options, "--json").stdout)
    assert report["hyperparameters"] == {"alpha": 0.1} and len(report["counts"]) == 4
    assert sum(map(sum, report["counts"])) == 1437
    assert report == json.loads(
        run("data", "show", "digits", *options[:2], "--set", "alpha=0.1", "--seed", "3", "--json").stdout
    )
    shown = run("data", "show", "digits", *options).stdout.splitlines()
    assert shown[0].strip() == "digits dealt out by dirichlet, alpha=0.1, seed 3"
    for client, row in enumerate(report["counts"]):
        cells = shown[2 + client].split()
        assert cells[:11] == [str(client), *("·" if not count else str(count) for count in row)]
        assert cells[11] == f"{sum(row):,}"


def test_show_the_sites_of_own_data(tmp_path):
    make_arrays(tmp_path)
    done = run("data", "show", "arrays", "--partition", "site", "--clients", "3", "--data-dir", tmp_path, "--json")
    assert [sum(row) for row in json.loads(done.stdout)["counts"]] == [7, 7, 6]
    shown = run("data", "show", "arrays", "--partition", "site", "--clients", "2", "--data-dir", tmp_path).stdout
    assert "3 sites share 2 clients; --clients 3 makes each site a client of its own" in shown


def test_a_regression_has_no_classes_to_show_and_no_f1(tmp_path):
    rows, values = torch.randn(40, 3), torch.randn(40)
    samples = {"train_inputs": rows, "train_labels": values, "test_inputs": rows[:9].clone()}
    save_file({**samples, "test_labels": values[:9].clone()}, tmp_path / "arrays.safetensors")
    here = ["--data-dir", tmp_path]
    shown = run("data", "show", "arrays", "--partition", "iid", "--clients", 2, *here).stdout.splitlines()
    assert shown[1].split() == ["client", "samples"] and shown[2].split()[:2] == ["0", "20"]
    grid = ["grid", "--dataset", "arrays", "--model", "mlp", "--partition", "iid", "--rounds", 1, "--attack", "none"]
    done = run(*grid, *here, "-o", tmp_path / "grid")
    assert done.returncode == 0 and "R², mean over the seeds" in done.stdout
    refused = run("reproduce", "main", "--set", "dataset=arrays", *here, "-o", tmp_path / "main")
    assert refused.returncode == 2 and refused.stderr == (
        "error: main is about classes, and the labels of arrays are none; take fedseca grid\n"
    )
    assert not (tmp_path / "main").exists()


def test_show_with_options_of_the_data_set(tmp_path):
    make_cifar_batches(tmp_path)
    (tmp_path / "split.csv").write_text("image,site\n" + "".join(f"{k},{k % 2}\n" for k in range(12)))
    words = ["data", "show", "cifar10", "--partition", "site", "--clients", "2", "--data-dir", tmp_path]
    done = run(*words, "--set", f"dataset.split={tmp_path / 'split.csv'}")
    assert done.returncode == 0 and "18 of 30 training images are not in" in done.stdout
    other = run(*words, "--set", "sparsity=0.5")
    assert (other.returncode, other.stderr) == (2, "error: unknown hyperparameter of site 'sparsity'. Known: none\n")


def test_show_the_subregions_of_eurosat_and_what_was_skipped(tmp_path):
    write_geotiff(make_eurosat(tmp_path / "EuroSAT_MS") / "River" / "River_8.tif", (55.75, 37.6))
    options = ["--partition", "site", "--clients", "7", "--data-dir", tmp_path]
    done = run("data", "show", "eurosat", *options)
    told = "eurosat: 1 of 71 images were skipped, of no subregion of Europe: 1 in RU"
    assert done.returncode == 0 and done.stderr == "" and done.stdout.splitlines()[-1] == told
    report = json.loads(run("data", "show", "eurosat", *options, "--json").stdout)
    assert [sum(row) for row in report["counts"]] == [8] * 7 and report["notes"] == [told]
    small = ["--set", "dataset.image_size=8", "--model", "logistic", "--rounds", "1", "-o", tmp_path / "run"]
    trained = run("run", "--dataset", "eurosat", *small, *options)
    assert trained.returncode == 0 and told in trained.stdout, trained.stderr


def test_a_broken_image_ends_a_run_with_one_line(tmp_path):
    """In whatever round and by whomever it is read."""
    broken = make_fedisic(tmp_path) / "ISIC_2019_Training_Input_preprocessed" / "ISIC_0024335.jpg"  # of the test set
    broken.write_bytes(broken.read_bytes()[:400])
    small = ["--set", "dataset.image_size=8", "--model", "logistic", "--rounds", "1", "-o", tmp_path / "run"]
    done = run("run", "--dataset", "fedisic", "--partition", "site", "--clients", "6", *small, "--data-dir", tmp_path)
    assert done.returncode == 2
    assert f"{broken}: cannot be read: " in done.stderr and done.stderr.count("\n") == 1


def test_a_narrow_terminal_keeps_the_numbers_whole(tmp_path):
    make_fashion(tmp_path, train=2000)
    shown = run("data", "show", "fashion_mnist", "--clients", "3", "--data-dir", tmp_path, COLUMNS="80").stdout
    assert "…" not in shown and len(shown.splitlines()) == 5


BAD = {
    "unknown set": (["path", "cifar"], "unknown data set 'cifar'; did you mean 'cifar10'?"),
    "missing set": (["path", "cifar10"], "cifar10 is not in"),
    "no folder": (["path", "digits"], "digits lies in no folder"),
    "not to be got": (["get", "arrays"], "arrays cannot be downloaded"),
    "unknown partition": (["show", "digits", "--partition", "iidd"], "unknown partition 'iidd'; did you mean 'iid'?"),
    "no such value": (["show", "digits", "--set", "beta=1"], "unknown hyperparameter of dirichlet 'beta'"),
    "alpha of iid": (["show", "digits", "--partition", "iid", "--alpha", "1"], "unknown hyperparameter of iid 'alpha'"),
    "alpha of 0": (["show", "digits", "--alpha", "0"], "dirichlet: alpha must be float > 0; found 0.0"),
    "too many": (["show", "digits", "--clients", "2000"], "2,000 clients cannot share 1,437 samples"),
    "none": (["show", "digits", "--clients", "0"], "scenario: clients must be integer ≥ 1; found 0"),
    "no sites": (["show", "digits", "--partition", "site"], "does not say where its samples came from"),
    "bad seed": (["show", "digits", "--seed", "-1"], "Invalid value for '--seed'"),
    "seed too large": (["show", "digits", "--seed", str(2**70)], "Invalid value for '--seed'"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("bad")
    return run_each({f: (folder, ["data", *arguments, "--data-dir", "."]) for f, (arguments, _) in BAD.items()})


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line_and_exit_code_2(refusals, fault):
    done, message = refusals[fault], BAD[fault][1]
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_a_data_folder_that_is_not_there_is_one_line(tmp_path):
    done = run("data", "list", "--data-dir", tmp_path / "nowhere")
    assert done.returncode == 2 and "no such folder" in done.stderr and done.stderr.count("\n") == 1
