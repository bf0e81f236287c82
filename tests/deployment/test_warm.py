"""`fedseca warm` on a machine where nothing was compiled yet; it takes most of a minute."""

import os
import subprocess
import sys

from tests.e2e.command import PATIENCE, run_cold

PROGRAM = "import torch, fedseca; fedseca.aggregate(torch.randn(30, 3000)); fedseca.aggregate(torch.ones(5, 9), 'krum')"


def test_warm_compiles_what_a_round_needs(tmp_path):
    kept = {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = run_cold("warm", **kept)
    assert done.returncode == 0, done.stderr
    assert "signs and quantiles" in done.stdout and "ready: " in done.stdout
    compiled = set(tmp_path.rglob("*.nbc"))
    used = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | kept, capture_output=True, timeout=PATIENCE)
    assert used.returncode == 0 and set(tmp_path.rglob("*.nbc")) == compiled and compiled
