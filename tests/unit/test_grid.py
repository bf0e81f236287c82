"""Grids: which cells there are, where they lie, what becomes of them."""

import io
import json
import os
import signal
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from fedseca import plugins
from fedseca.errors import InputError, ParameterError, UnknownName
from fedseca.experiments.axes import Axis, place, scenarios
from fedseca.experiments.machine import Machine
from fedseca.experiments.runner import Progress, run_grid
from fedseca.experiments.store import Store, record_failure
from fedseca.experiments.workers import Processes, Task
from fedseca.federation import Scenario, read_history, simulate
from fedseca.federation.folder import RunFolder

SMALL: dict[str, Any] = {"rounds": 2, "train_images": 60, "test_images": 40}


def test_every_combination_once_and_in_order():
    axes = [Axis("aggregator", ("fedavg", "krum")), Axis("attack", ("ipm", "none")), Axis("seed", ("0", "1"))]
    cells = scenarios(SMALL, axes)
    found = [(cell.aggregator.name, cell.attack.name, cell.seed) for cell in cells]
    assert found == [(r, a, s) for r in ("fedavg", "krum") for a in ("ipm", "none") for s in (0, 1)]
    assert all(cell.rounds == 2 for cell in cells) and scenarios(SMALL) == [Scenario(**SMALL)]


def test_a_hyperparameter_is_varied_where_it_is():
    axes = [Axis("aggregator.sparsity", ("0.5", 0.9)), Axis("aggregator", ("fedavg", "fedseca", "ties"))]
    cells = scenarios(SMALL, axes)
    found = [(cell.aggregator.name, getattr(cell.aggregator, "sparsity", None)) for cell in cells]
    assert sorted(found, key=str) == sorted(
        [("fedavg", None), ("fedseca", 0.5), ("fedseca", 0.9), ("ties", 0.5), ("ties", 0.9)], key=str
    )


def test_chains_are_rules_like_any_other():
    axes = [
        Axis("aggregator", ("cwmed", "nnm+cwmed", "nnm+krum")),
        Axis("aggregator.nnm.num_byzantine", ("0", "1")),
    ]
    cells = scenarios(SMALL, axes)
    assert [(cell.aggregator.name, cell.aggregator.values().get("nnm.num_byzantine")) for cell in cells] == [
        ("cwmed", None),
        ("nnm+cwmed", 0),
        ("nnm+cwmed", 1),
        ("nnm+krum", 0),
        ("nnm+krum", 1),
    ]
    assert cells[3].aggregator.values()["krum.num_byzantine"] == 2  # which nobody said: the true number
    bare = scenarios(SMALL, [axes[0], Axis("aggregator.num_byzantine", ("1",))])
    assert bare[2].aggregator.values()["nnm.num_byzantine"] == bare[2].aggregator.values()["krum.num_byzantine"] == 1
    assert place("nnm.num_byzantine", SMALL, axes) == "aggregator.nnm.num_byzantine"
    assert place("rule.nnm.num_byzantine", SMALL, axes) == "aggregator.nnm.num_byzantine"
    assert place("num_byzantine", SMALL, axes) == "aggregator.num_byzantine"
    with pytest.raises(InputError, match=r"chain 'krum\+cwmed': krum and cwmed are both rules"):
        scenarios(SMALL, [Axis("aggregator", ("krum+cwmed",))])


def test_the_base_may_have_tables():
    base = {**SMALL, "attack": {"name": "ipm", "strength": 3.0}}
    cells = scenarios(base, [Axis("attack.jitter", ("0", "0.01"))])
    assert [(cell.attack.strength, cell.attack.jitter) for cell in cells] == [(3.0, 0.0), (3.0, 0.01)]


def test_names_find_their_place():
    axes = [Axis("aggregator", ("fedseca", "krum")), Axis("attack", ("ipm",))]
    for name, expected in {
        "seed": "seed",
        "sparsity": "aggregator.sparsity",
        "strength": "attack.strength",
        "alpha": "partition.alpha",
        "attack.jitter": "attack.jitter",
        "width": "model.width",
    }.items():
        assert place(name, SMALL, axes) == expected
    with pytest.raises(ParameterError, match="unknown hyperparameter of scenario 'sparsty'; did you mean 'sparsity'"):
        place("sparsty", SMALL, axes)
    both = [Axis("aggregator", ("ties",)), Axis("attack", ("random",)), Axis("partition", ("shards",))]
    assert place("factor", SMALL, both) == "attack.factor"
    with pytest.raises(ParameterError, match="unknown hyperparameter of scenario 'strength'"):
        place("strength", SMALL, both)


