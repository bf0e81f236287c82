"""The pictures of an experiment: the table as a heat map beside the paper's, and the course of every run."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedseca.errors import MissingDependency
from fedseca.experiments.experiment import Cell, Experiment, Score
from fedseca.experiments.paper import verdict
from fedseca.experiments.similarity import Similarity
from fedseca.experiments.store import Store

_COLOURS = {"collapsed": "#d94d4d", "severe": "#ffa600", "noticeable": "#fff2b3", "fine": "#ffffff"}
"""The paper's."""


def require_matplotlib() -> Any:
    """Its figures; better asked for before hours of runs than after."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("pictures need matplotlib: pip install 'fedseca[plots]'") from None
    return Figure


def _figure(width: float, height: float) -> Any:
    return require_matplotlib()(figsize=(width, height), dpi=120, layout="constrained")


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def heat_map(experiment: Experiment, scores: Sequence[Score]) -> bytes:
    """A PNG: our table, and the paper's where it has one, in the paper's colours."""
    rows, columns = list(experiment.rows), list(experiment.columns)
    panels: list[tuple[str, Callable[[Score], float | None]]] = [("here", lambda score: score.mean)]
    if any(score.paper is not None for score in scores):
        panels.append(("in the paper (CIFAR-10, ResNet18)", lambda score: score.paper))
    figure = _figure((1.6 + 0.62 * len(columns)) * len(panels), 1.2 + 0.32 * len(rows))
    figure.suptitle(experiment.title, fontsize=10)
    for axes, (title, value) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        found = {(score.row, score.column): value(score) for score in scores}
        best = max((number for number in found.values() if number is not None), default=1.0)
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                number = found.get((row, column))
                colour = "#eeeeee" if number is None else _COLOURS[verdict(number, best)]
                axes.add_patch(_square(x, y, colour))
                axes.text(x, y, "–" if number is None else f"{number:.2f}", ha="center", va="center", fontsize=8)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_title(f"{experiment.metric} {title}", fontsize=9)
        axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right", fontsize=8)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        axes.tick_params(length=0)
    return _png(figure)


def _legend(figure: Any, panels: Any, columns: int) -> None:
    """One for all panels: a line may be missing in some."""
    named = (zip(*panel.get_legend_handles_labels(), strict=True) for panel in panels)
    found = {label: handle for pairs in named for handle, label in pairs}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="#bbbbbb", linewidth=0.6)


def trajectories(experiment: Experiment, cells: Sequence[Cell], store: Store) -> bytes:
    """A PNG: a small panel for each row of the table, a line for each column, the first seed that is done."""
    rows, columns = list(experiment.rows), list(experiment.columns)
    across = min(4, len(rows))
    down = -(-len(rows) // across)
    figure = _figure(3.0 * across, 1.9 * down + 0.8)
    figure.suptitle(experiment.title, fontsize=10)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, row in zip(panels, rows, strict=False):
        panel.set_title(row, fontsize=8)
        panel.set_ylim(0, 1)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        for index, column in enumerate(columns):
            runs = [run for cell in cells if (cell.row, cell.column) == (row, column) for run in cell.scenarios]
            done = [run for run in runs if store.state(run) == "done"]
            if done:
                values = [record[experiment.metric] for record in store.history(done[0]).rounds]
                panel.plot(range(1, len(values) + 1), values, color=f"C{index}", linewidth=1, label=column)
    for panel in panels[len(rows) :]:
        panel.set_visible(False)
    _legend(figure, panels, len(columns))
    figure.supylabel(experiment.metric, fontsize=8)
    return _png(figure)


def trust(experiment: Experiment, lines: Sequence[Mapping[str, Any]]) -> bytes:
    """A PNG: a panel for each attack, a line for each client, honest ones green and Byzantine ones red."""
    columns = list(experiment.columns)
    figure = _figure(12.0, 1.9 * -(-len(columns) // 4) + 0.8)
    figure.suptitle(experiment.title, fontsize=10)
    panels = figure.subplots(-(-len(columns) // 4), 4, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, column in zip(panels, columns, strict=False):
        panel.set_title(column, fontsize=8)
        panel.set_ylim(-0.05, 1.05)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        courses: dict[tuple[str, bool], list[tuple[int, float]]] = {}
        for line in lines:
            if line["attack"] == column and line["rho"] is not None:
                courses.setdefault((line["client"], line["byzantine"]), []).append((line["round"], line["rho"]))
        for (_, byzantine), course in courses.items():
            colour, label = ("#c0392b", "Byzantine") if byzantine else ("#2e8b57", "honest")
            panel.plot(*zip(*course, strict=True), color=colour, linewidth=1, alpha=0.7, label=label)
    _legend(figure, panels, 2)
    figure.supylabel("trust ρ", fontsize=8)
    return _png(figure)


def distributions(experiment: Experiment, found: Sequence[Similarity]) -> bytes:
    """A PNG: a panel for each attack, the values of the honest mean green and of a Byzantine update red."""
    figure = _figure(12.0, 2.3 * -(-len(found) // 4) + 0.8)
    figure.suptitle(experiment.title, fontsize=10)
    panels = figure.subplots(-(-len(found) // 4), 4, squeeze=False).ravel()
    for panel, each in zip(panels, found, strict=False):
        values = each.measures()
        # What most of the honest values lie in; a Byzantine value beyond it is counted at its edge.
        edge = 4 * float(each.honest.std())
        for vector, colour in ((each.honest, "#2e8b57"), (each.byzantine, "#c0392b")):
            panel.hist(
                vector.clamp(-edge, edge).numpy(), bins=61, range=(-edge, edge), color=colour, alpha=0.5, log=True
            )
        lengths = f"‖h‖ {values['norm_honest']:.2f}  ‖b‖ {values['norm_byzantine']:.2f}"
        alike = "  ".join(f"{short} {values[name]:+.2f}" for short, name in _MEASURES.items())
        panel.set_title(f"{each.attack}\n{lengths}\n{alike}", fontsize=7)
        panel.tick_params(labelsize=6)
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    return _png(figure)


_MEASURES = {"cos": "cosine", "r": "pearson", "τ": "kendall", "ω": "concordance"}
