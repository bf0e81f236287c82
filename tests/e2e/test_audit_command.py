"""`fedseca audit` as an operator uses it, on files that nodes and others may have written into."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedseca.audit import BEGINNING, Audit
from tests.e2e.command import run, run_each
from tests.unit.test_audit import HOSTILE as FORGED
from tests.unit.test_audit import forge, left_out, line, silent, suspect, used

MARKUP = "</script><script>stolen()</script>&lt;[red]b[/red] \x1b[2J\x9b31m\u202e\ud800 {{data}}"


@pytest.fixture(scope="module")
def audit(tmp_path_factory) -> Path:
    """Five rounds and a new run of two: 11 is fine, 12 turns in the second round, 13 was silent once."""
    folder = Path(tmp_path_factory.mktemp("audit"))
    with Audit(folder / "audit.jsonl") as audit:
        for run_id, number in ((7, 1), (7, 2), (8, 3), (8, 4), (9, 1), (9, 2)):
            turned = (run_id, number) != (7, 1)
            of_nodes = [
                used(number, "11", run=run_id),
                left_out(number, "12", "2 NaN, first at bias[0]", run=run_id) if turned else used(1, "12", run=7),
                silent(number, "13", run=run_id) if number == 3 else used(number, "13", run=run_id),
            ]
            void = [line(number, None, run=run_id, void="krum needs at least 5 clients")] if number == 4 else []
            audit.append([*of_nodes, *void])
    return folder


def test_verify(audit):
    file = audit / "audit.jsonl"
    head = json.loads(file.read_bytes().splitlines()[-1])["hash"]
    done = run("audit", "verify", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        f"{file}: whole, each line follows from the one before it",
        "lines 19 · rounds 6 · nodes 3",
        f"last hash {head}",
    ]
    assert "Keep this hash elsewhere" in done.stdout
    first = json.loads(file.read_bytes().splitlines()[0])["hash"]
    again = run("audit", "verify", audit, "--head", first)
    assert again.returncode == 0 and "the hash that was kept is that of line 1\n" in again.stdout
    report = json.loads(run("audit", "verify", audit, "--head", head, "--json").stdout)
    assert report == {"file": str(file), "lines": 19, "rounds": 6, "nodes": 3, "head": head, "kept_line": 19}


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
        "3 nodes over 6 rounds of 3 runs (2026-11-16 09:01 to 2026-11-16 09:02 UTC): 1 suspicious; "
        "1 round kept the model it began with"
    )


def test_show_as_data(audit):
    report = json.loads(run("audit", "show", audit / "audit.jsonl", "--json").stdout)
    assert (report["rounds"], report["kept_model"]) == (6, 1)
    assert [node["node"] for node in report["nodes"]] == ["12", "11", "13"]
    assert report["nodes"][0] == {
        "node": "12",
        "verdict": "suspicious",
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
    assert verified.returncode == 0 and f"lines 0 · rounds 0 · nodes 0\nlast hash {BEGINNING}" in verified.stdout
    shown = run("audit", "show", tmp_path, "-o", tmp_path / "page.html")
    assert shown.stdout.splitlines()[0] == "no round is written down yet"
    assert (tmp_path / "page.html").exists()
    assert json.loads(run("audit", "show", tmp_path, "--json").stdout)["nodes"] == []


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
    assert [node["node"] for node in data["nodes"]] == ["12", "11", "13"]
    assert [node["states"] for node in data["map"]] == ["022222", "000000", "003000"]
    assert [(each["run"], each["number"]) for each in data["rounds"]][3:5] == [("8", 4), ("9", 1)]
    assert data["rounds"][3]["void"] == "krum needs at least 5 clients"
    assert data["nodes"][0]["since"] == ["run 7", "round 2", "2026-11-16 09:02 UTC"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]


def test_rounds_without_a_node_and_runs_that_go_on(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append([used(1, "1", run=1), used(1, "2", run=1), used(2, "1", run=1), used(3, "2", run=2)])
    assert run("audit", "show", tmp_path, "-o", tmp_path / "page.html").returncode == 0
    data = page_data(tmp_path / "page.html")
    assert [node["states"] for node in data["map"]] == ["00-", "0-0"]
    assert [(each["run"], each["number"]) for each in data["rounds"]] == [(None, 1), (None, 2), (None, 3)]


def test_what_nodes_and_others_wrote_is_text_everywhere(tmp_path):
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append([left_out(1, MARKUP, MARKUP, time=MARKUP), suspect(1, "12"), line(1, None, void=MARKUP)])
    done = run("audit", "show", tmp_path, "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "</script><script>stolen()</script>&lt;[red]b[/red] \\x1b[2J" in words(done.stdout)
    assert not set(done.stdout) & set("\x1b\x9b\u202e")
    data = page_data(tmp_path / "page.html")  # which the first </script> ends
    assert data["reasons"][0].startswith("</script><script>stolen()</script>&lt;[red]b[/red] \\x1b[2J")
    report = run("audit", "show", tmp_path, "--json").stdout
    assert report.isascii() and json.loads(report)["nodes"][1]["last_reason"] == MARKUP


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
    node, reason = "18446744073709551615", "its answer cannot be decoded (" + "ValueError: " * 40 + ")"
    with Audit(tmp_path / "audit.jsonl") as audit:
        audit.append([left_out(10_000 + k, node, reason, run=2**63 + k // 3) for k in range(3)])
        audit.append([left_out(10_000, node, reason, run=2**63 + 7)])
    done = run("audit", "show", tmp_path, COLUMNS=str(columns), FORCE_COLOR="1", TERM="xterm-256color")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert max(map(len, plain.splitlines())) <= columns
    assert f"{node}  suspicious  10000" in plain
    assert "\x1b[31m" in done.stdout  # red


def test_what_is_no_audit_is_not_shown_as_an_empty_one(tmp_path):
    (tmp_path / "audit.jsonl").write_text("x")
    done = run("audit", "show", tmp_path)
    assert done.returncode == 2 and "line 1 is unfinished" in done.stderr
