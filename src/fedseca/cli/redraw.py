"""`fedseca redraw`: the pictures of a folder, drawn again from the numbers that are kept in it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedseca.cli.bench import picture
from fedseca.errors import InputError, printable
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import Files
from fedseca.experiments.plots import require_matplotlib
from fedseca.files import write_atomically


def redraw(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Where `fedseca reproduce` or `fedseca bench` wrote.")
    ],
) -> None:
    """Draw the pictures of an experiment again from its CSV and JSON files, without a run.

    Nothing else is needed: the folder of the runs may be gone. Nothing is written unless all pictures can be drawn.
    """
    require_matplotlib()
    made = {folder / file: content for folder in folders for file, content in _pictures(folder).items()}
    for path, content in made.items():
        write_atomically(path, content)
        typer.echo(printable(str(path)))
    for old in (path for folder in folders for path in sorted(folder.glob("*.png")) if path not in made):
        typer.echo(f"not drawn: {printable(str(old))}, whose numbers are not kept in the folder", err=True)


def _pictures(folder: Path) -> Files:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    kept = {file.name: file for file in folder.iterdir() if file.suffix in (".csv", ".json")}
    draw: dict[str, Callable[[Files], Files]] = {
        f"{name}.json": experiment.pictures for name, experiment in EXPERIMENTS.items()
    }
    draw["bench.json"] = lambda files: {"bench.png": picture(json.loads(files["bench.json"]))}
    found = [name for name in draw if name in kept]
    if not found:
        raise InputError(f"{folder}: nothing to draw; it holds no NAME.json of `fedseca reproduce`, and no bench.json")
    made: dict[str, bytes] = {}
    for name in found:
        belongs = (file for file in kept if file.startswith(name.removesuffix(".json")))
        try:
            made |= draw[name]({file: kept[file].read_bytes() for file in belongs})
        except KeyError as missing:
            raise InputError(f"{folder}: {name} and its CSV cannot be drawn; {missing} is missing") from None
        except (OSError, ValueError, TypeError, AttributeError, LookupError, csv.Error) as problem:
            raise InputError(f"{folder}: {name} and its CSV cannot be drawn ({problem!r})") from None
    if not made:
        raise InputError(f"{folder}: nothing to draw; the numbers of its pictures are not kept")
    return made
