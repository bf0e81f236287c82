"""The anchor: cuts and rewriting show, a killed server raises no alarm, and a broken anchor loses no round."""

import errno
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedseca.audit import (
    BEGINNING,
    Anchored,
    AnchorError,
    Audit,
    AuditError,
    CommandAnchor,
    FileAnchor,
    Findings,
    make_anchor,
    read_anchor,
    read_audit,
    read_note,
    verify,
)
from fedseca.book import Book
from fedseca.errors import InputError
from fedseca.rounds import play_round
from fedseca.server import Server
from tests.deployment.processes import running

BEFORE = {"weight": torch.zeros(6)}
CLIENTS = ("a", "b", "c")


class Killed(BaseException):
    """As a kill, nothing on the way up mends it."""


def train(folder: Path, rounds: int, *, anchor: Any = None, kept: bool = True, run: int = 7) -> dict[str, torch.Tensor]:
    """Until so many rounds are done, from where the last call was cut off."""
    server = Server("cwmed")
    with Book(server, folder / "audit", folder / "kept" if kept else None, anchor=anchor) as book:
        done, model = book.resume({}, BEFORE)
        current: dict[str, Any] = dict(BEFORE if model is None else model)
        for number in range(done + 1, rounds + 1):
            steps = torch.Generator().manual_seed(number)
            answers = {c: {"weight": current["weight"] - torch.rand(6, generator=steps)} for c in CLIENTS}
            played = play_round(server, answers, current)
            book.write(number, played, run=run)
            current = played.model
    return current


def check(folder: Path, anchor: Path) -> Anchored | None:
    """As an operator does; what the anchor knows."""
    return verify(folder / "audit" / "audit.jsonl", anchor=read_anchor(anchor)).anchored


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "audit" / "audit.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    (tmp_path / "vault").mkdir()
    return tmp_path / "vault" / "heads.jsonl"


def test_a_line_for_the_start_and_for_every_round(tmp_path, anchor):
    train(tmp_path, 3, anchor=anchor)
    lines = lines_of(tmp_path)
    records = read_anchor(anchor).records
    assert [(record.round, record.lines) for record in records] == [(0, 0), (1, 3), (2, 6), (3, 9)]
    assert [record.head for record in records] == [
        BEGINNING, *(json.loads(lines[at])["hash"] for at in (2, 5, 8)),
    ]  # fmt: skip
    assert check(tmp_path, anchor) == records[-1]
    assert anchor.stat().st_mode & 0o777 == 0o600
    noted = read_note(tmp_path / "audit" / "audit.jsonl")
    assert isinstance(noted, FileAnchor) and noted.path == anchor


def test_a_cut_is_seen_and_without_an_anchor_it_is_not(tmp_path, anchor):
    train(tmp_path, 5, anchor=anchor)
    audit, lines = tmp_path / "audit" / "audit.jsonl", lines_of(tmp_path)
    for left in range(len(lines)):
        audit.write_bytes(b"".join(lines[:left]))
        verify(audit)
        with pytest.raises(AuditError, match=rf"ends with line {left}, .* knows line 15, the end of round 5 .*cut off"):
            check(tmp_path, anchor)
    audit.write_bytes(b"".join(lines))
    assert check(tmp_path, anchor) is not None


def test_rewriting_is_seen_and_from_where(tmp_path, anchor):
    train(tmp_path, 5, anchor=anchor)
    audit, records = tmp_path / "audit" / "audit.jsonl", read_audit(tmp_path / "audit" / "audit.jsonl")
    for first in range(15):  # that line says something else, and a whole chain is made of it
        forged = [record | ({"run": 8} if number == first else {}) for number, record in enumerate(records)]
        audit.unlink()
        with Audit(audit) as anew:
            anew.append(forged)
        verify(audit)
        end = first // 3 * 3
        message = f"written anew after line {end}, the end of round {end // 3}" if end else "from its first line on, or"
        with pytest.raises(AuditError, match=message):
            check(tmp_path, anchor)


def test_lines_that_the_anchor_does_not_know_yet_are_no_fault(tmp_path, anchor):
    train(tmp_path, 2, anchor=anchor)
    train(tmp_path, 4)
    known = check(tmp_path, anchor)
    assert known is not None and (known.round, known.lines) == (2, 6) and len(lines_of(tmp_path)) == 12
    train(tmp_path, 4, anchor=anchor)  # nothing is left to train, but it takes the end
    known = check(tmp_path, anchor)
    assert known is not None and known.lines == 12


