"""`fedseca stress` as people use it."""

import csv
import json

import pytest

from tests.e2e.command import run

_SMALL = ["--set", "model=mlp", "--set", "train_images=100"]


def test_a_table_a_picture_a_page_and_all_crafts(tmp_path):
    out = tmp_path / "out"
    told = run("stress", "--aggregator", "cwmed,fedavg", "--rounds", 1, *_SMALL, "-o", out).stdout
    assert {file.name for file in out.iterdir()} == {
        "stress.csv",
        "stress.png",
        "stress.experiment.json",
        "stress.html",
    }
    assert "digits · 5 clients, 2 Byzantine" in told and "lower bound" in told
    lines = [line.split() for line in told.splitlines()]
    worst = {line[0]: float(line[4]) for line in lines if line[:1] in (["cwmed"], ["fedavg"]) and len(line) > 5}
    assert worst["fedavg"] == -1 < worst["cwmed"]
    with open(out / "stress.csv", newline="") as file:
        crafts = list(csv.DictReader(file))
    assert len(crafts) > 400 and {craft["aggregator"] for craft in crafts} == {"cwmed", "fedavg"}
    least = min(float(craft["cosine"]) for craft in crafts if craft["aggregator"] == "cwmed")
    assert least == pytest.approx(worst["cwmed"], abs=5e-3)
    page = (out / "stress.html").read_text()
    assert "fedseca stress --aggregator cwmed,fedavg --rounds 1 --set model=mlp --set train_images=100" in page


def test_it_goes_on_from_the_model_of_a_run(tmp_path):
    same = ["--clients", 4, "--byzantine", 1, "--rule", "cwmed"]
    run("run", "--model", "mlp", "--train-images", 100, "--rounds", 2, *same, "-o", tmp_path / "run")
    command = ["stress", "--from", tmp_path / "run", "--rounds", 1, "-o", tmp_path / "out", "--json"]
    (found,) = json.loads(run(*command).stdout)
    assert found["aggregator"] == "cwmed" and found["crafts"] > 200, "not the run's own rule"
    assert set(found["worst"]) == {"worst cosine", "least norm", "largest norm", "κ̂", "ξ̂"}
    fresh = run("stress", "--rounds", 1, *_SMALL, *same, "-o", tmp_path / "new", "--json")
    assert json.loads(fresh.stdout)[0]["unharmed"] != found["unharmed"], "it did not begin with the run's model"


def test_a_setting_of_the_rule_is_its_setting(tmp_path):
    found = []
    for sparsity in (0.1, 0.9):
        setting = ["--set", f"aggregator.sparsity={sparsity}", "--seed", 0]
        done = run("stress", "--rounds", 1, *_SMALL, *setting, "-o", tmp_path / str(sparsity), "--json")
        found.append(json.loads(done.stdout)[0]["unharmed"])
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--byzantine", 0], "nobody is Byzantine"),
        (["--aggregator", "krumm"], "krumm"),
        (["--aggregator", ","], "--aggregator takes names of rules"),
        (["--aggregator", "bulyan"], "bulyan needs at least 11 clients"),
        (["--from", "nowhere"], "nowhere"),
        (["--from", "nowhere", "--preset", "digits"], "come from one of them"),
        (["--aggregator", "cwmed", "--set", "aggregator.sparsity=0.5"], "sparsity"),
        (["--set", "clients=3", "--aggregator", "cwmed"], "at least two of them honest"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(arguments, message, tmp_path):
    done = run("stress", *arguments, "-o", tmp_path / "out")
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
