"""The pictures of an experiment: the table as a heat map beside the paper's, and the course of every run."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedseca.declare import Diagnostic
from fedseca.errors import MissingDependency
from fedseca.experiments.results import ResultTable, Score
from fedseca.paper import verdict

_COLOURS = {"collapsed": "#d94d4d", "severe": "#ffa600", "noticeable": "#fff2b3", "fine": "#ffffff"}
"""The paper's."""
_HONEST, _BYZANTINE = "#2e8b57", "#c0392b"


def require_matplotlib() -> Any:
    """Its figures; better asked for before hours of runs than after."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("pictures need matplotlib: pip install 'fedseca[plots]'") from None
    return Figure


def _figure(width: float, height: float, title: str) -> Any:
    figure = require_matplotlib()(figsize=(width, height), dpi=120, layout="constrained")
    figure.suptitle(textwrap.fill(title, int(13 * width)), fontsize=10)
    return figure


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def heat_map(table: ResultTable) -> bytes:
    """A PNG: our table, and the paper's where it has one, in the paper's colours."""
    rows, columns = table.rows, table.columns
    panels: list[tuple[str, Callable[[Score], float | None]]] = [("here", lambda score: score.mean)]
    if table.has_paper:
        panels.append((f"in the paper\n({table.paper_setting})", lambda score: score.paper))
    spread = any(score.std is not None for score in table.scores)
    figure = _figure(
        (1.6 + 0.62 * len(columns)) * len(panels), 1.2 + (0.4 if spread else 0.32) * len(rows), table.title
    )
    for axes, (title, value) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        scores = table.by_place()
        best = max((number for number in map(value, scores.values()) if number is not None), default=1.0)
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                score = scores[row, column]
                number = value(score)
                colour = "#eeeeee" if number is None else _COLOURS[verdict(number, best)]
                axes.add_patch(_square(x, y, colour))
                std = score.std if title == "here" else None
                axes.text(x, y - (0.12 if std is not None else 0), "–" if number is None else f"{number:.2f}",
                          ha="center", va="center", fontsize=8)  # fmt: skip
                if std is not None:
                    axes.text(x, y + 0.28, f"±{std:.2f}", ha="center", va="center", fontsize=5.5, color="#444444")
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_title(f"{table.metric} {title}", fontsize=9)
        axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right", fontsize=8)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.tick_params(length=0)
    return _png(figure)


def _legend(figure: Any, panels: Any, columns: int, below: str) -> None:
    """One for all panels, since a line may be missing in some; and what the panels at the bottom say below."""
    for panel in panels[-4:]:
        panel.set_xlabel(below, fontsize=7)
    named = (zip(*panel.get_legend_handles_labels(), strict=True) for panel in panels)
    found = {label: handle for pairs in named for handle, label in pairs}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="#bbbbbb", linewidth=0.6)


def trajectories(table: ResultTable, courses: Mapping[tuple[str, str], Sequence[float]]) -> bytes:
    """A PNG: a small panel for each row of the table, a line for each column."""
    rows, columns = table.rows, table.columns
    across = min(4, len(rows))
    down = -(-len(rows) // across)
    figure = _figure(3.0 * across, 1.9 * down + 0.8, table.title)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, row in zip(panels, rows, strict=False):
        panel.set_title(row, fontsize=8)
        panel.set_ylim(0, 1)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        for index, column in enumerate(columns):
            values = courses.get((row, column))
            if values is not None:
                panel.plot(range(1, len(values) + 1), values, color=f"C{index}", linewidth=1, label=column)
    for panel in panels[len(rows) :]:
        panel.set_visible(False)
    _legend(figure, panels, min(len(columns), 2 * across), "round")
    figure.supylabel(table.metric, fontsize=8)
    return _png(figure)


def curves(table: ResultTable) -> bytes:
    """A PNG: a line for each row over the columns, which are numbers; the paper's dashed; both axes logarithmic."""
    columns, places = table.columns, table.by_place()
    from matplotlib import colormaps

    figure = _figure(9, 5, table.title)
    axes = figure.subplots()
    for index, row in enumerate(table.rows):
        values = [places[row, column].mean for column in columns]
        # The last row is the one that the experiment is about.
        style: dict[str, Any] = {"color": colormaps["tab20"](index % 20), "linewidth": 1}
        if row == table.rows[-1]:
            style = {"color": "black", "linewidth": 2.5, "zorder": 3}
        axes.plot([float(column) for column in columns], values, marker="o", markersize=3, label=row, **style)
        if table.has_paper:
            paper = [places[row, column].paper for column in columns]
            axes.plot([float(column) for column in columns], paper, **{**style, "linestyle": "--", "linewidth": 0.8})
    if table.has_paper:
        axes.plot([], [], "--", color="grey", linewidth=0.8, label=f"dashed: the paper\n({table.paper_setting})")
    axes.set(xscale="log", yscale="log", xlabel=table.column_name, ylabel=table.metric)
    axes.set_xticks([float(column) for column in columns], columns)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right center", frameon=False)
    return _png(figure)


def courses(title: str, columns: Sequence[str], lines: Sequence[Mapping[str, Any]], shown: Diagnostic) -> bytes:
    """A PNG: a panel for each attack, a line for each client, honest ones green and Byzantine ones red."""
    figure = _figure(12.0, 1.9 * -(-len(columns) // 4) + 0.8, title)
    panels = figure.subplots(-(-len(columns) // 4), 4, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, column in zip(panels, columns, strict=False):
        panel.set_title(column, fontsize=8)
        panel.set_ylim(-0.05, 1.05)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        courses: dict[tuple[str, bool], list[tuple[int, float]]] = {}
        for line in lines:
            if line["attack"] == column and line[shown.name] is not None:
                courses.setdefault((line["client"], line["byzantine"]), []).append((line["round"], line[shown.name]))
        for (_, byzantine), course in courses.items():
            colour, label = (_BYZANTINE, "Byzantine") if byzantine else (_HONEST, "honest")
            style = "--" if byzantine else "-"  # both are seen where they coincide
            panel.plot(*zip(*course, strict=True), style, color=colour, linewidth=1, alpha=0.7, label=label)
    _legend(figure, panels, 2, "round")
    figure.supylabel(shown.heading, fontsize=8)
    return _png(figure)


def distributions(title: str, pairs: Sequence[tuple[str, Tensor, Tensor]]) -> bytes:
    """A PNG: a panel for each heading with the values of an honest vector in green and of a Byzantine one in red."""
    figure = _figure(12.0, 2.3 * -(-len(pairs) // 4) + 0.8, title)
    panels = figure.subplots(-(-len(pairs) // 4), 4, squeeze=False).ravel()
    for panel, (heading, honest, byzantine) in zip(panels, pairs, strict=False):
        # What most of the honest values lie in; a Byzantine value beyond it is counted at its edge.
        edge = 4 * float(honest.std())
        for vector, colour, label in ((honest, _HONEST, "honest mean"), (byzantine, _BYZANTINE, "Byzantine")):
            values = vector.clamp(-edge, edge).numpy()
            panel.hist(values, bins=61, range=(-edge, edge), color=colour, alpha=0.5, log=True, label=label)
        panel.set_title(heading, fontsize=7)
        panel.tick_params(labelsize=6)
        panel.locator_params(axis="x", nbins=5)
    for panel in panels[len(pairs) :]:
        panel.set_visible(False)
    _legend(figure, panels, 2, "value of a coordinate")
    figure.supylabel("coordinates", fontsize=8)
    return _png(figure)
