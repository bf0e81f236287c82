"""The browser: what this machine has of the Chromium family, without a window."""

import os
import shutil

from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")  # as .ci/chromium looks for them
OPTIONS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def launch(playwright: Playwright) -> Browser:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is on the PATH: apt-get install chromium")
    # Chromium's sandbox refuses to be started by root: only then is it switched off.
    return playwright.chromium.launch(
        executable_path=found, args=list(OPTIONS), chromium_sandbox=os.geteuid() != 0, headless=True
    )
