"""What comes in is not always what it seems: files that change, tensors without memory, ids that cannot be shown."""

import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._subclasses import FakeTensorMode

import fedseca
from fedseca.audit import Audit
from fedseca.checkpoint import write_checkpoint
from fedseca.errors import InputError, LooksLikeModels
from fedseca.files import write_atomically
from fedseca.flower.replies import _is_finite
from fedseca.report.collect import collect
from fedseca.screening import screen
from fedseca.server import Server
from fedseca.updates import Updates
from tests.e2e.command import run

DIM = 300_000


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    generator = torch.Generator().manual_seed(0)
    paths = [tmp_path / f"site-{k}.safetensors" for k in range(5)]
    for path in paths:
        save_file({"w": torch.randn(DIM, generator=generator) + 1}, path)
    return paths


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut off", "written to", "removed"])
def test_a_file_that_changes_after_it_was_screened_changes_nothing(files, fault):
    """It would end the process (SIGBUS), or carry numbers into the model that nobody looked at."""
    expected = fedseca.aggregate(files, rule="cwmed")["w"]
    screening = screen(files)
    if fault == "cut off":
        os.truncate(files[2], 100)
    elif fault == "removed":
        files[2].unlink()
    else:
        with files[2].open("r+b") as file:
            file.seek(200)
            file.write(b"\xff" * 1000)  # NaN
    rule = fedseca.make_aggregator("cwmed")
    assert torch.equal(rule.aggregate(screening.updates, {}, torch.Generator()).update, expected)


