"""The page of a report in a real browser."""

import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from fedseca.experiments.results import Outcome, ResultTable, Score
from fedseca.federation import Scenario, read_history, simulate
from fedseca.paper import COLLAPSED, NOTICEABLE, SEVERE, verdict
from fedseca.report import collect, make_page
from tests.browser.chromium import NAMES, launch
from tests.e2e.command import run
from tests.unit.run_folders import DOT, table_of, write_experiment, write_grid, write_run

HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1><b>bold</b>"
HOSTILE_NAMES = ("constructor", "__proto__", "toString", HOSTILE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Visit:
    """A page in the browser, with what it complained of and asked for."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.page: Page = browser.new_page(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self._meter = self.page.context.new_cdp_session(self.page)
        self._meter.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.goto(file.as_uri())
        self.drawn()

    def drawn(self) -> None:
        """Wait until all that is near the window is drawn."""
        self.page.wait_for_selector("html[data-drawn]")

    def until(self, expression: str) -> None:
        """Wait until it is true; Playwright's own way would need a page that lets text be run."""
        deadline = time.monotonic() + 30
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def column(self, number: int) -> list[str]:
        return self.texts(f"#runs tbody td:nth-child({number})")

    def when(self, mark: str) -> float:
        """Seconds from the start of loading."""
        return float(self.page.evaluate(f"performance.getEntriesByName('{mark}')[0].startTime")) / 1000

    def work(self) -> float:
        """Seconds that the page has kept its core busy, however busy the machine is."""
        metrics = self._meter.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    def close(self) -> None:
        """No complaint, and nothing asked for but the file."""
        self.page.evaluate("new Promise((done) => setTimeout(done))")  # what it complained of has arrived
        self.page.close()
        assert not self.complaints
        assert all(url.startswith(("file:", "data:", "blob:")) for url in self.requests), self.requests


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder: Path = tmp_path_factory.mktemp("report")
    simulate(
        Scenario(attack="nonfinite", rounds=3, train_images=60, test_images=40),
        folder=folder / "one",
    )
    for seed in (0, 1):
        write_grid(folder / "few", rules=("fedavg", "fedseca", "krum"), attacks=("ipm", "alie"), rounds=12, seed=seed)
    write_run(folder / "few" / "cut", Scenario(rounds=12, seed=7), rounds=5, result=False, reason=HOSTILE)
    write_run(folder / "few" / "<img src=x onerror=window.stolen=1>", Scenario(rounds=2), rounds=0)
    write_run(folder / "hostile", Scenario(rounds=12), reason=HOSTILE, version=HOSTILE)
    audit = folder / "hostile" / "clients.jsonl"
    lines = [json.loads(line) | dict.fromkeys(HOSTILE_NAMES, 1.5) for line in audit.read_text().splitlines()]
    audit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for seed in (0, 1):
        for k, (dataset, sparsity, strength) in enumerate(
            (("digits", 0.5, 1.0), ("digits", 0.9, 1.0), ("digits", 0.9, 2.0), ("cifar10", 0.9, 1.0))
        ):
            scenario = Scenario(
                dataset=dataset,
                aggregator={"name": "fedseca", "sparsity": sparsity},
                attack={"name": "ipm", "strength": strength},
                rounds=6,
                seed=seed,
            )
            write_run(folder / "mixed" / f"{k}-{seed}", scenario, best=0.9 - 0.2 * k)
    shutil.copytree(folder / "mixed" / "0-0", folder / "mixed" / "copy")
    write_grid(folder / "many")
    varied: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
        ("ablation", ({}, {"clamp": False}, {"clip": False, "clamp": False}, {"momentum": 0.0})),
        ("settings", ({}, {"clamp": False}, {"clip": False}, {"momentum": 0.0}, {"vrs": False})),
    )
    for name, parts in varied:
        for k, hyperparameters in enumerate(parts):
            write_run(folder / name / str(k), Scenario(aggregator={"name": "fedseca", **hyperparameters}, rounds=6))
    files = {}
    for name in ("one", "few", "hostile", "mixed", "ablation", "settings", "many"):
        files[name] = folder / f"{name}.html"
        files[name].write_text(make_page(collect([folder / name])), encoding="utf-8")
    shutil.copytree(folder / "few" / "runs", folder / "table" / "runs")
    table = table_of(collect([folder / "table"]))
    write_experiment(folder / "table", Outcome(table, {}))
    seconds = (0.00012, 123.4, 5.0, 98765.4, 1.5)
    timing = ResultTable(
        title="Times",
        row_name="aggregator",
        column_name="attack",
        metric="seconds",
        coloured=False,
        scores=[
            *(Score(s.row, s.column, (t * 0.9, t * 1.1)) for s, t in zip(table.scores[:-1], seconds, strict=True)),
            replace(table.scores[-1], values=(), paper=None, runs=()),
        ],
    )
    write_experiment(folder / "timing", Outcome(timing, {"<b>dot.png": DOT}), name="timing")
    (folder / "timing" / "half.experiment.json").write_text("{")
    for name, folders in (("table", ["table"]), ("timing", ["timing"]), ("several", ["table", "timing", "mixed"])):
        files[name] = folder / f"{name}.html"
        files[name].write_text(make_page(collect([folder / each for each in folders])), encoding="utf-8")
    return files


