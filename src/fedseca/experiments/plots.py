"""The pictures of an experiment: the table as a heat map beside the paper's, and the course of every run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedseca.declare import Diagnostic
from fedseca.errors import MissingDependency
from fedseca.experiments.results import ResultTable, Score
from fedseca.federation.history import in_words
from fedseca.paper import COLLAPSED, NOTICEABLE, SEVERE, verdict
from fedseca.stress import NO_ATTACK, Stress

_COLOURS = {"collapsed": "#d94d4d", "severe": "#ffa600", "noticeable": "#fff2b3", "fine": "#ffffff"}
"""The paper's."""
_NO_NUMBER = "#eeeeee"
_HONEST, _BYZANTINE = "#2e8b57", "#c0392b"
_CRAFT: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 2.4, "alpha": 0.45, "color": _BYZANTINE}
_UNHARMED: dict[str, Any] = {"linestyle": "", "marker": "*", "markersize": 9, "color": _HONEST}
_LEAST_RATIO = 1e-3
"""A norm that is drawn: what is less lies on the edge."""
_LINES = ("#0072b2", "#e69f00", "#009e73", "#cc3311", "#7b3fa0", "#56b4e9", "#8c5a2b", "#44546a",
          "#ee3377", "#8a8d00", "#000080")  # fmt: skip
_MARKERS = "osD^vPX*<>hd"
"""A colour and a marker for each line, so that nobody needs the colours."""
_MOST_UPRIGHT = 14
"""Columns of a table whose names are written straight: more of them are slanted, so that squares stay narrow."""
_MARGIN = 0.12
"""Of a sheet, in inches."""


