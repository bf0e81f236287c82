"""Flower's simulation runtime, which is Ray: our strategy there beside Flower's own, and scenarios of ours."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from fedseca.audit import conduct, read_audit
from fedseca.federation import Scenario, read_history, simulate
from fedseca.federation.folder import read_model
from tests.deployment.processes import running

ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "120",
    "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "examples" / "flower-app"])),
}
_SECONDS = 600


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """A command of Python's to its end, in a session of its own, of which nothing is left afterwards."""
    words = [sys.executable, *map(str, command)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | _ENVIRONMENT,
        start_new_session=True, cwd=ROOT,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=_SECONDS)
    finally:
        left = end_session(process.pid)
    assert not left, f"these outlived {command}: {left}"
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def end_session(session: int) -> list[str]:
    """Ray's processes end some seconds after their maker. What is left after that, and now ended by its id."""
    deadline = time.monotonic() + 30
    while left := [process for process in running() if process.session == session]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return [process.command for process in left]


def test_two_of_six_nodes_with_ipm(tmp_path):
    done = run("-m", "tests.deployment.simulated", tmp_path / "f1.json")
    assert done.returncode == 0, done.stdout + done.stderr
    scores = json.loads((tmp_path / "f1.json").read_text())
    assert scores["fedseca"][-1] > 0.85
    assert scores["FedAvg"][-1] < scores["fedseca"][-1] - 0.3
    suspicious = [each for each in conduct(read_audit(tmp_path / "audit" / "audit.jsonl")) if each.suspicious]
    assert len(suspicious) == 2, suspicious


def test_a_scenario_gives_the_same_as_the_built_in_loop(tmp_path):
    """The same folder, the same numbers. With `labelflip` the Byzantine clients train, too."""
    options = {"rounds": 2, "clients": 6, "byzantine": 2, "participation": 0.8, "attack": "labelflip"}
    scenario = Scenario.of(options)
    small = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = (
        "-c",
        "from fedseca.cli import main; main()",
        "run",
        *small,
        "--engine",
        "flower",
        "-o",
        tmp_path / "run",
    )
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    history, here = read_history(tmp_path / "run"), simulate(scenario)
    assert history.scenario == scenario and history.f1 == pytest.approx(here.f1, abs=1e-6)
    model = read_model(tmp_path / "run")
    assert here.model is not None and model.keys() == here.model.keys()
    for name, value in here.model.items():
        torch.testing.assert_close(model[name], value, rtol=0, atol=1e-5)
    assert [line["client"] for line in history.audit] == [line["client"] for line in here.audit]
    report = run("-c", "from fedseca.cli import main; main()", "report", tmp_path / "run", "-o", tmp_path / "page.html")
    assert report.returncode == 0 and (tmp_path / "page.html").stat().st_size > 100_000, report.stderr
