"""A federation of Flower as it is deployed: a SuperLink, SuperNodes and `flwr run`, all real processes, over TLS.

Everything is on the loopback of this machine, writes below one folder and is ended by its process id. A process of
Flower starts others, some in a session of their own: the sessions are written down while their makers live.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from tests.deployment.processes import Process, running

HOST = "127.0.0.1"
_BIN = Path(sys.executable).parent
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "NO_PROXY": HOST,
    # Flower starts its own commands by their bare names.
    "PATH": os.pathsep.join([str(_BIN), os.environ.get("PATH", os.defpath)]),
}
_START, _COMMAND, _END = 600, 600, 60
"""Seconds that processes may take to start, a command to answer, and processes to end when they are told to."""

_CLI = "flwr"
"""Whose home holds the connection that `flwr` uses."""

Config = Mapping[str, str | int | float]


class Federation:
    """As many sites as there are node configs. Use it in a `with`."""

    def __init__(self, folder: Path, node_configs: Sequence[Config]) -> None:
        self.folder = folder
        self.certificate = folder / "certificate.pem"
        self.ports = _free_ports(1 + len(node_configs))
        """The SuperLink's and those of the SuperNodes."""
        self._node_configs = node_configs
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: set[int] = set()
        self.node_ids: list[str] = []
        """Of the sites in the order of their configs."""

    def __enter__(self) -> Federation:
        try:
            self._make_certificate()
            self._start_superlink()
            self._start_supernodes()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _make_certificate(self) -> None:
        """One that vouches for itself: whoever is given it as a root trusts the SuperLink, and nobody else does."""
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        names = ["-addext", f"subjectAltName=IP:{HOST}"]
        files = ["-keyout", str(self._key), "-out", str(self.certificate)]
        subprocess.run([*command.split(), *names, *files], check=True, capture_output=True, timeout=_COMMAND)

    @property
    def _key(self) -> Path:
        return self.folder / "key.pem"

    def _start_superlink(self) -> None:
        files = ["--ssl-certfile", self.certificate, "--ssl-keyfile", self._key, "--ssl-ca-certfile", self.certificate]
        self.start("superlink", "flower-superlink", "--host", HOST, "--port", self.ports[0], *files)
        self.until(self._answers, _START, "the SuperLink to answer")
        # What the SuperLink starts has a session of its own: it must be known before anything can go wrong.
        self.until(lambda: self.processes("flower-superexec"), _START, "the SuperLink's executor")
        (self._home(_CLI) / "config.toml").write_text(
            '[superlink]\ndefault = "tls"\n[superlink.tls]\n'
            f'address = "{HOST}:{self.ports[0]}"\nroot-certificates = {json.dumps(str(self.certificate))}\n'
        )

    def _answers(self) -> bool:
        try:
            self.handshake(ssl.create_default_context(cafile=self.certificate))
        except OSError:
            return False
        return True

    def handshake(self, context: ssl.SSLContext) -> str | None:
        """Connect to the SuperLink; the version of TLS that was agreed on."""
        with (
            socket.create_connection((HOST, self.ports[0]), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as secured,
        ):
            return secured.version()

    def _start_supernodes(self) -> None:
        link = ["--superlink", f"{HOST}:{self.ports[0]}", "--root-certificates", self.certificate, "--host", HOST]
        names = [f"supernode{site}" for site in range(len(self._node_configs))]
        for name, port, config in zip(names, self.ports[1:], self._node_configs, strict=True):
            self.start(name, "flower-supernode", *link, "--port", port, "--node-config", _words(config))
        for name in names:
            self.until(partial(self._node_id, name), _START, f"{name} to be registered")
        self.node_ids = [str(self._node_id(name)) for name in names]

    def _node_id(self, name: str) -> str | None:
        found = re.search(r"SuperNode ID: (\d+)", self.log(name))
        return found and found[1]

    def start(self, name: str, *command: object, home: str | None = None) -> None:
        """A process in a session and with a log of its own."""
        program, *arguments = map(str, command)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                [str(_BIN / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment(home or name),
                start_new_session=True,
            )
        self._started[name] = process
        self._sessions.add(process.pid)

    def run(self, app: Path, name: str, **settings: str | int | float) -> Run:
        """`flwr run` with these settings of the app, whose underscores stand for hyphens."""
        config = _words({key.replace("_", "-"): value for key, value in settings.items()})
        self.start(name, "flwr", "run", app, "tls", "--stream", "--run-config", config, home=_CLI)
        return Run(self, name)

    def statuses(self) -> dict[str, str]:
        """How all runs stand, by their ids. `flwr run` itself is content with whatever became of its run."""
        command = [str(_BIN / "flwr"), "list", "tls", "--format", "json"]
        environment = self._environment(_CLI)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_COMMAND)
        assert done.returncode == 0, done.stdout + done.stderr
        return {run["run-id"]: run["status"] for run in json.loads(done.stdout)["runs"]}

    def has_ended(self, name: str) -> bool:
        return self._started[name].poll() is not None

    def kill(self, name: str) -> None:
        """Without a word, and with all that it started: as if the power had failed."""
        process = self._started.pop(name)
        for each in self.processes():
            if each.session == process.pid:
                _signal(each.pid, signal.SIGKILL)
        process.wait(_END)

    def kill_serverapp(self) -> None:
        found = self.processes("flwr-serverapp")
        assert found, f"no ServerApp runs\n{self.logs()}"
        for each in found:
            _signal(each.pid, signal.SIGKILL)

    def processes(self, program: str = "") -> list[Process]:
        """Those of this federation that run now; with `program`, only what runs it."""
        everything = list(running())
        ours = {process.pid for process in everything if process.session in self._sessions}
        self._sessions |= {process.session for process in everything if process.parent in ours}
        # A session that is empty stays so, and its number may be given to a stranger.
        self._sessions &= {process.session for process in everything}
        return [each for each in everything if each.session in self._sessions and program in each.command]

    def until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until it is true, as long as all that was started runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [name for name, process in self._started.items() if process.poll()]
            if ended or time.monotonic() > deadline:
                found = f"{', '.join(ended)} ended" if ended else f"nothing after {seconds:g} s"
                raise AssertionError(f"waiting for {what}: {found}\n{self.logs()}")
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def logs(self, lines: int = 25) -> str:
        """The end of what each process said, for the message of a failure."""
        names = sorted(file.stem for file in self.folder.glob("*.log"))
        return "\n".join(line for name in names for line in (f"--- {name}", *self.log(name).splitlines()[-lines:]))

    def end(self) -> None:
        """End everything: first kindly, then by force. Nothing is left, or it is an error that says what."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes():
                _signal(process.pid, number)
            self._wait_for_end()
        for started in self._started.values():
            started.wait(_END)
        self._started.clear()
        assert not (left := self.processes()), f"still there after SIGKILL: {left}"

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + _END
        while self.processes() and time.monotonic() < deadline:
            for process in self._started.values():
                process.poll()
            time.sleep(0.1)

    def _home(self, name: str) -> Path:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _environment(self, name: str) -> dict[str, str]:
        return os.environ | _ENVIRONMENT | {"FLWR_HOME": str(self._home(name))}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


class Run:
    """A run of an app, as `flwr run --stream` tells of it."""

    def __init__(self, federation: Federation, name: str) -> None:
        self._federation = federation
        self.name = name

    @property
    def log(self) -> str:
        return self._federation.log(self.name)

    def until_said(self, text: str, seconds: float) -> None:
        self._federation.until(lambda: text in self.log, seconds, f"{self.name} to say {text!r}")

    def until_ended(self, seconds: float) -> None:
        self._federation.until(lambda: self._federation.has_ended(self.name), seconds, f"{self.name} to end")

    @property
    def id(self) -> str:
        found = re.search(r"Successfully started run (\d+)", self.log)
        assert found, self.log
        return found[1]


def _words(config: Config) -> str:
    """As Flower reads it from a command line: a line of TOML without its breaks."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def _free_ports(number: int) -> list[int]:
    """Ports that nobody uses; all are held until the last is found, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
