"""`fedseca audit` as an operator uses it, on files that clients and others may have written into."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedseca.audit import BEGINNING, Anchored, Audit, CommandAnchor, FileAnchor, write_note
from fedseca.federation import Scenario, simulate
from tests.e2e.command import run, run_each
from tests.unit.test_audit import BEFORE_THIS, before_this, forge, left_out, line, silent, suspect, used
from tests.unit.test_audit import HOSTILE as FORGED

MARKUP = "</script><script>stolen()</script>&lt;[red]b[/red] \x1b[2J\x9b31m\u202e\ud800 {{data}}"


@pytest.fixture(scope="module")
def audit(tmp_path_factory) -> Path:
    """Five rounds and a new run of two: 11 is fine, 12 turns in the second round, 13 was silent once."""
    folder = Path(tmp_path_factory.mktemp("audit"))
    with Audit(folder / "audit.jsonl") as audit:
        for run_id, number in ((7, 1), (7, 2), (8, 3), (8, 4), (9, 1), (9, 2)):
            turned = (run_id, number) != (7, 1)
            of_clients = [
                used(number, "11", run=run_id),
                left_out(number, "12", "2 NaN, first at bias[0]", run=run_id) if turned else used(1, "12", run=7),
                silent(number, "13", run=run_id) if number == 3 else used(number, "13", run=run_id),
            ]
            void = [line(number, None, run=run_id, void="krum needs at least 5 clients")] if number == 4 else []
            audit.append([*of_clients, *void])
    return folder


def test_verify(audit):
    file = audit / "audit.jsonl"
    head = json.loads(file.read_bytes().splitlines()[-1])["hash"]
    done = run("audit", "verify", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        f"{file}: whole, each line follows from the one before it",
        "lines 19 · rounds 6 · clients 3",
        f"last hash {head}",
    ]
    assert "Keep this hash elsewhere" in done.stdout
    first = json.loads(file.read_bytes().splitlines()[0])["hash"]
    again = run("audit", "verify", audit, "--head", first)
    assert again.returncode == 0 and "the hash that was kept is that of line 1\n" in again.stdout
    report = json.loads(run("audit", "verify", audit, "--head", head, "--json").stdout)
    counts = {"lines": 19, "rounds": 6, "clients": 3}
    assert report == {"file": str(file), **counts, "head": head, "kept_line": 19, "anchor": None}


@pytest.fixture
def anchored(tmp_path) -> tuple[Path, Path]:
    """The folder of an audit of three rounds of two clients, with the anchor noted beside it; and the anchor."""
    anchor, end = FileAnchor(tmp_path / "vault.jsonl"), BEGINNING
    with Audit(tmp_path / "audit" / "audit.jsonl") as audit:
        for number in range(4):
            if number:
                end = audit.append([used(number, "11"), used(number, "12")])
            anchor.put(Anchored(f"2026-11-16T09:0{number}:30+00:00", number, audit.lines, end))
        write_note(audit.path, anchor)
    return tmp_path / "audit", anchor.path


def test_verify_with_the_anchor_that_is_noted(anchored):
    folder, anchor = anchored
    file, lines = folder / "audit.jsonl", (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)
    done = run("audit", "verify", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[3:] == [
        f"anchor {anchor}, as noted beside the audit: fits; it knows the last line, the end of round 3 "
        "(2026-11-16 09:03 UTC)"
    ]
    assert json.loads(run("audit", "verify", folder, "--json").stdout)["anchor"] == {
        "file": str(anchor), "noted": True,
        "line": 6, "round": 3, "time": "2026-11-16T09:03:30+00:00", "lines_after": 0,
    }  # fmt: skip
    with Audit(file) as audit:
        audit.append([used(4, "11")])
    done = run("audit", "verify", folder)
    assert done.returncode == 0 and "fits; it knows line 6, the end of round 3" in done.stdout
    assert done.stdout.endswith("not covered by the anchor: 1 line after that\n")
    file.write_bytes(b"".join(lines[:-1]))
    done = run("audit", "verify", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {file}: ends with line 5, but the anchor {anchor} knows line 6, the end of round 3 (2026-11-16 09:03 "
        "UTC): lines were cut off the end\n"
    )
    file.unlink()
    with Audit(file) as audit:
        audit.append([used(1, "11"), used(1, "12"), used(2, "11"), left_out(2, "12"), used(3, "11"), used(3, "12")])
    done = run("audit", "verify", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "was written anew after line 2, the end of round 1 (2026-11-16 09:01 UTC): line 4 is not" in done.stderr
    assert run("audit", "verify", folder, "--no-anchor").returncode == 0  # the chain alone cannot tell


def test_verify_says_when_the_note_is_gone_and_what_is_given_counts(anchored):
    folder, anchor = anchored
    lines = (folder / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "audit.jsonl").write_bytes(b"".join(lines[:4]))
    (folder / "anchor.json").unlink()
    done = run("audit", "verify", folder)
    assert done.returncode == 0
    assert done.stdout.splitlines()[3] == "no anchor: none was given, and none is noted beside the audit"
    assert "show only with --anchor FILE" in words(done.stdout)
    cut = run("audit", "verify", folder, "--anchor", anchor)
    assert cut.returncode == 2 and "lines were cut off the end" in cut.stderr
    (folder / "audit.jsonl").write_bytes(b"".join(lines))
    whole = run("audit", "verify", folder, "--anchor", anchor)
    assert whole.returncode == 0 and f"anchor {anchor}: fits; it knows the last line" in whole.stdout


def test_verify_without_the_storage_of_the_anchor(anchored):
    folder, anchor = anchored
    copy = anchor.rename(anchor.with_name("copy"))
    done = run("audit", "verify", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"error: the anchor {anchor} cannot be read (No such file or directory), but it is noted"
    )
    assert done.stderr.count("\n") == 1 and "--no-anchor" in done.stderr
    assert run("audit", "verify", folder, "--anchor", copy).returncode == 0
    both = run("audit", "verify", folder, "--anchor", copy, "--no-anchor")
    assert both.returncode == 2 and "exclude each other" in both.stderr


def test_verify_after_a_command_had_the_ends(anchored):
    folder, anchor = anchored
    write_note(folder / "audit.jsonl", CommandAnchor(["ssh", "vault", "cat >> heads"]))
    done = run("audit", "verify", folder)
    assert done.returncode == 0
    assert done.stdout.splitlines()[3] == (
        "no anchor was read: the ends were handed to a command, ssh vault 'cat >> heads'"
    )
    assert json.loads(run("audit", "verify", folder, "--json").stdout)["anchor"] == {
        "command": ["ssh", "vault", "cat >> heads"]
    }
    assert run("audit", "verify", folder, "--anchor", anchor).returncode == 0


def test_an_edit_is_an_error(audit, tmp_path):
    lines = (audit / "audit.jsonl").read_bytes().splitlines(keepends=True)
    head = json.loads(lines[-1])["hash"]
    edits = {
        "changed": ([*lines[:4], lines[4].replace(b"2 NaN", b"1 NaN"), *lines[5:]], [], "line 5 was changed"),
        "removed": ([*lines[:4], *lines[5:]], [], "line 5 does not follow from what stands before it"),
        "unfinished": ([*lines, lines[0][:20]], [], "line 20 is unfinished"),
        "cut off": (lines[:-1], ["--head", head], f"no line has the hash that was kept, {head}: lines were cut off"),
        "no hash": (lines, ["--head", "0x[red]12"], "--head takes the 64 digits that verify printed; found '0x[red]12"),
    }
    cases = {}
    for name, (edited, options, _) in edits.items():
        (tmp_path / name).write_bytes(b"".join(edited))
        cases[name] = (tmp_path, ["audit", "verify", name, *options])
    for name, done in run_each(cases).items():
        assert done.returncode == 2 and done.stdout == "", name
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, name
        assert edits[name][2] in done.stderr
    assert run("audit", "verify", "cut off", folder=tmp_path).returncode == 0  # as verify itself says
    assert run("audit", "show", "unfinished", folder=tmp_path).returncode == 0  # a server may be writing


def test_whatever_is_in_the_file_the_error_is_one_line(tmp_path):
    cases = {}
    for number, body in enumerate(FORGED):
        forge(tmp_path / f"{number}", body)
        for command in ("verify", "show"):
            cases[f"{command} {number}"] = (tmp_path, ["audit", command, str(number)])
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 50)
    cases |= {
        "noise": (tmp_path, ["audit", "verify", "noise"]),
        "nowhere": (tmp_path, ["audit", "verify", "nowhere"]),
        "folder": (tmp_path, ["audit", "show", "."]),
    }
    done = run_each(cases)
    for name, each in done.items():
        assert each.returncode == 2 and each.stdout == "", name
        assert each.stderr.startswith("error: ") and each.stderr.count("\n") == 1, name
    for name in ("nowhere", "folder"):
        assert "no audit is there; it is the file audit.jsonl in the audit_dir" in done[name].stderr
        assert done[name].stderr.endswith(" or clients.jsonl in the folder of a run\n")


def words(text: str) -> str:
    """However its lines are broken."""
    return " ".join(text.split())


def test_show(audit):
    done = run("audit", "show", audit)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[2] == ["12", "suspicious", "2", "6", "0", "5", "0", "4.2%"]
    assert rows[3] == ["11", "fine", "–", "6", "0", "0", "0", "25.0%"]
    assert rows[4] == ["13", "fine", "–", "6", "1", "0", "0", "25.0%"]
    assert (
        "12  suspicious since run 7, round 2, 2026-11-16 09:02 UTC; last reason: 2 NaN, first at bias[0]" in done.stdout
    )
    assert words(done.stdout).endswith(
        "3 clients over 6 rounds of 3 runs (2026-11-16 09:01 to 2026-11-16 09:02 UTC): 1 suspicious; "
        "1 round kept the model it began with"
    )


def test_of_many_clients_the_first_are_shown_and_the_suspicious_are_among_them(tmp_path):
    """A table of all of them would take minutes."""
    with Audit(tmp_path / "audit.jsonl") as audit:
        for number in range(1, 4):
            audit.append([*(used(number, f"{k}") for k in range(3000)), left_out(number, "the bad one")])
    done = run("audit", "show", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[2][:4] == ["the", "bad", "one", "suspicious"] and sum("fine" in row for row in rows) == 999
    assert "the first 1,000 of 3,001 clients are shown, the suspicious ones first; --json tells of all" in words(
        done.stdout
    )
    assert len(json.loads(run("audit", "show", tmp_path, "--json").stdout)["clients"]) == 3001


def test_show_as_data(audit):
    report = json.loads(run("audit", "show", audit / "audit.jsonl", "--json").stdout)
    assert (report["rounds"], report["kept_model"]) == (6, 1)
    assert [client["client"] for client in report["clients"]] == ["12", "11", "13"]
    assert report["clients"][0] == {
        "client": "12",
        "standing": "suspicious",
        "suspicious": True,
        "since": {"run": 7, "round": 2, "time": "2026-11-16T09:02:00+00:00"},
        "asked": 6,
        "no_answer": 0,
        "left_out": 5,
        "suspect": 0,
        "mean_weight": pytest.approx(0.25 / 6),
        "last_reason": "2 NaN, first at bias[0]",
    }


def test_an_empty_audit(tmp_path):
    Audit(tmp_path / "audit.jsonl").close()
    verified = run("audit", "verify", tmp_path)
    assert verified.returncode == 0 and f"lines 0 · rounds 0 · clients 0\nlast hash {BEGINNING}" in verified.stdout
    shown = run("audit", "show", tmp_path, "-o", tmp_path / "page.html")
    assert shown.stdout.splitlines()[0] == "no round is written down yet"
    assert (tmp_path / "page.html").exists()
    assert json.loads(run("audit", "show", tmp_path, "--json").stdout)["clients"] == []


def page_data(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def test_the_page(audit, tmp_path):
    page = tmp_path / "page.html"
    done = run("audit", "show", audit, "-o", page)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith(f"written to {page} (")
    data = page_data(page)
    assert [client["client"] for client in data["clients"]] == ["12", "11", "13"]
    assert [client["verdicts"] for client in data["map"]] == ["022222", "000000", "003000"]
    assert [(each["run"], each["number"]) for each in data["rounds"]][3:5] == [("8", 4), ("9", 1)]
    assert data["rounds"][3]["void"] == "krum needs at least 5 clients"
    assert data["clients"][0]["since"] == ["run 7", "round 2", "2026-11-16 09:02 UTC"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]


def test_rounds_without_a_client_and_runs_that_go_on(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append([used(1, "1", run=1), used(1, "2", run=1), used(2, "1", run=1), used(3, "2", run=2)])
    assert run("audit", "show", tmp_path, "-o", tmp_path / "page.html").returncode == 0
    data = page_data(tmp_path / "page.html")
    assert [client["verdicts"] for client in data["map"]] == ["00-", "0-0"]
    assert [(each["run"], each["number"]) for each in data["rounds"]] == [(None, 1), (None, 2), (None, 3)]


def test_what_clients_and_others_wrote_is_text_everywhere(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append([left_out(1, MARKUP, MARKUP, time=MARKUP), suspect(1, "12"), line(1, None, void=MARKUP)])
    done = run("audit", "show", tmp_path, "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "</script><script>stolen()</script>&lt;[red]b[/red] \\x1b[2J" in words(done.stdout)
    assert not set(done.stdout) & set("\x1b\x9b\u202e")
    data = page_data(tmp_path / "page.html")  # which the first </script> ends
    assert data["reasons"][0].startswith("</script><script>stolen()</script>&lt;[red]b[/red] \\x1b[2J")
    report = run("audit", "show", tmp_path, "--json").stdout
    assert report.isascii() and json.loads(report)["clients"][1]["last_reason"] == MARKUP


def test_a_page_that_cannot_be_written_is_refused_and_nothing_is_lost(audit, tmp_path):
    before = (audit / "audit.jsonl").read_bytes()
    (tmp_path / "taken").mkdir()
    places = {
        tmp_path / "missing" / "page.html": "its folder does not exist; make it first",
        tmp_path / "taken": "is a folder; the page is a file",
        audit / "audit.jsonl": "is the audit itself; give the page another name",
    }
    cases = {str(place): (tmp_path, ["audit", "show", audit, "-o", place]) for place in places}
    for (place, message), done in zip(places.items(), run_each(cases).values(), strict=True):
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr == f"error: {place}: {message}\n"
    assert (audit / "audit.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("columns", [80, 120])
def test_long_names_and_reasons_fit_a_terminal(tmp_path, columns):
    client, reason = "18446744073709551615", "its answer cannot be decoded (" + "ValueError: " * 40 + ")"
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append([left_out(10_000 + k, client, reason, run=2**63 + k // 3) for k in range(3)])
        audit.append([left_out(10_000, client, reason, run=2**63 + 7)])
    done = run("audit", "show", tmp_path, COLUMNS=str(columns), FORCE_COLOR="1", TERM="xterm-256color")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert max(map(len, plain.splitlines())) <= columns
    assert f"{client}  suspicious  10000" in plain
    assert "\x1b[31m" in done.stdout  # red


def test_what_is_no_audit_is_not_shown_as_an_empty_one(tmp_path):
    (tmp_path / "audit.jsonl").write_text("x")
    done = run("audit", "show", tmp_path)
    assert done.returncode == 2 and "line 1 is unfinished" in done.stderr


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = Path(tmp_path_factory.mktemp("run") / "here")
    simulate(Scenario(rounds=2, clients=4, byzantine=1, train_images=200), folder=folder)
    return folder


def test_the_folder_of_a_run_is_verified_and_shown(run_folder, tmp_path):
    file = run_folder / "clients.jsonl"
    head = json.loads(file.read_bytes().splitlines()[-1])["hash"]
    for given in (run_folder, file):
        done = run("audit", "verify", given, "--head", head)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            f"{file}: whole, each line follows from the one before it",
            "lines 8 · rounds 2 · clients 4",
            f"last hash {head}",
            "the hash that was kept is that of line 8",
            "no anchor: none was given, and none is noted beside the audit",
        ]
    shown = run("audit", "show", run_folder, "-o", tmp_path / "page.html")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()[2:6]]
    assert sorted(row[0] for row in rows) == ["0", "1", "2", "3"] and [row[3:5] for row in rows] == [["2", "0"]] * 4
    assert "4 clients over 2 rounds: none suspicious" in shown.stdout
    report = json.loads(run("audit", "show", run_folder, "--json").stdout)
    assert (report["rounds"], report["kept_model"], report["head"]) == (2, 0, head)
    assert sorted(client["client"] for client in report["clients"]) == ["0", "1", "2", "3"]
    data = page_data(tmp_path / "page.html")
    assert sorted(client["client"] for client in data["clients"]) == ["0", "1", "2", "3"]
    assert [(each["run"], each["number"], each["name"]) for each in data["rounds"]] == [
        (None, 1, ["round 1"]),
        (None, 2, ["round 2"]),
    ]


def test_a_changed_byte_of_a_run_is_an_error(run_folder, tmp_path):
    content = (run_folder / "clients.jsonl").read_bytes()
    ends = [at for at, byte in enumerate(content) if byte == ord("\n")]
    places = {0: 1, ends[0] + 12: 2, content.index(b'"verdict"') + 12: 1, ends[6] + 40: 8, len(content) - 10: 8}
    cases: dict[str, tuple[Path, list[str]]] = {}
    for at in places:
        changed = tmp_path / str(at)
        shutil.copytree(run_folder, changed)
        (changed / "clients.jsonl").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        cases |= {f"{command} {at}": (tmp_path, ["audit", command, str(at)]) for command in ("verify", "show")}
    for name, done in run_each(cases).items():
        at = name.split()[1]
        assert done.returncode == 2 and done.stdout == "", name
        line = places[int(at)]
        other = ", or this is not an audit" if line == 1 else ""
        assert done.stderr == f"error: {at}/clients.jsonl: line {line} was changed after it was written{other}\n"


def test_an_audit_of_the_version_before(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append(before_this(number, **fields) for number, (_, fields) in enumerate(BEFORE_THIS, 1))
        audit.append([before_this(len(BEFORE_THIS), None, void="krum needs 5")])
    verified = run("audit", "verify", tmp_path)
    assert verified.returncode == 0, verified.stderr
    assert "lines 11 · rounds 10 · clients 1\n" in verified.stdout
    report = json.loads(run("audit", "show", tmp_path, "--json").stdout)
    (client,) = report["clients"]
    assert report["kept_model"] == 1
    assert {name: client[name] for name in ("client", "asked", "no_answer", "left_out", "suspect", "standing")} == {
        "client": "14", "asked": 10, "no_answer": 3, "left_out": 3, "suspect": 2, "standing": "suspicious",
    }  # fmt: skip
    assert run("audit", "show", tmp_path, "-o", tmp_path / "page.html").returncode == 0
    (course,) = page_data(tmp_path / "page.html")["map"]
    assert course["verdicts"] == "0112223334"


def test_a_run_of_the_version_before_is_shown_and_says_why_it_is_not_verified(tmp_path):
    """It wrote the lines of its clients without hashes."""
    scenario = Scenario(rounds=2, clients=3, byzantine=0)
    config = {"format": 1, "scenario": scenario.values(), "data": "0123456789abcdef"}
    metrics = {"f1": 0.5, "accuracy": 0.5, "loss": 1.0, "void": None, "idle": False, "seconds": {"train": 0.1}}
    of_client: list[dict[str, Any]] = [
        {"present": True, "admitted": True, "suspect": False, "norm": 1.0, "weight": 0.5},
        {"present": True, "admitted": False, "reason": "2 NaN, first at 0.weight[3]"},
        {"present": False, "admitted": False, "reason": "did not answer"},
        {"present": False, "admitted": False, "reason": "was not asked"},
    ]
    clients = [
        {"round": number, "client": str(k), "byzantine": False, **of_client[k + (k == 2 and number == 2)]}
        for number in (1, 2)
        for k in range(3)
    ]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps({"round": n, **metrics}) + "\n" for n in (1, 2)))
    (tmp_path / "clients.jsonl").write_text("".join(json.dumps(each) + "\n" for each in clients))
    (tmp_path / "pairs.jsonl").touch()
    verified = run("audit", "verify", tmp_path)
    assert (verified.returncode, verified.stdout) == (2, "")
    assert verified.stderr == (
        f"error: {tmp_path}: was written by an earlier version, whose runs have no hashes; audit show reads it\n"
    )
    done = run("audit", "show", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    counts = [
        [client[name] for name in ("client", "asked", "no_answer", "left_out", "suspect", "last_reason")]
        for client in json.loads(done.stdout)["clients"]
    ]
    assert counts == [
        ["1", 2, 0, 2, 0, "2 NaN, first at 0.weight[3]"],
        ["0", 2, 0, 0, 0, None],
        ["2", 1, 1, 0, 0, None],
    ]
    shown = run("audit", "show", tmp_path).stdout
    assert "3 clients over 2 rounds: none suspicious, 1 doubtful" in shown
    assert "not verified: an earlier version wrote it, without hashes" in shown
    (tmp_path / "clients.jsonl").write_text("".join(json.dumps(each | {"weight": "x"}) + "\n" for each in clients))
    done = run("audit", "show", tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "weight must be a number or null" in done.stderr


def test_the_config_of_a_run_does_not_decide_whether_its_audit_is_checked(run_folder, tmp_path):
    """It stands outside of the chain."""
    copy = shutil.copytree(run_folder, tmp_path / "run")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"format": 1}))
    content = (copy / "clients.jsonl").read_bytes()
    (copy / "clients.jsonl").write_bytes(content.replace(b'"byzantine":false', b'"byzantine":true ', 1))
    done = run("audit", "show", copy)
    assert done.returncode == 2 and "was changed after it was written" in done.stderr
    (copy / "clients.jsonl").write_bytes(content)
    (copy / "config.json").write_text("{")
    assert run("audit", "verify", copy).returncode == 0
