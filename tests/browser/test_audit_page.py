"""The page of an audit in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from fedseca.audit import Audit, verify
from fedseca.report.audit import make_audit_page
from tests.browser.chromium import launch
from tests.browser.test_report_page import HOSTILE, Visit
from tests.unit.test_audit import left_out, line, silent, suspect, used

MAP = "document.querySelector('#map')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def page_of(folder: Path, name: str, records) -> Path:
    with Audit(folder / f"{name}.jsonl") as audit:
        audit.append(records)
    page = folder / f"{name}.html"
    page.write_text(make_audit_page(verify(audit.path), audit.path.name), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder: Path = tmp_path_factory.mktemp("audit")
    few = [
        each
        for run, number in ((7, 1), (7, 2), (7, 3), (8, 1), (8, 2))
        for each in (
            used(number, "11", run=run),
            left_out(number, "9223372036854775819", run=run) if number > 1 else used(1, "9223372036854775819", run=run),
            *([silent(2, "13", run=run), line(2, None, run=run, void="krum needs 5")] if number == 2 else []),
        )
    ]
    many = [
        (suspect if k == 3 and number > 300 else used)(number, str(10**18 + k))
        for number in range(1, 501)
        for k in range(50)
    ]
    hostile = [left_out(1, HOSTILE, HOSTILE * 9), line(1, None, void=HOSTILE), suspect(2, HOSTILE)]
    lists = {"few": few, "many": many, "hostile": hostile, "empty": []}
    return {name: page_of(folder, name, records) for name, records in lists.items()}


def hover(visit: Visit, row: int, column: int) -> list[str]:
    """What the map says of a cell, line by line."""
    visit.page.locator("#legend").scroll_into_view_if_needed()
    visit.page.mouse.move(0, 0)
    visit.until("!document.querySelector('#map .hoverlayer text')")
    x, y = visit.page.evaluate(
        f"""(() => {{
          const {{ left, top }} = {MAP}.getBoundingClientRect();
          const {{ xaxis, yaxis, _size: size }} = {MAP}._fullLayout;
          return [left + size.l + xaxis.d2p({column}), top + size.t + yaxis.d2p({row})];
        }})()"""
    )
    visit.page.mouse.move(x, y)
    visit.until("document.querySelector('#map .hoverlayer text')")
    return visit.page.locator("#map .hoverlayer tspan.line").all_text_contents()


def test_table_and_map(browser, pages):
    visit = Visit(browser, pages["few"])
    assert visit.texts("#clients tbody tr:first-child td") == [
        "9223372036854775819",
        "doubtful",
        "–",
        *("5", "0", "3", "0", "10.0 %"),
        "4 NaN, first at bias[0]",
    ]
    assert visit.page.locator("#map-controls").is_hidden() and visit.page.locator("#cut").is_hidden()
    assert visit.page.evaluate(f"{MAP}.data[0].z") == [[0, 2, 2, 0, 2], [0] * 5, [None, 3, None, None, 3]]
    assert visit.page.evaluate(f"{MAP}.layout.xaxis.ticktext") == ["1", "2", "3", "1", "2"]
    assert visit.page.evaluate(f"{MAP}.layout.annotations.map((each) => each.text)") == ["run 7", "run 8"]
    assert visit.texts("#voids-table td:first-child") == [
        "run 8\nround 2\n2026-11-16 09:02 UTC",
        "run 7\nround 2\n2026-11-16 09:02 UTC",
    ]
    visit.close()


def test_the_map_says_what_happened(browser, pages):
    visit = Visit(browser, pages["few"])
    when = ["run 7", "round 2", "2026-11-16 09:02 UTC"]
    kept = "the round kept the model it began with"
    told = hover(visit, 0, 1)
    assert told == ["client 9223372036854775819", *when, "left out: 4 NaN, first at bias[0]", kept]
    assert hover(visit, 1, 0)[-2:] == ["used: its answer was used", "norm 1.2 · weight 25.0 %"]
    assert "".join(hover(visit, 2, 0)[-2:]) == "it was not asked, or nothing was written down of it"
    visit.close()


def test_fifty_clients_and_five_hundred_rounds(browser, pages):
    assert pages["many"].stat().st_size < 8e6
    visit = Visit(browser, pages["many"])
    page = visit.page
    assert visit.texts("#clients tbody tr:first-child td")[:3] == [
        str(10**18 + 3),
        "suspicious",
        "round 301\n2026-11-16 09:01 UTC",
    ]
    page.locator("#size").scroll_into_view_if_needed()
    visit.until(f"{MAP}.data")
    columns = f"{MAP}.data[0].z[0].length"
    assert page.evaluate(columns) == 500 and page.locator("#last").is_hidden()
    page.locator("#size").select_option("100")
    visit.until(f"{columns} === 100")
    assert visit.texts("output") == ["round 401 … 500"]
    page.locator("#last").press("Home")
    visit.until(f"{MAP}.data[0].z[0][0] === 0")
    assert visit.texts("output") == ["round 1 … 100"]
    visit.close()


def test_text_stays_text(browser, pages):
    visit = Visit(browser, pages["hostile"])
    assert visit.texts("#voids-table td.reason") == [HOSTILE]
    assert visit.page.locator("#clients td b, img[src=x]").count() == 0
    assert HOSTILE in "".join(hover(visit, 0, 0))
    assert visit.page.evaluate("window.stolen") is None
    visit.close()


def test_nothing_yet(browser, pages):
    visit = Visit(browser, pages["empty"])
    assert visit.texts("#summary") == ["no round is written down yet"]
    assert visit.page.locator("#by-round").is_hidden() and visit.page.locator("#voids").is_hidden()
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["few", "many", "hostile"])
def test_on_a_phone(browser, pages, name, scheme):
    visit = Visit(browser, pages[name], viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    visit.page.locator("#map").scroll_into_view_if_needed()
    visit.until(f"{MAP}.data")
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    assert visit.page.evaluate(f"{MAP}.data[0].z[0].length") <= 100
    visit.close()


def test_the_colours_follow_the_system(browser, pages):
    visit = Visit(browser, pages["few"], color_scheme="light")
    visit.until(f"{MAP}.data")
    scale = f"{MAP}.data[0].colorscale.map((each) => each[1])"
    light = visit.page.evaluate(scale)
    assert len(set(light)) == 5
    visit.page.emulate_media(color_scheme="dark")
    visit.until(f"{scale}[0] !== '{light[0]}'")
    assert not set(light) & set(visit.page.evaluate(scale))
    visit.close()
