"""`fedseca reproduce` as people use it."""

import csv
import json
import subprocess

import pytest

from fedseca.cli.reproduce import _changes
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import Request
from tests.e2e.command import Command, run, run_each

_SMALLER = """
import dataclasses, sys
from fedseca.cli import main
from fedseca.experiments.catalogue import EXPERIMENTS as known
table, times = known["main"], known["timing"]
rows, columns = ({name: given[name] for name in kept} for given, kept in (
    (table.rows, ("krum", "fedseca")), (table.columns, ("ipm", "none"))))
small = {"train_images": 60, "test_images": 40}
if "--broken" in sys.argv:
    sys.argv.remove("--broken")
    small |= {"model": {"name": "resnet18", "stem": "imagenet"}, "batch_size": 1}
known["main"] = dataclasses.replace(table, rows=rows, columns=columns, base=small)
for name in ("concordance", "similarity"):
    some = {name: each for name, each in known[name].columns.items() if name in ("ipm", "none")}
    known[name] = dataclasses.replace(known[name], columns=some, base={**small, "rounds": 1})
known["timing"] = dataclasses.replace(times, rules=("fedavg", "fedseca"), clients=(4, 8))
"""


def reproduce(*arguments, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command with a smaller table and fewer times: what differs from the real ones is their length."""
    done = Command("reproduce", *arguments, prelude=_SMALLER).wait(300)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_table_of_the_paper_beside_ours(tmp_path):
    out = tmp_path / "out"
    command = ["main", "--rounds", 1, "--seeds", "0,1", "-o", out]
    told = reproduce(*command).stdout
    files = [
        "main.json",
        "main.csv",
        "main-rounds.csv",
        "main.png",
        "main-rounds.png",
        "main.experiment.json",
        "main.html",
    ]
    lines = [line.split() for line in told.splitlines()]
    first = next(index for index, line in enumerate(lines) if line[:1] == ["fedseca"])
    assert lines[first + 1][0] == "±" and lines[first + 2] == ["paper", "0.82", "0.81"]
    assert told.split("\n")[0].strip() == "2 rules under 2 attacks"
    assert "digits, 60 training images · 5 clients, 2 Byzantine" in told
    assert "F1, mean of the last 1 of 1 rounds" in told and "mean ± standard deviation of 2 seeds" in told
    assert max(len(line.rstrip()) for line in told.split("\n")[:6]) < 80
    assert f"{', '.join(files)} and the runs are in" in " ".join(told.split())
    rows = list(csv.DictReader((out / "main.csv").read_text().splitlines()))
    assert [(row["aggregator"], row["attack"]) for row in rows] == [
        ("krum", "ipm"), ("krum", "none"), ("fedseca", "ipm"), ("fedseca", "none")
    ]  # fmt: skip
    assert rows[2]["paper"] == "0.82" and all(0 <= float(row["f1"]) <= 1 for row in rows)
    assert all(row["count"] == "2" and float(row["std"]) >= 0 for row in rows)
    for picture in files[3:5]:
        assert (out / picture).read_bytes()[:4] == b"\x89PNG"
    page = (out / "main.html").read_text()
    assert "fedseca reproduce main --preset digits --seeds 0,1 --rounds 1" in page and str(tmp_path) not in page
    assert "2 rules under 2 attacks" in page and "digits, 60 training images" in page
    done = Command("report", out, "-o", tmp_path / "report.html").wait(60)  # shows the same
    assert done.returncode == 0 and "(1 experiment, 8 runs, " in done.stdout
    assert (tmp_path / "report.html").read_text() == page
    part = json.loads(reproduce(*command, "--only", "fedseca", "--json").stdout)
    assert [(score["row"], score["column"]) for score in part["scores"]] == [("fedseca", "ipm"), ("fedseca", "none")]
    assert [sum(score["values"]) / 2 for score in part["scores"]] == pytest.approx(
        [float(row["f1"]) for row in rows[2:]], abs=1e-4
    )
    assert "--rounds 1 --only fedseca" in (out / "main.html").read_text()


def test_pictures_are_drawn_again_where_only_the_numbers_are_kept(tmp_path):
    made, kept = tmp_path / "made", tmp_path / "kept"
    reproduce("main", "--rounds", 1, "-o", made)
    kept.mkdir()
    for name in ("main.json", "main.csv", "main-rounds.csv"):
        (kept / name).write_bytes((made / name).read_bytes())
    (made / "main.png").unlink()
    done = run("redraw", kept, made)
    assert done.returncode == 0, done.stderr
    assert [path.rsplit("/", 2)[-2:] for path in done.stdout.split()] == [
        [folder, name] for folder in ("kept", "made") for name in ("main.png", "main-rounds.png")
    ]
    for name in ("main.png", "main-rounds.png"):
        assert (kept / name).read_bytes() == (made / name).read_bytes()


def test_what_cannot_be_drawn_is_one_line_and_nothing_is_written(tmp_path):
    folders = {name: tmp_path / name for name in ("empty", "torn", "lost", "good")}
    for folder in folders.values():
        folder.mkdir()
    about = json.dumps({"seeds": [0], "setting": {"dataset": {"name": "digits"}, "rounds": 2}})
    for name in ("lost", "good"):
        (folders[name] / "main.json").write_text(about)
    (folders["torn"] / "main.json").write_text("{")
    (folders["good"] / "main.csv").write_text("aggregator,attack,f1,std,count,paper\nkrum,ipm,0.5,,1,\n")
    told = {
        "missing": "missing: no such folder",
        "empty": "empty: nothing to draw; it holds no NAME.json of `fedseca reproduce`, and no bench.json",
        "torn": "torn: main.json and its CSV cannot be drawn (JSONDecodeError",
        "lost": "lost: main.json and its CSV cannot be drawn; 'main.csv' is missing",
    }
    done = run_each({name: (tmp_path, ["redraw", "good", name]) for name in told})
    for name, message in told.items():
        assert done[name].returncode == 2 and message in done[name].stderr and done[name].stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.png"))
    assert run("redraw", folders["good"]).returncode == 0 and (folders["good"] / "main.png").exists()


def test_times_need_no_runs_and_can_be_measured_again(tmp_path):
    for _ in range(2):
        told = reproduce("timing", "--threads", 1, "-o", tmp_path).stdout
        assert told.split("\n")[0].strip() == "Seconds that 2 rules took to aggregate"
        assert "13,706 coordinates (cnn for digits) · 1 thread" in told
        assert "timing.json, timing.csv, timing.png, timing.experiment.json, timing.html are in" in told
    rows = list(csv.DictReader((tmp_path / "timing.csv").read_text().splitlines()))
    assert len(rows) == 4 and all(float(row["seconds"]) > 0 for row in rows)


def test_runs_that_fail_are_told_everywhere(tmp_path):
    told = json.loads(reproduce("main", "--broken", "--rounds", 1, "-o", tmp_path, "--json", code=1).stdout)
    assert len(told["failed"]) == 4 and "resnet18 cannot train" in told["failed"][0]["error"]
    assert all(score["values"] == [] for score in told["scores"])
    assert "resnet18 cannot train" in (tmp_path / "main.html").read_text()


@pytest.mark.parametrize("name", ["concordance", "similarity"])
def test_all_seeds_count(name, tmp_path):
    told = json.loads(reproduce(name, "--seeds", "0,1", "-o", tmp_path, "--json").stdout)
    assert told["scores"] and all(len(score["values"]) == 2 for score in told["scores"])
    assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG" and "data:image/png" in (
        tmp_path / f"{name}.html"
    ).read_text()


def test_what_is_said_counts_even_if_the_preset_says_the_same():
    """The figure `similarity` has fewer rounds of its own."""
    request = Request("fashion_mnist", changes=_changes("fashion_mnist", ["rounds=15", "model.width=8"]))
    (run,) = EXPERIMENTS["similarity"].runs(request)
    assert run.rounds == 15 and run.model.width == 8
    assert {each.rounds for each in EXPERIMENTS["similarity"].runs(Request("fashion_mnist"))} == {5}


BAD = {
    "mian": "unknown experiment 'mian'; did you mean 'main'?",
    "main --preset digit": "unknown preset 'digit'; did you mean 'digits'?",
    "timing --preset digit": "unknown preset 'digit'; did you mean 'digits'?",
    "timing --rounds 3": "timing has no runs: --rounds, --set and --seeds mean nothing to it",
    "main --seeds one": "--seeds takes whole numbers with commas between them; found 'one'",
    "main --only fedavg,kurm": "unknown rule 'kurm'; did you mean 'krum'?",
    "main --only fedavg,nnm+kurm": "chain 'nnm+kurm': unknown part 'kurm'; did you mean 'krum'?",
    "main --only nnm": "'nnm' has no rule; a chain is steps before, one rule, steps after, as nnm+cwmed",
    "concordance --only krum": "unknown row 'krum'",
    "main --rounds 0": "scenario: rounds must be integer ≥ 1; found 0",
    "main -j 0": "jobs must be an integer ≥ 1; found 0",
    "main --set attack=ipm": "main varies attack itself; run another by fedseca run or grid",
    "main --set presicion=bf16": "unknown hyperparameter of scenario 'presicion'; did you mean 'precision'?",
    "main --set precision": "--set takes PART.NAME=VALUE; found 'precision'",
    "main --device cuda:99": "device 'cuda:99' cannot be used here: ",
    "main --threads 0": "threads must be an integer from 1 to 1024; found 0",
    "": "Missing argument 'NAME'",
}


def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(tmp_path):
    done = run_each({words: (tmp_path, ["reproduce", *words.split(), "-o", "out"]) for words in BAD})
    for words, message in BAD.items():
        told = done[words]
        assert told.returncode == 2 and message in told.stderr and told.stderr.count("\n") == 1 and told.stdout == ""
    assert not list(tmp_path.iterdir())
