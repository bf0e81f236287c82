"""The rules that select, against their oracles: which values, which clients, which subset."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedseca
from fedseca.aggregators import Aggregation
from fedseca.aggregators.mda import smallest_subset
from fedseca.errors import ParameterError
from fedseca.updates import Updates
from tests.oracle import equations
from tests.oracle import selection_equations as oracle
from tests.oracle.matrices import assert_close, generic, matrices

SEEDS = st.integers(0, 10_000)
TIGHT = 1 + 1e-9
"""What rounding may tell apart: whoever was chosen must be the best up to that."""


def ask(matrix: torch.Tensor, rule: str, ids: list[str] | None = None, **parameters) -> Aggregation:
    made = fedseca.make_aggregator(rule, **parameters)
    assert len(matrix) >= made.min_clients()
    updates = Updates.collect(matrix, ids or [f"{k:03d}" for k in range(len(matrix))])
    return made.aggregate(updates, made.init(updates.dim), torch.Generator().manual_seed(0))


def size(matrix: torch.Tensor) -> float:
    """The largest magnitude: what an error of a rule over whole vectors is measured by."""
    return float(matrix.double().abs().max())


def rows(*values: object) -> torch.Tensor:
    """Clients with one coordinate each, or with those of a tuple."""
    return torch.tensor([value if isinstance(value, tuple) else (value,) for value in values], dtype=torch.float64)


@st.composite
def lattices(draw, min_clients=1, max_clients=8, max_dim=4):
    """Small whole numbers: many ties, and none that rounding could break."""
    clients, dim = draw(st.integers(min_clients, max_clients)), draw(st.integers(1, max_dim))
    values = [[draw(st.integers(-2, 3)) for _ in range(dim)] for _ in range(clients)]
    return torch.tensor(values, dtype=torch.float64)


def kept_by(answer: Aggregation) -> list[int]:
    return [k for k, weight in enumerate(answer.diagnostics["weight"].tolist()) if weight > 0]


# --- meamed ------------------------------------------------------------------------------------------------------


@given(matrix=matrices(), data=st.data())
def test_meamed(matrix, data):
    byzantine = data.draw(st.integers(0, len(matrix) - 1))
    answer, scale = ask(matrix, "meamed", num_byzantine=byzantine), matrix.abs().max(dim=0).values
    assert_close(answer.update, oracle.meamed(matrix.tolist(), byzantine), 1e-12, scale)
    shares = oracle.shares_near_median(matrix.tolist(), len(matrix) - byzantine)
    assert_close(answer.diagnostics["weight"], shares, 1e-12)


@pytest.mark.parametrize(
    ("values", "byzantine", "expected"),
    [
        ([0, 1, 2, 3, 100], 2, 2.0),
        ([0, 2, 4], 1, 1.0),  # 0 and 4 are equally far from 2: the one below comes first
        ([0, 2, 5, 6], 2, 1.0),  # around 2, the lower middle value; around 3.5 it would be 3.5
        ([5, 6, 7, 100, 101], 2, 6.0),  # where a trimmed mean without two at each end is 7
        ([7, 7, 7, 9], 3, 7.0),
        ([1, 2, 9], 0, 4.0),
    ],
)
def test_meamed_by_hand(values, byzantine, expected):
    for order in itertools.permutations(values):
        assert ask(rows(*order), "meamed", num_byzantine=byzantine).update.tolist() == [expected]


# --- bulyan ------------------------------------------------------------------------------------------------------


def picks(answer: Aggregation) -> list[int]:
    """The clients in the order in which Krum picked them."""
    numbered = [(int(number), k) for k, number in enumerate(answer.diagnostics["pick"].tolist()) if number > 0]
    assert [number for number, _ in sorted(numbered)] == list(range(1, len(numbered) + 1))
    return [k for _, k in sorted(numbered)]


@given(matrix=matrices(min_clients=7, max_clients=9, max_dim=5))
def test_bulyan(matrix):
    answer = ask(matrix, "bulyan")
    picked, left = picks(answer), list(range(len(matrix)))
    assert len(picked) == len(matrix) - 2
    for k in picked:
        scores = oracle.krum_scores_among(matrix.tolist(), left, 1)
        assert scores[k] <= min(scores.values()) * TIGHT
        left.remove(k)
    chosen = matrix[picked]
    expected = oracle.mean_near_median(chosen.tolist(), len(picked) - 2)
    assert_close(answer.update, expected, 1e-12, chosen.abs().max(dim=0).values)
    shares = oracle.shares_near_median(chosen.tolist(), len(picked) - 2)
    assert_close(answer.diagnostics["weight"][picked], shares, 1e-12)
    assert not answer.diagnostics["weight"][left].any()


@settings(max_examples=25)
@given(byzantine=st.integers(0, 3), more=st.integers(0, 4), seed=SEEDS)
def test_bulyan_on_generic_clients(byzantine, more, seed):
    matrix = generic(4 * byzantine + 3 + more, 4, seed)
    answer = ask(matrix, "bulyan", num_byzantine=byzantine)
    assert picks(answer) == oracle.bulyan_picks(matrix.tolist(), byzantine)
    assert_close(answer.update, oracle.bulyan(matrix.tolist(), byzantine), 1e-12, size(matrix))


@settings(max_examples=25)
@given(matrix=lattices(min_clients=7, max_clients=9))
def test_bulyan_breaks_ties_by_the_order_of_the_clients(matrix):
    assert picks(ask(matrix, "bulyan")) == oracle.bulyan_picks(matrix.tolist(), 1)


def test_bulyan_where_public_implementations_part():
    """Krum asked once for its best θ, and a mean of θ − B values, give other answers than the equations."""
    once, wider, trials = 0, 0, 40
    for seed in range(trials):
        matrix = generic(11, 3, seed)
        answer = ask(matrix, "bulyan", num_byzantine=2)
        assert picks(answer) == oracle.bulyan_picks(matrix.tolist(), 2)
        best = torch.tensor(equations.krum_scores(matrix.tolist(), 2)).argsort()[:7]
        once += set(best.tolist()) != set(picks(answer))
        wrong = oracle.mean_near_median(matrix[picks(answer)].tolist(), 5)
        wider += not torch.allclose(answer.update, torch.tensor(wrong, dtype=torch.float64))
    assert once > trials / 4 and wider == trials


def test_bulyan_by_hand():
    """K = 7, B = 1: five picks on a line. The last is of three that would tie, had they not one neighbour each."""
    answer = ask(rows(90, 0, 1, 2, 4, 7, 20), "bulyan")
    # With 4 neighbours 0, 1, 2, 4, 7 have 70, 47, 34, 38, 119: 2 is picked. Of 0, 1, 4, 7, 20, 90 with 3, the first
    # four have 66, 46, 34, 94: 4 is. Of 0, 1, 7, 20, 90 with 2, the first three have 50, 37, 85: 1 is. Of 0, 7, 20, 90
    # with 1, the first two have 49: 0 is. Of 7, 20, 90 with 1, the first two have 169: 7 is.
    assert picks(answer) == [3, 4, 2, 1, 5]
    # Of 0, 1, 2, 4, 7 the median is 2, and the three nearest to it are 2, 1 and, as far as 4 but below, 0.
    assert answer.update.tolist() == [1.0]
    assert answer.diagnostics["weight"].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0, 0, 0])


def test_bulyan_without_byzantine_clients_is_the_mean():
    matrix = generic(5, 6, 1)
    assert_close(ask(matrix, "bulyan", num_byzantine=0).update, equations.fedavg(matrix.tolist()), 1e-12, 1.0)


@pytest.mark.parametrize("byzantine", [0, 1, 2, 5])
def test_bulyan_needs_four_times_as_many_clients_and_three_more(byzantine):
    rule = fedseca.make_aggregator("bulyan", num_byzantine=byzantine)
    assert rule.min_clients() == 4 * byzantine + 3
    assert [rule.tolerates(k) for k in (rule.min_clients() - 1, rule.min_clients())] == [0, byzantine]
    with pytest.raises(fedseca.NotEnoughClients, match=f"bulyan needs at least {4 * byzantine + 3} clients"):
        fedseca.aggregate(torch.ones(4 * byzantine + 2, 3), rule)


# --- cge ---------------------------------------------------------------------------------------------------------


@given(matrix=matrices(), data=st.data())
def test_cge(matrix, data):
    byzantine = data.draw(st.integers(0, len(matrix) - 1))
    answer = ask(matrix, "cge", num_byzantine=byzantine)
    kept, lengths = kept_by(answer), [equations.norm(row) for row in matrix.tolist()]
    assert len(kept) == len(matrix) - byzantine
    assert max(lengths[k] for k in kept) <= sorted(lengths)[len(kept) - 1] * TIGHT
    assert answer.diagnostics["weight"][kept].tolist() == [1 / len(kept)] * len(kept)
    expected = equations.mean_row([matrix[k].tolist() for k in kept])
    assert_close(answer.update, expected, 1e-12, matrix[kept].abs().max(dim=0).values)


@given(matrix=lattices(), data=st.data())
def test_cge_breaks_ties_by_the_order_of_the_clients(matrix, data):
    byzantine = data.draw(st.integers(0, len(matrix) - 1))
    answer = ask(matrix, "cge", num_byzantine=byzantine)
    assert kept_by(answer) == oracle.cge_kept(matrix.tolist(), byzantine)
    assert_close(answer.update, oracle.cge(matrix.tolist(), byzantine), 1e-12, 1.0)


def test_cge_by_hand():
    matrix = rows((3, 4), (1, 0), (0, -2), (-5, 0))
    assert ask(matrix, "cge", num_byzantine=2).update.tolist() == [0.5, -1.0]  # and not their sum
    assert ask(matrix, "cge", num_byzantine=1).update.tolist() == pytest.approx([4 / 3, 2 / 3])  # 5 and 5: the first
    assert ask(matrix, "cge", num_byzantine=0).update.tolist() == [-0.25, 0.5]


def test_cge_sees_the_length_alone():
    """What is short may point anywhere: a limit of the rule, told in its docstring."""
    honest = generic(6, 30, 0)
    against = -0.9 * honest.norm(dim=1).min() * honest[:1] / honest[:1].norm()
    assert 6 in kept_by(ask(torch.cat([honest, against]), "cge", num_byzantine=1))


# --- mda ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(matrix=matrices(max_clients=8, max_dim=5), data=st.data())
def test_mda(matrix, data):
    byzantine = data.draw(st.integers(0, len(matrix) - 1))
    answer = ask(matrix, "mda", num_byzantine=byzantine)
    kept, distances = kept_by(answer), oracle.squared_distances(matrix.tolist())
    assert len(kept) == len(matrix) - byzantine
    least = oracle.diameter(distances, oracle.mda_subset(matrix.tolist(), byzantine))
    assert oracle.diameter(distances, tuple(kept)) <= least * TIGHT**2
    assert answer.diagnostics["weight"][kept].tolist() == [1 / len(kept)] * len(kept)
    expected = equations.mean_row([matrix[k].tolist() for k in kept])
    assert_close(answer.update, expected, 1e-12, matrix[kept].abs().max(dim=0).values)
    farthest = [max(equations.distance(row, matrix[k].tolist()) for k in kept) for row in matrix.tolist()]
    assert_close(answer.diagnostics["farthest"], farthest, 1e-9)


@given(matrix=lattices(), data=st.data())
def test_mda_takes_the_first_of_the_smallest_subsets(matrix, data):
    byzantine = data.draw(st.integers(0, len(matrix) - 1))
    answer = ask(matrix, "mda", num_byzantine=byzantine)
    assert tuple(kept_by(answer)) == oracle.mda_subset(matrix.tolist(), byzantine)
    assert_close(answer.update, oracle.mda(matrix.tolist(), byzantine), 1e-12, 1.0)


@settings(max_examples=15)
@given(clients=st.integers(9, 12), byzantine=st.integers(2, 4), seed=SEEDS)
def test_mda_of_more_clients(clients, byzantine, seed):
    matrix = generic(clients, 5, seed)
    assert tuple(kept_by(ask(matrix, "mda", num_byzantine=byzantine))) == oracle.mda_subset(matrix.tolist(), byzantine)


def test_mda_by_hand():
    assert kept_by(ask(rows(0, 1, 2, 2.75, 10), "mda", num_byzantine=2)) == [1, 2, 3]
    # 0 … 3 and 1 … 4 are equally wide: the first of them
    assert ask(rows(4, 0, 1, 3), "mda", num_byzantine=1).update.tolist() == pytest.approx([8 / 3])


def test_mda_is_about_the_farthest_two_and_not_about_all_distances():
    """The least sum of squared distances (minimum variance) is another subset, often enough."""
    other, trials = 0, 60
    for seed in range(trials):
        matrix = generic(7, 2, seed)
        distances = oracle.squared_distances(matrix.tolist())
        subsets = itertools.combinations(range(7), 5)
        least_sum = min(subsets, key=lambda s: sum(distances[i][k] for i in s for k in s))
        kept = tuple(kept_by(ask(matrix, "mda", num_byzantine=2)))
        assert kept == oracle.mda_subset(matrix.tolist(), 2)
        other += kept != least_sum
    assert other > trials / 6


def test_mda_refuses_more_byzantine_clients_than_it_can_search_for():
    with pytest.raises(ParameterError, match="mda: num_byzantine must be integer ≥ 0, ≤ 16; found 17"):
        fedseca.make_aggregator("mda", num_byzantine=17)


def test_mda_searches_what_all_subsets_would_never_end():
    """40 over 16 is 6·10¹⁰. The farthest pairs are disjoint, which is where the search has most to try."""
    matrix = generic(40, 50, 3)
    matrix[24:] += 100 * torch.eye(16, 50, dtype=torch.float64)
    assert kept_by(ask(matrix, "mda", num_byzantine=16)) == list(range(24))
    among = np.zeros((34, 34), np.int64)
    for k in range(0, 34, 2):
        among[k, k + 1] = among[k + 1, k] = 1
    assert smallest_subset(among, 16) == list(range(18))  # one pair too many: all distances are allowed
    among[32, 33] = among[33, 32] = 0
    assert smallest_subset(among, 16) == [*range(0, 32, 2), 32, 33]


# --- signsgd_mv --------------------------------------------------------------------------------------------------


@given(matrix=matrices(), step=st.sampled_from([1e-4, 0.25, 3.0]))
def test_signsgd_mv(matrix, step):
    answer = ask(matrix, "signsgd_mv", step=step)
    expected = oracle.signsgd_mv(matrix.tolist(), step)
    assert answer.update.tolist() == expected
    elected = [equations.sign(x) for x in expected]
    votes = [[equations.sign(x) for x in row] for row in matrix.tolist()]
    won = [sum(v == e != 0 for v, e in zip(row, elected, strict=True)) for row in votes]
    cast = [sum(v != 0 for v in row) for row in votes]
    assert_close(answer.diagnostics["agreed"], [w / max(c, 1) for w, c in zip(won, cast, strict=True)], 1e-12)
    assert_close(answer.diagnostics["weight"], [w / max(sum(won), 1) for w in won], 1e-12)


@pytest.mark.parametrize(
    ("values", "vote"),
    [
        ([10, -1, -1], -1),  # the sum is positive
        ([0, 0, 1], 1),  # the median is 0
        ([5, -1], 0),
        ([1, 1, -3, -4, 0], 0),
        ([-0.0, 0, 0], 0),
        ([1e-30, 1e-30, -1e30], 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signsgd_mv_by_hand(values, vote, dtype):
    answer = ask(rows(*values).to(dtype), "signsgd_mv", step=0.5)
    assert answer.update.tolist() == [0.5 * vote] and answer.update.dtype == dtype


def test_signsgd_mv_counts_heads_of_many_clients():
    """Fifteen of thirty-one cannot turn a vote, sixteen can."""
    honest = torch.ones(31, 8, dtype=torch.float64)
    for liars, expected in ((15, 0.001), (16, -0.001)):
        matrix = honest.clone()
        matrix[:liars] = -1e30
        assert ask(matrix, "signsgd_mv").update.tolist() == [expected] * 8


# --- foundationfl ------------------------------------------------------------------------------------------------


@given(matrix=matrices(), share=st.sampled_from([0.0, 0.25, 0.5, 1.0]), data=st.data())
def test_foundationfl(matrix, share, data):
    copies = math.floor(share * len(matrix))
    byzantine = data.draw(st.integers(0, (len(matrix) + copies - 1) // 2))
    answer = ask(matrix, "foundationfl", num_byzantine=byzantine, synthetic=share)
    scores = [math.sqrt(score) for score in oracle.foundationfl_scores(matrix.tolist())]
    assert_close(answer.diagnostics["score"], scores, 1e-9)
    best = [k for k, score in enumerate(scores) if score * TIGHT >= max(scores)]
    expected = [oracle.foundationfl(matrix.tolist(), byzantine, copies, k) for k in best]
    scale = 1e-12 * matrix.abs().max(dim=0).values
    near = [(answer.update - torch.tensor(each, dtype=torch.float64)).abs() <= scale for each in expected]
    assert any(bool(each.all()) for each in near)
    assert float(answer.diagnostics["weight"].sum()) == pytest.approx(1)


@given(matrix=lattices(min_clients=2), data=st.data())
def test_foundationfl_copies_the_first_of_the_best(matrix, data):
    byzantine = data.draw(st.integers(0, (len(matrix) + len(matrix) // 2 - 1) // 2))
    scores = oracle.foundationfl_scores(matrix.tolist())
    copied = scores.index(max(scores))
    expected = oracle.foundationfl(matrix.tolist(), byzantine, len(matrix) // 2, copied)
    assert_close(ask(matrix, "foundationfl", num_byzantine=byzantine).update, expected, 1e-12, 1.0)


def test_foundationfl_by_hand():
    """Scores 0, 1, 4, 0: two copies of 4. Of 0, 1, 4, 4, 4, 10 one is dropped at each end."""
    answer = ask(rows(0, 1, 4, 10), "foundationfl")
    assert answer.diagnostics["score"].tolist() == [0, 1, 4, 0]
    assert answer.update.tolist() == [3.25]
    assert answer.diagnostics["weight"].tolist() == [0, 0.25, 0.75, 0]
    assert ask(rows(0, 1, 4, 10), "foundationfl", synthetic=0.0).update.tolist() == [2.5]


def test_one_client_can_have_itself_copied_by_foundationfl():
    """It is extreme upward in one half of the coordinates and downward in the other: the rule claims no bound."""
    honest = generic(10, 40, 0)
    split = 1e6 * torch.cat([torch.ones(20), -torch.ones(20)]).double()[None]
    answer = ask(torch.cat([honest, split]), "foundationfl")
    assert answer.diagnostics["score"].argmax() == 10
    assert float((answer.update - honest.mean(dim=0)).norm()) > 1e5
    assert fedseca.make_aggregator("foundationfl").tolerates(11) == 0
    held = ask(torch.cat([honest, split]), "foundationfl", num_byzantine=3, synthetic=0.2)
    assert fedseca.make_aggregator("foundationfl", num_byzantine=3, synthetic=0.2).tolerates(11) == 1
    assert float((held.update - honest.mean(dim=0)).norm()) < 10


@pytest.mark.parametrize(("byzantine", "share", "fewest"), [(0, 0.5, 1), (1, 0.5, 2), (2, 0.5, 4), (2, 0.0, 5)])
def test_foundationfl_needs_a_value_that_is_not_dropped(byzantine, share, fewest):
    rule = fedseca.make_aggregator("foundationfl", num_byzantine=byzantine, synthetic=share)
    assert rule.min_clients() == fewest


# --- all of them -------------------------------------------------------------------------------------------------

RULES = {"meamed": 3, "bulyan": 2, "cge": 3, "mda": 3, "foundationfl": 3}


@pytest.mark.parametrize("rule", RULES)
def test_outliers_carry_the_mean_off_and_not_the_rule(rule):
    """All alike, which foundationfl holds against, too."""
    bad = RULES[rule]
    honest = generic(11 - bad, 40, 0)
    matrix = torch.cat([honest, torch.full((bad, 40), 1e6, dtype=torch.float64)])
    answer, mean = ask(matrix, rule, num_byzantine=bad), ask(matrix, "fedavg")
    assert float((answer.update - honest.mean(dim=0)).norm()) < 10
    assert float((mean.update - honest.mean(dim=0)).norm()) > 1e5
    assert not answer.diagnostics["weight"][-bad:].any()


@pytest.mark.parametrize("rule", RULES)
@given(matrix=lattices(min_clients=7, max_clients=8, max_dim=3), seed=SEEDS)
@settings(max_examples=20)
def test_ties_are_broken_by_ids_and_not_by_who_answered_first(rule, matrix, seed):
    ids = [f"{k:03d}" for k in range(len(matrix))]
    order = np.random.default_rng(seed).permutation(len(matrix)).tolist()
    straight, shuffled = ask(matrix, rule, ids), ask(matrix[order], rule, [ids[k] for k in order])
    assert_close(shuffled.update, straight.update.tolist(), 1e-12, 1.0)
    for name, values in straight.diagnostics.items():
        assert_close(shuffled.diagnostics[name], values[order].tolist(), 1e-12, 1.0)


@pytest.mark.parametrize("rule", ["meamed", "cge", "mda"])
def test_a_bound_needs_an_honest_majority(rule):
    made = fedseca.make_aggregator(rule, num_byzantine=3)
    assert made.min_clients() == 4 and [made.tolerates(k) for k in (5, 6, 7, 8)] == [0, 0, 3, 3]
