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


def test_bad_input():
    for arguments, message in (
        (["--rules", "fedsecca"], "unknown rule 'fedsecca'"),
        (["--rules", "nnm+fedsecca"], "chain 'nnm+fedsecca': unknown part 'fedsecca'; did you mean 'fedseca'?"),
        (["--rules", "nnm"], "'nnm' has no rule"),
        (["--compare", "numpy"], "unknown comparison 'numpy'"),
        (["--clients", "four"], "--clients takes whole numbers"),
        (["--dim", "0"], "must be at least 1"),
        (["--clients", ""], "must be at least 1"),
    ):
        done = run("bench", *arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