@pytest.fixture
def few(browser, pages) -> Iterator[Visit]:
    visit = Visit(browser, pages["few"], viewport={"width": 1200, "height": 400})  # the plots lie below: quick
    yield visit
    visit.close()


def test_one_run(browser, pages):
    visit = Visit(browser, pages["one"])
    page = visit.page
    assert visit.texts("#run h2") == ["fedseca under nonfinite on digits, seed 0"]
    assert page.locator("#grid").is_hidden() and page.locator("#left-out").is_hidden()
    page.locator("#round").scroll_into_view_if_needed()
    page.wait_for_selector("#run .card:nth-child(4) .main-svg")
    assert page.locator("#run .card:has(.main-svg)").count() == 4
    assert visit.texts("#clients tbody td:nth-child(2)") == ["honest"] * 3 + ["Byzantine"] * 2
    headings = ["client", "truth", "present", "left out", "suspect", "trust ρ", "clip", "adopted", "weight", "norm"]
    assert visit.texts("#clients thead th") == headings
    helped = page.locator("#clients thead th", has_text="trust ρ").get_attribute("title")
    assert helped == "concordance ratio: its say in the election of signs"
    assert page.locator("#column option").all_text_contents()[0] == f"trust ρ: {helped}"
    assert visit.texts("#clients tbody td:nth-child(4)") == ["0"] * 3 + ["3"] * 2
    assert visit.texts("#clients tbody td:nth-child(5)") == ["0"] * 5
    assert "Who agrees with whom (sign concordance ω)" in visit.texts("#run .card h3")
    assert visit.texts("#rejections-title") == ["Who was left out, and why"]
    assert visit.texts("#rejections td:nth-child(4)") == ["3 of 3"] * 2
    assert page.locator("#config").is_hidden()
    page.locator("summary").press("Enter")
    assert "aggregator.sparsity" in visit.texts("#config tbody td:first-child")
    visit.close()


def test_a_targeted_attack_and_one_that_chooses_each_round(browser, tmp_path):
    small: dict[str, Any] = {"aggregator": "fedavg", "model": "mlp", "train_images": 60, "rounds": 2}
    for attack in ("backdoor", "strongest"):
        simulate(Scenario(attack=attack, **small), folder=tmp_path / "runs" / attack)
    scores = [
        Score("fedavg", "backdoor", (0.9,), success=0.75, note="<b>by hand</b>"),
        Score("fedavg", "strongest", (0.2,)),
    ]
    table = ResultTable(title="Field", row_name="aggregator", column_name="attack", metric="f1", scores=scores)
    write_experiment(tmp_path / "runs", Outcome(table, {}))
    (tmp_path / "page.html").write_text(make_page(collect([tmp_path / "runs"])), encoding="utf-8")
    visit = Visit(browser, tmp_path / "page.html", viewport={"width": 1200, "height": 400})
    page = visit.page
    tile = page.locator(".experiment td", has_text="ASR")
    assert tile.locator("small").inner_text() == "ASR 0.75 · <b>by hand</b>"
    assert "attack success rate 0.75" in str(tile.get_attribute("aria-label"))
    assert "ASR: attack success rate" in visit.texts(".experiment .hint")[0]
    assert "attack success rate" in visit.texts("#runs thead th")
    page.get_by_role("button", name="Open fedavg under backdoor").press("Enter")
    history = read_history(tmp_path / "runs" / "backdoor")
    assert f"attack success rate {history.last('attack_success_rate'):.3f}" in visit.texts("#run .facts li")
    assert page.locator("#crafts").count() == 0
    assert "F1 and accuracy and attack success rate" in visit.texts("#run .card h3")
    page.get_by_role("button", name="Open fedavg under strongest").press("Enter")
    sent = [record["craft"] for record in read_history(tmp_path / "runs" / "strongest").rounds]
    page.locator("#crafts summary").press("Enter")
    assert set(visit.texts("#crafts li code")) == set(sent)
    visit.close()


