"""Full disks, kills and very many clients: what is kept must be that of a run that nothing happened to.

    python -m benchmarks.faults [--disks 100] [--grid-kills 100] [--book-kills 100] [--flower-kills 10]
        [--clients 100000] [--minutes 60] [--seed 0] [--output figures.json]

Four parts, each with a count; a count of 0 leaves its part out. Every moment and every victim is drawn from `--seed`.

- disks: a run, and the loop of a running federation (Book), on a disk that gets full at a random byte; then going on
  while it is still full, which harms nothing; then with space again, to the numbers of an unbroken one.
- grid: `fedseca grid` is killed again and again: it alone, one of its processes, or all of them. Each cell must be that
  of an unbroken grid, and no process may be left.
- server: a server that is killed in its first round, without Flower (a loop of Book and play_round) and with it
  (SuperLink, SuperNodes and `flwr run` on the loopback of this machine): each round once in the audit, which fits its
  anchor.
- clients: a new set of clients in every round. Time and memory of a round must not grow with those that are gone.

Needs Linux; the Flower part needs openssl, the extra `flower` and the folder `tests`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from safetensors.torch import load_file

import fedseca.cli
import fedseca.experiments.preload
from fedseca.audit import AuditError, read_anchor, read_audit, verify
from fedseca.book import Book
from fedseca.checkpoint import CHECKPOINT, read_checkpoint
from fedseca.experiments.store import Store
from fedseca.federation import read_history
from fedseca.federation.folder import read_model
from fedseca.rounds import play_round
from fedseca.server import Server
from tests.deployment.federation import Federation
from tests.deployment.processes import running

ROOT = Path(__file__).parents[1]
PATIENCE = 900.0
"""Seconds after which something that hangs is a fault."""
RUN = ["--dataset", "digits", "--rounds", "6", "--train-images", "60", "--test-images", "40", "--checkpoint-every", "2"]
GRID = ["--rounds", "20", "--train-images", "60", "--test-images", "20", "--aggregator", "fedseca,cwmed,krum"]
GRID += ["--byzantine", "1", "--seed", "0,1,2,3"]
ROUNDS, SITES = 4, 6
Figures = dict[str, Any]
CONSOLE = Console(stderr=True)


class Fault(AssertionError):
    """Something is not as in an unbroken run."""


def warm_up() -> None:
    """What every process would load first, for seconds, is loaded once: the others are forked from this one."""
    torch.set_num_threads(1)  # with more, threads would be begun that a forked process does not have
    with tempfile.TemporaryDirectory() as folder:
        book_loop(Path(folder))


def expect(true: object, what: str) -> None:
    if not true:
        raise Fault(what)


class Count:
    """How far a part is: a bar in a terminal, lines in a file."""

    minutes: ClassVar[float] = math.inf
    """After which those parts end whose count was not reached."""

    def __init__(self, what: str, total: int) -> None:
        columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=CONSOLE, disable=not CONSOLE.is_terminal)
        self._task = self._bar.add_task(what, total=total)
        self.what, self.total, self.done = what, total, 0
        self._deadline = time.monotonic() + 60 * self.minutes

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()

    def goes_on(self) -> bool:
        return self.done < self.total and time.monotonic() < self._deadline

    def step(self) -> None:
        self.done += 1
        self._bar.advance(self._task)
        if not CONSOLE.is_terminal and self.done % max(1, self.total // 10) == 0:
            print(f"{self.what}: {self.done} of {self.total}", file=sys.stderr, flush=True)

    def __iter__(self) -> Iterator[int]:
        with self:
            for number in range(self.total):
                yield number
                self.step()


class Child:
    """Work in a process forked from this one, which has imported everything, in a session of its own."""

    _all: ClassVar[list[Child]] = []

    def __init__(self, work: Callable[[], object]) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_do(work))
        self._all[:] = [child for child in self._all if child.poll() is None] + [self]

    @classmethod
    def end_all(cls) -> None:
        """Whatever happened here, nothing is left."""
        for child in cls._all:
            child.kill()
            for pid in child.others():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None as long as it runs."""
        if self._code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code

    def runs_for(self, seconds: float) -> bool:
        """Wait so long, or for its end; whether it still runs."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.poll() is None

    def end(self) -> int:
        """Wait for its end; the exit code. One that hangs is killed, and a fault."""
        hangs = self.runs_for(PATIENCE)
        if hangs:
            self.kill()
        code = self.poll()
        expect(not hangs and code is not None, f"a process hangs for {PATIENCE:g} s")
        return code or 0

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def others(self) -> list[int]:
        """The processes that it started, and they theirs."""
        return [process.pid for process in running() if process.session == self.pid and process.pid != self.pid]

    def leaves_nothing(self) -> float:
        """When it is gone, so are they: after how many seconds.

        The process that cells are forked from hears of the end only when it has imported everything, which takes
        seconds, and a minute on a busy machine. So what is left is waited for, and the longest wait is told.
        """
        began = time.monotonic()
        while left := [process for process in running() if process.session == self.pid and process.pid != self.pid]:
            if time.monotonic() - began > PATIENCE:
                for each in left:
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)
                raise Fault(f"left behind after {PATIENCE:g} s: {[each.command[:100] for each in left]}")
            time.sleep(0.02)
        return time.monotonic() - began


def _do(work: Callable[[], object]) -> int:
    """Without a word; the exit code."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        work()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        return 1
    return 0


