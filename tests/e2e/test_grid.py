"""`fedseca grid` as people and programs use it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedseca.experiments.store import Store
from fedseca.federation import simulate
from tests.e2e.test_command_line import run, run_each

ROOT = Path(__file__).parents[2]
QUICK = ("--rounds", 2, "--train-images", 60, "--test-images", 40)


def test_a_grid_and_what_is_shown(tmp_path):
    out = tmp_path / "grid"
    options = ("--aggregator", "fedavg,fedseca", "--attack", "ipm,none", "--vary", "sparsity=0.5,0.9", "-j", 2)
    done = run("grid", *QUICK, *options, "-o", out)
    assert done.returncode == 0, done.stderr
    rows = [line.replace("│", " ").split() for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [["fedavg", "–"], ["fedseca", "0.5"], ["fedseca", "0.9"]]
    assert "6 of 6 cells are done, written to" in done.stdout
    store = Store(out)
    for cell in store.cells():
        row = next(r for r in rows if r[:2] == [cell.aggregator.name, str(getattr(cell.aggregator, "sparsity", "–"))])
        assert f"{store.history(cell).f1_last5:.3f}" == row[2 if cell.attack.name == "ipm" else 3]
    again = json.loads(run("grid", *QUICK, *options, "-o", out, "--json").stdout)
    assert len(again["done"]) == 6 and again["failed"] == []
    assert all(Path(cell["folder"]).is_dir() for cell in again["done"])


def test_a_cell_that_fails_does_not_stop_the_grid(tmp_path):
    done = run("grid", "--rounds", 1, "--train-images", "60,5000", "-o", tmp_path / "grid")
    assert done.returncode == 1
    assert "failed: InputError: digits has 1437 training images; found a wish for 5000" in done.stdout
    assert "1 of 2 cells are done" in done.stdout


BAD: dict[str, tuple[list[object], str]] = {
    "unknown rule": (["--aggregator", "fedavg,krumm"], "unknown rule 'krumm'; did you mean 'krum'?"),
    "unknown name": (["--vary", "sparsty=1"], "unknown name to vary 'sparsty'; did you mean 'sparsity'?"),
    "no values": (["--vary", "sparsity"], "--vary takes NAME=V1,V2,…; found 'sparsity'"),
    "an empty value": (["--seed", "1,,2"], "values stand with commas between them; found '1,,2'"),
    "twice": (["--seed", "1", "--vary", "seed=2"], "seed is varied twice; give all its values at once"),
    "no jobs": (["-j", "0"], "jobs must be an integer ≥ 1; found 0"),
    "no data": (["--dataset", "cifar10", "--data-dir", "."], "cifar10 is not in"),
    "no data folder": (["--data-dir", "nowhere"], "data folder nowhere: no such folder"),
    "no address": (["--ray", "nonsense"], "--ray takes HOST:PORT, ray://HOST:PORT, auto or local; found 'nonsense'"),
    "no threads": (["--threads", "0"], "threads must be an integer ≥ 1; found 0"),
    "out of bounds": (["--vary", "sparsity=0.5,1.5"], "fedseca: sparsity must be float ≥ 0, < 1; found 1.5"),
    "no config": (["--config", "nowhere.toml"], "nowhere.toml: No such file or directory"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, subprocess.CompletedProcess[str]]:
    folders = {fault: tmp_path_factory.mktemp("bad") for fault in BAD}
    done = run_each({f: (folders[f], ["grid", *arguments, "-o", "grid"]) for f, (arguments, _) in BAD.items()})
    assert not any(list(folder.iterdir()) for folder in folders.values())
    return done


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(refusals, fault):
    done, message = refusals[fault], BAD[fault][1]
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_killed_in_the_middle_of_its_cells_it_goes_on_and_gives_the_same_numbers(tmp_path):
    out = tmp_path / "grid"
    options = ["--rounds", "25", "--train-images", "200", "--test-images", "40", "--seed", "0,1,2", "-j", "2"]
    command = [sys.executable, "-c", "from fedseca.cli import main; main()", "grid", *options, "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if out.exists() and any(cell for cell in Store(out).cells() if 6 <= Store(out).rounds(cell) < 20):
            break
        time.sleep(0.02)
    assert process.poll() is None, "the grid was too quick to be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    store = Store(out)
    assert len(store.cells()) == 3
    for cell in store.cells():
        assert store.history(cell).f1 == simulate(cell, threads=1).f1


def test_plugins_are_known_in_every_process(tmp_path):
    plugin = ROOT / "examples" / "attacks" / "top_flip.py"
    options = ("--attack", "top_flip,none", "--vary", "share=0.1,0.5", "-o", tmp_path / "grid")
    done = run("--plugin", plugin, "grid", *QUICK, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 cells are done" in done.stdout


def test_on_ray(tmp_path):
    """A local Ray of two workers gives the numbers of this process."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = run(
        "grid", *QUICK, "--aggregator", "fedavg,cwmed,rfa", "--ray", "local", "-o", tmp_path / "grid", **settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    store = Store(tmp_path / "grid")
    assert len(store.cells()) == 3
    for cell in store.cells():
        assert store.history(cell).f1 == simulate(cell, threads=1).f1


def test_no_ray_there_is_one_line(tmp_path):
    done = run("grid", *QUICK, "--ray", "127.0.0.1:1", "-o", tmp_path / "grid", RAY_USAGE_STATS_ENABLED="0")
    assert done.returncode == 2 and "no Ray cluster at '127.0.0.1:1'" in done.stderr, done.stderr
    assert os.listdir(tmp_path) == []
