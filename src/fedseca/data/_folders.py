"""Where the files of a data set are looked for, and how they get there without anybody ever seeing half of them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedseca.data.base import Dataset, DataSource
from fedseca.errors import InputError, printable

PATIENCE = 1800
"""Seconds that a download may take."""


def data_root(data_dir: Path | None = None) -> Path:
    """The folder of all data sets: the one that is given, else $FEDSECA_DATA, else the user's cache."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if os.environ.get("FEDSECA_DATA"):
        return Path(os.environ["FEDSECA_DATA"]).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "fedseca"


@dataclass(frozen=True, kw_only=True)
class FolderSource(DataSource):
    """A data set in files: in a folder of its name inside the data folder, or in the data folder itself."""

    has_files: ClassVar[bool] = True
    subfolders: ClassVar[tuple[str, ...]] = ()
    """Where else inside the data folder its files may lie."""
    system_folders: ClassVar[tuple[str, ...]] = ()
    """Where packages of the system put it; looked at last, and not where the caller names a folder."""

    @abstractmethod
    def lacks(self, folder: Path) -> list[str] | None:
        """The files that `folder` lacks: none of them if it is complete, None if it has nothing of the set."""

    @abstractmethod
    def read(self, folder: Path) -> Dataset:
        """The data set from a complete folder."""

    def fetch(self, folder: Path) -> None:
        """Fetch the files into an empty folder."""
        raise InputError(f"{self.name} cannot be downloaded: {self.how_to_get}")

    def candidates(self, data_dir: Path | None) -> list[Path]:
        """The folders in which it is looked for, in this order."""
        root = data_root(data_dir)
        if data_dir is not None and not os.path.isdir(root):
            raise InputError(f"data folder {root}: {'is a file' if os.path.isfile(root) else 'no such folder'}")
        inside = [root / self.name, root, *(root / sub for sub in self.subfolders)]
        return inside if data_dir is not None else [*inside, *map(Path, self.system_folders)]

    def find(self, data_dir: Path | None = None) -> Path | None:
        return next((folder for folder in self.candidates(data_dir) if self.lacks(folder) == []), None)

    def folder(self, data_dir: Path | None = None) -> Path:
        """The folder in which its files lie, or an `InputError` that says where it was looked for."""
        found = self.find(data_dir)
        if found is not None:
            return found
        for candidate in self.candidates(data_dir):
            if lacking := self.lacks(candidate):
                raise InputError(f"{self.name} in {candidate} lacks {', '.join(lacking)}; {self.how_to_get}")
        places = [data_root(data_dir), *(self.system_folders if data_dir is None else ())]
        raise InputError(f"{self.name} is not in {' or '.join(map(str, places))}: {self.how_to_get}")

    def load(self, data_dir: Path | None = None) -> Dataset:
        return self.read(self.folder(data_dir))

    def get(self, data_dir: Path | None = None) -> Path:
        root = data_root(data_dir)
        if os.path.isdir(root) or data_dir is None:
            found = self.find(data_dir)
            if found is not None:
                return found
        target = root / self.name
        if os.path.lexists(target):
            raise InputError(f"{target}: is there but is not a complete {self.name}; move it away, then get it again")
        is_new = not os.path.isdir(root)
        staging = root / f".{self.name}.{secrets.token_hex(6)}"
        try:
            staging.mkdir(parents=True)
            self.fetch(staging)
            if self.lacks(staging) != []:
                raise InputError(f"what was downloaded is not {self.name}; {self.how_to_get}")
            os.rename(staging, target)  # whole or not at all
        except OSError as problem:
            if self.lacks(target) != []:  # unless another process was faster
                raise InputError(f"{problem.filename or target}: {problem.strerror or problem}") from problem
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # it is not empty: all went well
                    root.rmdir()
        return target


def lacking(folder: Path, names: Iterable[str], endings: tuple[str, ...] = ("",)) -> list[str] | None:
    """Which of the names are no file in `folder` under any of the endings; None if all are not."""
    names = list(names)
    absent = [name for name in names if not any(os.path.isfile(folder / f"{name}{ending}") for ending in endings)]
    return None if len(absent) == len(names) else absent


def run_tool(command: list[str], folder: Path, otherwise: str) -> None:
    """Run a package manager in `folder`; where that fails, one line with its reason and what else works."""
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]} is not installed here; {otherwise}")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{' '.join(command)} did not end within {PATIENCE} s; {otherwise}") from None
    if done.returncode != 0:
        raise InputError(f"{' '.join(command)} failed: {_reason(done.stderr or done.stdout)}; {otherwise}")


def _reason(text: str) -> str:
    """The one line that says why: the first sentence that apt-get or npm marks as an error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    marks = ("E: ", "npm error ", "npm ERR! ")
    marked = [line.removeprefix(mark) for line in lines for mark in marks if line.startswith(mark)]
    # npm begins with bare codes ("code E404", "syscall connect"); the sentence comes after them.
    sentence = next((line for line in marked if len(line.split()) > 3), lines[-1])
    return printable(sentence, limit=240).rstrip(".")