def test_a_private_copy_leaves_nothing_behind(files, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    screening = screen(files)
    assert len(screening.updates) == 5 and not list((tmp_path / "copies").iterdir())


def test_where_there_is_no_room_for_a_copy_nobody_is_called_broken(files, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedseca.reading._move", full)
    with pytest.raises(InputError, match=r"no private copy of .*site-0.* can be written .*No space left"):
        fedseca.aggregate(files)


def test_what_is_no_regular_file_is_left_out_and_is_not_waited_for(files, tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    out = Server("cwmed").aggregate([*files, tmp_path / "pipe.safetensors", "/dev/zero", tmp_path])
    assert len(out.client_ids) == 5
    assert all("not a regular file" in reason for _, reason in out.rejected) and len(out.rejected) == 3


def test_in_place_a_change_is_an_error_and_no_model(files):
    server = Server("cwmed", in_place=True)
    expected = server.aggregate(files).update["w"]
    assert torch.equal(expected, fedseca.aggregate(files, rule="cwmed")["w"])  # the negative control

    class Writes(type(fedseca.make_aggregator("cwmed"))):  # type: ignore[misc]
        def aggregate(self, updates, state, rng):
            with files[0].open("r+b") as file:
                file.seek(DIM)
                file.write(b"1234")
            return super().aggregate(updates, state, rng)

    server, changed = (
        Server(Writes(), in_place=True),
        r"site-0.safetensors: was changed while it was aggregated; nothing",
    )
    with pytest.raises(InputError, match=changed):
        server.aggregate(files)
    assert server.round == 0
    assert Server(Writes()).aggregate(files).rejected == ()
    fedseca.aggregate(files, rule=Writes())  # of a copy, if nothing else is said
    with pytest.raises(InputError, match=changed):
        fedseca.aggregate(files, rule=Writes(), in_place=True)


def test_the_command_survives_files_that_are_written_to_meanwhile(files, tmp_path):
    """Somebody cuts a file off and writes it again all the time."""
    content, end = files[1].read_bytes(), threading.Event()

    def disturb() -> None:
        while not end.is_set():
            os.truncate(files[1], 64)
            files[1].write_bytes(content)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(4):
            done = run("aggregate", *files, "-o", tmp_path / "out.safetensors", "--rule", "cwmed")
            assert done.returncode == 0, done.stderr
    finally:
        end.set()
        thread.join()
    done = run("aggregate", *files, "-o", tmp_path / "out.safetensors", "--in-place")
    assert done.returncode == 0, done.stderr


# --- tensors -----------------------------------------------------------------------------------------------------


class _Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), options=None):
        raise RuntimeError("no")


class _Wraps(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        raise RuntimeError("no")


def _emptied(dtype: torch.dtype) -> torch.Tensor:
    made = torch.randn(6, dtype=dtype)
    made.untyped_storage().resize_(0)
    return made


def _fake(dtype: torch.dtype) -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(6, dtype=dtype)


HOSTILE = {
    "no data": lambda dtype: torch._efficientzerotensor(6, dtype=dtype),
    "its memory is gone": _emptied,
    "refuses every function": lambda dtype: torch.full((6,), torch.nan, dtype=dtype).as_subclass(_Refuses),
    "wraps": lambda dtype: _Wraps(torch.ones(6, dtype=dtype)),
    "fake": _fake,
    "conjugate": lambda dtype: torch.ones(6, dtype=torch.complex64).conj(),
    "meta": lambda dtype: torch.ones(6, dtype=dtype, device="meta"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_tensor_that_is_not_what_it_seems_is_left_out_with_a_reason(kind, dtype):
    honest = list(torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=dtype))
    for form in (lambda rows: rows, lambda rows: [{"w": row} for row in rows]):
        out = Server("cwmed").aggregate(form([*honest, HOSTILE[kind](dtype)]))
        assert len(out.client_ids) == 4 and [r.client_id for r in out.rejected] == ["4"] and out.rejected[0].reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_holds_plain_numbers_is_read_as_what_it_says(dtype):
    class Plain(torch.Tensor):
        pass

    base = torch.randn(6, dtype=dtype)
    complex_ = torch.complex(base, base + 1)
    forms = {
        "negated": (torch._neg_view(base), -base),
        "imaginary part of a conjugate": (complex_.conj().imag, -(base + 1)),
        "subclass": (base.as_subclass(Plain), base),
        "parameter": (torch.nn.Parameter(base), base),
        "every other": (torch.stack([base, base], dim=1)[:, 0], base),
        "one number": (torch.tensor(2.0, dtype=dtype).expand(6), torch.full((6,), 2.0, dtype=dtype)),
    }
    for name, (given, expected) in forms.items():
        (row,) = Updates.collect([given])
        assert type(row) is torch.Tensor and torch.equal(row, expected), name
        assert torch.equal(fedseca.aggregate([given] * 3, rule="cwmed"), expected), name


# --- ids, many clients -------------------------------------------------------------------------------------------


class _HasNoText:
    def __str__(self):
        raise RuntimeError("no")


def test_an_id_that_cannot_be_shown_or_is_endless_costs_its_client_the_round(tmp_path):
    server = Server("fedseca")
    out = server.aggregate(torch.randn(4, 6), client_ids=["a", _HasNoText(), "x" * 36_000_000, "d"])
    assert out.client_ids == ("a", "d")
    assert [str(r) for r in out.rejected] == [
        "client at place 1 (its id cannot be shown)",
        "client at place 2 (its id has 36000000 characters (allowed: 200))",
    ]
    server.save(tmp_path)


def test_the_work_of_screening_grows_with_the_clients_not_with_their_square(monkeypatch):
    """Counted, not timed: how often a layout is made, and how many ids are compared."""
    from fedseca.layout import Layout

    made = 0
    original = Layout.of.__func__  # type: ignore[attr-defined]

    def counted(cls, *arguments, **options):
        nonlocal made
        made += 1
        return original(cls, *arguments, **options)

    monkeypatch.setattr(Layout, "of", classmethod(counted))
    screen(torch.randn(500, 2))
    assert made == 1
    made = 0
    screen([{"w": torch.randn(2)} for _ in range(500)])
    assert made == 500


# --- files of the server's own -----------------------------------------------------------------------------------


def test_what_names_sites_or_holds_models_is_for_its_owner_alone(tmp_path):
    with Audit(tmp_path / "audit" / "audit.jsonl") as audit:
        audit.append([{"round": 1, "client": "a", "verdict": "used"}])
    write_checkpoint(tmp_path / "checkpoint.safetensors", {}, {})
    for path in (tmp_path / "audit" / "audit.jsonl", tmp_path / "checkpoint.safetensors"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as problem:
        write_atomically(tmp_path / "nowhere" / "page.html", b"")
    assert problem.value.filename == str(tmp_path / "nowhere" / "page.html")


def test_an_integer_beyond_every_float_is_no_metric():
    assert not _is_finite(10**400) and not _is_finite([1, 10**400]) and _is_finite(10**300) and _is_finite([1.0, 2])


def test_links_that_lead_on_and_on_are_not_followed_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[collect.__module__], "_MOST_FOLDERS", 30)
    for k in range(50):
        (tmp_path / "many" / str(k)).mkdir(parents=True)
    with pytest.raises(InputError, match="not searched: there are more than 30 folders"):
        collect([tmp_path / "many"])


@pytest.mark.parametrize("command", [["run"], ["grid"], ["bench", "--dim", "10", "--clients", "3"]])
def test_too_many_threads_are_refused_in_one_line(command, tmp_path):
    done = run(*command, "--threads", "99999999999999999999", "-o", tmp_path / "out")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "threads" in done.stderr


# --- what is printed ---------------------------------------------------------------------------------------------


def test_a_round_is_printed_as_the_table_of_its_clients():
    rows = torch.ones(30, 100_000)
    rows[3] *= -20
    rows[4, 7] = torch.nan
    out = Server("cwmed").aggregate(rows)
    shown = repr(out).splitlines()
    assert shown[0] == "Round: 29 admitted (1 suspect), 1 left out" and shown[-1] == "… and 10 more"
    assert shown[1].split() == ["client", "verdict", "norm", "weight"] and len(shown) == 23
    assert shown[5].split()[:2] == ["3", "suspect"]
    answer = fedseca.make_aggregator("cwmed").aggregate(Updates.collect(rows[:3]), {}, torch.Generator())
    assert repr(answer) == "Aggregation(update of 100000 numbers; of 3 clients: weight)"


def test_updates_can_be_looked_at_row_by_row_and_as_a_matrix():
    matrix = torch.randn(3, 7, dtype=torch.float64)
    updates = Updates.collect(matrix)
    assert torch.equal(torch.stack(list(updates)), matrix) and torch.equal(updates.matrix(), matrix)
    assert updates.matrix().data_ptr() != matrix.data_ptr()


# --- models in the place of updates ------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_models_in_the_place_of_updates_are_told_loudly(tmp_path):
    """The malicious site would have as much say as the others, and nobody would notice."""
    models = sorted((EXAMPLES / "models").glob("*.safetensors"))
    before = EXAMPLES / "before.safetensors"
    with pytest.warns(LooksLikeModels, match="these look like models, not updates"):
        assert Server("fedseca").aggregate(models).suspects == ()
    assert Server("fedseca").aggregate(models, before=before).suspects == ("malicious",)  # which warns of nothing
    done = run("aggregate", *models, "-o", tmp_path / "out.safetensors")
    assert done.returncode == 0 and done.stderr.startswith("warning: these look like models, not updates")
    done = run("aggregate", *models, "-o", tmp_path / "out.safetensors", "--global", before)
    assert done.returncode == 0 and done.stderr == ""
    origin = {name: value.numpy() for name, value in load_file(before).items()}
    trained = [load_file(path) for path in models if path.stem != "broken"]
    updates = [{name: origin[name] - each[name].numpy() for name in origin} for each in trained]
    assert isinstance(updates[0]["1.num_batches_tracked"], np.int64)  # a counter, and no ground for a rejection
    assert Server("fedseca").aggregate(updates).rejected == ()  # nor is anything warned of


@pytest.mark.parametrize(
    "name", ["config.json", "main.experiment.json", "result.json", "clients.jsonl", "rounds.jsonl"]
)
def test_a_pipe_in_a_folder_of_runs_is_not_waited_for(tmp_path, name):
    fedseca.simulate(fedseca.Scenario(rounds=1, train_images=60, test_images=30), folder=tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    fedseca.simulate(fedseca.Scenario(rounds=1, train_images=60, test_images=30, seed=1), folder=tmp_path / "other")
    found = collect([tmp_path])  # and the other run is shown
    assert len(found.runs) >= 1
    assert name == "result.json" or any("it is not a file" in each.reason for each in found.left_out), found.left_out


def test_the_warning_of_models_names_the_line_of_the_caller():
    centre = torch.randn(400) * 10
    models = [{"w": centre + 0.1 * torch.randn(400)} for _ in range(5)]
    for call in (fedseca.aggregate, Server("fedavg").aggregate, Server("fedavg").rehearse):
        with pytest.warns(LooksLikeModels) as told:
            call(models)
        assert told[0].filename == __file__
