"""`fedseca reproduce` as people use it."""

import csv
import json

import pytest

from tests.e2e.test_command_line import run, run_each


def test_a_table_of_the_paper_beside_ours(tmp_path):
    out = tmp_path / "clients"
    done = run("reproduce", "client-count", "--rounds", 1, "-o", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "(0.89)" in done.stdout and "client-count.csv, client-count.png, client-count-rounds.png and the" in done.stdout
    )
    rows = list(csv.DictReader((out / "client-count.csv").read_text().splitlines()))
    assert len(rows) == 12 and rows[0]["paper"] == "0.891" and all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    for picture in ("client-count.png", "client-count-rounds.png"):
        assert (out / picture).read_bytes()[:4] == b"\x89PNG"
    again = json.loads(run("reproduce", "client-count", "--rounds", 1, "-o", out, "--json").stdout)
    assert [score["values"][0] for score in again["scores"]] == pytest.approx(
        [float(row["accuracy"]) for row in rows], abs=1e-4
    )


BAD = {
    "mian": "unknown experiment 'mian'; did you mean 'main'?",
    "main --preset digit": "unknown preset 'digit'; did you mean 'digits'?",
    "main --seeds one": "--seeds takes whole numbers with commas between them; found 'one'",
    "main --rounds 0": "scenario: rounds must be integer ≥ 1; found 0",
    "main -j 0": "jobs must be an integer ≥ 1; found 0",
    "": "Missing argument 'NAME'",
}


def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(tmp_path):
    done = run_each({words: (tmp_path, ["reproduce", *words.split(), "-o", "out"]) for words in BAD})
    for words, message in BAD.items():
        told = done[words]
        assert told.returncode == 2 and message in told.stderr and told.stderr.count("\n") == 1 and told.stdout == ""
    assert not list(tmp_path.iterdir())
