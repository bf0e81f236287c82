"""What a defence costs: every rule is tuned without an attack, and attacked with the step that was best for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import fedseca
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.cost import STEPS, CostOfDefence
from fedseca.experiments.experiment import Request
from fedseca.experiments.machine import Machine
from fedseca.experiments.results import kept_scores, read_csv
from fedseca.experiments.store import Store

_COST = EXPERIMENTS["cost"]
assert isinstance(_COST, CostOfDefence)
COST: CostOfDefence = _COST
SMALL = dataclasses.replace(
    COST,
    rows={rule: {"aggregator": rule} for rule in ("fedavg", "cwmed")},
    columns={attack: {"attack": attack} for attack in ("none", "ipm", "signflip", "backdoor")},
)
REQUEST = Request(seeds=(0, 1), changes={"rounds": 1, "train_images": 60, "test_images": 40})


def test_every_rule_is_tuned_on_one_grid_where_nobody_attacks():
    runs = COST.runs(Request())
    assert len(runs) == len(COST.rows) * len(STEPS) == len({run.id for run in runs})
    assert {run.server_learning_rate for run in runs} == {*STEPS} and {run.attack.name for run in runs} == {"none"}
    assert len({run.rounds for run in runs}) == 1, "at the same budget"


def test_the_mean_is_always_there():
    chosen = COST.only(["cwtm", "fedseca"])
    assert [*chosen.rows] == ["fedavg", "cwtm", "fedseca"]


def test_where_runs_take_minutes_nobody_asks_the_rule_hundreds_of_times():
    assert "strongest" in COST.at("digits").columns and set(fedseca.ATTACKS) >= set(COST.at("digits").columns)
    assert "strongest" not in COST.at("cifar10-small").columns and "noisy_mimic" in COST.at("cifar10-small").columns


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With all that both waves ask for."""
    store = Store(tmp_path_factory.mktemp("cost"))
    for wave in SMALL.waves(REQUEST, store):
        for run in wave:
            if store.done(run) is None:
                fedseca.simulate(run, folder=store.folder(run))
    return store


def test_the_attacks_are_met_with_the_step_that_was_best(store: Store):
    first, second = SMALL.waves(REQUEST, store)
    found: dict[str, dict[float, float]] = {}
    for run in first:
        of_rule = found.setdefault(run.aggregator.name, {})
        history = store.done(run)
        assert history is not None
        of_rule[run.server_learning_rate] = of_rule.get(run.server_learning_rate, 0) + history.last("f1", 5)
    for run in second:
        best = found[run.aggregator.name]
        assert best[run.server_learning_rate] == max(best.values())
    assert {run.attack.name for run in second} == {"none", "ipm", "signflip", "backdoor"}


def test_the_columns_that_count_are_shares(store: Store):
    outcome = SMALL.outcome(REQUEST, store, Machine(), lambda *_: None)
    scores = {(score.row.partition(",")[0], score.column): score for score in outcome.table.scores}
    for row in ("fedavg", "cwmed"):
        unharmed, worst = scores[row, "none"].values, scores[row, "worst"].values
        attacked = zip(*(scores[row, attack].values for attack in ("ipm", "signflip", "backdoor")), strict=True)
        assert scores[row, "backdoor"].success is not None and scores[row, "ipm"].success is None
        assert worst == tuple(map(min, attacked)) and len(worst) == 2
        assert scores[row, "÷ no attack"].values == tuple(w / u for w, u in zip(worst, unharmed, strict=True))
        mean = scores["fedavg", "none"].values
        assert scores[row, "÷ fedavg"].values == tuple(u / m for u, m in zip(unharmed, mean, strict=True))
    assert outcome.table.best == max(scores[row, attack].mean or 0 for row, attack in scores if "÷" not in attack)
    kept = kept_scores(read_csv(outcome.files["cost.csv"]), "aggregator", "attack", "f1")
    assert [(score.row, score.column) for score in kept] == [(s.row, s.column) for s in outcome.table.scores]
    assert len(read_csv(outcome.files["cost-steps.csv"])) == 2 * len(STEPS)
    assert SMALL.pictures(outcome.files).keys() == {"cost.png"}


def test_while_runs_are_missing_nothing_is_said_of_the_worst(store: Store, tmp_path: Path):
    empty = Store(tmp_path / "empty")
    first, second = SMALL.waves(REQUEST, empty)
    assert len(first) == 2 * len(STEPS) * 2 and second == [], "no step is known"
    nothing = SMALL.outcome(REQUEST, empty, Machine(), lambda *_: None)
    assert {score.row for score in nothing.table.scores} == {*SMALL.rows}, "the rows are there, with nothing in them"
    assert not any(score.values for score in nothing.table.scores)
    more = dataclasses.replace(SMALL, columns={**SMALL.columns, "fang": {"attack": "fang"}})
    scores = {
        (s.row.partition(",")[0], s.column): s for s in more.outcome(REQUEST, store, Machine(), print).table.scores
    }
    assert scores["cwmed", "worst"].mean is None and scores["cwmed", "none"].mean is not None