def test_an_anchor_of_another_audit(tmp_path, anchor):
    train(tmp_path / "one", 3, anchor=anchor)
    train(tmp_path / "other", 4, run=8)
    with pytest.raises(AuditError, match=r"or the anchor .* is that of another audit"):
        check(tmp_path / "other", anchor)
    before = anchor.read_bytes()
    with pytest.raises(AuditError, match="it knows no line of this one; to go on with it as it is, give another"):
        train(tmp_path / "other", 5, anchor=anchor)
    with pytest.raises(AuditError, match="cut off the end, or it is the anchor of another audit"):
        train(tmp_path / "third", 1, anchor=anchor)
    assert anchor.read_bytes() == before


def test_a_new_training_in_the_same_audit(tmp_path, anchor):
    train(tmp_path, 2, anchor=anchor, kept=False)
    train(tmp_path, 3, anchor=anchor, kept=False)
    ends = [(record.round, record.lines) for record in read_anchor(anchor).records]
    assert ends == [(0, 0), (1, 3), (2, 6), (0, 6), (1, 9), (2, 12), (3, 15)]
    assert check(tmp_path, anchor) == read_anchor(anchor).records[-1]
    lines = lines_of(tmp_path)
    (tmp_path / "audit" / "audit.jsonl").write_bytes(b"".join(lines[:6]))  # the second is gone
    with pytest.raises(AuditError, match="cut off the end"):
        check(tmp_path, anchor)


MOMENTS = [(Audit, "append"), (Server, "keep"), (FileAnchor, "put")]


