"""The page of a report: what is collected, what is left out, and that text from a folder stays text."""

import base64
import errno
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from fedseca.aggregators import make_aggregator
from fedseca.aggregators.fedseca import CONCORDANCE
from fedseca.errors import InputError, MissingDependency
from fedseca.experiments.results import Outcome, ResultTable, Score
from fedseca.experiments.store import Store, record_failure
from fedseca.federation import History, Scenario, read_history, simulate
from fedseca.report import Collection, collect, make_page
from fedseca.report.compact import LONGEST, compact, number, thinned
from fedseca.server import diagnostics_of
from fedseca.updates import Updates
from tests.unit.run_folders import DOT, table_of, write_experiment, write_grid, write_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;{{data}}\u2028\x1b[31m"
QUICK: dict[str, Any] = {"rounds": 3, "train_images": 60, "test_images": 40}


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "real"
    simulate(Scenario(attack="nonfinite", **QUICK), folder=folder)
    return folder


class Page(HTMLParser):
    """The elements of a page, and the data in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._text, self._in_data = "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data):
        if self._in_data:
            self._text += data

    def handle_endtag(self, tag):
        self._in_data = False

    @property
    def data(self) -> Any:
        return json.loads(self._text)


def test_a_run_that_has_other_metrics(tmp_path):
    """A regression: R² may be below 0, or missing where the model diverged; there is no accuracy."""
    folder = write_run(tmp_path / "run", Scenario(rounds=4))
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    values = [-0.5, 0.25, None, 0.75]
    told = [
        {"round": record["round"], "r2": value, **{key: record[key] for key in ("loss", "void", "idle", "seconds")}}
        for record, value in zip(records, values, strict=True)
    ]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    (run,) = collect([folder]).runs
    assert (run["metric"], run["scores"], run["beside"], run["score"]) == ("R²", values, {}, None)
    assert read_history(folder).metrics == ("r2",)
    told[1] = {**told[1], "f1": 0.5}  # of another kind than the others: not whole from there on
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    assert len(read_history(folder).rounds) == 4  # what stands behind the loss is no metric
    told[1] = {"round": 2, "f1": 0.5, **{key: value for key, value in told[1].items() if key not in ("round", "r2")}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    (folder / "result.json").unlink()
    assert len(read_history(folder).rounds) == 1


def test_a_run_as_columns(real):
    (run,) = collect([real]).runs
    history = read_history(real)
    assert run["finished"] and run["folder"] == "real" and run["id"] == history.scenario.id
    assert run["scores"] == [float(f"{value:.4g}") for value in history.f1]
    assert run["score"] == pytest.approx(history.f1_last5, rel=1e-3)
    assert run["config"]["aggregator"] == "fedseca" and run["config"]["aggregator.sparsity"] == 0.9
    assert run["byzantine"] == [0, 0, 0, 1, 1]
    assert run["status"] == ["aaa", "aaa", "aaa", "rrr", "rrr"]
    assert [row[0] for row in run["rejected"]] == [3, 4] and all("NaN" in row[1] for row in run["rejected"])
    assert [row[2:] for row in run["rejected"]] == [[3, 1, 3], [3, 1, 3]]
    assert list(run["columns"]) == ["rho", "clip_factor", "adopted", "weight", "norm"]
    assert run["columns"]["rho"][3] == [None] * 3
    assert run["headings"].keys() == run["columns"].keys()
    declared = diagnostics_of(history.scenario.aggregator)
    assert run["headings"]["rho"] == ["trust ρ", declared["rho"].help] and run["headings"]["norm"][0] == "norm"
    for record in history.audit:
        assert record["verdict"] == ("left out" if record["byzantine"] else "used")
        if record["verdict"] == "used":
            found = run["columns"]["norm"][int(record["client"])][record["round"] - 1]
            assert found == pytest.approx(record["norm"], rel=1e-3)
    assert run["pairs"]["rounds"] == [1, 2, 3]
    assert run["pairs"]["heading"] == "Who agrees with whom (sign concordance ω)"
    assert run["pairs"]["note"] == CONCORDANCE.note
    matrix = history.pairs[0]["concordance"]  # of the three that were admitted, in a matrix of all five
    assert run["pairs"]["matrices"][0][:6] == [*matrix[0], None, None, matrix[1][0]]


def test_a_run_of_a_chain(tmp_path):
    rule = {"name": "nnm+cwmed", "nnm.num_byzantine": 1}
    simulate(Scenario(aggregator=rule, **QUICK), folder=tmp_path / "run")
    (run,) = collect([tmp_path]).runs
    assert run["config"]["aggregator"] == "nnm+cwmed" and run["config"]["aggregator.nnm.num_byzantine"] == 1
    assert run["headings"]["neighbours"] == [
        "neighbours",
        diagnostics_of(Scenario(aggregator=rule).aggregator)["neighbours"].help,
    ]
    assert list(run["columns"])[-2:] == ["weight", "norm"] and run["pairs"] is None


def test_suspects_void_rounds_and_the_absent(tmp_path):
    (run,) = collect([write_run(tmp_path / "run", Scenario(rounds=4))]).runs
    assert run["status"] == ["aaaa", "aaaa", "aaaa", "saas", "sars"]
    assert run["rejected"] == [[4, "2 NaN, first at 0.weight[3]", 1, 3, 3]]
    scenario = Scenario(**QUICK | {"rounds": 8}, aggregator="krum", dropout=0.2)
    history = simulate(scenario, folder=tmp_path / "void")
    (run,) = collect([tmp_path / "void"]).runs
    void = [record for record in history.rounds if record["void"] is not None]
    assert run["void"] == [[record["round"], record["void"]] for record in void] and 0 < len(void) < 8
    letters = {"used": "a", "suspect": "s", "round void": "a", "no answer": "-"}
    for k, column in enumerate(run["status"]):
        told = [line["verdict"] for line in history.audit if line["client"] == str(k)]
        assert column == "".join(letters[verdict] for verdict in told)


def test_any_mix_of_runs_and_grids_each_run_once(tmp_path, real):
    grid = write_grid(tmp_path / "grid", rules=("krum", "fedavg"), attacks=("ipm",), rounds=4)
    found = collect([tmp_path, grid / "runs", real])
    assert sorted(run["config"]["aggregator"] for run in found.runs) == ["fedavg", "fedseca", "krum"]
    assert not found.left_out
    assert not any(str(tmp_path) in run["folder"] for run in found.runs)


def test_what_is_varied(tmp_path):
    for k, sparsity in enumerate((0.5, 0.9)):
        scenario = Scenario(aggregator={"name": "fedseca", "sparsity": sparsity}, seed=k, rounds=2)
        write_run(tmp_path / str(k), scenario)
    write_run(tmp_path / "krum", Scenario(aggregator="krum", clients=7, rounds=2))
    assert sorted(collect([tmp_path]).varied()) == ["aggregator.sparsity", "seed"]


def test_folders_that_cannot_be_read_are_left_out_with_the_reason(tmp_path):
    scenario = Scenario(rounds=4)
    write_run(tmp_path / "good", scenario)

    def broken(name: str, file: str, content: str) -> None:
        write_run(tmp_path / name, scenario).joinpath(file).write_text(content)

    lines = (tmp_path / "good" / "rounds.jsonl").read_text().splitlines(keepends=True)
    broken("foreign", "config.json", '{"model_type": "bert"}')
    broken("cut", "config.json", '{"format": 2, "scen')
    broken("unknown", "config.json", '{"format": 2, "scenario": {"aggregator": "mine"}}')
    broken("format", "config.json", '{"format": 3, "scenario": {}}')
    broken("crowd", "config.json", '{"format": 2, "scenario": {"rounds": 4, "clients": 300000}}')
    broken("strange", "config.json", '{"format": 2, "scenario": {"rounds": [[]]}}')
    broken("short", "rounds.jsonl", "".join(lines[:2]) + lines[2][:10])
    broken("gap", "rounds.jsonl", "".join([lines[0], *lines[2:], lines[3]]))
    broken("words", "rounds.jsonl", "".join(lines).replace('"f1": 0.', '"f1": "0.', 1).replace(', "acc', '", "acc', 1))
    broken("nan", "rounds.jsonl", "".join(re.sub(r'"f1": [\d.]+', '"f1": NaN', line) for line in lines))
    broken("huge", "rounds.jsonl", "".join(re.sub(r'"f1": [\d.]+', f'"f1": {10**400}', line) for line in lines))
    broken("percent", "rounds.jsonl", "".join(re.sub(r'"f1": [\d.]+', '"f1": 7001', line) for line in lines))
    broken("garbage", "clients.jsonl", "\x00\n" + (tmp_path / "good" / "clients.jsonl").read_text())
    broken("result", "result.json", "[]")
    broken("half", "result.json", '{"rou')
    broken("other", "result.json", '{"rounds": 5}')
    write_run(tmp_path / "clientless", scenario).joinpath("clients.jsonl").unlink()
    write_run(tmp_path / "lost", scenario).joinpath("config.json").unlink()
    write_run(tmp_path / "lost early", scenario, rounds=2, result=False).joinpath("config.json").unlink()
    write_run(tmp_path / "only result", scenario).joinpath("config.json").unlink()
    (tmp_path / "only result" / "rounds.jsonl").unlink()
    for file in ("config.json", "rounds.jsonl", "result.json"):
        write_run(tmp_path / f"folder {file}", scenario).joinpath(file).unlink()
        (tmp_path / f"folder {file}" / file).mkdir()
    write_run(tmp_path / "empty", scenario, rounds=0, result=False)
    found = collect([tmp_path])
    assert [run["folder"] for run in found.runs] == [f"{tmp_path.name}/good"]
    reasons = {each.folder.partition("/")[2]: each.reason for each in found.left_out}
    expected = {
        "foreign": "it is not the config of a run",
        "cut": "config.json: cannot be read",
        "unknown": "mine",
        "strange": "rounds",
        "format": "was written by another version (format 3",
        "crowd": "is finished, but only 0 of its 4 rounds",
        "short": "is finished, but only 2 of its 4 rounds",
        "gap": "is finished, but only 1 of its 4 rounds",
        "words": "is finished, but only 0 of its 4 rounds",
        "nan": "is finished, but only 0 of its 4 rounds",
        "huge": "is finished, but only 0 of its 4 rounds",
        "percent": "is finished, but only 0 of its 4 rounds",
        "garbage": "is finished, but only 0 of its 4 rounds",
        "clientless": "is finished, but only 0 of its 4 rounds",
        "lost": "there is no config.json",
        "lost early": "there is no config.json",
        "only result": "there is no config.json",
        "folder config.json": "config.json: cannot be read ([Errno 21] Is a directory: 'config.json')",
        "folder rounds.jsonl": "Is a directory",
        "folder result.json": "result.json cannot be read (Is a directory)",
        "result": "result.json is not the result of a run",
        "half": "result.json cannot be read",
        "other": "result.json is not of the 4 rounds in its files",
        "empty": "no round is written down yet",
    }
    assert reasons.keys() == expected.keys()
    for name, words in expected.items():
        assert words in reasons[name] and "\n" not in reasons[name] and "/" not in reasons[name]


def test_a_run_too_large_for_the_memory_ends_no_page(tmp_path, monkeypatch):
    module = sys.modules["fedseca.report.collect"]
    whole = compact

    def tight(history: History, result: Any) -> dict[str, Any]:
        if history.scenario.seed:
            raise MemoryError
        return whole(history, result)

    monkeypatch.setattr(module, "compact", tight)
    for seed in (0, 1):
        write_run(tmp_path / str(seed), Scenario(rounds=2, seed=seed))
    found = collect([tmp_path])
    assert len(found.runs) == 1
    assert found.left_out == [(f"{tmp_path.name}/1", "does not fit into the memory", False)]


def test_a_folder_that_cannot_be_looked_into_is_said(tmp_path, monkeypatch):
    write_run(tmp_path / "good", Scenario(rounds=2))
    write_run(tmp_path / "locked" / "run", Scenario(rounds=3))
    scandir = os.scandir

    def refusing(path: Any) -> Any:  # root may look into everything
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = collect([tmp_path])
    assert len(found.runs) == 1
    assert found.left_out == [(f"{tmp_path.name}/locked", "Permission denied", False)]


def test_runs_are_found_through_links_once_and_without_end(tmp_path):
    write_run(tmp_path / "elsewhere" / "run", Scenario(rounds=2))
    shown = tmp_path / "shown"
    write_run(shown / "own", Scenario(rounds=3))
    (shown / "link").symlink_to(tmp_path / "elsewhere")
    (shown / "link again").symlink_to(tmp_path / "elsewhere" / "run")
    (shown / "own" / "loop").symlink_to(shown)
    (shown / "self").symlink_to("self")
    found = collect([shown, shown / "link"])
    assert [run["folder"] for run in found.runs] == ["shown/link/run", "shown/own"] and not found.left_out


def test_a_copy_of_a_run_counts_once(tmp_path):
    scenario = Scenario(rounds=3)
    shutil.copytree(write_run(tmp_path / "a", scenario), tmp_path / "b")
    write_run(tmp_path / "c", scenario)  # of the same config, and with other numbers
    found = collect([tmp_path])
    name = tmp_path.name
    assert [run["folder"] for run in found.runs] == [f"{name}/a", f"{name}/c"]
    assert found.left_out == [(f"{name}/b", f"the same run as {name}/a", True)]


def test_an_unfinished_run_is_shown_as_that(tmp_path):
    write_run(tmp_path / "cut", Scenario(rounds=9), rounds=4, result=False)
    with (tmp_path / "cut" / "clients.jsonl").open("a") as file:
        file.write('{"round":5,"cli')
    (run,) = collect([tmp_path]).runs
    assert not run["finished"] and run["rounds"] == 4 and run["config"]["rounds"] == 9 and run["version"] is None


def test_every_cell_of_a_grid_is_shown_or_said(tmp_path):
    done, failed, waiting, killed, lost, linked = (Scenario(seed=seed, rounds=3) for seed in range(6))
    store = Store(tmp_path / "grid")
    store.plan([done, failed, waiting, killed, lost, linked])
    write_run(store.folder(done), done)
    error = f"no space in {tmp_path}/grid/runs/x, nor in '/home/me/data'"
    record_failure(store.error_file(failed), error)
    record_failure(store.error_file(done), "it was run again since")
    store.folder(killed).mkdir()
    (store.folder(killed) / ".lock").touch()
    write_run(store.folder(lost), lost).joinpath("config.json").unlink()
    write_run(tmp_path / "elsewhere", linked)
    store.folder(linked).symlink_to(tmp_path / "elsewhere")
    plan = json.loads((tmp_path / "grid" / "grid.json").read_text())
    plan["cells"].insert(0, {"aggregator": "mine"})
    (tmp_path / "grid" / "grid.json").write_text(json.dumps(plan))
    found = collect([tmp_path / "grid"])
    assert sorted(run["config"]["seed"] for run in found.runs) == [0, 5]
    reasons = {each.folder: each.reason for each in found.left_out}
    assert reasons.pop("grid").startswith("a cell that is planned cannot be read: unknown rule 'mine'")
    assert reasons == {
        f"grid/{failed.title}": "failed: no space in runs/x, nor in 'data'",
        f"grid/{waiting.title}": "planned, and not begun",
        f"grid/{killed.title}": "begun, and nothing is written down yet",
        f"grid/runs/{lost.title}": "is not the folder of a run: there is no config.json",
    }
    assert len(reasons) + 1 == len(found.left_out)


def test_a_plan_that_cannot_be_read_is_said(tmp_path):
    write_run(tmp_path / "grid" / "runs" / "run", Scenario(rounds=2))
    (tmp_path / "grid" / "grid.json").write_text("{")
    found = collect([tmp_path / "grid"])
    assert len(found.runs) == 1
    ((folder, reason, is_copy),) = found.left_out
    assert folder == "grid" and not is_copy and reason.startswith("grid.json: cannot be read")


def test_different_versions_are_said(tmp_path):
    for version in ("0.1.0", "0.2.0"):
        write_run(tmp_path / version, Scenario(rounds=2), version=version)
    assert collect([tmp_path]).versions == ["0.1.0", "0.2.0"]


def test_nothing_to_show_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no run to show in"):
        collect([tmp_path])
    with pytest.raises(InputError, match="there is no such folder"):
        collect([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        collect([tmp_path / "file"])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"left out: .*it is not the config of a run"):
        collect([tmp_path])


def test_text_from_a_folder_stays_text(tmp_path):
    clean = Page(make_page(collect([write_run(tmp_path / "clean", Scenario(rounds=6))])))
    name = "<img src=x onerror=alert(1)>{{plotly}}"
    folder = write_run(tmp_path / name, Scenario(rounds=6), reason=HOSTILE, version=HOSTILE)
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    lines[0] |= {HOSTILE: 1.5, "norm": HOSTILE, "weight": [HOSTILE], "rho": {"<b>": 1}}
    lines[1]["client"] = [HOSTILE]
    lines[2]["verdict"] = HOSTILE
    (folder / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "pairs.jsonl").write_text(
        json.dumps({"round": 1, "clients": [HOSTILE], "concordance": [[HOSTILE]]})
        + "\n"
        + json.dumps({"round": 2, "clients": ["0"], "concordance": [HOSTILE]})
        + "\n"
    )
    page = make_page(collect([folder]))
    hostile = Page(page)
    assert hostile.tags == clean.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in clean.attributes]
    assert "<img" not in page.replace(clean_plotly(), "") and "\x1b" not in page
    (run,) = hostile.data["runs"]
    assert run["rejected"][0][1].startswith(
        "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;{{data}}"
    )
    assert run["folder"] == name and run["pairs"] is None
    assert run["columns"]["norm"][0][0] is None


def clean_plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def test_the_page_asks_for_nothing_outside_itself(real):
    page = Page(make_page(collect([real])))
    policy = next(value for name, value in page.attributes if name == "content" and value and "default-src" in value)
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy
    assert re.search(r"script-src ('sha256-[^']+'\s?)+;", policy)
    assert "base-uri 'none'" in policy and "form-action 'none'" in policy
    assert [value for name, value in page.attributes if name in ("src", "href")] == ["data:,"]


def test_a_plotly_that_would_end_its_element_is_refused(monkeypatch):
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "const text = '</SCRIPT>';")
    with pytest.raises(MissingDependency, match="cannot stand in a page"):
        make_page(Collection())


def test_the_program_never_reads_text_as_html():
    for file in (Path(__file__).parents[2] / "src/fedseca/report").glob("*.js"):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http"):
            assert word not in file.read_text(), (file.name, word)


def test_numbers_are_short():
    assert [number(value) for value in (0.123456, 1.0, 12345.6, 1e-9, 1e300)] == [0.1235, 1, 12350, 1e-9, 1e300]
    assert [number(value) for value in (float("nan"), float("inf"), True, "1", None, 10**400)] == [None] * 6


def test_what_is_thinned_keeps_its_share_and_the_last():
    assert thinned([1, 2, 3, 4, 5], 2) == [3, 5]
    assert thinned([1, 2, 3, 4], 2) == [2, 4]
    assert thinned([1, 2], 2) == [2] and thinned([1, 2], 3) == []


def test_ninety_six_runs_are_less_than_eight_megabytes(tmp_path):
    found = collect([write_grid(tmp_path / "grid")])
    assert len(found.runs) == 96 and {len(run["scores"]) for run in found.runs} == {50}
    assert len(make_page(found).encode()) < 8e6


def test_many_clients_keep_fewer_matrices(tmp_path):
    write_run(tmp_path / "many", Scenario(clients=100, byzantine=20, rounds=30))
    (run,) = collect([tmp_path]).runs
    assert run["pairs"]["rounds"] == [*range(2, 31, 2)] and len(run["pairs"]["matrices"]) == 15
    assert run["thinned"] == [["the pairs of clients", 15, 30]]
    assert run["columns_rounds"] == [*range(1, 31)]


def test_many_clients_keep_fewer_rounds_and_the_means_of_all(tmp_path):
    scenario = Scenario(clients=200, byzantine=40, rounds=50)
    for name in ("a", "b", "c"):
        folder = write_run(tmp_path / name, scenario, matrices=False)
        lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
        for line in lines:
            line |= {f"more_{k}": k + line["round"] / 50 for k in range(7)}
        (folder / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = collect([tmp_path])  # 3 runs × 12 columns × 200 clients × 50 rounds
    values = [len(course) for run in found.runs for courses in run["columns"].values() for course in courses]
    assert len(values) == 3 * 12 * 200 and set(values) == {25} and sum(values) <= 300_000
    for run in found.runs:
        assert run["columns_rounds"] == [*range(2, 51, 2)]
        assert run["columns"]["more_3"][7] == [pytest.approx(3 + number / 50) for number in run["columns_rounds"]]
        assert run["means"]["more_3"][7] == pytest.approx(3.51)  # of all rounds, not of those that were kept
        assert run["thinned"] == [["the courses of the clients", 25, 50]]
    assert len(make_page(found).encode()) < 8e6


def test_what_does_not_fit_at_all_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fedseca.report.collect"], "_MOST_VALUES", 20)
    monkeypatch.setattr(sys.modules["fedseca.report.collect"], "_MOST_ENTRIES", 20)
    write_run(tmp_path / "run", Scenario(rounds=4))
    (run,) = collect([tmp_path]).runs
    assert not run["columns_rounds"] and not any(course for each in run["columns"].values() for course in each)
    assert run["pairs"]["rounds"] == run["pairs"]["matrices"] == []
    assert run["thinned"] == [["the pairs of clients", 0, 4], ["the courses of the clients", 0, 4]]
    assert run["means"]["rho"][0] is not None


def write_main(folder: Path) -> ResultTable:
    """The folder of an experiment: its runs with two seeds, and what is made of them."""
    for seed in (0, 1):
        write_grid(folder, rules=("krum", "fedavg", "fedseca"), attacks=("ipm", "alie"), rounds=3, seed=seed)
    return table_of(collect([folder]))


def test_the_folder_of_an_experiment_is_recognised(tmp_path):
    table = write_main(tmp_path / "main")
    assert not collect([tmp_path]).experiments
    write_experiment(tmp_path / "main", Outcome(table, {"main.png": DOT}))
    found = collect([tmp_path])
    (shown,) = Page(make_page(found)).data["experiments"]
    assert shown["folder"] == f"{tmp_path.name}/main" and not found.left_out
    assert shown["command"] == "fedseca reproduce main --seeds 0,1"
    assert (shown["rows"], shown["columns"]) == (["krum", "fedavg", "fedseca"], ["ipm", "alie"])
    for cell, score in zip(shown["cells"], table.scores, strict=True):
        assert (cell["row"], cell["column"], cell["paper"], cell["count"]) == (score.row, score.column, score.paper, 2)
        assert cell["mean"] == pytest.approx(score.mean, rel=1e-3)
        assert cell["std"] == pytest.approx(score.std, rel=1e-3)
    assert {id for cell in shown["cells"] for id in cell["runs"]} == {run["id"] for run in found.runs}
    assert shown["figures"] == []  # the page draws a table of scores itself


def test_several_experiments_are_shown_each_once(tmp_path):
    table = write_main(tmp_path / "main")
    for name, title in (("main", "One"), ("ablation", "Two")):  # in one folder
        write_experiment(tmp_path / "main", Outcome(replace(table, title=title), {}), name=name)
    seconds = ResultTable(
        title="Three",
        row_name="rule",
        column_name="clients",
        metric="seconds",
        coloured=False,
        scores=[Score("krum", "4", (0.5, float("nan"))), Score("krum", "8", ())],
    )
    write_experiment(tmp_path / "timing", Outcome(seconds, {"timing.png": DOT, "timing.csv": b""}), name="timing")
    shutil.copytree(tmp_path / "timing", tmp_path / "timing copy")
    found = collect([tmp_path])
    assert [each["title"] for each in found.experiments] == ["Two", "One", "Three"]
    (picture,) = found.experiments[2]["figures"]
    assert picture["name"] == "timing.png" and base64.b64decode(picture["png"]) == DOT
    assert [(cell["mean"], cell["count"]) for cell in found.experiments[2]["cells"]] == [(None, 2), (None, 0)]
    name = tmp_path.name
    copy = (f"{name}/timing copy/timing.experiment.json", f"the same experiment as in {name}/timing", True)
    assert found.left_out == [copy]
    assert collect([tmp_path / "timing"]).runs == []  # it needs none


def test_text_of_an_experiment_stays_text(tmp_path):
    table = write_main(tmp_path / "main")
    clean = Page(make_page(collect([tmp_path])))
    scores = [replace(score, row=HOSTILE, runs=(HOSTILE,)) for score in table.scores]
    hostile = replace(table, title=HOSTILE, metric=HOSTILE, row_name=HOSTILE, scores=scores)
    write_experiment(tmp_path / "main", Outcome(hostile, {}))
    page = Page(make_page(collect([tmp_path])))
    assert page.tags == clean.tags
    (shown,) = page.data["experiments"]
    assert shown["title"] == shown["rows"][0] and shown["title"].startswith("</script><script>alert(1)")
    assert "\x1b" not in shown["title"]


def test_records_that_cannot_be_read_are_left_out_with_the_reason(tmp_path):
    good = write_experiment(tmp_path / "good", Outcome(write_main(tmp_path / "good"), {}))
    told = json.loads(good.read_text())
    score = told["scores"][0]
    broken: dict[str, Any] = {
        "list": [],
        "format": told | {"format": 2},
        "title": told | {"title": 3},
        "coloured": told | {"coloured": 1},
        "scores": told | {"scores": {"row": 1}},
        "score": told | {"scores": [1]},
        "row": told | {"scores": [score | {"row": None}]},
        "values": told | {"scores": [score | {"values": [True]}]},
        "paper": told | {"scores": [score | {"paper": "0.9"}]},
        "runs": told | {"scores": [score | {"runs": "abc"}]},
    }
    for name, content in broken.items():
        (tmp_path / f"{name}.experiment.json").write_text(json.dumps(content))
    (tmp_path / "half.experiment.json").write_text(good.read_text()[:99])
    (tmp_path / "folder.experiment.json").mkdir()
    found = collect([tmp_path])
    assert len(found.experiments) == 1 and len(found.runs) == 12
    reasons = {each.folder.partition("/")[2].partition(".")[0]: each.reason for each in found.left_out}
    assert reasons.keys() == {*broken, "half", "folder"}
    assert "written by another version (format 2; this one reads 1)" in reasons["format"]
    assert "cannot be read" in reasons["half"] and "irectory" in reasons["folder"]
    for name in ("title", "coloured", "scores", "row", "values", "paper", "runs"):
        assert f"is no record of an experiment: its {name!r} is" in reasons[name]


def test_a_record_takes_no_file_from_elsewhere(tmp_path):
    (tmp_path / "secret.png").write_bytes(DOT)
    table = ResultTable(title="", row_name="", column_name="", metric="", coloured=False, scores=[])
    file = write_experiment(tmp_path / "timing", Outcome(table, {"own.png": DOT, "text.png": b"no picture"}))
    told = json.loads(file.read_text())
    told["pictures"] += ["../secret.png", str(tmp_path / "secret.png"), "missing.png", ".", ""]
    file.write_text(json.dumps(told))
    (shown,) = collect([tmp_path / "timing"]).experiments
    assert [picture["name"] for picture in shown["figures"]] == ["own.png"]


def test_a_whole_number_beyond_every_float_is_a_gap(tmp_path):
    table = ResultTable(
        title="", row_name="", column_name="", metric="", coloured=False, scores=[Score("a", "b", (1.0,))]
    )
    file = write_experiment(tmp_path / "timing", Outcome(table, {}))
    file.write_text(file.read_text().replace("1.0", str(10**400)))
    (shown,) = collect([tmp_path]).experiments
    assert shown["cells"][0]["mean"] is None


def test_what_makes_a_run_another_one_than_the_default(tmp_path):
    scenario = Scenario(
        aggregator={"name": "fedseca", "clamp": False}, attack={"name": "ipm", "strength": 2.0}, seed=3, rounds=4
    )
    (run,) = collect([write_run(tmp_path / "run", scenario)]).runs
    clamp, strength, rounds = run["differs"]
    assert clamp == ["aggregator.clamp", False, True, "clamp magnitudes to their median; false: μ = ∞"]
    assert strength[:3] == ["attack.strength", 2.0, 1.3] and rounds[:3] == ["rounds", 4, 40]
    (usual,) = collect([write_run(tmp_path / "usual", Scenario(seed=1, attack="alie"))]).runs
    assert usual["differs"] == []


def test_the_diagonal_of_the_concordance_is_what_the_page_says_it_is():
    """The share of coordinates that are not zero, which no pair exceeds."""
    updates = torch.tensor([[1.0, -2.0, 0.0, 3.0], [1.0, -1.0, 5.0, 2.0], [0.0, 0.0, 0.0, -1.0]])
    rule = make_aggregator("fedseca")
    found = rule.aggregate(Updates.collect(updates), rule.init(4), torch.Generator()).clients["concordance"]
    shares = (updates != 0).double().mean(dim=1)
    assert found.diagonal().tolist() == shares.tolist() == [0.75, 1.0, 0.25]
    assert (found.abs() <= torch.minimum(shares[:, None], shares[None, :])).all()
    assert "the share of its coordinates that are not zero" in CONCORDANCE.note
    assert len(CONCORDANCE.note) <= LONGEST  # else it is cut