def command(*words: object) -> None:
    sys.argv = ["fedseca", *map(str, words)]
    fedseca.cli.main()


# What is compared


def numbers_of_run(folder: Path) -> Figures:
    """All that a run gave but for the seconds that it took; its model to the last bit."""
    verify(folder / "clients.jsonl")
    history = read_history(folder)
    rounds = [{name: value for name, value in line.items() if name != "seconds"} for line in history.rounds]
    return {"rounds": rounds, "audit": history.audit, "pairs": history.pairs, "model": bits(read_model(folder))}


def bits(model: Any) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.items()}


def numbers_of_book(folder: Path) -> Figures:
    """The audit but for its times, held against the anchor; and the model."""
    audit = folder / "audit" / "audit.jsonl"
    found = verify(audit, anchor=read_anchor(folder / "heads"))
    expect(found.anchored is not None and found.anchored.lines == found.findings.lines, "the anchor is behind")
    lines = [{name: value for name, value in line.items() if name != "time"} for line in read_audit(audit)]
    return {"audit": lines, "model": bits(read_checkpoint(folder / "kept" / CHECKPOINT).parts["model"])}


def book_loop(folder: Path, on_round: Callable[[int], object] = lambda number: None) -> None:
    """A federation as a runtime plays it, until its rounds are done; from where it was cut off."""
    before: Any = {"weight": torch.zeros(500), "bias": torch.ones(20)}
    server = Server("fedseca")
    with Book(server, folder / "audit", folder / "kept", anchor=folder / "heads") as book:
        done, model = book.resume({"sites": SITES}, before)
        current = before if model is None else model
        for number in range(done + 1, ROUNDS + 1):
            on_round(number)
            answers: dict[str, Any] = {}
            for site in range(SITES):
                rng = torch.Generator().manual_seed(1000 * number + site)
                steps = {name: 0.1 + 0.01 * torch.randn(v.shape, generator=rng) for name, v in current.items()}
                answers[str(site)] = {name: v - steps[name] for name, v in current.items()}
            answers["0"]["bias"][3] = float("nan")
            played = play_round(server, answers, current)
            book.write(number, played, run=1)
            current = played.model


# Full disks


