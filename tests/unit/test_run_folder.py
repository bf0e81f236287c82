"""A run is a folder that can be cut off at any moment."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedseca.audit import read_audit
from fedseca.errors import InputError, StateError
from fedseca.federation import Scenario, read_history, simulate
from fedseca.report import collect
from tests.unit.run_folders import as_format_1

SCENARIO = Scenario(rounds=6, train_images=80, test_images=40, attack="mimic", participation=0.8)


class _Cut(Exception):
    pass


def cut_after(rounds):
    def on_round(history):
        if len(history.rounds) == rounds:
            raise _Cut

    return on_round


def run_until(folder: Path, rounds: int, **options: Any) -> None:
    with pytest.raises(_Cut):
        simulate(SCENARIO, folder=folder, on_round=cut_after(rounds), checkpoint_every=2, **options)


def contents(folder: Path) -> dict[str, Any]:
    """All that a run says, without how long it took."""
    lines = {
        name: [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (folder / name).read_text().splitlines()
        ]
        for name in ("rounds.jsonl", "clients.jsonl", "pairs.jsonl")
    }
    result = {k: v for k, v in json.loads((folder / "result.json").read_text()).items() if k != "seconds"}
    return {**lines, "result": result, "config": json.loads((folder / "config.json").read_text())}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "unbroken"
    simulate(SCENARIO, folder=folder, checkpoint_every=2)
    return folder


def same(folder: Path, unbroken: Path) -> bool:
    ours, theirs = (load_file(f / "checkpoint.safetensors") for f in (folder, unbroken))
    models = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    return models and contents(folder) == contents(unbroken)


def test_what_is_in_it(unbroken):
    assert {path.name for path in unbroken.iterdir() if path.name[0] != "."} == {
        "config.json",
        "rounds.jsonl",
        "clients.jsonl",
        "pairs.jsonl",
        "result.json",
        "checkpoint.safetensors",
    }
    told = contents(unbroken)
    assert Scenario.of(told["config"]["scenario"]) == SCENARIO
    assert [record["round"] for record in told["rounds.jsonl"]] == [1, 2, 3, 4, 5, 6]
    assert all({"f1", "accuracy", "loss"} <= record.keys() for record in told["rounds.jsonl"])
    assert len(told["clients.jsonl"]) == 6 * 5
    assert {line["verdict"] for line in told["clients.jsonl"]} <= {None, "used", "suspect"}
    numbers = {"norm", "rho", "clip_factor", "adopted", "weight"}
    admitted = [line for line in told["clients.jsonl"] if line["verdict"] is not None]
    assert len(admitted) == 6 * 4 and all(numbers <= line.keys() for line in admitted)
    assert all("reason" in line for line in admitted if line["verdict"] != "used")
    assert not any(numbers & line.keys() for line in told["clients.jsonl"] if line["verdict"] is None)
    assert {"f1_last5", "accuracy_last5", "versions", "seed"} <= told["result"].keys()
    history = read_history(unbroken)
    assert history.scenario == SCENARIO and history.f1_last5 == told["result"]["f1_last5"]
    said = [{k: v for k, v in line.items() if k not in ("previous", "hash")} for line in told["clients.jsonl"]]
    assert history.audit == said == read_audit(unbroken / "clients.jsonl")


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 6])
def test_cut_off_and_resumed_it_is_the_unbroken_run(tmp_path, unbroken, rounds):
    run_until(tmp_path / "run", rounds)
    simulate(SCENARIO, folder=tmp_path / "run", resume=True, checkpoint_every=2)
    assert same(tmp_path / "run", unbroken)


def test_cut_off_again_and_again(tmp_path, unbroken):
    for rounds in (1, 3, 4, 5):
        run_until(tmp_path / "run", rounds, resume=True)
    simulate(SCENARIO, folder=tmp_path / "run", resume=True, checkpoint_every=3)
    assert same(tmp_path / "run", unbroken)


def test_half_a_line_and_left_over_files_do_no_harm(tmp_path, unbroken):
    folder = tmp_path / "run"
    run_until(folder, 5)
    for name in ("rounds.jsonl", "clients.jsonl"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-17])
    (folder / "pairs.jsonl").write_bytes((folder / "pairs.jsonl").read_bytes() + b'{"round": 6, "cli')
    (folder / ".checkpoint.safetensors.0123456789ab").write_bytes(b"half of one")
    (folder / ".result.json.0123456789ab").write_bytes(b"{")
    simulate(SCENARIO, folder=folder, resume=True, checkpoint_every=2)
    assert same(folder, unbroken)
    assert not list(folder.glob(".*.0123456789ab"))


def test_cut_off_before_the_first_checkpoint_and_before_the_config(tmp_path, unbroken):
    run_until(tmp_path / "run", 1)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "run", tmp_path / "empty", tmp_path / "nowhere" / "yet"):
        simulate(SCENARIO, folder=folder, resume=True, checkpoint_every=2)
        assert same(folder, unbroken)


def test_a_finished_run_resumed_is_read_not_run_again(tmp_path, unbroken):
    calls: list[int] = []
    before = {path.name: path.read_bytes() for path in unbroken.iterdir()}
    history = simulate(SCENARIO, folder=unbroken, resume=True, on_round=lambda h: calls.append(1))
    assert calls == [] and history.f1_last5 == contents(unbroken)["result"]["f1_last5"]
    assert history.model is not None
    assert {path.name: path.read_bytes() for path in unbroken.iterdir()} == before


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"rounds": 9}, "rounds is 6 there and 9 here"),
        ({"attack": "ipm"}, "attack.name is 'mimic' there and 'ipm' here"),
        ({"aggregator": {"name": "fedseca", "momentum": 0.1}}, "aggregator.momentum is 0.5 there and 0.1 here"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_the_folder_of_another_config_is_refused_and_stays(unbroken, change, message, resume):
    before = snapshot(unbroken)
    other = Scenario.of({**SCENARIO.values(), **change})
    with pytest.raises(InputError, match=f"holds a run of another config .*{message}.*overwrite"):
        simulate(other, folder=unbroken, resume=resume)
    assert snapshot(unbroken) == before


def test_other_data_is_another_config(tmp_path, monkeypatch):
    run_until(tmp_path / "run", 3)
    monkeypatch.setattr("fedseca.data.Dataset.fingerprint", lambda self: "0123456789abcdef")
    with pytest.raises(InputError, match=r"data is .* there and '0123456789abcdef' here"):
        simulate(SCENARIO, folder=tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"data is .* here\); choose another folder \(--output\) or overwrite it"):
        simulate(SCENARIO, folder=tmp_path / "run")  # it does not hold this run already


def test_a_run_is_not_written_over_by_accident(tmp_path, unbroken):
    before = snapshot(unbroken)
    with pytest.raises(InputError, match=r"holds this run already, which is finished; resume .--resume. shows it"):
        simulate(SCENARIO, folder=unbroken)
    run_until(tmp_path / "run", 3)
    with pytest.raises(InputError, match="which is not finished"):
        simulate(SCENARIO, folder=tmp_path / "run")
    assert snapshot(unbroken) == before


def test_overwrite_starts_again_and_leaves_other_files(tmp_path, unbroken):
    folder = tmp_path / "run"
    run_until(folder, 5)
    (folder / "notes.txt").write_text("mine")
    simulate(SCENARIO, folder=folder, overwrite=True, checkpoint_every=2)
    assert same(folder, unbroken) and (folder / "notes.txt").read_text() == "mine"
    other = Scenario.of({**SCENARIO.values(), "rounds": 1})
    simulate(other, folder=folder, overwrite=True)
    assert len(read_history(folder).rounds) == 1


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match=r"holds other files \(thesis.tex\) and no run"):
        simulate(SCENARIO, folder=tmp_path)
    with pytest.raises(InputError, match="is a file; a run is a folder"):
        simulate(SCENARIO, folder=tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("damage", [b"", b"not safetensors at all", None])
def test_a_damaged_checkpoint_is_one_line(tmp_path, damage):
    folder = tmp_path / "run"
    run_until(folder, 5)
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100] if damage is None else damage)
    with pytest.raises(StateError, match=r"checkpoint.safetensors: cannot be read .*overwrite the run"):
        simulate(SCENARIO, folder=folder, resume=True)


def test_lost_lines_are_noticed(tmp_path):
    folder = tmp_path / "run"
    run_until(folder, 5)
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:1] + lines[2:]))
    before = snapshot(folder)
    with pytest.raises(StateError, match="its files and its checkpoint are not of the same rounds; overwrite it"):
        simulate(SCENARIO, folder=folder, resume=True)
    assert snapshot(folder) == before


def test_a_broken_config_is_refused(tmp_path):
    folder = tmp_path / "run"
    run_until(folder, 3)
    (folder / "config.json").write_text('{"scenario": ')
    with pytest.raises(InputError, match=r"config.json: cannot be read"):
        simulate(SCENARIO, folder=folder, resume=True)
    with pytest.raises(InputError, match=r"config.json: cannot be read"):
        read_history(folder)
    with pytest.raises(InputError, match=r"is not the folder of a run: there is no config.json"):
        read_history(tmp_path)
    simulate(SCENARIO, folder=folder, overwrite=True)  # nothing but ours lies there


@pytest.mark.parametrize("content", ["[1]", '{"mine": 1}', "[" * 100_000])
def test_a_config_that_is_not_ours_is_never_overwritten(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "thesis.tex").write_text("all of it")
    (tmp_path / ".config.json.bak").write_text("mine")
    before = snapshot(tmp_path)
    for resume, overwrite in ((False, False), (True, False), (False, True)):
        with pytest.raises(InputError, match=r"config.json: cannot be read"):
            simulate(SCENARIO, folder=tmp_path, resume=resume, overwrite=overwrite)
    assert snapshot(tmp_path) == before


def test_overwriting_that_is_cut_off_leaves_nothing_to_go_on_from(tmp_path, monkeypatch):
    """Killed between any two of the removals: the next run, of whatever config, plays its own rounds."""
    other = Scenario.of({**SCENARIO.values(), "attack": "fang", "rounds": 2})
    expected = simulate(other).f1
    removed = Path.unlink
    for cut in range(1, 7):
        folder = tmp_path / str(cut)
        run_until(folder, 5)
        count = 0

        def unlink(path, missing_ok=False, *, limit=cut):
            nonlocal count
            count += 1
            if count > limit:
                raise _Cut
            removed(path, missing_ok=missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlink)
            with pytest.raises(_Cut):
                simulate(SCENARIO, folder=folder, overwrite=True, on_round=cut_after(1))
        if (folder / "config.json").exists():
            with pytest.raises(InputError, match="another config"):
                simulate(other, folder=folder)
        else:
            assert simulate(other, folder=folder).f1 == expected


def test_a_checkpoint_of_another_config_is_refused(tmp_path):
    run_until(tmp_path / "run", 3)
    other = Scenario.of({**SCENARIO.values(), "learning_rate": 0.5})
    with pytest.raises(_Cut):
        simulate(other, folder=tmp_path / "other", on_round=cut_after(3), checkpoint_every=2)
    (tmp_path / "run" / "checkpoint.safetensors").replace(tmp_path / "other" / "checkpoint.safetensors")
    with pytest.raises(StateError, match="it is of another config"):
        simulate(other, folder=tmp_path / "other", resume=True)


def test_a_flipped_bit_in_the_checkpoint_is_noticed(tmp_path):
    run_until(tmp_path / "run", 3)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[-5] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(StateError, match="it is damaged, or was changed after it was written"):
        simulate(SCENARIO, folder=tmp_path / "run", resume=True)


def test_lost_audit_lines_are_noticed(tmp_path):
    run_until(tmp_path / "run", 5)
    (tmp_path / "run" / "clients.jsonl").unlink()
    with pytest.raises(StateError, match="its files and its checkpoint are not of the same rounds; overwrite it"):
        simulate(SCENARIO, folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize("line", ['{"round":"2"}', "[]", '{"round":2}', "[" * 100_000])
def test_a_line_that_is_no_record_ends_the_file(tmp_path, line):
    run_until(tmp_path / "run", 5)
    path = tmp_path / "run" / "rounds.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    assert len(read_history(tmp_path / "run").rounds) == 1
    with pytest.raises(StateError, match="its files and its checkpoint are not of the same rounds; overwrite it"):
        simulate(SCENARIO, folder=tmp_path / "run", resume=True)


RESUMED: dict[str, dict[str, Any]] = {
    "batch norm": {"model": {"name": "cnn", "batch_norm": True}, "attack": "minmax", "aggregator": "cclip"},
    "aggregated buffers": {"model": {"name": "cnn", "batch_norm": True}, "buffers": "aggregate", "dropout": 0.3},
    "a detector": {"aggregator": "fldetector", "attack": "labelflip", "participation": 1.0},
}


@pytest.mark.parametrize("case", RESUMED)
def test_what_else_is_resumed(tmp_path, case):
    scenario = Scenario.of({**SCENARIO.values(), **RESUMED[case]})
    simulate(scenario, folder=tmp_path / "whole", checkpoint_every=2)
    with pytest.raises(_Cut):
        simulate(scenario, folder=tmp_path / "cut", on_round=cut_after(3), checkpoint_every=2)
    simulate(scenario, folder=tmp_path / "cut", resume=True, checkpoint_every=2)
    assert same(tmp_path / "cut", tmp_path / "whole")


def test_a_slow_round_is_kept_before_its_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("fedseca.federation.loop._PATIENCE", 0.0)
    with pytest.raises(_Cut):
        simulate(SCENARIO, folder=tmp_path / "run", on_round=cut_after(1), checkpoint_every=100)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_two_writers_at_once_are_refused(tmp_path):
    def meanwhile(history):
        if len(history.rounds) == 2:
            with pytest.raises(InputError, match="another process is writing this run"):
                simulate(SCENARIO, folder=tmp_path / "run", resume=True)

    simulate(SCENARIO, folder=tmp_path / "run", on_round=meanwhile)
    assert len(read_history(tmp_path / "run").rounds) == 6


def test_bad_arguments():
    for arguments, message in (
        ({"checkpoint_every": 0}, "checkpoint_every must be an integer ≥ 1"),
        ({"threads": 0}, "threads must be an integer from 1 to 1024"),
        ({"device": "toaster"}, "device 'toaster' cannot be used here"),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
        ({"data_dir": "/no/such/folder"}, "/no/such/folder"),
    ):
        with pytest.raises(InputError, match=message):
            simulate(SCENARIO, **arguments)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    seen: list[int] = []
    with pytest.raises(_Cut):
        simulate(SCENARIO, threads=2, on_start=lambda *_: seen.append(torch.get_num_threads()), on_round=cut_after(1))
    assert seen == [2] and torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    {
        "a broken line": "is finished, but only 1 of its 3 rounds are whole",
        "a lost client": "is finished, but only 2 of its 3 rounds are whole",
        "no such score": "is finished, but only 0 of its 3 rounds are whole",
        "another version": "was written by another version .format 99, here 2",
        "a folder": "clients.jsonl: cannot be read",
    }.items(),
)
def test_what_is_damaged_is_not_read_as_whole(tmp_path, damage, message):
    scenario = Scenario.of({**SCENARIO.values(), "rounds": 3})
    simulate(scenario, folder=tmp_path)
    rounds, clients = tmp_path / "rounds.jsonl", tmp_path / "clients.jsonl"
    lines = rounds.read_text().splitlines(keepends=True)
    if damage == "a broken line":
        rounds.write_text(lines[0] + "{\n" + lines[2])
    elif damage == "a lost client":
        clients.write_text("".join(clients.read_text().splitlines(keepends=True)[:-1]))
    elif damage == "no such score":
        rounds.write_text("".join(json.dumps(json.loads(line) | {"f1": 7.0}) + "\n" for line in lines))
    elif damage == "another version":
        config = tmp_path / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"format": 99}))
    else:
        clients.unlink()
        clients.mkdir()
    with pytest.raises(InputError, match=message):
        read_history(tmp_path)
    if damage in ("a broken line", "a lost client"):
        (tmp_path / "result.json").unlink()
        assert len(read_history(tmp_path).rounds) == int(message.split()[4])


# --- the audit of a run, and runs of the version before ------------------------------------------------------------

MIXED = Scenario.of(
    {**SCENARIO.values(), "attack": "nonfinite", "clients": 6, "byzantine": 1, "dropout": 0.3, "rounds": 8}
)
VOID = Scenario.of({**SCENARIO.values(), "aggregator": "krum", "participation": 1.0, "dropout": 0.2, "rounds": 8})


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Runs with every kind of verdict in them."""
    folder: Path = tmp_path_factory.mktemp("runs")
    flipped = {"attack": {"name": "signflip", "factor": 20.0}, "clients": 10, "byzantine": 1, "participation": 1.0}
    scenarios = {"mixed": MIXED, "void": VOID, "suspects": Scenario.of({**SCENARIO.values(), **flipped})}
    for name, scenario in scenarios.items():
        simulate(scenario, folder=folder / name)
    return {name: folder / name for name in scenarios}