def test_the_concordance_of_a_round_is_chosen_by_keys(browser, pages):
    visit = Visit(browser, pages["one"])

    plot = "document.querySelector('#round').closest('.card').querySelector('.plot')"

    def corner() -> Any:
        visit.drawn()
        return visit.page.evaluate(f"{plot}.data[0].z[0]")

    visit.page.locator("#round").scroll_into_view_if_needed()
    visit.until(f"{plot}.data")
    last = corner()
    assert visit.texts("output") == ["3 of 3"]
    visit.page.locator("#round").press("ArrowLeft")
    assert visit.texts("output") == ["2 of 3"]
    assert corner() != last and corner()[3:] == [None, None]
    visit.close()


def test_the_diagonal_of_the_concordance_is_explained_beside_it(browser, pages):
    visit = Visit(browser, pages["one"])
    card = visit.page.locator(".card", has=visit.page.locator("#round"))
    card.scroll_into_view_if_needed()
    caption = card.locator("figcaption")
    assert caption.is_visible() and "the diagonal, a client with itself, is the share" in caption.inner_text()
    visit.close()


def test_a_run_says_in_what_it_is_not_the_default(browser, pages):
    visit = Visit(browser, pages["ablation"], viewport={"width": 1200, "height": 400})
    names = ["fedseca", "fedseca · clamp=false", "fedseca · clip=false · clamp=false", "fedseca · momentum=0"]
    assert visit.texts("#scores tbody th") == names
    assert visit.texts("#common") == ["All of these runs have rounds=6, unlike the default."]
    settings = ["default", "clamp=false", "clip=false, clamp=false", "momentum=0"]
    assert sorted(visit.column(2)) == sorted(settings)
    visit.page.locator("#runs tr", has_text="clip=false").locator("button").press("Enter")
    assert visit.texts("#run h2") == ["fedseca (clip=false, clamp=false) under ipm on digits, seed 0"]
    assert visit.texts("#differs li") == [
        "aggregator.clip=false (default true): clip norms to their median; false: τ = ∞",
        "aggregator.clamp=false (default true): clamp magnitudes to their median; false: μ = ∞",
        "rounds=6 (default 40): how often the clients train and the server aggregates",
    ]
    visit.page.locator(".heat").get_by_role("button", name="fedseca · momentum=0 under ipm").click()
    assert visit.texts("#run h2") == ["fedseca (momentum=0) under ipm on digits, seed 0"]
    visit.close()


def test_many_settings_are_one_filter(browser, pages):
    visit = Visit(browser, pages["settings"], viewport={"width": 1200, "height": 400})
    assert visit.texts("#filters legend") == ["settings"]
    visit.page.get_by_role("group", name="settings").get_by_label("clamp=false", exact=True).uncheck()
    assert "clamp=false" not in visit.column(2) and len(visit.column(2)) == 4
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name="Download as CSV").click()
    (heading, *_) = download.value.path().read_text().splitlines()
    settings = ("aggregator.momentum", "aggregator.vrs", "aggregator.clip", "aggregator.clamp")
    assert heading.split(",")[-4:] == list(settings)  # for programs each by itself
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "few"])
def test_nothing_lies_over_a_plot_in_a_colour_that_is_not_the_page_s(browser, pages, name, scheme):
    """No part of a plot has a background but the plot itself, which has that of what it lies on."""
    visit = Visit(browser, pages[name], color_scheme=scheme, has_touch=True)
    visit.page.evaluate("for (const place of drawn.keys()) if (place.isConnected) paint(place)")
    backgrounds = visit.page.evaluate(
        """[...document.querySelectorAll(".plot")].flatMap((plot) => {
          const around = getComputedStyle(plot.closest(".card") || document.documentElement).backgroundColor;
          const seen = [...plot.querySelectorAll("*")].filter((each) => each.checkVisibility());
          return seen.map((each) => [getComputedStyle(each).backgroundColor, around]);
        })"""
    )
    assert backgrounds and {found for found, around in backgrounds if found != around} == {"rgba(0, 0, 0, 0)"}
    visit.close()


def test_a_plot_is_saved_by_key(browser, pages):
    visit = Visit(browser, pages["one"], color_scheme="dark")
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name="Save as PNG: Loss on the test set").press("Enter")
    assert download.value.suggested_filename == "loss-on-the-test-set.png"
    assert download.value.path().read_bytes()[:4] == DOT[:4]
    visit.close()


