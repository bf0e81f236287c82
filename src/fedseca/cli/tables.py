"""What the commands' tables have in common: headings, numbers, verdicts, sparklines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_HEADINGS = {"rho": "trust ρ", "clip_factor": "clip"}
_SHARES = {"weight", "adopted"}
_BARS = "▁▂▃▄▅▆▇█"


def wide_console(table: Table | None = None) -> Console:
    """A console that never cuts a number: a terminal that is too narrow folds the lines, a file has room."""
    console = Console(highlight=False)
    least = 80 if console.is_terminal else 100
    if table is not None:  # its title may be folded, its columns not
        columns = Table(*table.columns, box=table.box)
        columns.rows = table.rows
        least = max(least, Measurement.get(console, console.options.update(max_width=1000), columns).maximum)
    return console if console.width >= least else Console(highlight=False, width=least)


def heading(name: str) -> str:
    """A diagnostic's name, for people."""
    return _HEADINGS.get(name, name.replace("_", " "))


def cell(name: str, value: float | None) -> str:
    """A diagnostic's value, for people."""
    if value is None:
        return "–"
    return f"{value:.1%}" if name in _SHARES else f"{value:.4g}"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values between 0 and 1 as a line of bars; more than fit are averaged."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return "".join(_BARS[min(int(max(value, 0.0) * len(_BARS)), len(_BARS) - 1)] for value in values)


def score(value: float) -> Text:
    """An F1 score in the colour of what it means."""
    return Text(f"{value:.3f}", style="red" if value < 0.2 else "yellow" if value < 0.6 else "green")
