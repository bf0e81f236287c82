"""Commands as real processes, forked from one that has imported everything: a cold start takes 3 to 9 seconds of CPU.

`python -m tests.e2e.command` is that process: for each line of JSON on its stdin it forks a command and says its id.
"""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 600.0
"""Seconds: a limit ends what hangs, it times nothing. A busy machine may take long."""
_SETTINGS = {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}


class Command:
    """A command that was started."""

    def __init__(self, *arguments: object, folder: Path | None = None, prelude: str = "", **environment: str) -> None:
        """`prelude` is Python that runs before it."""
        self.arguments = list(map(str, arguments))
        self._files = Path(tempfile.mkdtemp(prefix="command-"))
        order = {
            "arguments": self.arguments,
            "folder": str(folder or Path.cwd()),
            "files": str(self._files),
            "prelude": prelude,
            "environment": os.environ | _SETTINGS | environment,
        }
        self.pid = int(_warm_process()(json.dumps(order)))

    def poll(self) -> int | None:
        """How it ended, as subprocess says it; None as long as it runs."""
        code = self._files / "code"
        return int(code.read_text()) if code.exists() else None

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Wait for something, or for the command's end; whether it came to that."""
        deadline = time.monotonic() + seconds
        while not (found := condition()) and self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise TimeoutError(f"{self.arguments} takes longer than {seconds} s")
            time.sleep(0.002)
        return found

    def wait(self, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        self.until(lambda: False, seconds)
        code = self.poll()
        assert code is not None
        out, err = ((self._files / name).read_text() for name in ("out", "err"))
        shutil.rmtree(self._files)
        return subprocess.CompletedProcess(self.arguments, code, out, err)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def run(*arguments: object, folder: Path | None = None, **environment: Any) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return Command(*arguments, folder=folder, **environment).wait()


def run_each(cases: Mapping[str, tuple[Path, Sequence[object]]]) -> dict[str, subprocess.CompletedProcess[str]]:
    """Many commands, each in a folder of its own."""
    return {name: run(*words, folder=folder) for name, (folder, words) in cases.items()}


def run_cold(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command from its very beginning, for what is decided there."""
    command = [sys.executable, "-c", "from fedseca.cli import main; main()", *map(str, arguments)]
    settings = os.environ | _SETTINGS | environment
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=PATIENCE)


@functools.cache
def _warm_process() -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.command"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | _SETTINGS,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(line: str) -> str:
        stdin.write(line + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, "the process that commands are forked from has ended"
        return answer

    def end() -> None:
        stdin.close()
        process.wait()

    atexit.register(end)
    return ask


def _serve() -> None:
    # torchvision imports it, which takes seconds. timm itself must wait: its hub reads the environment when imported.
    import torch._dynamo  # noqa: F401

    import fedseca.experiments.preload  # noqa: F401
    from fedseca.cli.app import COMMANDS, load, main

    for name in COMMANDS:
        load(name)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those ended that wait for the commands
    for line in sys.stdin:
        order = json.loads(line)
        read, write = os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            command = os.fork()
            if command == 0:
                os._exit(_run(order, main))
            os.write(write, str(command).encode())
            os.close(write)
            _, status = os.waitpid(command, 0)
            finished = Path(order["files"], "code.new")
            finished.write_text(str(os.waitstatus_to_exitcode(status)))
            finished.rename(finished.with_name("code"))
            os._exit(0)
        os.close(write)
        print(os.read(read, 20).decode(), flush=True)  # noqa: T201
        os.close(read)


def _run(order: dict[str, Any], main: Callable[[], None]) -> int:
    """Its exit code; what an interpreter tears down at its end is left, for that takes seconds."""
    code: Any = 0
    try:
        _become(order)
        exec(order["prelude"], {})
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


def _become(order: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets those ignore it that run in its background
    for number, name in enumerate([os.devnull, "out", "err"]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        file = os.open(os.path.join(order["files"], name), flags)
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["fedseca", *order["arguments"]]


if __name__ == "__main__":
    _serve()