def test_the_trust_of_the_clients_is_drawn_in_two_colours(browser, pages):
    visit = Visit(browser, pages["hostile"])
    plot = "document.querySelector('#column').closest('.card').querySelector('.plot')"
    lines = f"[...{plot}.data]"
    visit.page.locator("#column").scroll_into_view_if_needed()
    visit.until(f"{plot}.data")
    colours = visit.page.evaluate(f"{lines}.map((trace) => trace.line.color)")
    assert colours[0] == colours[1] == colours[2] != colours[3] == colours[4]
    before = visit.page.evaluate(f"{lines}[0].y[0]")
    visit.page.locator("#column").select_option("norm")
    visit.drawn()
    assert visit.page.evaluate(f"{lines}[0].y[0]") != before
    visit.close()


def test_a_filter_changes_what_is_shown(few):
    assert few.texts(".heat tbody th") == ["fedavg", "fedseca", "krum"]
    assert few.texts("#shown") == ["13 of 13 runs chosen"]
    few.page.get_by_role("group", name="rule").get_by_label("krum", exact=True).press("Space")
    assert few.texts(".heat tbody th") == ["fedavg", "fedseca"]
    assert few.texts("#shown") == ["9 of 13 runs chosen"]
    assert set(few.column(1)) == {"fedavg", "fedseca"}
    few.page.get_by_role("group", name="seed").get_by_label("0", exact=True).uncheck()
    assert set(few.column(4)) == {"1", "7"}
    few.page.get_by_role("button", name="rule: none").click()
    assert "choose at least one value" in few.texts("#shown")[0]
    few.page.get_by_role("button", name="rule: all").click()
    assert few.texts(".heat tbody th") == ["fedavg", "fedseca", "krum"]


def test_the_colours_say_what_collapsed(few):
    kinds = {
        few.page.locator(".heat button").nth(k).get_attribute("aria-label"): few.page.locator(".heat button")
        .nth(k)
        .get_attribute("class")
        for k in range(6)
    }
    by_cell = {str(label).partition(":")[0]: kind for label, kind in kinds.items()}
    assert by_cell == {
        "fedavg under alie": "fine",
        "fedavg under ipm": "collapsed",
        "fedseca under alie": "fine",
        "fedseca under ipm": "fine",
        "krum under alie": "severe",
        "krum under ipm": "fine",
    }
    assert any("3 runs, some unfinished" in str(label) for label in kinds)


def test_a_cell_opens_its_runs_by_mouse_and_by_key(few):
    cell = few.page.locator(".heat").get_by_role("button", name="krum under alie")
    cell.click()
    assert few.texts("#run h2") == ["krum under alie on digits, seed 0"]
    assert few.page.evaluate("document.activeElement.textContent") == "krum under alie on digits, seed 0"
    few.page.locator("#which").select_option(index=1)
    assert few.texts("#run h2") == ["krum under alie on digits, seed 1"]
    few.page.locator(".heat").get_by_role("button", name="fedavg under ipm").press("Enter")
    assert few.texts("#run h2") == ["fedavg under ipm on digits, seed 0"]
    few.drawn()
    assert few.page.locator("#run .card:first-child .main-svg").count() >= 1


def test_a_row_opens_its_run_by_mouse_and_by_key(few):
    few.page.locator("#runs tbody tr").nth(2).locator("td").nth(5).click()
    first = few.texts("#run h2")
    few.page.locator("#runs tbody tr").nth(8).get_by_role("button").press("Enter")
    assert first and few.texts("#run h2") != first


def test_the_table_is_sorted_by_its_headings(few):
    assert few.column(1) == sorted(few.column(1))
    heading = few.page.locator("#runs thead button", has_text="F1")
    heading.press("Enter")
    scores = [float(text) for text in few.column(5)]
    assert scores == sorted(scores)
    assert few.page.evaluate("document.activeElement.textContent").startswith("F1")
    few.page.keyboard.press("Enter")
    assert [float(text) for text in few.column(5)] == sorted(scores, reverse=True)
    assert few.page.locator("#runs th[aria-sort=descending]").count() == 1


