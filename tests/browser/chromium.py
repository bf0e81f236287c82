"""The browser: what this machine has of the Chromium family, without a window."""

import os
import shutil
import sys

from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise FileNotFoundError(
            f"the tests in a browser need Chromium, and none of {', '.join(NAMES)} is on the PATH: "
            "install it (Debian: apt-get install chromium)"
        )
    return found


def launch(playwright: Playwright) -> Browser:
    # Chromium's sandbox refuses to be started by root: only then is it switched off.
    return playwright.chromium.launch(
        executable_path=find(), args=list(OPTIONS), chromium_sandbox=os.geteuid() != 0, headless=True
    )


if __name__ == "__main__":  # whether there is one, before the tests
    try:
        find()
    except FileNotFoundError as problem:
        sys.exit(str(problem))