@pytest.mark.parametrize(("owner", "name"), MOMENTS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_a_killed_server_that_goes_on_raises_no_alarm(owner, name, after, number, tmp_path, anchor, monkeypatch):
    """Before and after each thing that is written in a round; at every moment the anchor fits, and a cut shows."""
    unbroken = train(tmp_path / "unbroken", 4)
    original, calls = getattr(owner, name), []

    def killed(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) - (name != "append") < number:  # the checkpoint and the anchor get the start, too
            return original(*arguments, **named)
        if after:
            original(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            train(tmp_path, 4, anchor=anchor)
    known = check(tmp_path, anchor)
    assert known is not None and known.round == number - (name != "put" or not after)
    resumed = train(tmp_path, 4, anchor=anchor)
    assert torch.equal(resumed["weight"], unbroken["weight"])
    assert [record["round"] for record in read_audit(tmp_path / "audit" / "audit.jsonl")] == [
        each for each in (1, 2, 3, 4) for _ in CLIENTS
    ]
    assert check(tmp_path, anchor) == read_anchor(anchor).records[-1]
    lines = lines_of(tmp_path)
    (tmp_path / "audit" / "audit.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(AuditError, match="ends with line 11"):
        check(tmp_path, anchor)


def test_an_audit_that_was_cut_does_not_go_on(tmp_path, anchor):
    train(tmp_path, 3, anchor=anchor)
    shutil.copytree(tmp_path / "kept", tmp_path / "older")
    train(tmp_path, 4, anchor=anchor)
    lines = lines_of(tmp_path)
    (tmp_path / "audit" / "audit.jsonl").write_bytes(b"".join(lines[:9]))
    shutil.rmtree(tmp_path / "kept")
    shutil.copytree(tmp_path / "older", tmp_path / "kept")
    with pytest.raises(AuditError, match="cut off the end"):  # without the anchor nobody could tell
        train(tmp_path, 5, anchor=anchor)
    (tmp_path / "audit" / "audit.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(AuditError, match="goes on from line 9, but the anchor knows line 12: the checkpoint is"):
        train(tmp_path, 5, anchor=anchor)
    assert lines_of(tmp_path) == lines  # nothing was cut off
    train(tmp_path, 5, anchor=tmp_path / "vault" / "another")
    assert len(lines_of(tmp_path)) == 15


def test_half_a_line_at_its_end_does_no_harm(tmp_path, anchor):
    train(tmp_path, 2, anchor=anchor)
    with anchor.open("ab") as file:
        file.write(b'{"time":"2026-11-1')
    assert read_anchor(anchor).unreadable == 1 and check(tmp_path, anchor) is not None
    train(tmp_path, 3, anchor=anchor)
    memory = read_anchor(anchor)
    assert memory.unreadable == 1 and [record.round for record in memory.records] == [0, 1, 2, 2, 3]
    assert check(tmp_path, anchor) == memory.records[-1]


def test_what_a_system_log_made_of_the_lines_is_read(tmp_path, anchor):
    train(tmp_path, 2, anchor=anchor)
    prefixed = [b"Nov 17 10:00:00 host fedseca: " + line for line in anchor.read_bytes().splitlines(keepends=True)]
    anchor.write_bytes(b"Nov 17 09:59:59 host cron: something else\n" + b"".join(prefixed))
    memory = read_anchor(anchor)
    assert (len(memory.records), memory.unreadable) == (3, 1) and check(tmp_path, anchor) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"[]", b"{}", b"null", b'"{"', b"[" * 100_000, b"\xff{\xff}",
        b'{"time":"t","round":1,"lines":1,"head":"' + b"g" * 64 + b'"}',
        b'{"time":"t","round":1,"lines":-1,"head":"' + b"0" * 64 + b'"}',
        b'{"time":"t","round":1,"lines":true,"head":"' + b"0" * 64 + b'"}',
        b'{"time":7,"round":1,"lines":1,"head":"' + b"0" * 64 + b'"}',
        b'{"time":"t","round":1,"lines":1' + b"0" * 5000 + b',"head":"' + b"0" * 64 + b'"}',
        b'{"time":"t","round":1,"lines":1,"head":7}',
    ],
)  # fmt: skip
def test_lines_that_say_nothing(line, tmp_path, anchor):
    anchor.write_bytes(line + b"\n")
    assert read_anchor(anchor).records == []
    train(tmp_path, 1)
    with pytest.raises(AnchorError, match="holds no line about an audit"):
        check(tmp_path, anchor)


def test_an_anchor_that_cannot_be_written_is_told_before_the_first_round(tmp_path, anchor):
    os.mkfifo(tmp_path / "pipe")
    for place, found in (
        (tmp_path / "not mounted" / "heads", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "it is not a file"),
    ):
        with pytest.raises(AnchorError, match=rf"(written|read) \({found}.*") as problem:
            train(tmp_path, 1, anchor=place)
        assert "\n" not in str(problem.value)
    assert lines_of(tmp_path) == [] and not (tmp_path / "not mounted").exists()
    assert read_note(tmp_path / "audit" / "audit.jsonl") is None
    train(tmp_path, 1, anchor=anchor)


def test_an_anchor_that_is_gone_is_told_before_the_next_round(tmp_path, anchor):
    train(tmp_path, 2, anchor=anchor)
    for storage in ("not mounted", "empty"):
        if storage == "not mounted":
            anchor.unlink()
        else:
            anchor.touch()
        with pytest.raises(AnchorError, match=r"is gone, but the end of .* has been kept there; mount its storage"):
            train(tmp_path, 3, anchor=anchor)
    assert len(lines_of(tmp_path)) == 6


def test_an_anchor_that_breaks_later_loses_no_round(tmp_path, anchor, monkeypatch, caplog):
    original = FileAnchor.put

    def unmounted(self: FileAnchor, record: Anchored) -> None:
        if record.round not in (2, 3):
            return original(self, record)
        vault = self.path.parent.rename(self.path.parent.with_name("away"))
        try:
            original(self, record)
        finally:
            vault.rename(self.path.parent)

    monkeypatch.setattr(FileAnchor, "put", unmounted)
    model = train(tmp_path, 5, anchor=anchor)
    assert torch.equal(model["weight"], train(tmp_path / "plain", 5)["weight"])
    said = [record.getMessage() for record in caplog.records if record.name == "fedseca"]
    assert len(said) == 2 and said[0].startswith("THE AUDIT IS NOT ANCHORED after round 2: the anchor ")
    told = [record for record in read_audit(tmp_path / "audit" / "audit.jsonl") if "not_anchored" in record]
    assert [(record["round"], record["client"], record["not_anchored"][:8]) for record in told] == [
        (3, None, "round 2:"), (4, None, "round 3:"),
    ]  # fmt: skip
    assert "No such file or directory" in told[0]["not_anchored"]
    assert [record.round for record in read_anchor(anchor).records] == [0, 1, 4, 5]
    found = verify(tmp_path / "audit" / "audit.jsonl", anchor=read_anchor(anchor))
    assert found.findings.not_anchored == 2 and found.findings.voids == 0
    assert found.anchored is not None and found.anchored.lines == found.findings.lines == 17


def test_a_round_that_was_not_anchored_and_void_is_both():
    findings = Findings()
    findings.add({"round": 2, "client": None, "void": "too few"})
    findings.add({"round": 2, "client": None, "not_anchored": "round 1: …"})
    assert (findings.voids, findings.not_anchored, findings.latest[-1].void) == (1, 1, "too few")


def test_a_full_disk_leaves_half_a_line_at_most(anchor, monkeypatch):
    record = Anchored("2026-11-17T10:00:00+00:00", 1, 3, "a" * 64)
    place = FileAnchor(anchor)
    place.put(record)
    real = os.fsync

    def failing(handle: int) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size - 20)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(AnchorError, match=r"cannot be written \(No space left on device\)"):
        place.put(record._replace(round=2))
    monkeypatch.setattr(os, "fsync", real)
    place.put(record._replace(round=3))
    memory = read_anchor(anchor)
    assert [each.round for each in memory.records] == [1, 3] and memory.unreadable == 1


def python(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


STORE = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"


def test_a_command_gets_each_line_and_no_shell(tmp_path, anchor):
    train(tmp_path, 3, anchor=python(STORE, anchor, "$(touch shell); touch shell"))
    assert [record.round for record in read_anchor(anchor).records] == [0, 1, 2, 3]
    assert check(tmp_path, anchor) == read_anchor(anchor).records[-1]
    noted = read_note(tmp_path / "audit" / "audit.jsonl")
    assert isinstance(noted, CommandAnchor) and noted.words[3] == str(anchor)
    assert not (Path.cwd() / "shell").exists()


def test_a_command_that_fails_at_the_start_is_told_then(tmp_path):
    wrong = python("import sys; sys.exit('the vault is \\x1b[2J closed')")
    with pytest.raises(AnchorError, match=r"ended with code 1 and said 'the vault is .*x1b\[2J closed'.*; nothing was"):
        train(tmp_path, 1, anchor=wrong)
    with pytest.raises(AnchorError, match=r"cannot be run \(No such file or directory\): /no/such"):
        train(tmp_path, 1, anchor=["/no/such", "command"])
    assert lines_of(tmp_path) == []


def test_a_command_that_fails_later_loses_no_round(tmp_path, caplog):
    failing = "import sys, json; sys.exit(json.load(sys.stdin)['round'] == 2)"
    train(tmp_path, 3, anchor=python(failing))
    assert [record.getMessage()[:45] for record in caplog.records] == ["THE AUDIT IS NOT ANCHORED after round 2: the "]
    assert len(lines_of(tmp_path)) == 10


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path):
    """One that hangs, and one that leaves a child behind that holds all that it inherited: that one did its work."""
    mark = f"anchor-{os.getpid()}"
    asleep = f"import time; time.sleep(600)  # {mark}"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {asleep!r}])"
    record = Anchored("2026-11-17T10:00:00+00:00", 1, 3, "a" * 64)
    with pytest.raises(AnchorError, match="took longer than 5 s: "):
        CommandAnchor(python(f"{child}.wait()"), patience=5).put(record)
    deadline = time.monotonic() + 60
    while left := [process for process in running() if mark in process.command]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    CommandAnchor(python(child), patience=600).put(record)
    for process in running():
        if mark in process.command:
            os.kill(process.pid, signal.SIGKILL)