def test_the_chosen_runs_as_csv(few, tmp_path):
    few.page.get_by_role("button", name="attack: none").click()
    few.page.get_by_role("group", name="attack").get_by_label("ipm").check()
    with few.page.expect_download() as download:
        few.page.get_by_role("button", name="Download as CSV").click()
    download.value.save_as(tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 and {row["attack"] for row in rows} == {"ipm"}
    assert {row["state"] for row in rows} == {"finished", "unfinished"}


def test_everything_is_reached_by_keys_alone(few):
    reached = set()
    for _ in range(90):
        few.page.keyboard.press("Tab")
        reached.add(few.page.evaluate("document.activeElement.closest('section')?.getAttribute('aria-labelledby')"))
    assert {"filters-title", "scores-title", "runs-title"} <= reached
    unnamed = few.page.evaluate(
        "[...document.querySelectorAll('button, input, select')]"
        ".filter((e) => !(e.textContent || e.getAttribute('aria-label') || e.labels?.length)).length"
    )
    assert unnamed == 0


def test_hostile_text_is_shown_as_text(browser, pages):
    visit = Visit(browser, pages["hostile"])
    assert HOSTILE in visit.texts("#rejections tbody td:nth-child(3)")
    words = [name.replace("_", " ") for name in HOSTILE_NAMES]
    assert visit.page.locator("#column option").all_text_contents()[-4:] == words
    assert visit.page.locator("#clients thead th").all_text_contents()[-4:] == words
    # Of 12 rounds: four in which the last was left out, in the four that came next to them both were suspect.
    assert visit.texts("#clients tbody td:nth-child(4)") == ["0", "0", "0", "0", "4"]
    assert visit.texts("#clients tbody td:nth-child(5)") == ["0", "0", "0", "4", "4"]
    visit.page.locator("#column").select_option("__proto__")
    visit.page.locator("#column").scroll_into_view_if_needed()
    plot = "document.querySelector('#column').closest('.card').querySelector('.plot')"
    visit.until(f"{plot}.data?.[0].y[0] === 1.5")
    assert visit.page.evaluate("window.stolen") is None
    assert visit.page.locator("img[src=x], #rejections b").count() == 0
    visit.close()
    visit = Visit(browser, pages["few"], viewport={"width": 1200, "height": 400})
    assert "<img src=x onerror=window.stolen=1>" in visit.texts("#left-out td")[0]
    assert visit.page.evaluate("window.stolen") is None and visit.page.locator("img[src=x]").count() == 0
    visit.close()


def test_several_runs_of_a_cell_are_a_mean_and_its_deviation(few):
    scores = [
        float(row[4]) for row in zip(*(few.column(k) for k in range(1, 6)), strict=True) if row[:2] == ("krum", "alie")
    ]
    assert len(scores) == 2
    text = few.page.locator(".heat").get_by_role("button", name="krum under alie").inner_text()
    assert text.split()[0] == f"{statistics.mean(scores):.3f}"
    assert float(text.split("±")[1].split()[0]) == pytest.approx(statistics.stdev(scores), abs=0.0011)


def test_a_cell_of_the_heat_map_differs_in_the_seed_only(browser, pages):
    visit = Visit(browser, pages["mixed"], viewport={"width": 1200, "height": 400})
    assert visit.texts("#scores thead th") == ["rule", "ipm · strength=1", "ipm · strength=2"]
    assert visit.texts("#scores tbody th") == [
        "fedseca · cifar10",
        "fedseca · digits",
        "fedseca · digits · sparsity=0.5",
    ]
    assert visit.page.locator("#defaults").is_visible()
    cells = [text.split() for text in visit.texts("#scores tbody td")]
    assert [cell[-2:] for cell in cells] == [["2", "runs"], ["–"], ["2", "runs"], ["2", "runs"], ["2", "runs"], ["–"]]
    assert [round(float(cells[k][0]), 1) for k in (0, 2, 3, 4)] == [0.3, 0.7, 0.5, 0.9]
    assert set(visit.column(2)) == {
        "attack.strength=1",
        "attack.strength=2",
        "sparsity=0.5, attack.strength=1",
    }
    assert "the same run as mixed/0-0" in visit.texts("#left-out td")
    visit.page.locator("#scores button").first.click()
    assert visit.texts("#run h2") == ["fedseca under ipm (strength=1) on cifar10, seed 0"]
    visit.close()


def test_the_colours_are_those_of_the_command_line(few):
    limits = {"collapsed": COLLAPSED, "severe": SEVERE, "noticeable": NOTICEABLE}
    scores = [k / 100 for k in range(101)]
    for best in (1.0, 0.9, 0.37, 0.0):
        found = few.page.evaluate(
            "([scores, best, limits]) => scores.map((score) => verdict(score, best, limits))", [scores, best, limits]
        )
        assert found == [verdict(score, best) for score in scores]


def test_ninety_six_runs_open_in_two_seconds(browser, pages):
    assert pages["many"].stat().st_size < 8e6
    ready, drawn, work = [], [], []
    for _ in range(3):
        visit = Visit(browser, pages["many"])
        assert visit.texts("#shown") == ["96 of 96 runs chosen"]
        ready.append(visit.when("ready"))
        drawn.append(visit.when("drawn"))
        work.append(visit.work())
        visit.close()
    assert min(ready) <= min(drawn) < 2
    assert min(work) < 1.5  # on a busy machine too: what is far from the window is not drawn


def test_a_plot_is_drawn_when_it_comes_near_by_keys_alone(browser, pages):
    visit = Visit(browser, pages["few"], viewport={"width": 1200, "height": 300})
    page = visit.page
    assert page.locator("#courses .main-svg").count() == 0 and not page.evaluate("'Plotly' in window")
    page.locator("#csv").focus()
    page.wait_for_selector("#courses .main-svg")
    lines = "document.querySelector('#courses').data.length"
    assert page.evaluate(lines) == 13
    page.get_by_role("button", name="rule: none").press("Enter")
    page.get_by_role("group", name="rule").get_by_label("krum", exact=True).press("Space")
    page.locator("#csv").focus()
    visit.until(f"{lines} === 4")
    visit.close()


def test_all_plots_are_on_paper(browser, pages):
    visit = Visit(browser, pages["few"], viewport={"width": 1200, "height": 300})
    assert visit.page.locator(".main-svg").count() == 0
    visit.page.pdf()
    assert visit.page.locator("#courses .main-svg").count() >= 1
    visit.close()


def test_an_experiment_stands_first_and_its_cells_open_their_runs(browser, pages):
    visit = Visit(browser, pages["table"])
    page = visit.page
    assert visit.texts("h2:visible")[0] == "Rules <b>under</b> attack"
    assert visit.texts(".experiment code") == ["fedseca reproduce main --seeds 0,1"]
    assert visit.texts(".experiment .hint")[0].startswith("digits · 5 <b>clients</b>. F1 by aggregator and attack; ")
    assert "below it, smaller, the paper's (CIFAR-10, <b>ResNet18</b>)." in visit.texts(".experiment .hint")[0]
    assert visit.texts(".tiles thead th") == ["aggregator", "ipm", "alie"]
    assert visit.texts(".tiles tbody th") == ["krum", "fedavg", "fedseca"]  # in the order given
    assert page.locator("#by-rule").is_hidden() and page.locator("#runs").is_visible()
    assert visit.texts("#shown") == ["12 of 12 runs chosen"]
    cell = page.get_by_role("button", name="krum, alie: F1")
    rows = zip(*(visit.column(k) for k in (1, 2, 5)), strict=True)
    mean = statistics.mean(float(f1) for rule, attack, f1 in rows if (rule, attack) == ("krum", "alie"))
    assert cell.locator(".ours.severe").inner_text().startswith(f"{mean:.2f} ▼\n± 0.0")
    words = "of 2 values, severely impacted; in the paper 0.10, collapsed. Open 2 runs."
    assert words in str(cell.get_attribute("aria-label"))
    assert cell.locator(".paper.collapsed").inner_text() == "0.10 ✕"
    assert page.get_by_role("button", name="fedseca, ipm: F1").locator(".fine").count() == 2
    cell.press("Enter")
    assert visit.texts("#run h2") == ["krum under alie on digits, seed 0"]
    page.locator("#which").select_option(index=1)
    assert visit.texts("#run h2") == ["krum under alie on digits, seed 1"]
    page.locator("#courses").scroll_into_view_if_needed()
    page.wait_for_selector("#courses .main-svg")
    panels = page.evaluate("document.querySelector('#courses').layout.annotations.map((each) => each.text)")
    assert panels == ["<b>krum</b>", "<b>fedavg</b>", "<b>fedseca</b>"]
    visit.close()


def test_the_pictures_of_an_experiment(browser, pages):
    visit = Visit(browser, pages["timing"], viewport={"width": 360, "height": 740})
    picture = visit.page.get_by_role("img", name="Times: <b>dot.png")
    picture.scroll_into_view_if_needed()
    visit.until("document.querySelector('.experiment img').naturalWidth === 1")
    assert picture.get_attribute("loading") == "lazy" and visit.page.locator(".experiment b").count() == 0
    # Wide enough to be read, it scrolls in its box.
    assert picture.evaluate("(picture) => picture.parentElement.scrollWidth > picture.parentElement.clientWidth")
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    visit.close()


def test_several_experiments_each_with_its_table_and_its_courses(browser, pages):
    visit = Visit(browser, pages["several"])
    page = visit.page
    assert visit.texts(".experiment h2") == ["Rules <b>under</b> attack", "Times"]
    assert page.get_by_role("region", name="Rules <b>under</b> attack").get_by_role("button").count() == 6
    assert visit.texts("#summary")[0].startswith("2 experiments; 20 runs; 2 left out")
    # Some runs stand in no table of an experiment.
    assert page.locator("#by-rule").is_visible()
    page.locator("#plan").scroll_into_view_if_needed()
    assert page.locator("#plan option").all_text_contents() == ["Rules <b>under</b> attack", "rule and attack"]
    panels = "document.querySelector('#courses').layout?.annotations.map((each) => each.text).join()"
    visit.until(f"{panels} === '<b>krum</b>,<b>fedavg</b>,<b>fedseca</b>'")
    page.locator("#plan").select_option("rule and attack")
    visit.until(f"{panels}?.includes('sparsity=0.5')")
    visit.close()


def test_an_experiment_without_runs(browser, pages):
    visit = Visit(browser, pages["timing"])
    assert visit.page.locator("#grid").is_hidden() and visit.texts("#run") == [""]
    assert visit.texts("#summary") == ["1 left out (see the end of the page)"]
    assert visit.texts(".experiment .ours") == [
        "0.00012\n± 0.000017",
        "123\n± 17",
        "5\n± 0.71",
        "98800\n± 14000",
        "1.5\n± 0.21",
        "–",
    ]
    assert visit.page.locator(".experiment :is(button, .paper, .legend li)").count() == 0
    assert visit.page.locator(".experiment :is(.collapsed, .severe, .noticeable)").count() == 0
    label = visit.page.locator(".experiment td").first.get_attribute("aria-label")
    assert label == "krum, ipm: seconds 0.00012 ± 0.000017 of 2 values."
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_a_table_can_be_read(browser, pages, scheme):
    """The ratio of WCAG's level AA for small text, of all colours and both sizes."""
    visit = Visit(browser, pages["table"], color_scheme=scheme)
    pairs = visit.page.evaluate(
        """["collapsed", "severe", "noticeable", "fine"].map((kind) => {
          const part = document.querySelector(".experiment .paper");
          part.className = `paper ${kind}`;
          const style = getComputedStyle(part);
          return [style.color, style.backgroundColor];
        })"""
    )
    assert len({background for _, background in pairs}) == 4
    assert min(contrast(*pair) for pair in pairs) >= 4.5
    visit.close()


def contrast(one: str, other: str) -> float:
    """Of two colours as `rgb(r, g, b)`."""

    def light(colour: str) -> float:
        parts = (int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    dark, bright = sorted((light(one), light(other)))
    return bright / dark


def test_what_has_no_room_is_said(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fedseca.report.collect"], "_MOST_VALUES", 100)
    write_run(tmp_path / "run", Scenario(rounds=12))
    (tmp_path / "page.html").write_text(make_page(collect([tmp_path / "run"])))
    visit = Visit(browser, tmp_path / "page.html")
    assert "the courses of the clients are those of 4 of 12 rounds" in visit.texts("#thinned")[0]
    visit.page.locator("#column").scroll_into_view_if_needed()
    plot = "document.querySelector('#column').closest('.card').querySelector('.plot')"
    visit.until(f"{plot}.data")
    assert visit.page.evaluate(f"{plot}.data[0].x") == [3, 6, 9, 12]
    visit.close()


def test_without_a_browser_make_says_in_one_line_what_is_missing_and_installs_nothing(tmp_path):
    for name in ("apt-get", "sudo"):
        (tmp_path / name).write_text(f"#!/bin/sh\n: > {tmp_path}/installed\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "id").symlink_to(str(shutil.which("id")))
    make = [str(shutil.which("make")), "-o", ".venv/.installed", f"BIN={Path(sys.executable).parent}", "test-browser"]
    root = Path(__file__).parents[2]
    done = subprocess.run(make, cwd=root, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    told, *rest = done.stderr.splitlines()
    assert "need Chromium" in told and "apt-get install chromium" in told
    assert done.returncode == 2 and not done.stdout and len(rest) == 1 and rest[0].startswith("make: ***")
    assert not (tmp_path / "installed").exists()


@pytest.mark.parametrize("user", [0, 1000])
def test_the_sandbox_is_switched_off_for_root_only(user, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    playwright = MagicMock()
    launch(playwright)
    assert playwright.chromium.launch.call_args.kwargs["chromium_sandbox"] is (user != 0)
    assert (
        "--no-sandbox" not in playwright.chromium.launch.call_args.kwargs["args"]
    )  # Playwright's, without the sandbox


@pytest.mark.parametrize("name", NAMES)
def test_the_browser_is_found_by_any_of_its_names(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="apt-get install chromium"):
        launch(MagicMock())
    (tmp_path / name).symlink_to("/bin/sh")
    playwright = MagicMock()
    launch(playwright)
    assert playwright.chromium.launch.call_args.kwargs["executable_path"] == str(tmp_path / name)


HIDDEN_TABLES = """
[...document.querySelectorAll("table")].filter((each) => each.checkVisibility()).flatMap((each) => {
  const box = each.closest(".wide");
  const wide = each.getBoundingClientRect().width > box.clientWidth + 1;
  const told = Boolean(box.hint) && box.hint.checkVisibility({ visibilityProperty: true });
  const faded = getComputedStyle(box).maskImage !== "none";
  const inside = box.getBoundingClientRect().right <= innerWidth;
  const good = inside && wide === told && wide === faded && (!wide || box.tabIndex === 0);
  return good ? [] : [each.outerHTML.slice(0, 200)];
})
"""
"""Those that end beyond their box without a word, and boxes that go beyond the page."""


@pytest.mark.parametrize("name", ["few", "one", "several", "ablation"])
def test_a_table_that_is_wider_than_a_phone_says_so_and_scrolls_in_its_box(browser, pages, name):
    visit = Visit(browser, pages[name], viewport={"width": 390, "height": 844}, has_touch=True)
    if name != "one":
        visit.page.locator(".heat button").first.tap()
    visit.page.locator("#run details summary").click()
    visit.drawn()
    assert visit.page.evaluate(HIDDEN_TABLES) == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    box = visit.page.locator(".wide", has=visit.page.locator("#clients"))
    hint = visit.page.locator(".sideways:visible", has_text="scroll sideways").last
    assert hint.is_visible()
    box.focus()
    for _ in range(40):  # by keys
        visit.page.keyboard.press("ArrowRight")
    visit.until("(() => { const box = document.querySelector('#clients').parentElement; "
                "return !box.classList.contains('goes-on') && box.scrollLeft > 0; })()")  # fmt: skip
    assert visit.page.evaluate("getComputedStyle(document.querySelector('#clients').parentElement).maskImage") == "none"
    # Whose row it is stays in sight.
    first = visit.page.locator("#clients tbody td").first.bounding_box()
    assert first is not None and first["x"] >= 0
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "few", "table"])
def test_on_a_phone(browser, pages, name, scheme):
    visit = Visit(browser, pages[name], viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    if name != "one":
        visit.page.get_by_role("button", name=re.compile("^krum(,| under) alie")).tap()
        visit.drawn()
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    widths = visit.page.evaluate(
        "[...document.querySelectorAll('.plot .main-svg')].map((e) => e.getBoundingClientRect().right)"
    )
    assert widths and max(widths) <= 360
    background = visit.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    visit.close()


def test_the_colours_follow_the_system_while_the_page_is_open(browser, pages):
    visit = Visit(browser, pages["one"], color_scheme="light")
    ink = "document.querySelector('#run .plot').layout.font.color"
    light = visit.page.evaluate(ink)
    visit.page.emulate_media(color_scheme="dark")
    visit.until(f"{ink} !== '{light}'")
    visit.close()


def test_the_command_says_what_it_did(tmp_path):
    write_run(tmp_path / "runs" / "good", Scenario(rounds=4))
    write_run(tmp_path / "runs" / "empty", Scenario(rounds=2), rounds=0, result=False)
    output = tmp_path / "new" / "page.html"
    done = run("report", tmp_path / "runs", "-o", output)
    assert done.returncode == 0, done.stderr
    assert "left out: runs/empty: no round is written down yet" in done.stdout
    assert f"written to {output} (1 run, {output.stat().st_size / 1e6:.1f} MB)" in done.stdout


def test_the_command_writes_nothing_when_it_fails(tmp_path):
    done = run("report", tmp_path, "-o", tmp_path / "page.html")
    assert done.returncode == 2 and done.stderr == f"error: no run to show in {tmp_path}\n"
    assert not (tmp_path / "page.html").exists()
    write_run(tmp_path / "good", Scenario(rounds=2))
    done = run("report", tmp_path, "-o", tmp_path)
    assert done.returncode == 2 and done.stderr == f"error: {tmp_path}: is a folder; the page is a file\n"
