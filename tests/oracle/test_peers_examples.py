"""Ours on the examples of other packages: each verdict is computed, and each could turn out otherwise."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import fedseca
from fedseca import ATTACKS, STEPS, Knowledge, NotEnoughClients, StepBefore, Updates
from tests.oracle.equations import Rows, distance
from tests.oracle.peers_examples import EXAMPLES, Example, Verdict, byzfl_server, damage, summary, table

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
NAMES = [f"{number}-{example.ours}" for number, example in enumerate(EXAMPLES)]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)


def close(found: Rows, expected: Rows) -> bool:
    """The same to the eight decimals that NumPy prints."""
    pairs = [pair for x, y in zip(found, expected, strict=True) for pair in zip(x, y, strict=True)]
    return all(a == b or abs(a - b) <= 5.1e-9 for a, b in pairs)


def ours(example: Example, hyperparameters: Any = None) -> Rows:
    """What our rule, step or attack answers to the example's rows."""
    given = example.hyperparameters if hyperparameters is None else hyperparameters
    rows = torch.tensor(example.rows, dtype=torch.float64)
    ids = tuple(str(k) for k in range(len(rows)))
    rng = torch.Generator().manual_seed(example.seed)
    if example.ours in STEPS:
        step = STEPS.make(example.ours, **given)
        assert isinstance(step, StepBefore)
        updates = Updates.collect(rows, ids)
        mixed = step.mix(updates, {}, rng).rows(updates)
        return [mixed.row(m).tolist() for m in range(len(mixed))]
    if example.ours in ATTACKS:
        attack = fedseca.make_attack(example.ours, **given)

        def probe(sent: torch.Tensor) -> torch.Tensor:
            return torch.tensor(byzfl_server([*example.rows, *sent.tolist()]), dtype=torch.float64)

        knowledge = Knowledge.of(attack, 0, 1, ids, probe=probe)
        return attack.craft(rows, knowledge, {}, rng)[0].tolist()
    return [fedseca.aggregate(rows, example.ours, weights=example.weights, **given).tolist()]


def check(example: Example) -> None:
    """The verdict, in all that it says."""
    if example.verdict == "agrees":
        assert example.answer is None and not example.refuses
        assert close(ours(example), example.published)
        assert close(example.equation(example.rows), example.published)
        return
    if example.refuses:
        with pytest.raises(NotEnoughClients):
            ours(example)
        (scores,) = example.equation(example.rows)
        assert set(scores) == {0.0}  # the equation has nothing to choose by
    else:
        found = ours(example)
        assert not close(found, example.published)
        assert close(found, example.equation(example.rows))
        assert example.answer is not None and close(found, example.answer)
    # The reason is the whole reason: with it undone, the published answer comes out.
    assert example.same_as is not None or example.reproduces is not None
    if example.same_as is not None:
        assert close(ours(example, example.same_as), example.published)
    if example.reproduces is not None:
        assert close(example.reproduces(example.rows), example.published)
    # Wrong is what contradicts the page that it stands on; all else is a convention.
    assert (example.verdict == "wrong") == (example.stated is not None)
    if example.stated is not None:
        assert not close(example.stated(example.rows), example.published)


@every_example
def test_the_verdict_holds(example):
    check(example)


@every_example
def test_any_other_verdict_does_not(example):
    for verdict in {*get_args(Verdict)} - {example.verdict}:
        with pytest.raises((AssertionError, NotEnoughClients)):
            check(replace(example, verdict=verdict))


@every_example
def test_nor_does_it_for_another_published_answer(example):
    other = [[x + 2e-8 if math.isfinite(x) else -x for x in row] for row in example.published]
    with pytest.raises(AssertionError):
        check(replace(example, published=other))


def the(name: str) -> Example:
    (found,) = [example for example in EXAMPLES if example.ours == name]
    return found


def test_the_geometric_median_is_nearer_to_all_than_what_is_published():
    example = the("rfa")
    total = [sum(distance(row, x) for x in example.rows) for row in (*ours(example), *example.published)]
    assert total[0] < total[1]
    assert total[0] == pytest.approx(2 * distance(example.rows[0], example.rows[1]))  # none less: they lie on a line


def test_what_the_page_of_alie_would_answer_by_its_equation():
    example = the("alie")
    assert example.stated is not None
    assert [round(x, 2) for x in example.stated(example.rows)[0]] == [7.67, 8.67, 9.67]


def test_how_far_the_optimal_attacks_move_the_aggregate():
    ipm = the("opt_ipm")
    assert round(damage(ipm.published[0]), 3) == 6.799
    assert round(damage(ours(ipm)[0]), 3) == 6.783
    assert round(-ours(ipm)[0][0] / 4, 3) == 0.631 and round(-ipm.published[0][0] / 4, 3) == 0.747


@pytest.mark.parametrize("ids", ["0123", "2103", "3120"])
def test_the_published_optimum_of_alie_is_none_however_ties_are_broken(ids):
    example = the("opt_alie")
    assert example.stated is not None
    (best,) = example.stated(example.rows)
    assert [round((row[0] - 4) / 3, 3) for row in (best, *example.published)] == [2.95, 0.687]
    assert damage(best, ids) > damage(example.published[0], ids) + 5e-4
    assert damage(ours(example)[0], ids) > damage(best, ids)


def test_the_page_shows_these_examples_and_no_others():
    text = PAGE.read_text()
    assert [row for row in text.splitlines() if row.startswith("|")] == table()
    assert summary() in text


def test_no_example_stands_there_twice():
    assert Counter((example.source, example.call) for example in EXAMPLES).most_common(1)[0][1] == 1
