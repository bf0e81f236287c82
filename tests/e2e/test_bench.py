"""`fedseca bench` measures what it says, on sizes that take no time."""

import json

from tests.e2e.command import run


def test_a_small_benchmark(tmp_path):
    arguments = ["--clients", "4,8", "--dim", "5000", "--rules", "fedseca,cwmed,krum,nnm+cwmed", "--repeats", "2"]
    done = run("bench", *arguments, "--compare", "pseudocode,torch", "--compare-at", "8", "--json", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = {(row["name"], row["clients"]): row for row in report["measurements"]}
    names = ("torch.mean", "fedseca", "cwmed", "krum", "nnm+cwmed")
    assert set(rows) == {(name, count) for name in names for count in (4, 8)} | {
        ("torch.median", 8),
        ("K subtractions", 8),
        ("pseudocode", 8),
    }
    assert rows["fedseca", 4]["paper_seconds"] == 4.87 and rows["cwmed", 4]["paper_seconds"] is None
    mine, plain = rows["fedseca", 8], rows["pseudocode", 8]
    assert mine["faster_than_plain"] == plain["seconds"] / mine["seconds"] and rows["fedseca", 4]["plain"] is None
    assert mine["times_mean"] == mine["seconds"] / rows["torch.mean", 8]["seconds"]
    assert json.loads((tmp_path / "bench.json").read_text()) == report
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "bench.png").read_bytes()
    (tmp_path / "bench.png").unlink()
    assert run("redraw", tmp_path).returncode == 0 and (tmp_path / "bench.png").read_bytes() == first
    shown = run("bench", *arguments, COLUMNS="80")
    assert "5,000 coordinates" in shown.stdout and "× mean" in shown.stdout


def test_forms_and_sizes(tmp_path):
    forms = "rows,models,float64,bfloat16,float16,files"
    arguments = ["--clients", "5,30", "--dim", "100,3000", "--rules", "fedseca,fedavg", "--forms", forms]
    done = run("bench", *arguments, "--repeats", "2", "--json", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measurements"]
    found = {(row["name"], row["form"], row["clients"], row["dim"]) for row in rows}
    assert len(rows) == len(found) == 2 * 2 * (1 + 2 * 6)
    for row in rows:
        assert row["seconds"] > 0 and row["cpu_seconds"] > 0
        assert row["times_rows"] == 1 if row["form"] == "rows" else row["times_rows"] > 0
    shown = run("bench", *arguments, "--repeats", "1")
    assert "bfloat16" in shown.stdout and "× rows" in shown.stdout and "3,000" in shown.stdout
    assert run("redraw", tmp_path).returncode == 0


def test_bad_input():
    for arguments, message in (
        (["--rules", "fedsecca"], "unknown rule 'fedsecca'"),
        (["--rules", "nnm+fedsecca"], "chain 'nnm+fedsecca': unknown part 'fedsecca'; did you mean 'fedseca'?"),
        (["--rules", "nnm"], "'nnm' has no rule"),
        (["--compare", "numpy"], "unknown comparison 'numpy'"),
        (["--forms", "rows,float8"], "unknown form 'float8'. Known: rows, models, float64, bfloat16, float16, files"),
        (["--dim", "many"], "--dim takes whole numbers"),
        (["--clients", "four"], "--clients takes whole numbers"),
        (["--dim", "0"], "must be at least 1"),
        (["--clients", ""], "must be at least 1"),
    ):
        done = run("bench", *arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_only_what_is_computed_in_can_be_compiled():
    unknown = run("warm", "--dtypes", "float8")
    assert unknown.returncode == 2 and "unknown dtype 'float8'" in unknown.stderr
