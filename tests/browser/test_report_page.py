"""The page of a report in a real browser."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from fedseca.federation import Scenario, simulate
from fedseca.report import collect, make_page
from tests.e2e.test_command_line import run
from tests.unit.run_folders import write_grid, write_run

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing: apt-get install -y chromium", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
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
        self.page.wait_for_selector("html[data-drawn]")

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
        self.page.wait_for_timeout(50)
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
    write_grid(folder / "many")
    files = {}
    for name in ("one", "few", "hostile", "many"):
        files[name] = folder / f"{name}.html"
        files[name].write_text(make_page(collect([folder / name])), encoding="utf-8")
    return files


@pytest.fixture
def few(browser, pages) -> Iterator[Visit]:
    visit = Visit(browser, pages["few"])
    yield visit
    visit.close()


def test_one_run(browser, pages):
    visit = Visit(browser, pages["one"])
    page = visit.page
    assert visit.texts("#run h2") == ["fedseca under nonfinite on digits, seed 0"]
    assert page.locator("#grid").is_hidden() and page.locator("#left-out").is_hidden()
    assert page.locator("#run .plot .main-svg").count() >= 4
    assert visit.texts("#clients tbody td:nth-child(2)") == ["honest"] * 3 + ["Byzantine"] * 2
    assert visit.texts("#rejections td:nth-child(4)") == ["3 of 3"] * 2
    assert page.locator("#config").is_hidden()
    page.locator("summary").press("Enter")
    assert "aggregator.sparsity" in visit.texts("#config tbody td:first-child")
    visit.close()


def test_the_concordance_of_a_round_is_chosen_by_keys(browser, pages):
    visit = Visit(browser, pages["one"])

    def corner() -> Any:
        return visit.page.evaluate(
            "document.querySelector('#round').closest('.card').querySelector('.plot').data[0].z[0]"
        )

    last = corner()
    assert visit.texts("output") == ["3 of 3"]
    visit.page.locator("#round").press("ArrowLeft")
    assert visit.texts("output") == ["2 of 3"]
    assert corner() != last and corner()[3:] == [None, None]
    visit.close()


def test_the_trust_of_the_clients_is_drawn_in_two_colours(browser, pages):
    visit = Visit(browser, pages["hostile"])
    lines = "[...document.querySelector('#column').closest('.card').querySelector('.plot').data]"
    colours = visit.page.evaluate(f"{lines}.map((trace) => trace.line.color)")
    assert colours[0] == colours[1] == colours[2] != colours[3] == colours[4]
    before = visit.page.evaluate(f"{lines}[0].y[0]")
    visit.page.locator("#column").select_option("norm")
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
    assert few.page.locator("#run .plot .main-svg").count() >= 4


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
    assert visit.page.evaluate("window.stolen") is None
    assert visit.page.locator("img[src=x], #rejections b").count() == 0
    visit.close()
    visit = Visit(browser, pages["few"])
    assert "<img src=x onerror=window.stolen=1>" in visit.texts("#left-out td")[0]
    assert visit.page.evaluate("window.stolen") is None and visit.page.locator("img[src=x]").count() == 0
    visit.close()


def test_ninety_six_runs_open_in_two_seconds(browser, pages):
    assert pages["many"].stat().st_size < 8e6
    ready, work = [], []
    for _ in range(3):
        visit = Visit(browser, pages["many"])
        assert visit.texts("#shown") == ["96 of 96 runs chosen"]
        ready.append(visit.when("ready"))
        work.append(visit.work())
        visit.close()
    assert min(ready) < 2  # can be read and used
    assert min(work) < 4  # the plots too, most of it Plotly's own start


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "few"])
def test_on_a_phone(browser, pages, name, scheme):
    visit = Visit(browser, pages[name], viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    if name == "few":
        visit.page.locator(".heat").get_by_role("button", name="krum under alie").tap()
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
    deadline = time.monotonic() + 10
    while visit.page.evaluate(ink) == light:
        assert time.monotonic() < deadline
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
