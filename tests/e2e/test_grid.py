"""`fedseca grid` as people and programs use it."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedseca.experiments.store import Store
from fedseca.federation import Scenario, read_history, simulate
from tests.e2e.command import PATIENCE, run, run_each

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
        assert f"{read_history(store.folder(cell)).f1_last5:.3f}" == row[2 if cell.attack.name == "ipm" else 3]
    again = json.loads(run("grid", *QUICK, *options, "-o", out, "--json").stdout)
    assert len(again["done"]) == 6 and again["failed"] == []
    assert all(Path(cell["folder"]).is_dir() for cell in again["done"])


def test_a_cell_that_fails_does_not_stop_the_grid(tmp_path):
    done = run("grid", "--rounds", 1, "--train-images", "60,5000", "-o", tmp_path / "grid")
    assert done.returncode == 1
    assert "failed: InputError: digits has 1437 training samples; 5000 requested" in done.stdout
    assert "1 of 2 cells are done" in done.stdout


BAD: dict[str, tuple[list[object], str]] = {
    "unknown rule": (["--aggregator", "fedavg,krumm"], "unknown rule 'krumm'; did you mean 'krum'?"),
    "unknown name": (["--vary", "sparsty=1"], "unknown hyperparameter of scenario 'sparsty'; did you mean 'sparsity'?"),
    "one name in two parts": (
        ["--aggregator", "huber", "--attack", "minmax", "--vary", "threshold=1,2"],
        "'threshold' is a hyperparameter of more than one part; say which: aggregator.threshold, attack.threshold",
    ),
    "no such part": (["--aggregator", "nnm+krumm"], "chain 'nnm+krumm': unknown part 'krumm'; did you mean 'krum'?"),
    "no rule": (["--rule", "krum,nnm"], "'nnm' has no rule; a chain is steps before, one rule, steps after"),
    "no values": (["--vary", "sparsity"], "--vary takes NAME=V1,V2,…; found 'sparsity'"),
    "an empty value": (["--seed", "1,,2"], "values stand with commas between them; found '1,,2'"),
    "how many and which": (
        ["--byzantine", "1,2", "--byzantine-clients", "0"],
        "byzantine_clients says how many already: leave out byzantine",
    ),
    "twice": (["--seed", "1", "--set", "seed=2"], "seed is varied twice; give all its values at once"),
    "no jobs": (["-j", "0"], "jobs must be an integer ≥ 1; found 0"),
    "no jobs on Ray": (["-j", "0", "--ray", "local"], "jobs must be an integer ≥ 1; found 0"),
    "too many attackers": (
        ["--clients", "5", "--byzantine", "2,5"],
        "1 of 2 combinations cannot be run; the first is aggregator=fedseca attack=ipm clients=5 byzantine=5: ",
    ),
    "too few clients": (
        ["--aggregator", "fedavg,krum", "--vary", "num_byzantine=1,3"],
        "the first is aggregator=krum attack=ipm aggregator.num_byzantine=3: scenario: krum needs at least 6 clients",
    ),
    "no data": (["--dataset", "cifar10", "--data-dir", "."], "cifar10 is not in"),
    "no data folder": (["--data-dir", "nowhere"], "data folder nowhere: no such folder"),
    "no address": (["--ray", "nonsense"], "--ray takes HOST:PORT, ray://HOST:PORT, auto or local; found 'nonsense'"),
    "no threads": (["--threads", "0"], "threads must be an integer from 1 to 1024; found 0"),
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


class Terminal:
    """A command in a terminal of its own, as people sit at it."""

    _MAIN = (
        "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from fedseca.cli import main; main()"
    )

    def __init__(self, *arguments: object) -> None:
        self._screen, end = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._MAIN, *map(str, arguments)],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            env=os.environ | {"COLUMNS": "120", "OMP_NUM_THREADS": "1", "TERM": "xterm"},
        )
        os.close(end)

    def type(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def watch(self, until: Callable[[], bool]) -> bool:
        """Read what is shown until then, or the end of the command; whether it came to that."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self._read()
            if until():
                return True
            if self.process.poll() is not None:
                break
        return until()

    def _read(self) -> None:
        if select.select([self._screen], [], [], 0.02)[0]:
            try:
                self.shown += os.read(self._screen, 1 << 16)
            except OSError:  # nobody writes there any more
                time.sleep(0.02)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._screen)