def full_disks(count: int, rng: random.Random) -> Figures:
    """In a process of its own, which may mount a small disk that nobody else sees."""
    with tempfile.TemporaryDirectory() as folder:
        mount = f'mount -t tmpfs -o size=8m,mode=700 tmpfs "{folder}" && exec "$@"'
        inside = [sys.executable, "-m", "benchmarks.faults", "--inside", folder, "--disks", str(count)]
        words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
        try:
            can = subprocess.run([*words, "true"], capture_output=True, timeout=60).returncode == 0
        except FileNotFoundError:
            can = False
        how = "a tmpfs of 8 MB" if can else "a limit of the size of each file"
        wanted = [
            *(words if can else ()),
            *inside,
            "--seed",
            str(rng.randrange(1 << 30)),
            *(() if can else ("--limit",)),
        ]
        done = subprocess.run(wanted, stdout=subprocess.PIPE, text=True, timeout=PATIENCE * 20, cwd=ROOT)
        expect(done.returncode == 0, f"the part of the full disks ended with {done.returncode}")
        return {"disk": how, **json.loads(done.stdout.splitlines()[-1])}


class Disk:
    """A disk of which little is left; or, where none can be mounted, a limit of the size of each file."""

    def __init__(self, folder: Path, limit: bool) -> None:
        self.folder, self._limit = folder, limit
        self._left: int | None = None

    def leave(self, size: int | None) -> None:
        """Leave so many bytes; None: all."""
        self._left = size
        ballast = self.folder / "ballast"
        ballast.unlink(missing_ok=True)
        if size is not None and not self._limit:
            found = os.statvfs(self.folder)
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - size))

    def work(self, work: Callable[[], object]) -> int:
        """Do it in a process of its own to its end; the exit code."""

        def limited() -> None:
            if self._limit and self._left is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self._left, resource.RLIM_INFINITY))
            work()

        return Child(limited).end()


