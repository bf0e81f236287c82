"""`fedseca`: the commands, and what they do with bad input (one clear line, exit code 2).

A command is imported when it is called: torch takes seconds, which `--help` and `--version` do not need.
"""

from __future__ import annotations

import inspect
import io
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from fedseca.cli.groups import Group
from fedseca.errors import FedsecaError, printable
from fedseca.plugins import load_plugin
from fedseca.version import __version__

COMMANDS = {
    "run": ("run:run", "Train a model over honest and Byzantine clients, and see what happened."),
    "grid": (
        "grid:grid",
        "Run every combination: each option of a scenario takes several values, with commas between them.",
    ),
    "reproduce": ("reproduce:reproduce", "Run a table or figure of the paper and show it next to the paper's numbers."),
    "redraw": ("redraw:redraw", "Draw the pictures of an experiment again from its CSV and JSON files, without a run."),
    "report": (
        "report:report",
        "Make one HTML page of runs, grids and reproduced experiments: scores, courses, trust in the clients, who was "
        "left out and why.",
    ),
    "demo": (
        "demo:demo",
        "See one model ruined and one survive: FedAvg and FedSECA, each trained on digits with two malicious clients.",
    ),
    "aggregate": ("aggregate:aggregate", "Aggregate the update files of the clients, robustly."),
    "list": (
        "list:list_all",
        "List rules, steps, attacks, data sets, partitions and models with their hyperparameters, bounds and defaults.",
    ),
    "stress": ("stress:stress", "Send a red team at rules: hundreds of crafts in real rounds; how far goes the worst?"),
    "bench": ("bench:bench", "Measure how long the rules take and how much memory, beside the paper's table."),
    "warm": ("warm:warm", "Compile what the rules need, so that the first round does not wait for it."),
    "data": ("data:data_app", "Data sets: which are here, how to get them, how they are dealt to clients."),
    "audit": ("audit:audit_app", "What every client of a federation did, and whether the record of it was changed."),
}
"""Where each command stands in this folder, and the first paragraph of its help."""


def load(name: str) -> Any:
    """A command with its options."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"fedseca.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        return get_command(found)
    # A paragraph of a docstring is one of the help, however its lines are broken.
    paragraphs = inspect.cleandoc(found.__doc__ or "").split("\n\n")
    alone = typer.Typer(add_completion=False)
    alone.command(name, help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))(found)
    return get_command(alone)


class _Commands(Group):
    """Names and summaries; the rest is imported for the command that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def called(self, ctx: Any, name: str) -> Any:
        return load(name)


app = typer.Typer(
    cls=_Commands,
    help="Federated learning that survives malicious clients.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What the command line's parser raises. Typer brings its own, or Click's; of both this is the public one.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__[::-1] if hasattr(kind, "format_message"))


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
            help="A .py file or module that registers parts of your own: rules, steps, attacks, data sets, models; may "
            "be given again. Installed packages with an entry point in fedseca.plugins need no option.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    for each in plugin or ():
        load_plugin(each)


def main() -> None:
    """Run the command line; bad input ends with one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # an old terminal shows ? where it cannot show γ
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as problem:
        _fail(_usage(problem))
    except typer.Abort:
        sys.exit(130)
    except FedsecaError as problem:
        _fail(str(problem))
    except OSError as problem:
        _fail(f"{problem.filename or 'file'}: {problem.strerror or problem}")


def _usage(problem: Any) -> str:
    """What is wrong with the words of the command line, and where it is told."""
    context = getattr(problem, "ctx", None)
    command = "fedseca" if context is None else context.command_path
    option = getattr(problem, "option_name", None)
    if context is not None and context.parent is not None:
        for parameter in context.find_root().command.params:
            if option in parameter.opts:
                return f"{option} stands before the command: fedseca {option} … {context.info_name}"
    message = problem.format_message()
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help."


def _fail(message: str) -> None:
    from rich.console import Console  # only now: --version has nothing to do with it

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("error:", style="bold red", end=" ")
    console.print(printable(" ".join(message.split())), markup=False)
    sys.exit(2)
