"""What the benchmark compares with is what it says it is."""

import torch

import fedseca
from fedseca import ops
from fedseca.bench import PLAIN, make_updates, paper_seconds, pseudocode, subtractions
from fedseca.updates import Updates


def test_the_pseudocode_is_the_released_rule_but_for_what_votes():
    """The paper's pseudocode clamps the raw gradient and keeps |g| = λ, but lets every coordinate vote."""
    matrix = make_updates(7, 4000)
    plan = ops.survey(Updates.collect(matrix), 0.9)
    ballots = plan.agreement.sign().sum(dim=1).clamp(min=0)
    norms = matrix.double().norm(dim=1)
    merge = ops.elect_and_merge(
        Updates.collect(matrix),
        ops.MergePlan(
            clip_factor=ops.clip_factors(float(norms.median()), norms),
            threshold=plan.quantiles,
            ballots=ballots,
            clamp_clipped=False,
            survives_at_threshold=True,
        ),
    )
    different = ~torch.isclose(pseudocode(matrix), merge.update, rtol=1e-4, atol=1e-6)
    assert different.float().mean() < 0.01  # ties that rounding decides, and values at the threshold


def test_the_plain_ways_give_what_the_rules_give():
    matrix = make_updates(5, 300)
    assert torch.allclose(PLAIN["fedavg"][1](matrix), fedseca.aggregate(matrix, rule="fedavg"), atol=1e-6)  # type: ignore[arg-type]
    assert torch.equal(matrix.median(dim=0).values, fedseca.aggregate(matrix, rule="cwmed"))
    expected = ops.squared_distances(Updates.collect(matrix))
    assert torch.allclose(subtractions(matrix).double(), expected, rtol=1e-4)


def test_the_papers_table_is_carried_along():
    table = paper_seconds()
    assert table["fedseca", 64] == 455.92 or table["fedseca", 64] > 400
    assert {count for _, count in table} == {4, 8, 16, 32, 64, 128, 256}


def test_made_updates_agree_more_than_not():
    agreement = ops.sign_agreement(Updates.collect(make_updates(6, 20_000)))
    assert (agreement > 0).all()
