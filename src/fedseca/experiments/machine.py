"""Where runs compute, and with what: nothing of it is part of a scenario."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedseca.errors import InputError
from fedseca.federation.client import usable
from fedseca.federation.loop import check_threads


@dataclass(frozen=True)
class Machine:
    """What the runs of a grid or an experiment have in common."""

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    """Of torch, in each run."""

    def jobs_or(self, jobs: int | None) -> int:
        """How many runs at once, if nobody says: as many as there are cores for, one on another device."""
        if jobs is not None:
            return jobs
        return max(1, (os.cpu_count() or 1) // self.threads) if self.device == "cpu" else 1

    def check(self) -> None:
        """That it can be used."""
        check_threads(self.threads)
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise InputError(f"data folder {self.data_dir}: no such folder")
        usable(self.device)
