"""Cells run in processes of their own, on this machine or on a Ray cluster. One that fails leaves the others alone."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from fedseca.errors import FolderBusy, InputError, MissingDependency, StateError
from fedseca.experiments.store import record_failure
from fedseca.federation import Scenario, simulate
from fedseca.plugins import load_plugin


@dataclass(frozen=True)
class Task:
    """One cell, as it is handed to a process."""

    scenario: dict[str, Any]
    folder: str
    error_file: str
    data_dir: str | None = None
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()


def run_task(task: Task) -> None:
    """Run a cell to its end, or go on with it. What goes wrong is written down, not raised."""
    _end_with_the_parent()
    error_file = Path(task.error_file)
    try:
        error_file.unlink(missing_ok=True)
        for plugin in task.plugins:
            load_plugin(plugin)
        _simulate(task)
    except (Exception, SystemExit) as problem:  # whatever a cell does, the grid goes on
        record_failure(error_file, f"{type(problem).__name__}: {problem}", traceback.format_exc())


def _simulate(task: Task) -> None:
    scenario, damaged = Scenario.of(task.scenario), False
    while True:
        try:
            simulate(
                scenario,
                folder=task.folder,
                resume=not damaged,
                overwrite=damaged,
                data_dir=task.data_dir,
                device=task.device,
                threads=task.threads,
            )
            return
        except StateError:  # its files cannot be resumed: it is made anew
            if damaged:
                raise
            damaged = True
        except FolderBusy:  # another grid runs this cell: what it finds is what would be found here
            time.sleep(2.0)  # to ask again is to load the data again


def _end_with_the_parent() -> None:
    """A cell whose grid is gone ends at once, which its folder survives; Ctrl-C is for the grid to hear.

    What is worth a warning, a library that does not fit, would be said by every cell, across the grid's progress.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # on Ray, or in the grid itself
        return
    logging.getLogger("fedseca").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forked_from = os.getppid()

    def watch() -> None:
        # Without the process it was forked from, the grid cannot hear of its end and takes it for dead already.
        while not multiprocessing.connection.wait([parent.sentinel], 1.0) and os.getppid() == forked_from:
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Workers(Protocol):
    """Something that runs tasks side by side."""

    jobs: int
    """How many at once."""

    def start(self, name: str, task: Task) -> None: ...

    def ended(self, seconds: float) -> Iterable[str]:
        """The names of the tasks that ended by now; waits for one up to so many seconds."""
        ...

    def close(self) -> None:
        """End what still runs."""
        ...


class Processes:
    """A process for each task, forked from one in which the libraries are loaded already."""

    def __init__(self, jobs: int) -> None:
        """So many at once."""
        self.jobs = _checked(jobs)
        self._context: Any = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
        if os.name == "posix":
            self._context.set_forkserver_preload(["fedseca.experiments.preload"])
            _start_forkserver()
        self._running: dict[str, tuple[BaseProcess, Task]] = {}

    def start(self, name: str, task: Task) -> None:
        # A daemon is ended with this process, also one that an interrupt kept from being written down below.
        process = self._context.Process(target=run_task, args=(task,), name=name, daemon=True)
        process.start()
        self._running[name] = (process, task)

    def ended(self, seconds: float) -> list[str]:
        multiprocessing.connection.wait([process.sentinel for process, _ in self._running.values()], seconds)
        names = [name for name, (process, _) in self._running.items() if process.exitcode is not None]
        for name in names:
            process, task = self._running.pop(name)
            process.join()
            if process.exitcode:
                how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
                hint = ", as happens when memory runs out" if process.exitcode == -signal.SIGKILL else ""
                record_failure(Path(task.error_file), f"its process ended with {how}{hint}")
            process.close()
        return names

    def close(self) -> None:
        for process, _ in self._running.values():
            process.kill()
        for process, _ in self._running.values():
            process.join()
        self._running.clear()


def _checked(jobs: int) -> int:
    if jobs < 1:
        raise InputError(f"jobs must be an integer ≥ 1; found {jobs}")
    return jobs


def _start_forkserver() -> None:
    """It imports for seconds, and would answer Ctrl-C with a traceback: it inherits that the signal is ignored."""
    from multiprocessing import forkserver

    if threading.current_thread() is not threading.main_thread():
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, heard)


class RayCluster:
    """Tasks on a Ray cluster; its machines must see the same folder and have fedseca installed.

    As many at once as it has cores for, or fewer with `jobs`.
    """

    def __init__(self, address: str, threads: int, jobs: int | None = None) -> None:
        most = None if jobs is None else _checked(jobs)
        self._ray, room = connect_to_ray(address, threads)
        self.jobs = room if most is None else min(most, room)
        self._run = self._ray.remote(num_cpus=threads, max_retries=0)(run_task)
        self._running: dict[Any, tuple[str, Task]] = {}

    def start(self, name: str, task: Task) -> None:
        self._running[self._run.remote(task)] = (name, task)

    def ended(self, seconds: float) -> list[str]:
        ready, _ = self._ray.wait(list(self._running), timeout=seconds) if self._running else ([], [])
        names = []
        for reference in ready:
            name, task = self._running.pop(reference)
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayError as problem:
                record_failure(Path(task.error_file), f"its worker was lost: {problem}")
            names.append(name)
        return names

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def connect_to_ray(address: str, threads: int) -> tuple[Any, int]:
    """Ray, joined to a cluster or to one of its own, and how many tasks of so many threads it has room for."""
    try:
        import ray as module
    except ImportError:
        raise MissingDependency(
            "this needs Ray: pip install 'fedseca[ray]'; for --engine flower 'fedseca[flower-simulation]'"
        ) from None
    ray: Any = module  # whose types are not told everywhere
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray asks for in a warning otherwise
    check_reachable(address)
    try:
        # "local" as it stands: for None Ray would join whatever cluster was last begun on this machine, and be it gone.
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise InputError(f"no Ray cluster at {address!r}: {reason}") from None
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    room = sum(count // threads for count in cores)
    if room == 0:
        ray.shutdown()
        raise InputError(f"threads={threads}, but no machine of the cluster has more than {max(cores)} cores")
    return ray, room


def check_reachable(address: str) -> None:
    """Ray itself waits for minutes for a cluster that is not there."""
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--ray takes HOST:PORT, ray://HOST:PORT, auto or local; found {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as problem:
        raise InputError(f"no Ray cluster at {address!r}: {problem}") from None
