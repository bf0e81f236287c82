"""`fedseca`: the commands, and what they do with bad input (one clear line, exit code 2)."""

from __future__ import annotations

import inspect
import io
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.console import Console

from fedseca.cli.aggregate import aggregate
from fedseca.cli.audit import audit_app
from fedseca.cli.bench import bench
from fedseca.cli.data import data_app
from fedseca.cli.demo import demo
from fedseca.cli.grid import grid
from fedseca.cli.list import list_all
from fedseca.cli.redraw import redraw
from fedseca.cli.report import report
from fedseca.cli.reproduce import reproduce
from fedseca.cli.run import run
from fedseca.errors import FedsecaError, printable
from fedseca.plugins import load_plugin
from fedseca.version import __version__

app = typer.Typer(
    help="Federated learning that survives malicious clients.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedseca {__version__}")
        raise typer.Exit


@app.callback()
def common(
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="FEDSECA_PLUGINS",
            help="A .py file or module that registers parts of your own: rules, steps, attacks …; may be given again.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    for each in plugin or ():
        load_plugin(each)


for _name, _command in (
    ("run", run),
    ("grid", grid),
    ("reproduce", reproduce),
    ("redraw", redraw),
    ("report", report),
    ("demo", demo),
    ("aggregate", aggregate),
    ("list", list_all),
    ("bench", bench),
):
    # A paragraph of a docstring is one of the help, however its lines are broken.
    paragraphs = inspect.cleandoc(_command.__doc__ or "").split("\n\n")
    app.command(_name, help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))(_command)
app.add_typer(data_app, name="data")
app.add_typer(audit_app, name="audit")


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # an old terminal shows ? where it cannot show γ
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        typer.echo(help_wanted.format_message())
    except click.ClickException as problem:
        command = problem.ctx.command_path if isinstance(problem, click.UsageError) and problem.ctx else "fedseca"
        _fail(f"{problem.format_message()} See {command} --help.")
    except click.Abort:
        sys.exit(130)
    except FedsecaError as problem:
        _fail(str(problem))
    except OSError as problem:
        _fail(f"{problem.filename or 'file'}: {problem.strerror or problem}")


def _fail(message: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("error:", style="bold red", end=" ")
    console.print(printable(" ".join(message.split())), markup=False)
    sys.exit(2)