def require_matplotlib() -> Any:
    """Its figures; better asked for before hours of runs than after."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("pictures need matplotlib: pip install 'fedseca[plots]'") from None
    return Figure


def png(figure: Any) -> bytes:
    """The picture as a file: the same figure gives the same bytes."""
    from PIL import Image

    out, small = io.BytesIO(), io.BytesIO()
    figure.savefig(out, format="png", dpi=figure.dpi)
    # Without the transparency that no pixel uses, and packed as well as can be.
    Image.open(out).convert("RGB").save(small, format="png", optimize=True)
    return small.getvalue()


def packed(phrases: Iterable[str], fits: Callable[[str], bool], between: str = " · ") -> list[str]:
    """Phrases in as few lines as they fit into, none of them broken."""
    lines: list[str] = []
    for phrase in phrases:
        longer = f"{lines[-1]}{between}{phrase}" if lines else ""
        if longer and fits(longer):
            lines[-1] = longer
        else:
            lines.append(phrase)
    return lines


class _Sheet:
    """A figure with a heading above its panels and a legend below them. Both are measured: nothing is cut off."""

    def __init__(self, width: float, height: float, title: str, setting: Sequence[str]) -> None:
        """The size is that of the panels, in inches."""
        self.figure = require_matplotlib()(figsize=(width, height), dpi=120, layout="constrained")
        self.width, self.height = width, height
        self.above, self.below = _MARGIN, _MARGIN
        self._heading(title.split(), " ", fontsize=11, weight="bold")
        self._heading(setting, " · ", fontsize=8.5, color="#444444")
        self.above += 0.06
        self._resize()

    def _resize(self) -> None:
        whole = self.above + self.height + self.below
        self.figure.set_size_inches(self.width, whole)
        self.figure.get_layout_engine().set(
            rect=(0, self.below / whole, 1, self.height / whole), w_pad=_MARGIN / 2, h_pad=0.04, hspace=0, wspace=0.02
        )

    def _heading(self, phrases: Sequence[str], between: str, **style: Any) -> None:
        """Lines of text below what stands there already."""
        from matplotlib.transforms import ScaledTranslation

        probe = self.figure.text(0, 0, "", **style)

        def fits(line: str) -> bool:
            probe.set_text(line)
            return bool(probe.get_window_extent().width / self.figure.dpi <= self.width - 2 * _MARGIN)

        lines = packed(phrases, fits, between)
        probe.remove()
        for line in lines:
            place = ScaledTranslation(_MARGIN, -self.above, self.figure.dpi_scale_trans)
            self.figure.text(0, 1, line, va="top", transform=self.figure.transFigure + place, **style)
            self.above += 1.35 * style["fontsize"] / 72

    def legend(self, handles: Sequence[Any], title: str | None = None) -> None:
        """In as many columns as there is room for."""
        room = (self.width - 2 * _MARGIN) * self.figure.dpi
        for columns in range(len(handles), 0, -1):
            legend = self.figure.legend(
                handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0), ncols=columns, fontsize=8, frameon=False,
                title=title, title_fontsize=8, borderaxespad=0.3, columnspacing=1.6,
            )  # fmt: skip
            extent = legend.get_window_extent()
            if extent.width <= room or columns == 1:
                break
            legend.remove()
        self.below += extent.height / self.figure.dpi
        self._resize()

    def panels(self, count: int, across: int, below: str, beside: str) -> list[Any]:
        """So many small ones with the same axes; the lowest of each column have the numbers below them."""
        down = -(-count // across)
        every = self.figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for place, panel in enumerate(every):
            panel.tick_params(labelsize=7, labelbottom=place + across >= count)
            panel.grid(alpha=0.3)
            panel.set_visible(place < count)
            if place + across >= count:
                panel.set_xlabel(below, fontsize=8)
            if place % across == 0:
                panel.set_ylabel(beside, fontsize=8)
        return list(every[:count])


def _across(count: int) -> int:
    """In how many columns so many panels are put: as few empty places as possible."""
    return max(1, count) if count <= 4 else min((4, 3), key=lambda across: -count % across)


def _length(words: Iterable[str], size: float) -> float:
    """Of the longest of some words, in inches."""
    from matplotlib.textpath import TextPath

    lengths = (TextPath((0, 0), word, size=size).get_extents().width / 72 for word in words if word.strip())
    return max(lengths, default=0.0)


def heat_map(table: ResultTable) -> Any:
    """Our table, and the paper's where it has one, in the paper's colours."""
    panels: list[tuple[str, Callable[[Score], float | None], float]] = [("here", lambda score: score.mean, table.best)]
    if table.has_paper:
        title = f"in the paper ({table.paper_setting})"
        panels.append((title, lambda score: score.paper, table.paper_best))
    rows, columns, places = table.rows, table.columns, table.by_place()
    below = {place: _beneath(score) for place, score in places.items()}
    slanted = len(columns) > _MOST_UPRIGHT
    longest = _length(columns, 8)
    wide = 0.62 if slanted else max(0.6, longest + 0.1, 2.4 / len(columns) if columns else 0)
    width = len(panels) * (wide * len(columns) + 0.15) + _length(table.row_labels, 8) + 0.3
    lines = max((len(each.splitlines()) for each in below.values()), default=0)
    height = (0.3 + 0.1 * lines) * len(rows) + 0.3 + (0.2 if len(panels) > 1 else 0)
    sheet = _Sheet(max(width, 5.5), height + (0.8 * longest if slanted else 0), table.title, table.setting)
    every = sheet.figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, value, best) in zip(every, panels, strict=True):
        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                number, more = value(places[row, column]), below[row, column] if title == "here" else ""
                axes.add_patch(_square(x, y, _NO_NUMBER if number is None else _COLOURS[verdict(number, best)]))
                axes.text(x, y - 0.14 * len(more.splitlines()), "–" if number is None else f"{number:.2f}",
                          ha="center", va="center", fontsize=8.5)  # fmt: skip
                axes.text(x, y + 0.27 - 0.02 * len(more.splitlines()), more, ha="center", va="center", fontsize=6.5)
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.xaxis.tick_top()
        slant = {"rotation": 50, "ha": "left", "rotation_mode": "anchor"} if slanted else {}
        axes.set_xticks(range(len(columns)), columns, fontsize=8, **slant)
        axes.set_yticks(range(len(rows)), table.row_labels, fontsize=8)
        axes.tick_params(length=0)
        if len(panels) > 1:
            axes.set_title(title, fontsize=9)
    if table.coloured:
        sheet.legend(_verdicts(), "colours: share of the best number in the table")
    return sheet.figure


def _beneath(score: Score) -> str:
    """What stands below a number, smaller: its deviation, and how often a targeted attack succeeded."""
    spread = [] if score.std is None else [f"± {score.std:.2f}"]
    return "\n".join([*spread, *([] if score.success is None else [f"ASR {score.success:.2f}"])])


def _verdicts() -> list[Any]:
    from matplotlib.patches import Patch

    limits = {"collapsed": COLLAPSED, "severe": SEVERE, "noticeable": NOTICEABLE}
    labels = {word: f"{word} (below {limit:.0%})" for word, limit in limits.items()}
    return [
        Patch(facecolor=colour, edgecolor="#999999", linewidth=0.6, label=labels.get(word, word))
        for word, colour in _COLOURS.items()
    ]


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="#bbbbbb", linewidth=0.6)


def _line_style(index: int) -> dict[str, Any]:
    return {
        "color": _LINES[index % len(_LINES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 3.2,
        "linewidth": 1.1,
    }


def trajectories(table: ResultTable, courses: Mapping[tuple[str, str], Sequence[float]]) -> Any:
    """A small panel for each row of the table, a line for each column."""
    from matplotlib.lines import Line2D

    rows, columns = table.rows, table.columns
    across = _across(len(rows))
    sheet = _Sheet(max(2.9 * across, 6.5), 1.75 * -(-len(rows) // across) + 0.3, table.title, table.setting)
    panels = sheet.panels(len(rows), across, "round", in_words(table.metric))
    for panel, row, label in zip(panels, rows, table.row_labels, strict=True):
        panel.set_title(label, fontsize=8.5)
        panel.set_ylim(-0.03, 1.03)
        panel.xaxis.get_major_locator().set_params(integer=True)
        for index, column in enumerate(columns):
            if values := courses.get((row, column)):
                # The markers of lines that lie on each other stand side by side.
                step = max(1, len(values) // 5)
                apart = (index * step // len(columns), step)
                panel.plot(range(1, len(values) + 1), values, **_line_style(index), markevery=apart)
    sheet.legend([Line2D([], [], label=column, **_line_style(index)) for index, column in enumerate(columns)])
    return sheet.figure


def crafts_map(title: str, setting: Sequence[str], results: Sequence[Stress]) -> Any:
    """Where each craft leads a rule: how long the aggregate gets, and how far it turns; a panel for each rule."""
    across = _across(len(results))
    sheet = _Sheet(max(2.9 * across, 6.5), 2.1 * -(-len(results) // across) + 0.3, title, setting)
    panels = sheet.panels(len(results), across, "norm, in lengths of x̄", "cosine with x̄")
    for panel, result in zip(panels, results, strict=True):
        panel.set_title(result.rule, fontsize=8.5)
        panel.set_xscale("log")
        panel.set_ylim(-1.08, 1.08)
        for effects, style in ((result.effects, _CRAFT), (result.unharmed, _UNHARMED)):
            panel.plot([max(each.ratio, _LEAST_RATIO) for each in effects], [each.cosine for each in effects], **style)
    from matplotlib.lines import Line2D

    labels = {"a craft": _CRAFT, NO_ATTACK: _UNHARMED}
    sheet.legend([Line2D([], [], label=label, **style) for label, style in labels.items()])
    return sheet.figure


@dataclass(frozen=True)
class Curve:
    """A line over numbers of clients."""

    label: str
    points: Mapping[int, float]
    paper: Mapping[int, float] = field(default_factory=dict)
    """The paper's numbers for the same."""
    plain: bool = False
    """Whether it stands for what the others are compared with."""
    bold: bool = False
    """Whether it is what the picture is about."""


