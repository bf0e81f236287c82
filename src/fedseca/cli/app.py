"""`fedseca`: the commands, and what they do with bad input (one clear line, exit code 2)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedseca.cli.aggregate import aggregate
from fedseca.cli.list import list_rules
from fedseca.errors import FedsecaError
from fedseca.plugins import load_plugin

app = typer.Typer(
    help="Byzantine-robust aggregation for federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def common(
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="FEDSECA_PLUGINS",
            help="A .py file or module that registers rules of your own; may be given more than once.",
        ),
    ] = None,
) -> None:
    for each in plugin or ():
        load_plugin(each)


app.command("aggregate")(aggregate)
app.command("list")(list_rules)


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2."""
    try:
        app()
    except FedsecaError as problem:
        _fail(str(problem))
    except OSError as problem:
        _fail(f"{problem.filename or 'file'}: {problem.strerror or problem}")


def _fail(message: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("error:", style="bold red", end=" ")
    console.print(" ".join(message.split()), markup=False)
    sys.exit(2)
