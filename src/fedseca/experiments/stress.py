"""The red team's rounds, recorded from a federation; and what it found, as a table, numbers and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedseca.aggregators.fltrust import ROOT
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import crafts_map, png
from fedseca.experiments.results import Outcome, ResultTable, Score, as_csv, short
from fedseca.federation import Federation, Scenario
from fedseca.federation.byzantine import Rows
from fedseca.federation.loop import torch_threads
from fedseca.layout import Layout
from fedseca.server import Server
from fedseca.stress import MEASURES, NO_ATTACK, Effect, HonestRound, Stress

NAME = "stress"
_UNHARMED: dict[str, Callable[[Effect], float]] = {
    f"cosine, {NO_ATTACK}": lambda effect: effect.cosine,
    f"norm, {NO_ATTACK}": lambda effect: effect.ratio,
    f"ξ, {NO_ATTACK}": lambda effect: effect.xi,
}
"""Means over the rounds: what a rule does by itself."""


def recorded(
    scenario: Scenario,
    rounds: int,
    *,
    model: Mapping[str, Tensor] | None = None,
    first: int = 0,
    machine: Machine | None = None,
    on_round: Callable[[int], None] | None = None,
) -> list[HonestRound]:
    """What the clients of a scenario send in some rounds if all of them are honest, the Byzantine ones last.

    From a `model`, round `first` being the next, or from the beginning. The server averages.
    """
    machine = machine or Machine()
    honest = Scenario.of({**scenario.values(), "attack": "none", "aggregator": "fedavg"})
    federation = Federation(honest, data_dir=machine.data_dir, device=machine.device)
    before = federation.arrays() if model is None else federation.fitting(model)
    order = sorted(range(honest.clients), key=honest.is_byzantine)
    found = []
    for number in range(first, first + rounds):
        with torch_threads(1 if federation.small_steps else machine.threads):
            trained = {str(k): federation.train(k, before, number) for k in order}
            root = federation.train_root(before, number)
        rows = Rows(Layout.of(before, honest.buffers), before)
        own = None if root is None else rows.matrix({ROOT: root})[0]
        found.append(HonestRound(rows.matrix(trained), rows.before, own))
        server = Server("fedavg", buffers=honest.buffers)
        before = dict(server.aggregate(list(trained.values()), list(trained), before=before).model)
        if on_round is not None:
            on_round(len(found))
    return found


def outcome(results: Sequence[Stress], setting: Sequence[str]) -> Outcome:
    """Rules × measures, each with the craft that reached it; all effects as CSV; and where the crafts lead, drawn."""
    scores = []
    for result in results:
        worst = result.worst()
        for heading, of in _UNHARMED.items():
            values = [of(effect) for effect in result.unharmed]
            scores.append(Score(result.rule, heading, (sum(values) / len(values),)))
        for measure in MEASURES:
            effect = worst[measure.heading]
            scores.append(Score(result.rule, measure.heading, (measure.of(effect),), note=_reached(effect)))
    tried = max(len(result.effects) for result in results)
    title = f"What {tried} crafts make of {', '.join(result.rule for result in results[:4])}{' …' * (len(results) > 4)}"
    table = ResultTable(
        title=title,
        setting=[
            *setting,
            "norms in lengths of the honest mean x̄",
            f"{NO_ATTACK}: mean of the rounds; else the worst of them",
            "κ̂: largest ‖F − x̄‖² / Var, a lower bound of κ where ξ = 0",
            "ξ̂: largest ‖F − x̄‖² / ‖x̄‖², a lower bound of ξ where κ = 0",
        ],
        row_name="aggregator",
        column_name="measure",
        metric="value",
        scores=scores,
        coloured=False,
    )
    lines = [
        {"aggregator": result.rule, **{k: short(v) if isinstance(v, float) else v for k, v in effect._asdict().items()}}
        for result in results
        for effect in (*result.unharmed, *result.effects)
    ]
    return Outcome(table, {f"{NAME}.csv": as_csv(lines), f"{NAME}.png": png(crafts_map(title, setting, results))})


def _reached(effect: Effect) -> str:
    return f"{effect.craft}, round {effect.round}"