@contextmanager
def in_terminal(*arguments: object) -> Iterator[Terminal]:
    terminal = Terminal(*arguments)
    try:
        yield terminal
    finally:
        terminal.close()


def processes_below(root: int) -> set[int]:
    """The children of a process, theirs, and so on; the dead that nobody fetched are not among them."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    parents = {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


LONG = ("--rounds", 60, "--train-images", 100, "--test-images", 20, "--seed", "0,1,2", "-j", 2)


@pytest.fixture(scope="module")
def unbroken() -> dict[int, list[float]]:
    """What the cells of LONG give, by seed."""
    cells = {seed: Scenario(rounds=60, train_images=100, test_images=20, seed=seed) for seed in range(3)}
    return {seed: simulate(cell, threads=1).f1 for seed, cell in cells.items()}


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGKILL"])
def test_stopped_in_the_middle_of_its_cells_it_goes_on_and_gives_the_same_numbers(tmp_path, unbroken, how):
    out = tmp_path / "grid"
    store = Store(out)

    def in_the_middle() -> bool:
        return any(6 <= store.rounds(cell) < 40 for cell in store.cells())

    with in_terminal("grid", *LONG, "-o", out) as terminal:
        assert terminal.watch(in_the_middle), f"it was too quick or too slow: {terminal.shown.decode()}"
        below = processes_below(terminal.process.pid)
        assert len(below) >= 3  # two cells at least and what they are forked from
        if how == "Ctrl-C":
            terminal.type(b"\x03\x03\x03")  # in impatience
        else:
            terminal.process.send_signal(signal.Signals[how])
        assert terminal.watch(lambda: terminal.process.poll() is not None)
        assert terminal.process.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
        shown = terminal.shown.decode()
    assert "Traceback" not in shown and re.search(r"[012] of 3 done, [12] running, 0 failed, 0:\d\d:\d\d so far", shown)
    assert ("stopped; the same command goes on from" in shown) == (how != "SIGKILL")
    deadline = time.monotonic() + 30
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, below))
    for file in out.rglob("*.json"):  # none is half-written
        json.loads(file.read_text())
    again = run("grid", *LONG, "-o", out, "--json")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(json.loads(again.stdout)["done"]) == len(store.cells()) == 3
    assert {cell.seed: read_history(store.folder(cell)).f1 for cell in store.cells()} == unbroken
    assert not [file for file in out.rglob(".*") if re.fullmatch(r"\..+\.[0-9a-f]{12}", file.name)]


def test_plugins_are_known_in_every_process(tmp_path):
    plugin = tmp_path / "warns.py"
    example = (ROOT / "examples" / "attacks" / "top_flip.py").read_text()
    plugin.write_text(f"{example}\nimport logging\nlogging.getLogger('fedseca.warns').warning('not by each cell')\n")
    options = ("--attack", "top_flip,none", "--vary", "share=0.1,0.5", "-o", tmp_path / "grid")
    done = run("--plugin", plugin, "grid", *QUICK, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 cells are done" in done.stdout
    assert done.stderr.count("not by each cell") == 1


def test_no_ray_there_is_one_line(tmp_path):
    done = run("grid", *QUICK, "--ray", "127.0.0.1:1", "-o", tmp_path / "grid", RAY_USAGE_STATS_ENABLED="0")
    assert done.returncode == 2 and "no Ray cluster at '127.0.0.1:1'" in done.stderr, done.stderr
    assert os.listdir(tmp_path) == []


def test_a_polite_kill_ends_as_ctrl_c_does(tmp_path):
    """The handler alone; what Ctrl-C does to a whole grid is shown above."""
    program = (
        "import signal, typer; from pathlib import Path; from fedseca.cli.grid import interruptible\n"
        "try:\n with interruptible(Path('here')):\n  signal.raise_signal(signal.SIGTERM)\n"
        "except typer.Exit as end:\n raise SystemExit(end.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 130 and done.stderr == "stopped; the same command goes on from here\n"
