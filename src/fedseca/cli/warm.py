"""`fedseca warm`: have the kernels compiled before the first round needs them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedseca.declare import unknown
from fedseca.errors import InputError
from fedseca.ops.warm import DTYPES, PIECES, compile_piece


def warm(
    dtypes: Annotated[str, typer.Option(help="float32, float64 or both: what is computed in.")] = "float32",
) -> None:
    """Compile what the rules need, so that the first round does not wait for it.

    What is compiled is kept in the package's own folder, or in the user's cache where that cannot be written.
    NUMBA_CACHE_DIR says where else. Of updates in float16 and bfloat16 it is float32 that is computed in.
    """
    chosen = [name.strip() for name in dtypes.split(",") if name.strip()]
    for name in chosen:
        if name not in DTYPES:
            raise InputError(unknown("dtype", name, DTYPES))
    work = [(name, dtype) for dtype in chosen for name in PIECES]
    seconds = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("compiling", total=len(work))
        for name, dtype in work:
            progress.update(bar, description=f"compiling {name}")
            seconds[name, dtype] = compile_piece(name, dtype)
            progress.advance(bar)
    table = Table(title="seconds to compile, or to load", title_justify="left")
    table.add_column("what", style="bold")
    for dtype in chosen:
        table.add_column(dtype, justify="right")
    for name in PIECES:
        table.add_row(name, *(f"{seconds[name, dtype]:.1f}" for dtype in chosen))
    console = Console()
    console.print(table)
    console.print(f"ready: {sum(seconds.values()):.1f} s", highlight=False)
