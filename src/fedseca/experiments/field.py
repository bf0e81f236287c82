"""The field: all rules under all attacks, and how each fares where it fares worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedseca.aggregators import AGGREGATORS
from fedseca.attacks import ATTACKS
from fedseca.errors import InputError, ParameterError
from fedseca.experiments.experiment import Cell, Request, TableOfRuns
from fedseca.experiments.results import About, ResultTable, Score, or_zero
from fedseca.federation import Scenario
from fedseca.federation.presets import Changes, preset_named

WORST = "worst"
"""The column that counts: the least score of a rule under all attacks."""
_NO_ATTACK = "none"
_CHAINS = (
    "nnm+cwmed", "nnm+cwtm", "nnm+krum", "nnm+rfa", "arc+nnm+cwtm",
    "bucketing+krum", "bucketing+rfa", "bucketing+cclip",
)  # fmt: skip
"""Rules with the steps that the steps' papers put before them."""
_EXTRA: Mapping[str, Changes] = {"fltrust": {"root_samples": 100}}
"""What a rule needs beside the clients: the server's own samples, as many as its paper has."""

ROWS: dict[str, Changes] = {
    rule: {"aggregator": rule, **_EXTRA.get(rule, {})} for rule in (*sorted(AGGREGATORS), *_CHAINS)
}
COLUMNS: dict[str, Changes] = {
    attack: {"attack": attack} for attack in (*sorted(set(ATTACKS) - {_NO_ATTACK}), _NO_ATTACK)
}
THREATS: dict[str, tuple[str, ...]] = {
    "broken or far too long": ("nonfinite", "random", "scaling", "model_replacement"),
    "backwards": ("ipm", "signflip", "fang"),
    "within the spread of the honest": ("alie", "minmax_agnostic", "minsum", "sparse", "rop", "poisonedfl"),
    "copies": ("mimic", "noisy_mimic"),
    "next to nothing": ("shrink",),
    "wrong data": ("labelflip", "backdoor"),
    "made against one rule": ("fang_krum", "fang_trim", "concordant_flip", "leaning"),
    "knows the rule and asks it": ("minmax", "opt_alie", "opt_ipm", "strongest"),
}
"""What an attacker may be up to, and the attacks that try it."""


@dataclass(frozen=True, kw_only=True)
class FieldOfRules(TableOfRuns):
    """Rules × attacks, the most robust rule first. A rule that needs more clients is left out, and it is said."""

    def cells(self, request: Request) -> list[Cell]:
        setting = Scenario.of({**preset_named(request.preset), **self.base, **request.changes}).values()
        fitting = {row: changes for row, changes in self.rows.items() if _fits(row, setting)}
        if not fitting:
            raise InputError(
                f"{', '.join(self.rows)}: needs more than {setting['clients']} clients, {setting['byzantine']} of them "
                "Byzantine; give it more: --set clients=11"
            )
        return super(FieldOfRules, replace(self, rows=fitting)).cells(request)

    def table(self, about: About, scores: Sequence[Score]) -> ResultTable:
        if not any(score.column == WORST for score in scores):  # they come from runs, not from a file
            scores = _ranked(scores, len(about.seeds))
        table = super().table(about, scores)
        alone = [row for row in self.rows if row not in table.rows and not _fits(row, about.setting)]
        said = [f"left out, for want of clients: {', '.join(alone)}"] if alone else []
        return replace(table, setting=[*table.setting, f"{WORST}: the least under all attacks, seed by seed", *said])


def by_threat(scores: Sequence[Score]) -> dict[str, list[tuple[str, float]]]:
    """For each threat the rules with their least score under its attacks, the best first; complete ones only."""
    found: dict[str, list[tuple[str, float]]] = {}
    for threat, attacks in THREATS.items():
        under = {score.column for score in scores} & {*attacks}
        worst: dict[str, list[float]] = {}
        for score in scores:
            if score.column in under and score.mean is not None:
                worst.setdefault(score.row, []).append(or_zero(score.mean))
        complete = [(row, min(means)) for row, means in worst.items() if len(means) == len(under)]
        found[threat] = sorted(complete, key=lambda each: -each[1])
    return found


def _ranked(scores: Sequence[Score], seeds: int) -> list[Score]:
    """With the worst of each row as a column of its own, the row with the best of them first."""
    of_row: dict[str, list[Score]] = {}
    for score in scores:
        of_row.setdefault(score.row, []).append(score)
    worst = {row: _worst(row, [each for each in of if each.column != _NO_ATTACK], seeds) for row, of in of_row.items()}
    order = sorted(of_row, key=lambda row: -1.0 if (mean := worst[row].mean) is None else mean, reverse=True)
    return [each for row in order for each in (worst[row], *of_row[row])]


def _worst(row: str, attacked: Sequence[Score], seeds: int) -> Score:
    """For each seed the least score; none while a run of it is missing. A model that is not finite has the score 0."""
    if not attacked or any(len(score.values) != seeds for score in attacked):
        return Score(row, WORST, ())
    by_seed = zip(*(score.values for score in attacked), strict=True)
    return Score(row, WORST, tuple(min(map(or_zero, values)) for values in by_seed))


def _fits(row: str, setting: Mapping[str, Any]) -> bool:
    """Whether a rule takes as few clients as there are."""
    known = {name: setting[name] for name in ("clients", "byzantine", "participation") if name in setting}
    try:
        Scenario.of({**known, "aggregator": ROWS.get(row, {"aggregator": row})["aggregator"]})
    except ParameterError:
        return False
    return True