def curves(title: str, setting: Sequence[str], lines: Sequence[Curve], beside: str, paper_setting: str) -> Any:
    """A line for each of them over the clients, both axes logarithmic. The paper's are dashed, plain ones dotted."""
    from matplotlib.lines import Line2D

    sheet = _Sheet(7.5, 4.4, title, setting)
    axes = sheet.figure.subplots()
    legend = []
    others = [line for line in lines if not line.bold]
    for line in lines:
        style = _line_style(0 if line.bold else others.index(line))
        if line.bold:
            style |= {"color": "black", "linewidth": 2.5, "marker": "o", "markersize": 5, "zorder": 3}
        if line.plain:
            style |= {"linestyle": ":"}
        legend += axes.plot(list(line.points), list(line.points.values()), label=line.label, **style)
        if line.paper:
            dashed = {"linestyle": "--", "linewidth": 1.1, "marker": "."}
            axes.plot(list(line.paper), list(line.paper.values()), **{**style, **dashed})
    if any(line.paper for line in lines):
        label = f"the same in the paper ({paper_setting})"
        legend.append(Line2D([], [], color="#666666", linestyle="--", linewidth=1.1, marker=".", label=label))
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=beside)
    axes.tick_params(labelsize=8)
    ticks = sorted({count for line in lines for count in line.points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    sheet.legend(legend)
    return sheet.figure


def _two_kinds(make: Callable[..., Any], honest: Mapping[str, Any], byzantine: Mapping[str, Any]) -> list[Any]:
    return [make(color=_HONEST, label="honest", **honest), make(color=_BYZANTINE, label="Byzantine", **byzantine)]


def trust(title: str, setting: Sequence[str], lines: Sequence[Mapping[str, str]], shown: Diagnostic) -> Any:
    """A panel for each attack, a line for each client, honest ones green and Byzantine ones red."""
    from matplotlib.lines import Line2D

    attacks = list(dict.fromkeys(line["attack"] for line in lines))
    across = _across(len(attacks))
    sheet = _Sheet(max(2.9 * across, 6.5), 1.75 * -(-len(attacks) // across) + 0.3, title, setting)
    honest, byzantine = {"linewidth": 1.4}, {"linewidth": 1.2, "linestyle": (0, (4, 2))}
    for panel, attack in zip(sheet.panels(len(attacks), across, "round", shown.heading), attacks, strict=True):
        panel.set_title(attack, fontsize=8.5)
        panel.set_ylim(-0.05, 1.05)
        panel.xaxis.get_major_locator().set_params(integer=True)
        courses: dict[tuple[str, bool], list[tuple[int, float]]] = {}
        for line in lines:
            if line["attack"] == attack and line[shown.name]:
                course = courses.setdefault((line["client"], line["byzantine"] == "True"), [])
                course.append((int(line["round"]), float(line[shown.name])))
        for (_, is_byzantine), course in courses.items():
            style, colour = (byzantine, _BYZANTINE) if is_byzantine else (honest, _HONEST)
            panel.plot(*zip(*course, strict=True), color=colour, alpha=0.7, **style)  # both are seen where they meet
    sheet.legend(_two_kinds(lambda **style: Line2D([], [], **style), honest, byzantine))
    return sheet.figure


@dataclass(frozen=True)
class Histogram:
    """How often the values of an honest and of a Byzantine vector lie between two edges."""

    heading: str
    text: str
    edges: Sequence[float]
    honest: Sequence[int]
    byzantine: Sequence[int]


def distributions(title: str, setting: Sequence[str], shown: Sequence[Histogram]) -> Any:
    """A panel for each histogram: the honest values in green, the Byzantine ones in red."""
    from matplotlib.patches import Patch

    across = _across(len(shown))
    sheet = _Sheet(max(3.0 * across, 6.5), 2.2 * -(-len(shown) // across) + 0.3, title, setting)
    for panel, each in zip(
        sheet.panels(len(shown), across, "value of a coordinate", "coordinates"), shown, strict=True
    ):
        for counts, colour in ((each.honest, _HONEST), (each.byzantine, _BYZANTINE)):
            panel.stairs(counts, each.edges, fill=True, color=colour, alpha=0.5)
        panel.set_yscale("log")
        panel.set_title(each.heading, fontsize=8.5, weight="bold", pad=22)
        panel.annotate(each.text, (0.5, 1), (0, 3), "axes fraction", "offset points", ha="center", fontsize=6.5)
        panel.locator_params(axis="x", nbins=5)
    sheet.legend(_two_kinds(Patch, {"alpha": 0.5}, {"alpha": 0.5}))
    return sheet.figure
