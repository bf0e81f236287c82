"""Commands that have commands."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from fedseca.declare import unknown
from fedseca.errors import UnknownName


class Group(TyperGroup):
    """Alone it shows its help; a name that it does not know gets the line that all unknown names get."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        known = self.list_commands(ctx)
        if name not in known:
            raise UnknownName(f"{unknown('command', name, known)}. See {ctx.command_path} --help.")
        return name, self.called(ctx, name), rest

    def called(self, ctx: Any, name: str) -> Any:
        """The command that is called."""
        return self.get_command(ctx, name)
