"""An option for everything that a scenario declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedseca.declare import Hyperparameter
from fedseca.federation import Scenario
from fedseca.federation.scenario import GRAMMAR

Device = Annotated[str, typer.Option(help="Where the clients train: cpu, cuda, cuda:1 …")]


def with_scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for everything that a scenario declares, each None unless it is given."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    declared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, _option(name, parameter)],
        )
        for name, parameter in Scenario.hyperparameters().items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + declared
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def _option(name: str, parameter: Hyperparameter) -> Any:
    # Of what may be none the help says itself what that means.
    default = "" if parameter.default is None else f" [{parameter.default}]"
    others = [f"--{other.replace('_', '-')}" for other, field in GRAMMAR.aliases.items() if field == name]
    return typer.Option(
        f"--{name.replace('_', '-')}",
        *others,
        metavar=parameter.allowed if len(parameter.allowed) < 20 else "NAME",
        help=escape(f"{parameter.help}{default}"),
        rich_help_panel="The scenario",
        show_default=False,
    )
