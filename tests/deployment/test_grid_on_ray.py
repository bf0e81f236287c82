"""`fedseca grid --ray` with a Ray of its own. It starts many processes, so it does not stand in `make test`."""

import itertools
from typing import Any

import pytest

from fedseca.experiments.store import Store
from fedseca.federation import read_history, simulate
from tests.e2e.command import run

QUICK = ("--rounds", 2, "--train-images", 60, "--test-images", 40)


@pytest.mark.parametrize("jobs", [None, 1])
def test_on_ray(tmp_path, jobs):
    """A local Ray of two workers gives the numbers of this process; with one job, one cell after the other."""
    settings: dict[str, Any] = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    options = ("--aggregator", "fedavg,cwmed,rfa", "--ray", "local", *(() if jobs is None else ("-j", jobs)))
    done = run("grid", *QUICK, *options, "-o", tmp_path / "grid", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    store = Store(tmp_path / "grid")
    assert len(store.cells()) == 3
    for cell in store.cells():
        assert read_history(store.folder(cell)).f1 == simulate(cell, threads=1).f1
    if jobs == 1:
        folders = [store.folder(cell) for cell in store.cells()]
        spans = sorted([(f / name).stat().st_mtime_ns for name in ("config.json", "result.json")] for f in folders)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