@pytest.mark.parametrize(
    ("axis", "error"),
    [
        (Axis("aggregator", ("fedsecca",)), UnknownName),
        (Axis("rounds", ("0",)), ParameterError),
        (Axis("aggregator.sparsity", ("2",)), ParameterError),
        (Axis("byzantine", ("5",)), ParameterError),
        (Axis("seed.x", ("5",)), ParameterError),
    ],
)
def test_bad_axes_are_refused_before_anything_runs(axis, error):
    with pytest.raises(error):
        scenarios(SMALL, [axis])


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            [Axis("clients", ("5",)), Axis("byzantine", ("2", "5"))],
            "1 of 2 combinations cannot be run; the first is aggregator=fedseca attack=ipm clients=5 byzantine=5: "
            "scenario: byzantine must be below clients",
        ),
        (
            [Axis("aggregator", ("fedavg", "krum")), Axis("attack", ("none", "ipm")), Axis("clients", (3, 9))],
            "2 of 8 combinations cannot be run; the first is aggregator=krum attack=none clients=3: "
            "scenario: krum needs at least 5 clients",
        ),
        (  # fedavg has no num_byzantine: all its combinations are possible
            [Axis("aggregator", ("fedavg", "krum")), Axis("aggregator.num_byzantine", ("1", "3"))],
            "1 of 4 combinations cannot be run; the first is aggregator=krum attack=ipm aggregator.num_byzantine=3: "
            "scenario: krum needs at least 6 clients",
        ),
        (  # nor is it named where it plays no part
            [
                Axis("aggregator.num_byzantine", ("1", "2")),
                Axis("byzantine", (5,)),
                Axis("aggregator", ("rfa", "krum")),
            ],
            "4 of 4 combinations cannot be run; the first is aggregator=rfa attack=ipm byzantine=5: ",
        ),
        ([Axis("byzantine", (5,))], "scenario: byzantine must be below clients"),
    ],
)
def test_an_impossible_combination_is_named(axes, message):
    with pytest.raises(ParameterError) as problem:
        scenarios(SMALL, axes)
    assert str(problem.value).startswith(message)


def test_a_grid_is_run_and_found_again(tmp_path):
    store = Store(tmp_path / "grid")
    cells = scenarios(SMALL, [Axis("aggregator", ("fedavg", "cwmed"))])
    progress = run_grid(cells, store, Processes(2))
    assert [len(x) for x in (progress.done, progress.failed, progress.waiting, progress.running)] == [2, 0, 0, 0]
    for cell in cells:
        # What a process of its own found is what is found here.
        assert read_history(store.folder(cell)).f1 == simulate(cell).f1
    stamps = {cell.id: (store.folder(cell) / "result.json").stat().st_mtime_ns for cell in cells}
    more = scenarios(SMALL, [Axis("aggregator", ("fedavg", "cwmed", "rfa"))])
    run_grid(more, store, Processes(2))
    assert {cell.id for cell in store.cells()} == {cell.id for cell in more}
    assert stamps == {cell.id: (store.folder(cell) / "result.json").stat().st_mtime_ns for cell in cells}


def test_a_cell_that_fails_is_written_down_and_stops_no_other(tmp_path):
    store = Store(tmp_path / "grid")
    cells = [
        Scenario(**SMALL),
        Scenario(**(SMALL | {"train_images": 5000})),  # more than there are
        Scenario(**SMALL, attack="none"),
    ]
    progress = run_grid(cells, store, Processes(1))
    assert [cell.id for cell in progress.failed] == [cells[1].id] and len(progress.done) == 2
    told = store.error(cells[1])
    assert told["error"] == "InputError: digits has 1437 training samples; 5000 requested"
    assert "Traceback" in told["traceback"] and [store.state(cell) for cell in cells] == ["done", "failed", "done"]


class _KillsItself(Processes):
    """Processes of which one is shot in the middle of its rounds."""

    def start(self, name: str, task: Task) -> None:
        super().start(name, task)
        if task.scenario["seed"] == 1:
            process, _ = self._running[name]
            deadline = time.monotonic() + 60
            while not (Path(task.folder) / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)


