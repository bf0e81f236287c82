"""The page of a report in a browser: how large it is, and how long it takes to open.

    python -m benchmarks.report_page [--rules 12] [--attacks 8] [--rounds 50] [--clients 5] [--repeats 9]

Writes the folders of the runs into a temporary folder, makes the page and opens it in headless Chromium, each time in
a new browser. All times are seconds from the start of loading: until the tables can be used, until all that is in the
window is drawn, and, of another visit that goes there at once, until the plot of all runs is drawn, which lies below.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from playwright.sync_api import Playwright, sync_playwright

from fedseca.report import collect, make_page
from tests.browser.chromium import launch
from tests.unit.run_folders import ATTACKS, RULES, write_grid


def open_once(playwright: Playwright, page: Path) -> dict[str, float]:
    """The seconds of one visit, and of another that goes to the plots."""
    browser = launch(playwright)
    seconds = {}
    for visit in ("window", "plots"):
        tab = browser.new_page(viewport={"width": 1200, "height": 800})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]")
        if visit == "plots":
            tab.evaluate("document.querySelector('#courses').scrollIntoView()")
            tab.wait_for_selector("#courses .main-svg")
        mark = "performance.getEntriesByName('{}').at(-1).startTime / 1000"
        if visit == "window":
            seconds["tables"] = tab.evaluate(mark.format("ready"))
        seconds[visit] = tab.evaluate(mark.format("drawn"))
        tab.close()
    browser.close()
    return seconds


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, default=len(RULES))
    parser.add_argument("--attacks", type=int, default=len(ATTACKS))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="where the figures are written as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        rules, attacks = RULES[: options.rules], ATTACKS[: options.attacks]
        grid = write_grid(Path(folder) / "grid", rules, attacks, rounds=options.rounds, clients=options.clients)
        found = collect([grid])
        page = Path(folder) / "page.html"
        page.write_text(make_page(found), encoding="utf-8")
        visits = [open_once(playwright, page) for _ in range(options.repeats)]
        figures = {
            "runs": len(found.runs),
            "rounds": options.rounds,
            "clients": options.clients,
            "megabytes": round(page.stat().st_size / 1e6, 2),
            "repeats": options.repeats,
            "seconds_until_tables_are_usable": summary([visit["tables"] for visit in visits]),
            "seconds_until_the_window_is_drawn": summary([visit["window"] for visit in visits]),
            "seconds_until_the_plots_below_are_drawn": summary([visit["plots"] for visit in visits]),
        }
    print(json.dumps(figures, indent=1))
    if options.output:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
