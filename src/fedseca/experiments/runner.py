"""The cells of a grid, run side by side until all are done or have failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedseca.data import Task
from fedseca.errors import InputError
from fedseca.experiments.machine import Machine
from fedseca.experiments.store import Store
from fedseca.experiments.workers import Task as Cell
from fedseca.experiments.workers import Workers
from fedseca.federation import Scenario
from fedseca.federation.client import fingerprint
from fedseca.plugins import loaded


@dataclass
class Progress:
    """How far a grid is."""

    waiting: deque[Scenario]
    running: dict[str, Scenario] = field(default_factory=dict)
    done: list[Scenario] = field(default_factory=list)
    failed: list[Scenario] = field(default_factory=list)


def run_grid(
    cells: Iterable[Scenario],
    store: Store,
    workers: Workers,
    machine: Machine | None = None,
    *,
    on_change: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run the cells that are not done yet, those that failed before included; says what became of each.

    `on_change` is called about twice a second.
    """
    cells, machine = list(cells), machine or Machine()
    try:
        check(cells, store, machine)
        store.plan(cells)
        progress = Progress(deque())
        for cell in cells:
            (progress.done if store.state(cell) == "done" else progress.waiting).append(cell)
        for cell in progress.done:
            store.error_file(cell).unlink(missing_ok=True)
        while progress.waiting or progress.running:
            while progress.waiting and len(progress.running) < workers.jobs:
                cell = progress.waiting.popleft()
                workers.start(cell.id, _task(cell, store, machine))
                progress.running[cell.id] = cell
            for name in workers.ended(0.5):
                cell = progress.running.pop(name)
                (progress.done if store.state(cell) == "done" else progress.failed).append(cell)
            if on_change is not None:
                on_change(progress)
    finally:
        workers.close()
    return progress


def check(cells: Sequence[Scenario], store: Store, machine: Machine) -> dict[str, Task]:
    """Whether the grid can be run: what all its cells would stumble over is said once, before anything is written.

    Says what is learnt from each data set.
    """
    store.check_usable()
    machine.check()
    found: dict[Any, tuple[str, tuple[int, ...], Task]] = {}
    weights: dict[Any, str | None] = {}
    for cell in cells:
        if cell.dataset not in found:
            data = cell.dataset.loaded(machine.data_dir)
            found[cell.dataset] = data.fingerprint(), data.shape, data.task
        digest, shape, task = found[cell.dataset]
        if cell.model not in weights:
            weights[cell.model] = cell.model.fingerprint()
            if weights[cell.model] is not None:
                cell.model.build(shape, task.outputs, seed=0)  # they may not fit
        here, there = fingerprint(digest, weights[cell.model]), store.data_of(cell)
        if there is not None and there != here:
            same_data = there.partition(",")[0] == digest
            what = "with other weights" if same_data else f"on other data named {cell.dataset.name}"
            raise InputError(f"{store.path}: holds runs {what}; choose a new folder")
    return {dataset.name: task for dataset, (_, _, task) in found.items()}


def _task(cell: Scenario, store: Store, machine: Machine) -> Cell:
    """All paths are absolute: a process of a cluster may stand in another folder."""
    return Cell(
        scenario=cell.values(),
        folder=str(store.folder(cell).resolve()),
        error_file=str(store.error_file(cell).resolve()),
        data_dir=None if machine.data_dir is None else str(machine.data_dir.resolve()),
        device=machine.device,
        threads=machine.threads,
        plugins=tuple(loaded()),
    )