def inside(folder: Path, count: int, limit: bool, rng: random.Random) -> Figures:
    disk, place = Disk(folder, limit), folder / "here"
    kinds: dict[str, tuple[Callable[[], object], Callable[[Path], Figures]]] = {
        "run": (lambda: command("run", *RUN, "--resume", "-o", place), numbers_of_run),
        "book": (lambda: book_loop(place), numbers_of_book),
    }
    figures: Figures = {}
    for kind, (work, numbers) in kinds.items():
        place.mkdir()
        expect(disk.work(work) == 0, f"the unbroken {kind} fails")
        unbroken = numbers(place)
        files = [file.stat().st_size for file in place.rglob("*") if file.is_file()]
        # What a checkpoint takes beside the old one, too.
        most = max(files) if limit else sum(-(-size // 4096) * 4096 for size in files) + max(files)
        shutil.rmtree(place)
        failed = failed_again = kept = 0
        for _ in Count(f"full disks, {kind}", count):
            place.mkdir()
            disk.leave(rng.randrange(1, most))
            failed += disk.work(work) != 0
            kept += any(place.rglob(CHECKPOINT))
            failed_again += disk.work(work) != 0
            disk.leave(None)
            expect(disk.work(work) == 0, f"a {kind} does not go on after a full disk")
            expect(numbers(place) == unbroken, f"a {kind} that went on after a full disk has other numbers")
            shutil.rmtree(place)
        figures[kind] = {
            "times": count,
            "failed": failed,
            "after_a_checkpoint": kept,
            "failed_going_on": failed_again,
            "as_unbroken": count,
        }
    return figures


# Kills of a grid


def grid_kills(count: int, rng: random.Random) -> Figures:
    victims = dict.fromkeys(("the grid", "one of its processes", "all of them"), 0)
    starts, grids, longest = 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder, Count("kills of a grid", count) as kills:
        began = time.monotonic()
        unbroken = finished_grid(Path(folder, "unbroken"))
        seconds = time.monotonic() - began
        while kills.goes_on():
            place, code = Path(folder, f"grid {grids}"), 1
            while code != 0 and kills.goes_on():
                grid, wait = start_grid(place), seconds
                starts += 1
                while kills.goes_on() and grid.runs_for(rng.uniform(0.0, wait)):
                    victim = kill_some(grid, rng)
                    victims[victim] += 1
                    kills.step()
                    wait = seconds / 6  # it has begun: the next kill of this grid comes sooner
                code = grid.end()
                longest = max(longest, grid.leaves_nothing())
            expect(finished_grid(place) == unbroken, "a cell of a grid that was killed has other numbers")
            grids += 1
    cells = grids * len(unbroken)
    return {
        "kills": kills.done,
        "victims": victims,
        "starts": starts,
        "grids": grids,
        "cells_as_unbroken": cells,
        "longest_seconds_until_all_are_gone": round(longest, 1),
    }


def kill_some(grid: Child, rng: random.Random) -> str:
    """Who was killed. One of the others is drawn more often: the grid survives it, and no new one has to begin."""
    others = grid.others()
    victim = rng.choices(["the grid", "one of its processes", "all of them"], [1, 3, 1])[0] if others else "the grid"
    chosen = {"the grid": [], "one of its processes": others and [rng.choice(others)], "all of them": others}[victim]
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim != "one of its processes":
        grid.kill()
    return victim


def start_grid(place: Path) -> Child:
    return Child(lambda: command("grid", *GRID, "-j", 2, "-o", place))


def finished_grid(place: Path) -> Figures:
    """Bring a grid to its end, and say what its cells gave."""
    grid = start_grid(place)
    expect(grid.end() == 0, "a grid does not come to its end")
    grid.leaves_nothing()
    store = Store(place)
    return {cell.title: numbers_of_run(store.folder(cell)) for cell in store.cells()}


# Kills of a server in its first round


def book_kills(count: int, rng: random.Random) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "unbroken").mkdir()
        expect(Child(lambda: book_loop(Path(folder, "unbroken"))).end() == 0, "the unbroken loop fails")
        unbroken = numbers_of_book(Path(folder, "unbroken"))
        longest = statistics.median(first_round(Path(folder, f"timed {k}")) for k in range(5))
        written = 0
        for number in Count("kills in round 1, Book", count):
            place = Path(folder, str(number))
            place.mkdir()
            read, write = os.pipe()
            server = Child(lambda place=place, write=write: book_loop(place, lambda number: os.write(write, b".")))  # type: ignore[misc]
            os.close(write)
            expect(os.read(read, 1), "a server ends before its first round")
            server.runs_for(rng.uniform(0.0, 1.2 * longest))
            server.kill()
            os.close(read)
            expect(server.poll() in (0, -signal.SIGKILL), "a server fails")
            audit = place / "audit" / "audit.jsonl"
            written += bool(verify(audit, anchor=read_anchor(place / "heads"), strict=False).findings.lines)
            expect(Child(lambda place=place: book_loop(place)).end() == 0, "a killed server does not go on")  # type: ignore[misc]
            expect(numbers_of_book(place) == unbroken, "a server that was killed has another audit or model")
            check_cut(place)
        return {"kills": count, "after_the_audit_was_written": written, "as_unbroken": count, "cuts_seen": count}


def first_round(place: Path) -> float:
    """How many seconds it takes from its beginning to the next."""
    place.mkdir()
    read, write = os.pipe()
    server = Child(lambda: book_loop(place, lambda number: os.write(write, b".")))
    os.close(write)
    os.read(read, 1)
    began = time.monotonic()
    os.read(read, 1)
    seconds = time.monotonic() - began
    os.close(read)
    server.kill()
    return seconds


def check_cut(place: Path) -> None:
    """The last line cut off: the chain alone cannot tell, the anchor must."""
    audit = place / "audit" / "audit.jsonl"
    audit.write_bytes(b"".join(audit.read_bytes().splitlines(keepends=True)[:-1]))
    verify(audit)
    try:
        verify(audit, anchor=read_anchor(place / "heads"))
    except AuditError:
        return
    raise Fault("an audit whose last line was cut off fits its anchor")


def flower_kills(count: int, rng: random.Random) -> Figures:
    """The example app on real SuperNodes; every kill is in the first round after a start."""
    sites = ("", "nan", "")
    configs: list[Any] = [
        {"partition-id": site, "num-partitions": len(sites), "byzantine": word} for site, word in enumerate(sites)
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        Federation(Path(folder), configs) as federation,
        Count("kills in round 1, Flower", count) as kills,
    ):

        def start(place: Path, name: str) -> Any:
            folders = {
                "audit_dir": str(place / "audit"),
                "checkpoint_dir": str(place / "kept"),
                "output_dir": str(place),
            }
            return federation.run(
                ROOT / "examples" / "flower-app", name, num_server_rounds=2, timeout=PATIENCE, min_nodes=len(sites),
                anchor=str(place / "heads"), **folders,
            )  # fmt: skip

        def first_round_of(run: Any) -> None:
            run.until_said("[ROUND 1/", PATIENCE)

        def finish(place: Path, name: str) -> dict[str, bytes]:
            start(place, name).until_ended(PATIENCE)
            audit = place / "audit" / "audit.jsonl"
            found = verify(audit, anchor=read_anchor(place / "heads"))
            expect(found.anchored is not None and found.anchored.lines == found.findings.lines, "the anchor is behind")
            told = sorted((line["round"], line["client"]) for line in read_audit(audit))
            expected = sorted((number, node) for number in (1, 2) for node in federation.node_ids)
            expect(told == expected, f"the audit has not each round once: {told}")
            return bits(load_file(place / "model.safetensors"))

        (place := Path(folder, "training unbroken")).mkdir()
        began = time.monotonic()
        model = finish(place, "unbroken")
        seconds, trainings = (time.monotonic() - began) / 3, 0
        while kills.goes_on():
            (place := Path(folder, f"training {trainings}")).mkdir()
            for _ in range(rng.randrange(1, 4)):
                run = start(place, f"killed-{kills.done}")
                first_round_of(run)
                time.sleep(rng.uniform(0.0, seconds))
                if federation.processes("flwr-serverapp"):
                    federation.kill_serverapp()
                    kills.step()
                federation.kill(run.name)
                if not kills.goes_on():
                    break
            expect(finish(place, f"resumed-{trainings}") == model, "a server that was killed has another model")
            trainings += 1
    return {"kills": kills.done, "trainings": trainings, "as_unbroken": trainings}


# Very many clients


def many_clients(count: int, rule: str, in_a_round: int) -> Figures:
    """As many rounds as it takes, each with clients that were never there before."""
    with tempfile.TemporaryDirectory() as folder:
        place, rounds = Path(folder), max(2, count // in_a_round)
        read, write = os.pipe()
        server = Child(lambda: strangers(place, rule, rounds, in_a_round, write))
        os.close(write)
        measured = []
        with os.fdopen(read) as lines:
            for _ in Count(f"new clients, {rule}", rounds):
                line = lines.readline()
                expect(line, "the server of many clients ended")
                measured.append(json.loads(line))
        expect(server.end() == 0, "the server of many clients fails")
        tenth = max(1, rounds // 10)
        middle = measured[rounds // 2 - tenth // 2 :][:tenth]
        audit = place / "audit" / "audit.jsonl"
        figures: Figures = {
            "clients": rounds * in_a_round,
            "rounds": rounds,
            "seconds_of_a_round_middle": round(statistics.median(each["seconds"] for each in middle), 3),
            "seconds_of_a_round_end": round(statistics.median(each["seconds"] for each in measured[-tenth:]), 3),
            "megabytes_middle": middle[-1]["megabytes"],
            "megabytes_end": measured[-1]["megabytes"],
            "audit_megabytes": round(audit.stat().st_size / 1e6, 1),
            "checkpoint_megabytes": round((place / "kept" / CHECKPOINT).stat().st_size / 1e6, 1),
        }
        for words in (["verify"], ["show"], ["show", "-o", str(place / "page.html")]):
            name = "page" if len(words) > 1 else words[0]
            figures |= {
                f"{name}_{what}": value for what, value in measured_command("audit", words[0], audit, *words[1:])
            }
        return figures


def strangers(place: Path, rule: str, rounds: int, in_a_round: int, tell: int) -> None:
    current: Any = {"weight": torch.zeros(16)}
    server = Server(rule)
    with Book(server, place / "audit", place / "kept", anchor=place / "heads") as book:
        book.resume({}, current)
        for number in range(1, rounds + 1):
            steps = 1 + 0.1 * torch.randn(in_a_round, 16, generator=torch.Generator().manual_seed(number))
            answers = {f"site-{number}-{k}": {"weight": current["weight"] - step} for k, step in enumerate(steps)}
            began = time.perf_counter()
            played = play_round(server, answers, current)
            book.write(number, played, run=1)
            seconds = time.perf_counter() - began
            current = played.model
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            os.write(tell, json.dumps({"seconds": seconds, "megabytes": most}).encode() + b"\n")


_TELLING_ITS_MEMORY = """
import atexit, sys
from fedseca.cli import main
most = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
atexit.register(lambda: print(f"VmHWM {most()}", file=sys.stderr))
main()
"""


def measured_command(*words: object) -> list[tuple[str, float]]:
    """Run it from its beginning: the seconds, and the most memory that it had."""
    began = time.monotonic()
    program = [sys.executable, "-c", _TELLING_ITS_MEMORY, *map(str, words)]
    done = subprocess.run(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    seconds = time.monotonic() - began
    expect(done.returncode == 0, f"fedseca {' '.join(map(str, words))} fails: {done.stderr[-200:]}")
    most = int(done.stderr.rpartition("VmHWM ")[2])
    return [("seconds", round(seconds, 1)), ("megabytes", most // 1024)]


# All of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disks", type=int, default=100, help="full disks, for a run and for a book")
    parser.add_argument("--grid-kills", type=int, default=100)
    parser.add_argument("--book-kills", type=int, default=100, help="in the first round, without Flower")
    parser.add_argument("--flower-kills", type=int, default=10, help="in the first round, of real ServerApps")
    parser.add_argument("--clients", type=int, default=100_000, help="distinct ones over the rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="for the kills of a grid, and of Flower, at most"
    )
    parser.add_argument("--output", type=Path, help="where the figures are written as JSON")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    Count.minutes = given.minutes
    warm_up()
    if given.inside is not None:
        print(json.dumps(inside(given.inside, given.disks, given.limit, rng)))
        return
    parts: dict[str, tuple[int, Callable[[int], Figures]]] = {
        "full disks": (given.disks, lambda count: full_disks(count, rng)),
        "kills of a grid": (given.grid_kills, lambda count: grid_kills(count, rng)),
        "kills in round 1, Book": (given.book_kills, lambda count: book_kills(count, rng)),
        "kills in round 1, Flower": (given.flower_kills, lambda count: flower_kills(count, rng)),
        "new clients, fedseca": (given.clients, lambda count: many_clients(count, "fedseca", 1000)),
        "new clients, fldetector": (given.clients // 5, lambda count: many_clients(count, "fldetector", 200)),
    }
    report: dict[str, Figures] = {}
    try:
        for name, (count, work) in parts.items():
            if count > 0:
                report[name] = {**attempted(count, work), "seed": given.seed}
                if given.output is not None:
                    keep(given.output, name, report[name])
    finally:
        Child.end_all()
    show(report)
    sys.exit(any("fault" in figures for figures in report.values()))


def keep(path: Path, name: str, figures: Figures) -> None:
    """In the file of figures, in the place of what this part gave before."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, name: figures}, indent=1) + "\n")


def attempted(count: int, work: Callable[[int], Figures]) -> Figures:
    """A part; one that finds a fault does not keep the others from their turn."""
    began = time.monotonic()
    try:
        figures = work(count)
    except Exception as problem:
        traceback.print_exc()
        figures = {"fault": f"{type(problem).__name__}: {problem}".partition("\n")[0]}
    return {**figures, "seconds": round(time.monotonic() - began)}


def show(report: dict[str, Figures]) -> None:
    table = Table("part", "what", "figure")
    for part, figures in report.items():
        for number, (what, value) in enumerate(figures.items()):
            inner = value.items() if isinstance(value, dict) else [("", value)]
            shown = ", ".join(f"{name.replace('_', ' ')} {figure}".strip() for name, figure in inner)
            table.add_row(part if number == 0 else "", what.replace("_", " "), Text(shown[:300]))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