def test_a_command_that_reads_nothing_is_no_fault():
    CommandAnchor(["true"]).put(Anchored("2026-11-17T10:00:00+00:00", 1, 3, "a" * 64))


@pytest.mark.parametrize("place", ["", [], [""], ["logger", 7], ["a\0b"], 7, {"a": 1}])
def test_what_is_no_anchor(place):
    with pytest.raises(InputError, match="anchor must be the path of a file, or a command as a list of words"):
        make_anchor(place)


def test_an_anchor_that_would_be_of_no_use(tmp_path):
    with pytest.raises(InputError, match="give audit_dir as well"):
        Book(Server(), None, None, anchor=tmp_path / "heads")
    (tmp_path / "link").symlink_to(tmp_path / "audit")
    for folder in ("audit", "link", "audit/deeper"):
        with pytest.raises(InputError, match="anchor must be outside of audit_dir"):
            Book(Server(), tmp_path / "audit", None, anchor=tmp_path / folder / "heads")


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b'{"file":["a"]}', b'{"command":"a b"}', b'{"file":""}', b"\xff"])
def test_a_note_that_says_nothing(note, tmp_path):
    (tmp_path / "anchor.json").write_bytes(note)
    with pytest.raises(AuditError, match="does not say where the anchor is"):
        read_note(tmp_path / "audit.jsonl")


@pytest.mark.parametrize("name", ["a\0b", "\ud800x"])
def test_a_name_that_the_system_does_not_know_is_one_line(tmp_path, name):
    for place in (name, ["logger", name]):
        with pytest.raises(InputError, match="anchor must be the path of a file, or a command"):
            make_anchor(place)
    (tmp_path / "anchor.json").write_text(json.dumps({"file": name}))
    with pytest.raises(AnchorError, match="does not say where the anchor is"):
        read_note(tmp_path / "audit.jsonl")


def test_an_anchor_that_cannot_be_read_is_no_empty_one(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(AnchorError, match="cannot be read"):
            read_anchor(path)
