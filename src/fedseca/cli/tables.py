"""What the commands' tables have in common: headings, numbers, verdicts, sparklines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedseca.aggregators import Aggregator
from fedseca.declare import Diagnostic
from fedseca.server import diagnostics_of

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


def shown_diagnostics(rule: Aggregator, names: Iterable[str]) -> list[Diagnostic]:
    """Those of these names: what is declared of a rule, in the order of the declarations, then the others."""
    present, declared = dict.fromkeys(names), diagnostics_of(rule)
    others = [Diagnostic(name, help="") for name in present if name not in declared]
    return [each for each in declared.values() if each.name in present] + others


def verdict_text(kind: str) -> Text:
    """A verdict in the colour of what it means."""
    return Text(kind, style={"used": "green", "suspect": "yellow", "left out": "red"}.get(kind, "dim"))


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values between 0 and 1 as a line of bars, a gap where there is none; more than fit are averaged."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return "".join(
        " " if math.isnan(value) else _BARS[min(int(max(value, 0.0) * len(_BARS)), len(_BARS) - 1)] for value in values
    )


def score(value: float) -> Text:
    """A score in the colour of what it means; a dash where there is none."""
    if math.isnan(value):
        return Text("–", style="red")
    return Text(f"{value:.3f}", style="red" if value < 0.2 else "yellow" if value < 0.6 else "green")
