"""One mutant, one trial: the tests that run through the changed lines, in a process forked from a warm one.

Nothing on disk is changed: the forked process imports the package anew, with the mutant in the place of its module.
Importing torch, Flower and the rest takes ten seconds; the warm process has done it once for all.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.mutants import Mutant
from tests.mutation.parts import PACKAGE, ROOT, SLOW_TESTS, Part

SLOWEST = 2.5
"""Seconds: tests that take longer are left out."""
BUDGET = 6.0
"""Seconds of tests that one mutant is tried with, as measured without it: the fastest."""
_WARM = ("torch", "numba", "scipy.stats", "sklearn.cluster", "pyod.models.copod", "safetensors.torch", "flwr.serverapp",
         "flwr.clientapp", "flwr.simulation", "typer", "rich.console", "tensorboard")  # fmt: skip
_COMPILED = "fedseca.ops.kernels"
_NO_PROCESS = "no process is started while tests are watched"


def warm_up(files: Sequence[str]) -> None:
    """Import what the package and the tests stand on, and load the compiled kernels, which are never mutated."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    settings.register_profile(
        "mutation",
        deadline=None,
        max_examples=15,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    for name in _WARM:
        importlib.import_module(name)
    importlib.import_module("joblib").cpu_count(only_physical_cores=True)  # starts a process the first time
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)  # threads do not live on in a forked process
    fedseca = importlib.import_module("fedseca")
    for rule in fedseca.AGGREGATORS:
        for dtype in (torch.float32, torch.float64):
            fedseca.aggregate(torch.randn(9, 300, dtype=dtype), rule=rule)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        _run_pytest(files, object(), "--collect-only")
    for name in [name for name in sys.modules if name.startswith("tests.") and not name.startswith("tests.mutation")]:
        del sys.modules[name]
    gc.freeze()  # the garbage collector of a forked process leaves alone what is imported


class Child:
    """A forked process and the file it answers in."""

    def __init__(self, work: Callable[[], Any], seconds: float) -> None:
        """It may work for so many seconds, and last three times as long: the machine may be busy."""
        self.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self.seconds = math.ceil(seconds)
        self.deadline = time.monotonic() + 3 * seconds
        self.begun = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(work)

    def _live(self, work: Callable[[], Any]) -> None:
        status = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (self.seconds, self.seconds))
            silence = os.open(self.folder / "output", os.O_WRONLY | os.O_CREAT)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            os.environ["TMPDIR"] = str(self.folder)
            tempfile.tempdir = str(self.folder)
            answer = work()
            (self.folder / "answer.json").write_text(json.dumps(answer))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def ended(self) -> bool:
        """Whether it is over; one that takes too long is ended, with all that it began."""
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            return True
        if time.monotonic() < self.deadline:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return True

    def answer(self) -> Any:
        """What it answered; None if it did not."""
        self.output = (self.folder / "output").read_text(errors="replace")
        try:
            return json.loads((self.folder / "answer.json").read_text())
        except FileNotFoundError:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # what it left behind
            shutil.rmtree(self.folder, ignore_errors=True)


def _forget_the_package() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedseca" and name != _COMPILED]:
        del sys.modules[name]


