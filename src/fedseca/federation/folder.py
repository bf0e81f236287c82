"""A run is a folder: its config, its metrics, its audit, its checkpoint. It can be cut off at any moment.

Lines are appended round by round; a checkpoint is written in one stroke and says up to which round they count. What a
killed run wrote beyond its last checkpoint is dropped when it goes on, and made again. What every client did stands in
an audit (`fedseca.audit`): its lines are chained by hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from fedseca.audit import BEGINNING, Audit, AuditError, is_chained, modern
from fedseca.checkpoint import CHECKPOINT, read_checkpoint, whole_number
from fedseca.errors import FolderBusy, InputError, StateError
from fedseca.federation.history import History, Record, metric_names
from fedseca.federation.scenario import Scenario
from fedseca.files import append, naming, read_regular, remove_leftovers, take_lock, write_atomically
from fedseca.server import Server
from fedseca.suspicion import suspicion
from fedseca.updates import State

_FORMAT = 2
_READ = (1, _FORMAT)
"""The formats that can be read; only runs of the newest are resumed."""
CONFIG, RESULT, TENSORBOARD = "config.json", "result.json", "tensorboard"
LINES = {"rounds": "rounds.jsonl", "audit": "clients.jsonl", "pairs": "pairs.jsonl"}
_FIELDS = {
    "rounds": {"loss", "void", "idle", "seconds"},
    "audit": {"client"},
    "pairs": {"clients"},
}
_LOCK = ".lock"
_PLAIN = ("rounds", "pairs")
"""The lines that are not chained."""
_OURS = (CHECKPOINT, RESULT, *LINES.values(), CONFIG)
"""In the order in which they are removed: what a run could go on from first, whose it is last."""


class RunFolder:
    """The folder of one run, open for writing by this process alone."""

    def __init__(self, path: Path, scenario: Scenario, fingerprint: str, *, resume: bool, overwrite: bool) -> None:
        """Nothing is written when the folder cannot be used: that is an `InputError`."""
        self.path, self.scenario = path, scenario
        config = {"format": _FORMAT, "scenario": scenario.values(), "data": fingerprint}
        self._digest = _digest(json.dumps(config, sort_keys=True).encode())
        _check_usable(path, config, resume=resume, overwrite=overwrite)
        path.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {}
        self._audit: Audit | None = None
        self._lock = (path / _LOCK).open("ab")
        try:
            if not take_lock(self._lock, wait=False):
                raise FolderBusy(f"{path}: another process is writing this run; wait for its end")
            # Once more: until the lock was taken, another process may have been here.
            _check_usable(path, config, resume=resume, overwrite=overwrite)
            self._tidy(everything=overwrite or not (path / CONFIG).exists())
            if not (path / CONFIG).exists():
                write_atomically(path / CONFIG, json.dumps(config, indent=1, ensure_ascii=False).encode())
        except BaseException:
            self._lock.close()
            raise

    def _tidy(self, *, everything: bool) -> None:
        """Remove what a process left that was killed while it wrote; or all that an earlier run left."""
        remove_leftovers(self.path, "|".join(map(re.escape, _OURS)))
        if everything:
            for name in _OURS:
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.path / TENSORBOARD, ignore_errors=True)

    def restore(self, server: Server) -> tuple[History, State]:
        """The run as of its last checkpoint, and what its attack remembered; of a new run, nothing yet.

        The files of lines are cut back to that round and opened for the next.
        """
        history = History(self.scenario, folder=self.path)
        attack_state: State = {}
        done, head = 0, BEGINNING
        if (self.path / CHECKPOINT).exists():
            done, head, history.model, attack_state = self._read_checkpoint(server)
        for kind in LINES:
            history.append({kind: [line for line in _read_lines(self.path, kind) if line["round"] <= done]})
        if not _agree(history, done, server):
            raise StateError(f"{self.path}: its files and its checkpoint are not of the same rounds; overwrite it")
        self._open(history, head, done)
        return history, attack_state

    def _open(self, history: History, head: str, done: int) -> None:
        """Open the files of lines after the rounds that are done."""
        try:
            self._audit = Audit(self.path / LINES["audit"], every_line_synced=False)
            self._audit.cut_back(head, done + 1, self.scenario.rounds)
        except AuditError as problem:
            raise StateError(f"{problem}; overwrite the run") from None
        for kind in _PLAIN:
            name = LINES[kind]
            write_atomically(self.path / name, b"".join(_line(line) for line in getattr(history, kind)))
            self._files[kind] = (self.path / name).open("ab", buffering=0)

    def append(self, kinds: Mapping[str, list[Record]]) -> None:
        """Write down a round."""
        assert self._audit is not None
        self._audit.append(kinds["audit"])
        for kind in _PLAIN:
            append(self._files[kind], b"".join(_line(record) for record in kinds[kind]), self.path / LINES[kind])

    def checkpoint(self, history: History, server: Server, attack_state: State) -> None:
        """Keep what is needed to go on after the rounds so far."""
        assert history.model is not None and self._audit is not None
        self._audit.sync()
        for kind, file in self._files.items():
            with naming(self.path / LINES[kind]):
                os.fsync(file.fileno())
        manifest = {"round": len(history.rounds), "config": self._digest, "audit": self._audit.head}
        server.keep(self.path / CHECKPOINT, manifest, {"model": history.model, "attack": attack_state})

    def _read_checkpoint(self, server: Server) -> tuple[int, str, dict[str, Tensor], State]:
        path = self.path / CHECKPOINT
        try:
            found = read_checkpoint(path)
            if found.manifest.get("config") != self._digest:
                raise StateError(f"{path}: cannot be resumed (it is of another config)")
            server.restore(found)
            done, head = whole_number(found.manifest["round"]), str(found.manifest["audit"])
            return done, head, found.parts.get("model", {}), found.parts.get("attack", {})
        except StateError as problem:
            raise StateError(f"{problem}; overwrite the run to begin anew") from None
        except (ValueError, KeyError, TypeError) as problem:
            raise StateError(f"{path}: cannot be resumed ({problem!r}); overwrite the run") from None

    def finish(self, history: History) -> None:
        write_atomically(self.path / RESULT, json.dumps(history.result(), indent=1, ensure_ascii=False).encode())

    def close(self) -> None:
        if self._audit is not None:
            self._audit.close()
        for file in (*self._files.values(), self._lock):
            file.close()


def _agree(history: History, done: int, server: Server) -> bool:
    """Whether the lines are those of the rounds that a checkpoint says are done, and the server played them."""
    complete = [record["round"] for record in history.rounds] == list(range(1, done + 1))
    of_clients = sum(record["client"] is not None for record in history.audit)
    played = sum(record["void"] is None for record in history.rounds)
    return complete and of_clients == done * history.scenario.clients and played == server.round


def check_folder(path: Path, scenario: Scenario, *, overwrite: bool) -> None:
    """Whether a run of this scenario may be written there, as far as that can be told before its data are read: if
    there is a run of the scenario already, it may be one on other data."""
    _check_usable(path, {"format": _FORMAT, "scenario": scenario.values()}, resume=True, overwrite=overwrite)
    above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not above.is_dir():
        raise InputError(f"{path}: {above} is a file; a run is a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{path}: nothing can be written in {above}; choose another folder")


def holds_run(path: Path) -> bool:
    """Whether there is one to go on from."""
    return (path / CONFIG).exists()


def _check_usable(path: Path, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Whether a run of this config may be written there; changes nothing."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: is a file; a run is a folder")
    if not path.exists():
        return
    ours = {*_OURS, TENSORBOARD}
    strangers = sorted(e.name for e in path.iterdir() if e.name not in ours and not e.name.startswith("."))
    try:
        found = _read_config(path)
    except InputError as problem:
        if not overwrite or strangers:
            raise InputError(f"{problem}; choose another folder") from None
        return
    if found is None and strangers:
        raise InputError(f"{path}: holds other files ({strangers[0]}) and no run; choose a new folder")
    if found is None or overwrite:
        return
    if found["format"] != config["format"]:
        kind = InputError if (path / RESULT).exists() else StateError  # a grid begins an unfinished cell anew
        raise kind(
            f"{path}: was written by an earlier version, which can be shown (fedseca report), not resumed; choose "
            "another folder or overwrite"
        )
    compared = {name: value for name, value in found.items() if name in config}
    if difference := _difference(compared, json.loads(json.dumps(config))):
        raise InputError(
            f"{path}: holds a run of another config ({difference}); choose another folder (--output) or overwrite it "
            "(--overwrite)"
        )
    if not resume:
        end = (
            "finished; resume (--resume) shows it"
            if (path / RESULT).exists()
            else "not finished; resume (--resume) goes on"
        )
        raise InputError(f"{path}: holds this run already, which is {end}, overwrite (--overwrite) starts again")


def _read_config(path: Path) -> Any:
    """What the config of a run says; None if there is none."""
    try:
        found = json.loads(read_regular(path / CONFIG))
        if not isinstance(found, dict) or "format" not in found or not isinstance(found.get("scenario"), dict):
            raise ValueError("it is not the config of a run")
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{path / CONFIG}: cannot be read ({problem})") from None


def is_unchained(path: Path) -> bool:
    """Whether an earlier version wrote what the clients of this run did, without hashes.

    The file itself decides first: whoever only edits the config must not make a chain go unread.
    """
    if is_chained(path / LINES["audit"]):
        return False
    config = _read_config(path)
    return config is not None and config["format"] != _FORMAT


def _difference(found: Any, config: Any, name: str = "") -> str | None:
    """The first thing in which two configs differ, for people."""
    if isinstance(found, dict) and isinstance(config, dict):
        for key in [*config, *(key for key in found if key not in config)]:
            inner = f"{name}.{key}" if name and name != "scenario" else key
            if difference := _difference(found.get(key), config.get(key), inner):
                return difference
        return None
    return None if found == config else f"{name} is {found!r} there and {config!r} here"


def _read_lines(path: Path, kind: str) -> list[Record]:
    """The whole lines of a file of records; one that was cut off in the middle is not one of them."""
    try:
        content = read_regular(path / LINES[kind])
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise InputError(f"{path / LINES[kind]}: cannot be read ({problem.strerror})") from None
    records = []
    for line in content.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break  # what follows a broken line cannot be trusted to be in order
        if not isinstance(record, dict) or type(record.get("round")) is not int or not _FIELDS[kind] <= record.keys():
            break
        records.append(_told(record) if kind == "audit" else record)
    return records


def _told(record: Record) -> Record:
    """What a line of the audit says, without the hashes that chain it."""
    return modern({name: value for name, value in record.items() if name not in ("previous", "hash")})


def read_history(path: str | Path) -> History:
    """The history of a run folder: of a finished run all of it, or else the rounds that are whole.

    A finished run of which something is missing or damaged, and one that another version wrote, are an `InputError`.
    """
    path = Path(path)
    finished = (path / RESULT).exists()  # first: a run that ends meanwhile is unfinished, not damaged
    config = _read_config(path)
    if config is None:
        raise InputError(f"{path}: is not the folder of a run: there is no {CONFIG}")
    if config["format"] not in _READ:
        raise InputError(f"{path}: was written by another version (format {config['format']!r}, here {_FORMAT})")
    scenario = Scenario.of(config["scenario"])
    lines = {kind: _read_lines(path, kind) for kind in LINES}
    whole = _whole_rounds(lines, scenario.clients)
    if finished and whole != scenario.rounds:
        raise InputError(
            f"{path}: is finished, but only {whole} of its {scenario.rounds} rounds are whole in its files"
        )
    history = History(scenario, folder=path)
    history.append({kind: [line for line in found if line["round"] <= whole] for kind, found in lines.items()})
    if config["format"] != _FORMAT:  # an earlier version said only with the rounds which of them were void
        void = [line for line in history.rounds if line["void"] is not None]
        history.audit += [{"round": line["round"], "client": None, "void": str(line["void"])} for line in void]
        history.audit.sort(key=lambda line: line["round"])
        _judge(history)
    return history


def _judge(history: History) -> None:
    """Say who was suspect in a run of an earlier version, which did not; only what the rule itself named is there."""
    admitted: dict[int, list[Record]] = {}
    for line in history.audit:
        if line.get("verdict") in ("used", "suspect"):
            admitted.setdefault(line["round"], []).append(line)
    for lines in admitted.values():
        numbers = [(line.get("norm"), line.get("weight")) for line in lines]
        if not all(type(value) in (int, float) for pair in numbers for value in pair):
            continue
        norms, weights = ([float(value) for value in each] for each in zip(*numbers, strict=True))
        named = {line["client"] for line in lines if line["verdict"] == "suspect"}
        judged = weights if history.scenario.aggregator.low_weight_is_distrust else None
        found = suspicion([line["client"] for line in lines], norms, judged, named)
        for line in lines:
            if line["client"] in found:
                line |= {"verdict": "suspect", "reason": found[line["client"]]}


def _whole_rounds(lines: Mapping[str, list[Record]], clients: int) -> int:
    """How many rounds, counted from the first, have their metrics and a line for every client."""
    answers = Counter(line["round"] for line in lines["audit"] if line["client"] is not None)
    whole, names = 0, metric_names(lines["rounds"][0]) if lines["rounds"] else ()
    for line in lines["rounds"]:
        if line["round"] != whole + 1 or answers[whole + 1] != clients or not _has_score(line, names):
            break
        whole += 1
    return whole


def _has_score(line: Record, names: tuple[str, ...]) -> bool:
    """Whether it has the metrics that the others have: numbers, of which the score is 1 at best, or null for none."""
    if not names or metric_names(line) != names:
        return False
    values = [line[name] for name in names]
    numbers = all(value is None or (type(value) in (int, float) and abs(value) <= 1e300) for value in values)
    return numbers and (values[0] is None or values[0] <= 1)


def read_model(path: str | Path) -> dict[str, Tensor]:
    """The global model of a run's last checkpoint."""
    try:
        return read_checkpoint(Path(path) / CHECKPOINT).parts.get("model", {})
    except StateError as problem:
        raise InputError(str(problem)) from None


def _line(record: Record) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
