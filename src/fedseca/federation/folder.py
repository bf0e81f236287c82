"""A run is a folder: its config, its metrics, its audit, its checkpoint. It can be cut off at any moment.

Lines are appended round by round; a checkpoint is written in one stroke and says up to which round they count. What a
killed run wrote beyond its last checkpoint is dropped when it goes on, and made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedseca.aggregators import State
from fedseca.errors import InputError, StateError
from fedseca.federation.history import History, Record
from fedseca.federation.scenario import Scenario
from fedseca.files import write_atomically
from fedseca.server import Server

try:
    import fcntl
except ImportError:  # not on Windows: there, two processes must keep off each other's folders themselves
    fcntl = None  # type: ignore[assignment]

_FORMAT = 1
CONFIG, RESULT, CHECKPOINT = "config.json", "result.json", "checkpoint.safetensors"
LINES = {"rounds": "rounds.jsonl", "clients": "clients.jsonl", "pairs": "pairs.jsonl"}
_LOCK = ".lock"
_OURS = (CONFIG, RESULT, CHECKPOINT, *LINES.values())


class RunFolder:
    """The folder of one run, open for writing by this process alone."""

    def __init__(self, path: Path, scenario: Scenario, fingerprint: str, *, resume: bool, overwrite: bool) -> None:
        """Nothing is written when the folder cannot be used: that is an `InputError`."""
        self.path, self.scenario = path, scenario
        config = {"format": _FORMAT, "scenario": scenario.values(), "data": fingerprint}
        check_usable(path, config, resume=resume, overwrite=overwrite)
        path.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {}
        self._lock = (path / _LOCK).open("ab")
        self._take_lock()
        for name in _OURS:  # what a process left that was killed while it wrote
            for leftover in path.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)
        if overwrite:
            for name in _OURS:
                (path / name).unlink(missing_ok=True)
        if not (path / CONFIG).exists():
            write_atomically(path / CONFIG, json.dumps(config, indent=1, ensure_ascii=False).encode())

    def _take_lock(self) -> None:
        if fcntl is None:
            return  # type: ignore[unreachable]
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(f"{self.path}: another process is writing this run; wait for its end") from None

    def restore(self, server: Server) -> tuple[History, State]:
        """The run as of its last checkpoint, and what its attack remembered; of a new run, nothing yet.

        The files of lines are cut back to that round and opened for the next.
        """
        history = History(self.scenario, folder=self.path)
        attack_state: State = {}
        done = 0
        if (self.path / CHECKPOINT).exists():
            done, history.model, attack_state = self._read_checkpoint(server)
        for kind, name in LINES.items():
            lines = [line for line in read_lines(self.path / name) if line["round"] <= done]
            history.append({kind: lines})
        if [record["round"] for record in history.rounds] != list(range(1, done + 1)):
            raise StateError(f"{self.path / LINES['rounds']}: rounds are missing from it; start again with --overwrite")
        for kind, name in LINES.items():
            write_atomically(self.path / name, b"".join(_line(line) for line in getattr(history, kind)))
            self._files[kind] = (self.path / name).open("ab")
        return history, attack_state

    def append(self, kinds: Mapping[str, list[Record]]) -> None:
        """Write down a round."""
        for kind, records in kinds.items():
            self._files[kind].write(b"".join(_line(record) for record in records))
            self._files[kind].flush()

    def checkpoint(self, history: History, server: Server, attack_state: State) -> None:
        """Keep what is needed to go on after the rounds so far."""
        assert history.model is not None
        for file in self._files.values():
            os.fsync(file.fileno())
        saved = server.state_dict()
        tensors = _prefixed("server", saved.pop("state"))
        tensors |= _prefixed("model", history.model) | _prefixed("attack", attack_state)
        manifest = {"round": len(history.rounds), "server": saved}
        write_atomically(self.path / CHECKPOINT, save(tensors, {"manifest": json.dumps(manifest)}))

    def _read_checkpoint(self, server: Server) -> tuple[int, dict[str, Tensor], State]:
        path = self.path / CHECKPOINT
        parts: dict[str, dict[str, Tensor]] = {"server": {}, "model": {}, "attack": {}}
        try:
            with safe_open(path, "pt") as file:
                manifest = json.loads(file.metadata()["manifest"])
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    part, _, name = key.partition("/")
                    # A copy in memory of torch's own: where a vector lies decides how its sums are rounded.
                    parts[part][name] = file.get_tensor(key).clone()
            server.load_state_dict({**manifest["server"], "state": parts["server"]})
            return int(manifest["round"]), parts["model"], parts["attack"]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, StateError) as problem:
            raise StateError(f"{path}: cannot be read ({problem}); start again with --overwrite") from None

    def finish(self, history: History) -> None:
        write_atomically(self.path / RESULT, json.dumps(history.result(), indent=1, ensure_ascii=False).encode())

    def close(self) -> None:
        for file in (*self._files.values(), self._lock):
            file.close()


def check_usable(path: Path, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Whether a run of this config may be written there; changes nothing."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; a run is a folder")
    if overwrite or not path.exists():
        return
    found = _read_config(path)
    if found is None:
        strangers = [entry.name for entry in path.iterdir() if entry.name not in _OURS and entry.name[0] != "."]
        if strangers:
            raise InputError(f"{path}: holds other files ({strangers[0]}) and no run; choose a new folder")
        return
    if difference := _difference(found, json.loads(json.dumps(config))):
        raise InputError(f"{path}: holds a run of another config ({difference}); choose another folder or --overwrite")
    if not resume:
        state = "is finished" if (path / RESULT).exists() else "is not finished"
        raise InputError(f"{path}: holds this run already, which {state}; --resume goes on, --overwrite starts again")


def _read_config(path: Path) -> Any:
    try:
        return json.loads((path / CONFIG).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise InputError(f"{path / CONFIG}: cannot be read ({problem}); choose another folder or --overwrite") from None


def _difference(found: Any, config: Any, name: str = "") -> str | None:
    """The first thing in which two configs differ, for people."""
    if isinstance(found, dict) and isinstance(config, dict):
        for key in [*config, *(key for key in found if key not in config)]:
            inner = f"{name}.{key}" if name and name != "scenario" else key
            if difference := _difference(found.get(key), config.get(key), inner):
                return difference
        return None
    return None if found == config else f"{name} is {found!r} there and {config!r} here"


def read_lines(path: Path) -> list[Record]:
    """The whole lines of a file of records; one that was cut off in the middle is not one of them."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    records = []
    for line in content.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
            record["round"]
        except (ValueError, TypeError, KeyError):
            break  # what follows a broken line cannot be trusted to be in order
        records.append(record)
    return records


def read_history(path: str | Path) -> History:
    """The history of a run folder, finished or not."""
    path = Path(path)
    config = _read_config(path)
    try:
        scenario = Scenario.of(config["scenario"])
    except (TypeError, KeyError):
        raise InputError(f"{path}: is not the folder of a run: {CONFIG} is missing or broken") from None
    history = History(scenario, folder=path)
    history.append({kind: read_lines(path / name) for kind, name in LINES.items()})
    return history


def _line(record: Record) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value.detach().cpu().contiguous() for name, value in tensors.items()}