class _Substitute(importlib.abc.MetaPathFinder):
    """Finds the mutant where its module is looked for."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = ".".join(["fedseca", *Path(mutant.module).with_suffix("").parts]).removesuffix(".__init__")
        self.code = mutant.code

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        code = compile(self.code, spec.origin, "exec", dont_inherit=True)

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                return code

        spec.loader = Loader(name, spec.origin)
        return spec


def _run_pytest(files: Sequence[str], plugin: object, *more: str) -> int:
    options = [*more, "--assert=plain", "--hypothesis-profile=mutation", "-p", "_hypothesis_pytestplugin"]
    options += [
        f"-pno:{plugin}" for plugin in ("cacheprovider", "unraisableexception", "threadexception", "faulthandler")
    ]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the warm process has imported Hypothesis
    base = f"--basetemp={tempfile.gettempdir()}/pytest"
    return int(pytest.main([*options, base, *(str(ROOT / "tests" / file) for file in files)], plugins=[plugin]))


# ---------------------------------------------------------------- which tests run through which lines


class _Watch:
    """Notes the lines of the package that each test runs through, and how long it takes.

    A test that runs the package in another process is stopped and left out: the mutant would not be in that process.
    """

    def __init__(self, watched: coverage.Coverage) -> None:
        self.watched = watched
        self.current = ""
        self.starting: set[str] = set()
        self.failed: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.users: dict[str, list[str]] = {}
        """Of each fixture that several tests share: those tests."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.originalname not in SLOW_TESTS]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        for name in item.fixturenames:
            self.users.setdefault(name, []).append(item.nodeid)
        self.watched.switch_context(item.nodeid)
        self.current = item.nodeid
        begun = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - begun
            self.watched.switch_context("")
            self.current = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:  # also because of a fixture that could not start its process
            (self.starting if _NO_PROCESS in str(report.longrepr) else self.failed).add(report.nodeid)

    def refuse_processes(self, event: str, arguments: object) -> None:
        """An audit hook of Python's. A process that has nothing to do with the package may start."""
        starts = event in ("os.fork", "os.posix_spawn") or (
            event == "subprocess.Popen" and "fedseca" in repr(arguments)
        )
        if self.current and starts:
            self.starting.add(self.current)
            raise RuntimeError(_NO_PROCESS)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        self.watched.switch_context(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.watched.switch_context(request.node.nodeid if "::" in request.node.nodeid else "")


def watch(file: str, modules: Sequence[str]) -> dict[str, Any]:
    """What a test file runs through. In a process of its own."""
    _forget_the_package()
    watched = coverage.Coverage(
        data_file=None, include=[str(PACKAGE / module) for module in modules], config_file=False
    )
    plugin = _Watch(watched)
    sys.addaudithook(plugin.refuse_processes)
    watched.start()
    code = _run_pytest([file], plugin, "--tb=short")
    watched.stop()
    data = watched.get_data()
    lines: dict[str, dict[int, list[str]]] = {}
    for module in modules:
        for line, contexts in data.contexts_by_lineno(str(PACKAGE / module)).items():
            tests: set[str] = set()
            for context in contexts:
                tests.update(plugin.users.get(context[8:], ()) if context.startswith("fixture ") else [context])
            lines.setdefault(module, {})[line] = sorted(tests - plugin.starting - {""})
    seconds = {test: spent for test, spent in plugin.seconds.items() if test not in plugin.starting}
    broken = code not in (0, 1) or bool(plugin.failed - plugin.starting)
    return {"broken": broken, "left_out": sorted(plugin.starting), "seconds": seconds, "lines": lines}


# ---------------------------------------------------------------- a trial


class _Chosen:
    """Runs some tests in an order, until one fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {test: place for place, test in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda item: self.place[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = report.nodeid


def choose(mutant: Mutant, part: Part, records: dict[str, dict[str, Any]]) -> list[str]:
    """The tests that a mutant is tried with: those through the changed lines; all, if it acts when it is imported."""
    first, last = mutant.lines
    took: dict[str, float] = {}
    for file in part.tests:
        found = records[file]["seconds"]
        lines = records[file]["lines"].get(mutant.module, {})
        through = {test for line, tests in lines.items() for test in tests if first <= int(line) <= last}
        took |= found if mutant.at_import else {test: found[test] for test in through}
    chosen: list[str] = []
    spent = 0.0
    for test in sorted(took, key=lambda test: (took[test], test)):
        spent += took[test]
        if took[test] > SLOWEST or spent > BUDGET:
            break
        chosen.append(test)
    return chosen


def attempt(mutant: Mutant, tests: Sequence[str]) -> dict[str, Any]:
    """Whether the tests notice the mutant. In a process of its own."""
    _forget_the_package()
    sys.meta_path.insert(0, _Substitute(mutant))
    plugin = _Chosen(tests)
    files = list(dict.fromkeys(test.partition("::")[0].removeprefix("tests/") for test in tests))
    code = _run_pytest(files, plugin, "-x", "--tb=no")
    return {"outcome": "survived", "by": ""} if code == 0 else {"outcome": "caught", "by": plugin.failed or "import"}


def digest(*paths: Path) -> str:
    """Of the contents of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]