def verdicts(path: Path) -> list[Any]:
    return [line["verdict"] for line in read_history(path).audit if line["client"] is not None]


def test_every_verdict_is_in_one_of_these_runs(runs):
    assert set(verdicts(runs["mixed"])) >= {None, "no answer", "used", "left out"}
    assert set(verdicts(runs["void"])) >= {"round void", "no answer", "used"}
    assert set(verdicts(runs["suspects"])) == {"used", "suspect"}
    for path in runs.values():
        history = read_history(path)
        assert read_audit(path / "clients.jsonl") == history.audit
        void = [(record["round"], record["void"]) for record in history.rounds if record["void"] is not None]
        assert [(line["round"], line["void"]) for line in history.audit if line["client"] is None] == void


@pytest.mark.parametrize("name", ["mixed", "void", "suspects"])
def test_a_run_of_the_version_before_has_the_same_verdicts(tmp_path, runs, name):
    old = as_format_1(shutil.copytree(runs[name], tmp_path / name))
    assert (
        b'"hash"' not in (old / "clients.jsonl").read_bytes() and b"verdict" not in (old / "clients.jsonl").read_bytes()
    )
    now, then = read_history(runs[name]), read_history(old)
    assert verdicts(old) == verdicts(runs[name])
    assert then.rounds == now.rounds and then.pairs == now.pairs and then.scenario == now.scenario
    for one, other in zip(then.audit, now.audit, strict=True):
        if other["client"] is None:  # the line of a void round
            assert one == other
            continue
        if other["verdict"] == "suspect":  # of those that its line called suspect it had no reasons
            one.pop("reason"), other.pop("reason")
        if other["verdict"] in (None, "no answer"):
            reason = one.pop("reason", None)
            assert reason == ("was not asked" if other["verdict"] is None else "did not answer")
            other.pop("reason", None)
        assert one == other
    assert then.by_client() == now.by_client() and then.result() == now.result()
    (shown,), (as_now,) = (collect([each]).runs for each in (old, runs[name]))
    assert shown == as_now