def test_a_process_that_is_killed_is_a_cell_that_failed_and_goes_on_next_time(tmp_path):
    store = Store(tmp_path / "grid")
    cells = scenarios({**SMALL, "rounds": 60}, [Axis("seed", (0, 1))])
    progress = run_grid(cells, store, _KillsItself(2))
    assert [cell.seed for cell in progress.failed] == [1]
    assert store.error(cells[1])["error"] == "its process ended with signal 9, as happens when memory runs out"
    begun = read_history(store.folder(cells[1])).rounds[:5]
    progress = run_grid(cells, store, Processes(2))
    assert not progress.failed and not store.error_file(cells[1]).exists()
    found = read_history(store.folder(cells[1]))
    assert found.f1 == simulate(cells[1]).f1
    assert found.rounds[:5] == begun  # with the same seconds: these were not played again


def test_other_data_of_the_same_name_is_refused(tmp_path):
    store = Store(tmp_path / "grid")
    for name, seed in (("a", 0), ("b", 1)):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(256, (30, 1, 8, 8), dtype=torch.uint8, generator=generator)
        labels = torch.arange(30) % 3
        arrays = {"train_images": images, "train_labels": labels, "test_images": images.clone()}
        (tmp_path / name).mkdir()
        save_file({**arrays, "test_labels": labels.clone()}, tmp_path / name / "arrays.safetensors")
    cells = [Scenario(dataset="arrays", rounds=1)]
    assert not run_grid(cells, store, Processes(1), Machine(tmp_path / "a")).failed
    with pytest.raises(InputError, match="holds runs on other data named arrays; choose a new folder"):
        run_grid(cells, store, Processes(1), Machine(tmp_path / "b"))


def test_what_all_cells_would_stumble_over_is_said_once_and_nothing_is_written(tmp_path):
    cells = scenarios(SMALL, [Axis("seed", (0, 1))])
    (tmp_path / "thesis.tex").write_text("all of it")
    for store, machine, message in (
        (Store(tmp_path / "new"), Machine(threads=0), "threads must be an integer from 1 to 1024; found 0"),
        (Store(tmp_path / "new"), Machine(tmp_path / "nowhere"), "no such folder"),
        (Store(tmp_path / "new"), Machine(device="cuda:99"), "device 'cuda:99' cannot be used here: "),
        (Store(tmp_path), Machine(), r"holds other files \(thesis.tex\) and no grid"),
    ):
        with pytest.raises(InputError, match=message):
            run_grid(cells, store, Processes(1), machine)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_table_of_the_base_stays_where_its_name_is_varied():
    base = {**SMALL, "attack": {"name": "ipm", "strength": 7.0}, "aggregator": {"sparsity": 0.5}}
    cells = scenarios(base, [Axis("attack", ("ipm", "none")), Axis("aggregator.momentum", ("0.1",))])
    assert cells[0].attack.strength == 7.0 and cells[1].attack.name == "none"
    assert all((cell.aggregator.sparsity, cell.aggregator.momentum) == (0.5, 0.1) for cell in cells)


def test_a_cell_that_another_grid_runs_is_waited_for(tmp_path):
    store = Store(tmp_path / "grid")
    (cell,) = cells = scenarios(SMALL)
    store.plan(cells)
    folder = RunFolder(store.folder(cell), cell, cell.dataset.load().fingerprint(), resume=False, overwrite=False)
    threading.Timer(2.0, folder.close).start()
    progress = run_grid(cells, store, Processes(1))
    assert not progress.failed and read_history(store.folder(cell)).f1 == simulate(cell).f1


def test_plans_made_at_once_lose_nothing(tmp_path):
    cells = scenarios(SMALL, [Axis("seed", tuple(range(12)))])
    threads = [threading.Thread(target=Store(tmp_path / "grid").plan, args=([cell],)) for cell in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {cell.seed for cell in Store(tmp_path / "grid").cells()} == set(range(12))


def test_a_broken_plan_is_one_line(tmp_path):
    for content in ("{", '{"cells": 5}', '{"cells": [5]}', '{"cells": [{"rounds": "x"}]}', "[" * 100_000):
        (tmp_path / "grid.json").write_text(content)
        with pytest.raises(InputError, match=r"grid.json: cannot be read"):
            Store(tmp_path).cells()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; a grid is a folder"):
        Store(tmp_path / "file").plan([])
    assert Store(tmp_path / "nowhere").cells() == []
    with pytest.raises(InputError, match="jobs must be an integer ≥ 1; found 0"):
        Processes(0)


def test_a_plan_is_plain_data(tmp_path):
    store = Store(tmp_path)
    store.plan([Scenario(**SMALL)])
    planned: Any = json.loads(Path(tmp_path / "grid.json").read_text())
    assert [Scenario.of(values) for values in planned["cells"]] == store.cells() == [Scenario(**SMALL)]


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    store = Store(tmp_path)
    (cell,) = cells = scenarios(SMALL)
    store.plan(cells)
    record_failure(store.error_file(cell), "it failed")
    left = [".grid.json.0123456789ab", f"errors/.{cell.title}.json.0123456789ab"]
    others = [".grid.json.swp", ".grid.json.0123456789abc", ".notes.0123456789ab", "errors/.a.json.0123456789ab"]
    for name in (*left, *others):
        (tmp_path / name).write_text("half of")
    store.plan(cells)
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in others) and store.error(cell)["error"] == "it failed"


