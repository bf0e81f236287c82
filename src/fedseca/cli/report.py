"""`fedseca report`: run folders as one HTML page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fedseca.errors import InputError, printable
from fedseca.files import write_atomically
from fedseca.report import collect, make_page


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Runs, grids, experiments, or folders that hold them.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Make one HTML page of runs, grids and reproduced experiments: scores, courses, trust in the clients, who was left
    out and why.

    The page is one file and opens without a network. A run that cannot be read is left out, and listed with the
    reason.
    """
    if output.is_dir():
        raise InputError(f"{output}: is a folder; the page is a file")
    found = collect(folders)
    page = make_page(found).encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, page)
    console = Console(highlight=False)
    copies = [each for each in found.left_out if each.is_copy]
    if copies:
        console.print(Text(f"runs that lie in several folders are shown once ({len(copies)} copies)"), soft_wrap=True)
    for each in [each for each in found.left_out if not each.is_copy]:
        console.print(Text(f"left out: {each.folder}: {each.reason}", style="yellow"), soft_wrap=True)
    if len(found.versions) > 1:
        text = f"made by different versions of fedseca: {', '.join(found.versions)}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
    experiments = f"{_count(len(found.experiments), 'experiment')}, " if found.experiments else ""
    size = f"{experiments}{_count(len(found.runs), 'run')}, {len(page) / 1e6:.1f} MB"
    console.print(Text(f"written to {printable(str(output))} ({size})"), soft_wrap=True)
    if open_page:
        webbrowser.open(output.resolve().as_uri())


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"