def test_who_was_suspect_in_a_run_of_the_version_before_is_judged_anew(tmp_path, runs):
    """It called nobody suspect but those that the rule itself named."""
    old = as_format_1(shutil.copytree(runs["suspects"], tmp_path / "old"))
    lines = (old / "clients.jsonl").read_text()
    assert '"suspect": true' in lines
    (old / "clients.jsonl").write_text(lines.replace('"suspect": true', '"suspect": false'))
    now = [(line["round"], line["client"], line.get("verdict"), line.get("reason")) for line in read_history(old).audit]
    audit = read_history(runs["suspects"]).audit
    assert now == [(line["round"], line["client"], line.get("verdict"), line.get("reason")) for line in audit]


def test_a_run_of_the_version_before_is_not_resumed(tmp_path, runs):
    old = as_format_1(shutil.copytree(runs["mixed"], tmp_path / "old"))
    before = snapshot(old)
    for finished in (True, False):
        if not finished:
            (old / "result.json").unlink()
            before.pop("result.json")
        for resume in (True, False):
            kind = InputError if finished else StateError  # which a grid begins anew
            with pytest.raises(kind, match=r"earlier version, which can be shown .fedseca report., not") as problem:
                simulate(MIXED, folder=old, resume=resume)
            assert "choose another folder or overwrite" in str(problem.value) and "\n" not in str(problem.value)
        assert snapshot(old) == before
    simulate(MIXED, folder=old, overwrite=True)
    assert contents(old) == contents(runs["mixed"])


@pytest.mark.parametrize("line", ['{"round":2}', '{"round":2,"client":"0","byz', "[]"])
def test_a_broken_line_of_the_version_before_ends_the_file(tmp_path, runs, line):
    old = as_format_1(shutil.copytree(runs["mixed"], tmp_path / "old"))
    (old / "result.json").unlink()
    lines = (old / "clients.jsonl").read_text().splitlines()
    (old / "clients.jsonl").write_text("\n".join([*lines[:7], line, *lines[8:]]) + "\n")
    assert len(read_history(old).rounds) == 1


@pytest.mark.parametrize("name", ["rounds.jsonl", "pairs.jsonl"])
def test_a_full_disk_names_the_file_and_the_run_goes_on_later(tmp_path, unbroken, monkeypatch, name):
    folder = tmp_path / "run"
    run_until(folder, 2)
    opened = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        """The real error of a full disk, from a device that always is one."""
        return opened(Path("/dev/full") if (path.name, mode) == (name, "ab") else path, mode, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=f"No space left on device: '{folder / name}'"):
        simulate(SCENARIO, folder=folder, resume=True)
    monkeypatch.undo()
    simulate(SCENARIO, folder=folder, resume=True)
    assert same(folder, unbroken)