def test_what_is_being_written_is_not_taken_for_left(tmp_path):
    """A grid that starts tidies while the cells of another fail."""
    store = Store(tmp_path)
    (cell,) = cells = scenarios(SMALL)
    store.plan(cells)
    problems: list[Exception] = []

    def fail() -> None:
        try:
            for number in range(100):
                record_failure(store.error_file(cell), f"failure {number}")
        except OSError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=fail) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.plan(cells)
    assert problems == [] and store.error(cell)["error"] == "failure 99"


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")  # between two libraries, when they are imported
def test_the_live_table(tmp_path, monkeypatch):
    from fedseca.cli.grid import live_grid

    store, screen = Store(tmp_path), io.StringIO()
    cells = scenarios(SMALL | {"rounds": 8}, [Axis("seed", tuple(range(6)))])
    store.folder(cells[2]).mkdir(parents=True)
    (store.folder(cells[2]) / "rounds.jsonl").write_text("{}\n" * 3)
    now = [100.0]
    monkeypatch.setattr("fedseca.cli.grid.time", SimpleNamespace(monotonic=lambda: now[0]))
    console = Console(file=screen, force_terminal=True, width=100)

    def painted() -> str:
        shown = screen.getvalue()
        screen.seek(0), screen.truncate()
        return shown

    with live_grid(len(cells), store, console) as show:
        progress = Progress(deque(cells[3:]), {cells[2].id: cells[2]}, done=[cells[0]])
        show(progress)  # what was done before says nothing of how long the rest takes
        assert "1 of 6 done, 1 running, 0 failed, 0:00:00 so far, …" in painted()
        progress.failed.append(cells[1])
        now[0] += 3700
        show(progress)
        shown = painted()
        assert "1 of 6 done, 1 running, 1 failed, 1:01:40 so far, about 4:06:40 left" in shown
        assert cells[2].title in shown and "3/8" in shown and cells[3].title not in shown
    with live_grid(len(cells), store, Console(file=screen, force_terminal=False)) as show:
        painted()
        show(progress)
    assert painted() == ""  # into a file, nothing is painted


def test_a_cell_that_wants_to_end_its_process_is_a_cell_that_failed(tmp_path, monkeypatch):
    plugin = tmp_path / "leaves.py"
    plugin.write_text(f"import os\nif os.getpid() != {os.getpid()}: raise SystemExit(0)\n")
    monkeypatch.setattr(plugins, "_LOADED", {})
    plugins.load_plugin(plugin)
    store = Store(tmp_path / "grid")
    (cell,) = cells = scenarios(SMALL)
    assert run_grid(cells, store, Processes(1)).failed == [cell]
    assert store.error(cell)["error"] == "SystemExit: 0"


def test_a_cell_knows_the_plugins_that_were_loaded_where_the_grid_was_started(tmp_path):
    plugins.load_plugin(Path(__file__).parents[2] / "examples" / "rules" / "norm_median.py")
    (cell,) = cells = scenarios({**SMALL, "aggregator": "norm_median"})
    store = Store(tmp_path / "grid")
    assert run_grid(cells, store, Processes(1)).done == [cell], store.error(cell)


def test_a_done_cell_that_is_damaged_is_run_again(tmp_path):
    store = Store(tmp_path / "grid")
    (cell,) = cells = scenarios(SMALL)
    assert not run_grid(cells, store, Processes(1)).failed
    expected = read_history(store.folder(cell)).f1
    rounds = store.folder(cell) / "rounds.jsonl"
    rounds.write_text("{\n" + rounds.read_text().partition("\n")[2])
    assert store.state(cell) == "waiting"
    progress = run_grid(cells, store, Processes(1))
    assert not progress.failed and read_history(store.folder(cell)).f1 == expected
