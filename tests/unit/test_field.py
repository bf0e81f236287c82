"""The field: every rule and every attack is in it, and what counts is where a rule fares worst."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

import fedseca
from fedseca.errors import InputError, ParameterError
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import Request
from fedseca.experiments.field import THREATS, WORST, FieldOfRules, by_threat
from fedseca.experiments.results import About, Score, as_csv, kept_scores, read_csv

ROOT = Path(__file__).parents[2]
_FIELD = EXPERIMENTS["field"]
assert isinstance(_FIELD, FieldOfRules)
FIELD: FieldOfRules = _FIELD
SETTING = {
    "dataset": {"name": "digits"},
    "clients": 5,
    "byzantine": 2,
    "rounds": 20,
    "partition": {"name": "iid"},
}
ABOUT = About((0,), SETTING)
TOO_FEW = {"bulyan", "bucketing+krum"}
"""What five clients, two of them Byzantine, are too few for."""


def own(registry: object) -> set[str]:
    """What the package registers itself: plugins may be there."""
    return {name for name, part in registry.items() if part.__module__.startswith("fedseca.")}  # type: ignore[attr-defined]


def test_every_rule_and_every_attack_is_in_it() -> None:
    assert own(fedseca.AGGREGATORS) <= set(FIELD.rows) and own(fedseca.ATTACKS) <= set(FIELD.columns)
    steps = {step for row in FIELD.rows for step in row.split("+")[:-1]}
    assert {"nnm", "arc", "bucketing"} <= steps
    runs = FIELD.runs(Request())
    assert len(runs) == len({run.id for run in runs}) == len(FIELD.columns) * (len(FIELD.rows) - len(TOO_FEW))
    assert {run.root_samples for run in runs if run.aggregator.name == "fltrust"} == {100}
    assert {run.root_samples for run in runs if run.aggregator.name != "fltrust"} == {0}


def test_a_rule_that_needs_more_clients_is_left_out_and_named() -> None:
    rows = {cell.row for cell in FIELD.cells(Request())}
    assert set(FIELD.rows) - rows == TOO_FEW
    enough = FIELD.cells(Request(changes={"clients": 11}))
    assert {cell.row for cell in enough} == set(FIELD.rows)
    scores = [Score(row, "ipm", (0.5,)) for row in rows]
    said = FIELD.table(ABOUT, scores).setting
    assert any(phrase.endswith("want of clients: bulyan, bucketing+krum") for phrase in said)
    of_eleven = About((0,), {**SETTING, "clients": 11})
    assert not any("want of clients" in phrase for phrase in FIELD.table(of_eleven, scores).setting)


def test_that_nothing_fits_is_told_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"bulyan: needs more than 5 clients, 2 .* --set clients=11"):
        FIELD.only(["bulyan"]).runs(Request())
    assert FIELD.only(["bulyan"]).runs(Request(changes={"clients": 11}))


def test_what_is_wrong_with_every_row_is_an_error() -> None:
    with pytest.raises(ParameterError, match="rounds"):
        FIELD.cells(Request(changes={"rounds": 0}))


def table_of(*scores: Score) -> dict[tuple[str, str], Score]:
    return FIELD.table(ABOUT, scores).by_place()


def test_the_worst_is_the_least_under_an_attack_seed_by_seed() -> None:
    scores = [
        Score("cwmed", "ipm", (0.9, 0.4)),
        Score("cwmed", "alie", (0.3, 0.8)),
        Score("cwmed", "none", (0.1, 0.1)),  # no attack does not count
    ]
    places = FIELD.table(About((0, 1), SETTING), scores).by_place()
    assert places["cwmed", WORST].values == (0.3, 0.4)


def test_a_model_that_is_not_finite_is_as_bad_as_can_be() -> None:
    places = table_of(Score("fedavg", "ipm", (0.9,)), Score("fedavg", "alie", (math.nan,)))
    assert places["fedavg", WORST].values == (0.0,)


def test_while_a_run_of_all_seeds_is_missing_there_is_no_worst() -> None:
    two = About((0, 1), SETTING)
    scores = [Score("cwmed", "ipm", (0.9,)), Score("cwmed", "alie", (0.8,))]  # perhaps not of the same seed
    assert FIELD.table(two, scores).by_place()["cwmed", WORST].mean is None


def test_while_a_run_is_missing_there_is_no_worst() -> None:
    places = table_of(Score("cwmed", "ipm", (0.9,)), Score("cwmed", "alie", ()))
    assert places["cwmed", WORST].mean is None


def test_the_most_robust_rule_stands_first_and_stays_there_in_the_file() -> None:
    scores = [
        Score("fedavg", "ipm", (0.1,)),
        Score("cwmed", "ipm", (0.8,)),
        Score("krum", "ipm", ()),
        Score("fedseca", "ipm", (0.9,)),
    ]
    table = FIELD.table(ABOUT, scores)
    assert table.rows == ["fedseca", "cwmed", "fedavg", "krum"] and table.columns == [WORST, "ipm"]
    assert "4 rules under 1 attack" in table.title
    kept = kept_scores(read_csv(as_csv(list(table.lines()))), "aggregator", "attack", "f1")
    again = FIELD.table(ABOUT, kept)
    assert (again.rows, again.columns, again.title) == (table.rows, table.columns, table.title)
    assert [score.mean for score in again.scores] == [score.mean for score in table.scores]


def test_every_attack_is_one_threat() -> None:
    named = [attack for attacks in THREATS.values() for attack in attacks]
    assert sorted(named) == sorted(own(fedseca.ATTACKS) - {"none"})


def test_by_threat_the_worst_under_its_attacks_counts() -> None:
    scores = [
        Score("cwmed", "mimic", (0.5,)),
        Score("cwmed", "noisy_mimic", (0.9,)),
        Score("krum", "mimic", (0.6,)),
        Score("krum", "noisy_mimic", (0.7,)),
        Score("rfa", "mimic", (0.99,)),
        Score("rfa", "noisy_mimic", ()),  # not done yet
        Score("krum", "shrink", (math.nan,)),
        Score("krum", WORST, (0.1,)),
    ]
    found = by_threat(scores)
    assert found["copies"] == [("krum", 0.6), ("cwmed", 0.5)]
    assert found["next to nothing"] == [("krum", 0.0)] and found["backwards"] == []


def test_the_table_of_threats_in_the_docs_is_that_of_the_results() -> None:
    kept = kept_scores(read_csv((ROOT / "results/field-digits/field.csv").read_bytes()), "aggregator", "attack", "f1")
    measured = {score.column for score in kept}
    shown = (ROOT / "docs/field.md").read_text().splitlines()
    for threat, ranked in by_threat(kept).items():
        best = ", ".join(f"`{rule}` {worst:.2f}" for rule, worst in ranked[:5])
        place = [rule for rule, _ in ranked].index("fedseca")
        ours = f"{ranked[place][1]:.2f}, place {place + 1} of {len(ranked)}"
        attacks = ", ".join(attack for attack in THREATS[threat] if attack in measured)
        assert f"| {threat} | {attacks} | {best} | {ours} |" in shown


def test_some_rows_are_a_field_too() -> None:
    some = FIELD.only(["fedseca", "nnm+huber"])
    assert isinstance(some, FieldOfRules)
    assert {cell.row for cell in some.cells(Request())} == {"fedseca", "nnm+huber"}
    assert dataclasses.replace(some, rows=FIELD.rows) == FIELD
