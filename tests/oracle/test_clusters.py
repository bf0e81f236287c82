"""The rules that filter clients by spectra, signs and angles against their oracles, and what they are built from."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import fedseca
from fedseca import ops
from fedseca.aggregators import Aggregation
from fedseca.aggregators._drawn import draw_coordinates
from fedseca.aggregators._mean_shift import largest_cluster
from fedseca.ops import reference
from fedseca.testing import outlier_errors
from fedseca.updates import Updates
from tests.oracle import cluster_equations as equations
from tests.oracle.equations import combine, lower_median, mean_row, norm
from tests.oracle.matrices import assert_close, generic, matrices
from tests.oracle.test_rules import ask, size

SEEDS = st.integers(0, 10_000)
LINKAGES = st.sampled_from(["complete", "average", "single"])
CERTAIN = 1e-7
"""A comparison that was this far from a tie is not decided by rounding."""


def rows_of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def kept(answer: Aggregation) -> list[int]:
    return answer.clients["weight"].nonzero().flatten().tolist()


def few_among(count: int, outliers: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Honest clients of one direction, then outliers."""
    return torch.cat([generic(count, outliers.shape[1], seed), outliers.double()])


# ---------------------------------------------------------------- chosen coordinates


@given(matrix=matrices(torch.float32), data=st.data())
def test_columns_are_the_chosen_ones_in_their_order(matrix, data):
    indices = torch.tensor(data.draw(st.lists(st.integers(0, matrix.shape[1] - 1), max_size=12)), dtype=torch.int64)
    assert torch.equal(ops.columns(Updates.collect(matrix), indices), matrix[:, indices])


@pytest.mark.parametrize("elements", [1, 4, 10, 64, 1000])
def test_columns_do_not_depend_on_where_blocks_are_cut(monkeypatch, elements):
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", elements)
    matrix, indices = generic(4, 37, 5, torch.float32), torch.tensor([36, 0, 17, 18, 17, 5])
    assert torch.equal(ops.columns(Updates.collect(matrix), indices), matrix[:, indices])


def test_columns_of_models_and_of_mixed_rows():
    before = {"a": torch.randn(2, 3), "b": torch.randn(4)}
    models = [{"a": torch.randn(2, 3), "b": torch.randn(4)} for _ in range(3)]
    updates = Updates.collect(models, before=before)
    indices = torch.tensor([9, 5, 6, 0])
    assert torch.equal(ops.columns(updates, indices), updates.matrix()[:, indices])
    mixed = updates.mixed([[0, 1], [2], [0, 1, 2]], [[0.5, 0.5], [2.0], [0.2, 0.3, 0.5]], ["x", "y", "z"])
    assert torch.equal(ops.columns(mixed, indices), mixed.matrix()[:, indices])
    half = Updates.collect(torch.randn(3, 9).bfloat16())
    assert ops.columns(half, indices[1:]).dtype == torch.float32


def test_columns_read_no_more_than_they_need(monkeypatch):
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", 30)
    updates, ranges = Updates.collect(generic(3, 1000, 0)), []
    original = Updates.read

    def read(self, start, stop, *others):
        ranges.append((start, stop))
        return original(self, start, stop, *others)

    monkeypatch.setattr(Updates, "read", read)
    ops.columns(updates, torch.tensor([500, 3, 509, 510, 999]))
    assert ranges == [(3, 4), (500, 510), (510, 511), (999, 1000)]


@given(dim=st.integers(1, 200), data=st.data(), seed=SEEDS)
def test_drawn_coordinates_are_different_and_seeded(dim, data, seed):
    count = data.draw(st.integers(1, dim))
    drawn = draw_coordinates(dim, count, torch.Generator().manual_seed(seed))
    assert len(set(drawn.tolist())) == count and int(drawn.min()) >= 0 and int(drawn.max()) < dim
    assert torch.equal(drawn, draw_coordinates(dim, count, torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(("dim", "count"), [(20, 3), (8, 5)])
def test_each_coordinate_is_drawn_as_often_as_any_other(dim, count):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([draw_coordinates(dim, count, generator) for _ in range(2000)])
    counted = torch.bincount(drawn, minlength=dim).double() / 2000
    assert (counted - count / dim).abs().max() < 5 * math.sqrt(count / dim / 2000)


# ---------------------------------------------------------------- Divide-and-Conquer


@given(
    clients=st.integers(2, 9),
    dim=st.integers(1, 5),
    seed=SEEDS,
    scale=st.sampled_from([1.0, 1e30, 1e-30]),
    data=st.data(),
)
def test_dnc(clients, dim, seed, scale, data):
    byzantine = data.draw(st.integers(0, clients - 1))
    matrix = generic(clients, dim, seed)
    expected = equations.dnc(matrix.tolist(), [list(range(dim))], byzantine)
    assume(expected.margin > CERTAIN)
    answer = ask(matrix * scale, "dnc", num_byzantine=byzantine)
    assert kept(answer) == expected.members
    assert_close(
        answer.update, [scale * x for x in mean_row([matrix[k].tolist() for k in expected.members])], 1e-12, scale
    )
    scores = equations.dnc_scores(matrix.tolist()).projections
    assert_close(answer.clients["score"] / scale**2, scores, 1e-6, max(scores))


@given(matrix=matrices(min_clients=2, max_dim=5, extremes=False), data=st.data())
def test_dnc_of_ties_zeros_and_repeated_rows(matrix, data):
    byzantine = data.draw(st.integers(0, len(matrix) - 1))
    answer = ask(matrix, "dnc", num_byzantine=byzantine)
    assert len(kept(answer)) == len(matrix) - byzantine
    assert_close(answer.update, mean_row([matrix[k].tolist() for k in kept(answer)]), 1e-12, size(matrix))
    axis = equations.dnc_scores(matrix.tolist())
    assume(axis.next < 1 - CERTAIN)
    dropped = [k for k in range(len(matrix)) if k not in kept(answer)]
    slack = 1e-7 * max(axis.projections)
    for out in dropped:
        assert all(axis.projections[out] >= axis.projections[k] - slack for k in kept(answer))


@given(seed=SEEDS, repeats=st.integers(1, 6), coordinates=st.integers(1, 4), byzantine=st.integers(1, 3))
def test_dnc_of_drawn_coordinates(seed, repeats, coordinates, byzantine):
    matrix = generic(8, 20, seed)
    generator = torch.Generator().manual_seed(seed)
    draws = [draw_coordinates(20, coordinates, generator).tolist() for _ in range(repeats)]
    expected = equations.dnc(matrix.tolist(), draws, byzantine)
    assume(expected.margin > CERTAIN)
    answer = ask(matrix, "dnc", seed=seed, num_byzantine=byzantine, repeats=repeats, coordinates=coordinates)
    assert kept(answer) == expected.members
    assert_close(answer.update, mean_row([matrix[k].tolist() for k in expected.members]), 1e-12, size(matrix))


def test_dnc_looks_at_the_spread_not_at_the_lengths():
    """Without centring, the longest row would be dropped: 101."""
    matrix = rows_of([100.0, 0], [101, 0], [99, 0], [100.5, 0], [90, 0])
    answer = ask(matrix, "dnc")
    assert kept(answer) == [0, 1, 2, 3] and answer.update.tolist() == [100.125, 0]


def test_dnc_keeps_those_that_were_kept_in_all_repeats():
    """One client is an outlier in one coordinate, one in the other: both are dropped. Kept in any repeat are all."""
    matrix = rows_of([9.0, 0.1], [0.1, 9], [0.3, 0.2], [0.2, 0.4], [0.4, 0.3])
    answer = ask(matrix, "dnc", repeats=20, coordinates=1)
    assert kept(answer) == [2, 3, 4]
    assert_close(answer.update, [0.3, 0.3], 1e-12)
    assert len(kept(ask(matrix, "dnc", repeats=1, coordinates=1))) == 4


def test_dnc_averages_those_kept_most_often_if_nobody_was_kept_always():
    matrix = rows_of([9.0, 0.1, 0.2], [0.1, 9, 0.3], [0.3, 0.2, 9])
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        dropped = [int(draw_coordinates(3, 1, generator)) for _ in range(31)]
        assert set(dropped) == {0, 1, 2}, "everybody was dropped once"
        times = [dropped.count(k) for k in range(3)]
        answer = ask(matrix, "dnc", seed=seed, repeats=31, coordinates=1)
        assert kept(answer) == [k for k in range(3) if times[k] == min(times)]


@pytest.mark.parametrize(("fraction", "byzantine", "dropped"), [(1.0, 2, 2), (0.5, 1, 1), (1.5, 2, 3), (0.29, 100, 29)])
def test_dnc_drops_a_fraction_rounded_up(fraction, byzantine, dropped):
    rule = fedseca.make_aggregator("dnc", num_byzantine=byzantine, filter_fraction=fraction)
    assert rule.min_clients() == dropped + 1
    matrix = generic(dropped + 4, 6, 1)
    assert len(kept(ask(matrix, "dnc", num_byzantine=byzantine, filter_fraction=fraction))) == 4


def test_dnc_holds_against_outliers_of_one_direction_where_the_mean_breaks():
    outliers = 1e6 * torch.ones(2, 20) * torch.tensor([[1.0], [1.3]])
    matrix = few_among(7, outliers)
    honest = matrix[:7].mean(dim=0)
    assert kept(ask(matrix, "dnc", num_byzantine=2)) == list(range(7))
    assert (ask(matrix, "dnc", num_byzantine=2).update - honest).norm() < 1e-9
    assert (ask(matrix, "fedavg").update - honest).norm() > 1e5


def test_dnc_has_no_bound():
    """One outlier turns the direction so that the other has no part in it; and what is not drawn is not seen."""
    assert fedseca.make_aggregator("dnc", num_byzantine=2).tolerates(10) == 0
    for length in (1e3, 1e6, 1e9):
        matrix = torch.cat([0.1 * generic(8, 2, 0), rows_of([10 * length, 0], [10 * length / 9, length])])
        answer = ask(matrix, "dnc", num_byzantine=2)
        assert 9 in kept(answer) and 8 not in kept(answer)
        assert answer.update.norm() > length / 10
    hidden = few_among(7, torch.zeros(1, 50))
    hidden[7, 0] = 1e9
    seed = next(s for s in range(99) if 0 not in draw_coordinates(50, 2, torch.Generator().manual_seed(s)))
    found = [kept(ask(hidden, "dnc", seed=s, coordinates=2)) for s in range(seed, seed + 20)]
    assert any(7 in members for members in found)


# ---------------------------------------------------------------- CAF


@given(
    clients=st.integers(1, 9),
    dim=st.integers(1, 5),
    seed=SEEDS,
    scale=st.sampled_from([1.0, 1e30, 1e-30]),
    data=st.data(),
)
def test_caf(clients, dim, seed, scale, data):
    byzantine = data.draw(st.integers(0, (clients - 1) // 2))
    matrix = generic(clients, dim, seed)
    expected = equations.caf(matrix.tolist(), byzantine)
    assume(expected.margin > CERTAIN)
    answer = ask(matrix * scale, "caf", num_byzantine=byzantine)
    assert_close(answer.clients["weight"], expected.weights, 1e-6, 1.0)
    assert_close(
        answer.update, [scale * x for x in combine(matrix.tolist(), expected.weights)], 1e-6, scale * size(matrix)
    )


@given(seed=SEEDS, byzantine=st.integers(1, 4), length=st.sampled_from([3.0, 30.0, 1e4]))
def test_caf_with_outliers(seed, byzantine, length):
    matrix = few_among(9 - byzantine, length * generic(byzantine, 4, seed + 1), seed)
    expected = equations.caf(matrix.tolist(), byzantine)
    assume(expected.margin > CERTAIN)
    answer = ask(matrix, "caf", num_byzantine=byzantine)
    assert_close(answer.clients["weight"], expected.weights, 1e-6, 1.0)


@given(matrix=matrices(), data=st.data())
def test_caf_of_ties_zeros_repeated_rows_and_extremes(matrix, data):
    """Whatever comes: weights that sum to 1, a result that is their sum, and at most K turns."""
    byzantine = data.draw(st.integers(0, (len(matrix) - 1) // 2))
    answer = ask(matrix, "caf", num_byzantine=byzantine)
    weight = answer.clients["weight"]
    assert weight.sum() == pytest.approx(1) and (weight >= 0).all()
    assert_close(answer.update, combine(matrix.tolist(), weight.tolist()), 1e-12, size(matrix))


def test_caf_by_hand():
    """μ = 2, λ = 16, τ = 4 and 64, so c = 15/16 four times and 0; then λ = 0."""
    answer = ask(rows_of([0.0], [0.0], [10.0], [0.0], [0.0]), "caf")
    assert answer.clients["weight"].tolist() == [0.25, 0.25, 0, 0.25, 0.25] and answer.update.tolist() == [0]
    # the example of ByzFL's documentation
    assert_close(ask(rows_of([1.0, 2, 3], [4, 5, 6], [7, 8, 9]), "caf").update, [4.0, 5, 6], 1e-12)


def test_caf_of_no_byzantine_clients_is_the_mean():
    matrix = generic(5, 4, 0)
    assert ask(matrix, "caf", num_byzantine=0).clients["weight"].tolist() == [0.2] * 5


def test_caf_answers_with_the_least_spread_not_with_the_last_weights():
    told_apart = 0
    for seed in range(60):
        matrix = generic(9, 4, seed)
        expected = equations.caf(matrix.tolist(), 3)
        if expected.margin < CERTAIN:
            continue
        told_apart += max(abs(a - b) for a, b in zip(expected.weights, expected.last, strict=True)) > 0.01
        assert_close(ask(matrix, "caf", num_byzantine=3).clients["weight"], expected.weights, 1e-6, 1.0)
    assert told_apart > 3


def test_caf_goes_on_after_a_far_client_is_out():
    """If the maximum of τ were over clients without weight too, one far away would stop all others from losing any."""
    matrix = few_among(8, 1e9 * generic(1, 6, 3))
    expected = equations.caf(matrix.tolist(), 3)
    assert expected.turns <= 9 and expected.weights[8] == 0
    answer = ask(matrix, "caf", num_byzantine=3)
    assert answer.clients["weight"][8] == 0
    assert (answer.update - matrix[:8].mean(dim=0)).norm() < 5


def test_close_clients_keep_their_digits_in_caf():
    """What sets clients apart is 1e-9 of their length: dot products of the rows themselves would have lost it."""
    spread = generic(7, 4, 2)
    matrix = 1e6 + 1e-3 * spread
    exact = [[x - 1e6 for x in row] for row in matrix.tolist()]
    expected = equations.caf(exact, 2)
    assert expected.margin > 1e-4
    assert_close(ask(matrix, "caf", num_byzantine=2).clients["weight"], expected.weights, 1e-4, 1.0)


@pytest.mark.parametrize("byzantine", [1, 2, 3, 5])
def test_caf_holds_what_it_claims(byzantine):
    rule = fedseca.make_aggregator("caf", num_byzantine=byzantine)
    assert rule.min_clients() == 2 * byzantine + 1
    assert rule.tolerates(2 * byzantine) == 0 and rule.tolerates(2 * byzantine + 1) == byzantine
    small, large = outlier_errors(rule) or (math.inf, math.inf)
    assert small < 50 and large < 50
    broken = outlier_errors(fedseca.make_aggregator("fedavg"), byzantine) or (0, 0)
    assert broken[0] > 1e4


# ---------------------------------------------------------------- SignGuard


@given(
    clients=st.integers(1, 8),
    seed=SEEDS,
    scale=st.sampled_from([1.0, 1e30, 1e-30]),
    fraction=st.sampled_from([0.1, 0.3, 1.0]),
)
def test_signguard(clients, seed, scale, fraction):
    matrix = generic(clients, 30, seed)
    rng = np.random.default_rng(seed)
    matrix = matrix * torch.from_numpy(rng.choice([0.05, 0.5, 1.0, 2.0, 4.0], size=(clients, 1)))
    matrix[torch.from_numpy(rng.random((clients, 30)) < 0.1)] = 0
    matrix[torch.from_numpy(rng.random(clients) < 0.3)] *= -1
    drawn = draw_coordinates(30, math.ceil(30 * fraction - 1e-9), torch.Generator().manual_seed(seed)).tolist()
    expected = equations.signguard(matrix.tolist(), drawn)
    assume(expected.margin > CERTAIN)
    answer = ask(matrix * scale, "signguard", seed=seed, fraction=fraction)
    usual = lower_median([norm(row) for row in matrix.tolist()])
    mean = equations.clipped_mean(matrix.tolist(), expected.members, usual)
    assert kept(answer) == expected.members
    assert_close(answer.update, [scale * x for x in mean], 1e-12, scale * size(matrix))
    positive = [share[0] for share in equations.sign_shares(matrix.tolist(), drawn)]
    assert_close(answer.clients["positive"], positive, 1e-12)


@given(count=st.integers(2, 25), seed=SEEDS, quantile=st.sampled_from([0.2, 0.5, 0.8]))
def test_the_largest_cluster_of_mean_shift(count, seed, quantile):
    """Some points are there twice, some lie far from all others, some in a second cloud."""
    rng = np.random.default_rng(seed)
    points = 0.2 * rng.random((count, 3)) + np.repeat(rng.random((5, 3)), 5, axis=0)[rng.permutation(25)[:count]]
    points[rng.random(count) < 0.2] = points[0]
    expected = equations.mean_shift(points.tolist(), quantile)
    assume(expected.margin > CERTAIN)
    assert largest_cluster(points, quantile).nonzero()[0].tolist() == expected.members


def signs(positive: int, negative: int, length: float, zero: int = 0) -> list[float]:
    values = [1.0] * positive + [-1.0] * negative + [0.0] * zero
    return [length / norm(values) * x for x in values]


def test_signguard_leaves_out_other_signs_and_other_lengths():
    """The turned one, the one four times as long and the one a twentieth as long; three times as long is clipped."""
    matrix = rows_of(
        *[signs(7, 3, length) for length in (1.0, 1.0, 1.0, 1.0, 3.0)],
        signs(3, 7, 1),
        signs(7, 3, 4),
        signs(7, 3, 0.05),
    )
    answer = ask(matrix, "signguard", fraction=1.0)
    assert kept(answer) == [0, 1, 2, 3, 4]
    assert_close(answer.clients["weight"], [0.2] * 4 + [0.2 / 3, 0, 0, 0], 1e-12)
    assert_close(answer.clients["clip_factor"], [1, 1, 1, 1, 1 / 3, 1, 0.25, 1], 1e-12)
    assert_close(answer.clients["positive"], [0.7] * 5 + [0.3, 0.7, 0.7], 1e-12)
    assert_close(answer.update, signs(7, 3, 1), 1e-12)


def test_signguard_counts_zeros_apart():
    matrix = rows_of(*[signs(6, 4, 1)] * 5, signs(6, 0, 1, zero=4))
    assert kept(ask(matrix, "signguard", fraction=1.0)) == [0, 1, 2, 3, 4]


def test_signguard_without_anybody_in_both_sets_looks_at_lengths_alone():
    matrix = rows_of(*[signs(10, 0, 100)] * 3, *[signs(p, 10 - p, 1) for p in (0, 2, 4, 6)])
    assert kept(ask(matrix, "signguard", fraction=1.0)) == [3, 4, 5, 6]


def test_signguard_of_equal_shares_of_signs():
    """Two clouds without any extent: there is no bandwidth, and only equal points belong together."""
    matrix = rows_of(*[signs(7, 3, 1)] * 3, *[signs(3, 7, 1)] * 4)
    assert kept(ask(matrix, "signguard", fraction=1.0)) == [3, 4, 5, 6]


def test_signguard_draws_its_coordinates():
    """Half of the coordinates tell the turned clients apart, half do not."""
    honest = torch.ones(5, 40, dtype=torch.float64)
    turned = honest[:2].clone()
    turned[:, 20:] *= -1
    matrix = torch.cat([honest, turned])
    found = {tuple(kept(ask(matrix, "signguard", seed=seed, fraction=0.025))) for seed in range(20)}
    assert found == {(0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6)}
    assert kept(ask(matrix, "signguard", fraction=0.5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("bandwidth", "fewest"), [(0.5, 4), (0.3, 7), (0.4, 5)])
def test_signguard_asks_the_signs_where_there_is_a_neighbour_within_its_bandwidth(bandwidth, fewest):
    """With fewer clients everybody would be a cluster alone, and the first of them the whole answer."""
    rows = rows_of(signs(39, 1, 1.0), *[signs(20, 20, 1.0)] * (fewest - 1))
    asked = {"fraction": 1.0, "bandwidth": bandwidth}
    assert kept(ask(rows, "signguard", **asked)) == list(range(1, fewest))
    assert kept(ask(rows[:-1], "signguard", **asked)) == list(range(fewest - 1))


# ---------------------------------------------------------------- clustering


@given(linkage=LINKAGES, matrix=matrices(min_clients=3, max_clients=7, max_dim=5))
def test_clustering(linkage, matrix):
    expected = equations.larger_group(equations.cosine_distances(matrix.tolist()), linkage)
    assume(expected.margin > CERTAIN)
    answer = ask(matrix, "clustering", linkage=linkage)
    assert kept(answer) == expected.members
    assert_close(answer.update, mean_row([matrix[k].tolist() for k in expected.members]), 1e-12, size(matrix))


@given(linkage=LINKAGES, clients=st.integers(1, 9), seed=SEEDS)
def test_clustering_of_generic_clients(linkage, clients, seed):
    matrix = generic(clients, 3, seed)
    expected = equations.larger_group(equations.cosine_distances(matrix.tolist()), linkage) if clients > 1 else None
    assume(expected is None or expected.margin > CERTAIN)
    assert kept(ask(matrix, "clustering", linkage=linkage)) == (expected.members if expected else [0])


def test_clustering_by_hand():
    """Honest directions around (1, 0) and two turned ones, of any length."""
    matrix = rows_of([1.0, 0.1], [1e6, 3e6], [2, 0.1], [-1, 3], [1, -0.2])
    answer = ask(matrix, "clustering")
    assert answer.clients["weight"].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
    assert_close(answer.update, [4 / 3, 0], 1e-12, 1.0)
    assert ask(matrix, "fedavg").update.norm() > 1e5


def test_of_two_groups_of_the_same_size_that_of_the_first_id_is_taken():
    matrix = rows_of([1.0, 0], [-1, 0.1], [1, 0.1], [-1, 0])
    for rule in ("clustering", "clipped_clustering"):
        assert kept(ask(matrix, rule)) == [0, 2]
        made = fedseca.make_aggregator(rule)
        updates = Updates.collect(matrix, ["b", "a", "d", "c"])
        answer = made.aggregate(updates, made.init(2), torch.Generator())
        assert kept(answer) == [1, 3], "the order of the ids decides, not that of the rows"


def test_similarities_are_no_distances():
    """A public program clusters the cosines as if they were distances: it would join what is most unlike."""
    told_apart = 0
    for seed in range(40):
        matrix = generic(7, 3, seed)
        distances = equations.cosine_distances(matrix.tolist())
        expected = equations.larger_group(distances, "single")
        wrong = equations.larger_group([[1 - d for d in row] for row in distances], "single")
        told_apart += expected.members != wrong.members
        assert expected.margin < CERTAIN or kept(ask(matrix, "clustering")) == expected.members
    assert told_apart > 20


def test_linkages_part_and_single_linkage_is_the_papers_equation():
    """min over all splits of max cos across: of the splits, single linkage finds one that nothing is better than."""
    told_apart = set()
    for seed in range(40):
        rows = generic(7, 3, seed)
        distances = equations.cosine_distances(rows.tolist())
        split = kept(ask(rows, "clustering", linkage="single"))
        across = min(distances[i][j] for i in split for j in range(7) if j not in split)
        assert across == pytest.approx(equations.least_similar_split(distances), rel=1e-9)
        others = [tuple(kept(ask(rows, "clustering", linkage=linkage))) for linkage in ("complete", "average")]
        told_apart |= {("complete", others[0] == tuple(split)), ("average", others[1] == tuple(split))}
        told_apart |= {("both", others[0] == others[1])}
    assert len(told_apart) == 6, "each pair of linkages agrees on some matrices and parts on others"


def test_clustering_has_no_bound_and_clipping_gives_one():
    matrix = few_among(6, generic(6, 5, 0)[:1] * 1e9)
    assert ask(matrix, "clustering").update.norm() > 1e7, "a long row of an honest direction"
    assert ask(matrix, "clipped_clustering").update.norm() < 10


@given(linkage=LINKAGES, matrix=matrices(min_clients=3, max_clients=7, max_dim=5), data=st.data())
def test_clipped_clustering(linkage, matrix, data):
    past = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e6]), max_size=12))
    rows = matrix.tolist()
    expected = equations.larger_group(equations.cosine_distances(rows), linkage)
    assume(expected.margin > CERTAIN)
    state = {"norms": torch.tensor(past, dtype=torch.float64)[:, None]}
    answer = ask(matrix, "clipped_clustering", state, linkage=linkage)
    radius = lower_median([*past, *(norm(row) for row in rows)])
    assert_close(answer.update, equations.clipped_mean(rows, expected.members, radius), 1e-9, min(radius, size(matrix)))
    assert_close(answer.state["norms"][:, 0], [*past, *(norm(row) for row in rows)], 1e-12)
    if radius > 0:
        assert kept(answer) == expected.members


def test_clipped_clustering_remembers_the_norms_of_all_rounds():
    server = fedseca.Server("clipped_clustering")
    direction = rows_of([3.0, 4.0]) / 5
    first = server.aggregate(torch.cat([direction, 2 * direction, 3 * direction]), ["a", "b", "c"])
    assert first.diagnostics["clip_factor"].tolist() == pytest.approx([1, 1, 2 / 3])
    second = server.aggregate(torch.cat([10 * direction] * 4), ["d", "a", "b", "c"])
    # 1 2 3 10 10 10 10: of this round alone nothing would be clipped
    assert second.diagnostics["clip_factor"].tolist() == pytest.approx([1] * 4)
    third = server.aggregate(torch.cat([direction / 10] * 6), list("abcdef"))
    fourth = server.aggregate(torch.cat([10 * direction] * 3), ["a", "b", "c"])
    assert third.diagnostics["clip_factor"].tolist() == [1] * 6
    # six times 0.1, 1, 2, 3, seven times 10: the eighth of sixteen is 2
    assert fourth.diagnostics["clip_factor"].tolist() == pytest.approx([0.2] * 3)
    assert len(server.state_dict()["state"]["norms"]) == 16


def test_clipped_clustering_forgets_the_norms_of_rounds_long_past():
    """Rounds of a few clients of lengths 1, 2, 3 …: with a window of two the first round is gone in the third."""
    direction, lengths = rows_of([3.0, 4.0]) / 5, iter(range(1, 100))
    remembered = []
    server = fedseca.Server("clipped_clustering", window=2)
    for count in (1, 2, 3, 1, 1):
        server.aggregate(torch.cat([next(lengths) * direction for _ in range(count)]), list("abc")[:count])
        remembered.append(server.state_dict()["state"]["norms"].flatten().tolist())
    expected = [[1], [1, 2, 3], [2, 3, 4, 5, 6], [4, 5, 6, 7], [7, 8]]
    assert [pytest.approx(each) for each in expected] == remembered
    assert fedseca.make_aggregator("clipped_clustering").values(complete=True)["window"] == 1000


# ---------------------------------------------------------------- FLAME


@given(matrix=matrices())
def test_flame(matrix):
    rows = matrix.tolist()
    distances = [
        [d if i == j else max(d, 1e-12) for j, d in enumerate(row)]
        for i, row in enumerate(equations.cosine_distances(rows))
    ]
    expected = equations.majority(distances)
    assume(expected.margin > CERTAIN)
    usual = lower_median([norm(row) for row in rows])
    answer = ask(matrix, "flame")
    assert_close(answer.update, equations.clipped_mean(rows, expected.members, usual), 1e-9, min(usual, size(matrix)))
    if usual > 0:
        assert kept(answer) == expected.members


@given(clients=st.integers(1, 14), seed=SEEDS)
def test_flame_of_generic_clients(clients, seed):
    matrix = generic(clients, 6, seed)
    expected = equations.majority(equations.cosine_distances(matrix.tolist()))
    assume(expected.margin > CERTAIN)
    answer = ask(matrix, "flame")
    assert kept(answer) == expected.members and len(expected.members) > clients // 2


def test_flame_by_hand():
    """Five clients within a few degrees, one of them long; four that are apart, two of them exactly alike."""
    angles = [0, 1, 2, 3, 4, 40, 40, 90, 180]
    lengths = [1, 1, 1, 1, 8, 1, 1, 2, 2]
    matrix = rows_of(
        *[[r * math.cos(math.radians(a)), r * math.sin(math.radians(a))] for a, r in zip(angles, lengths, strict=True)]
    )
    answer = ask(matrix, "flame")
    assert_close(answer.clients["weight"], [0.2] * 4 + [0.2 / 8] + [0] * 4, 1e-12, 1.0)
    assert_close(answer.clients["clip_factor"], [1] * 4 + [1 / 8, 1, 1, 0.5, 0.5], 1e-12)
    mean = [sum(f(math.radians(a)) for a in angles[:5]) / 5 for f in (math.cos, math.sin)]
    assert_close(answer.update, mean, 1e-12)


def test_flame_holds_where_the_mean_breaks():
    matrix = few_among(6, -1e6 * torch.ones(5, 20))
    honest = matrix[:6].mean(dim=0)
    assert set(kept(ask(matrix, "flame"))) == set(range(6))
    assert (ask(matrix, "flame").update - honest).norm() < 3
    assert (ask(matrix, "fedavg").update - honest).norm() > 1e5


def test_the_noise_of_flame_is_measured_by_the_median_norm():
    matrix = generic(5, 20_000, 0)
    plain = ask(matrix, "flame").update
    usual = lower_median(matrix.norm(dim=1).tolist())
    noises = [(ask(matrix, "flame", seed=seed, noise=0.01).update - plain) / (0.01 * usual) for seed in (0, 0, 1)]
    for noise in noises:
        assert abs(float(noise.mean())) < 0.03 and abs(float(noise.std()) - 1) < 0.03
    assert torch.equal(noises[0], noises[1]) and not torch.equal(noises[0], noises[2])
    for dtype in (torch.bfloat16, torch.float32):
        assert ask(matrix.to(dtype), "flame", noise=0.01).update.dtype == dtype


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("rule", ["clustering", "clipped_clustering", "flame"])
def test_a_missing_library_is_named(monkeypatch, rule):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(fedseca.FedsecaError, match=rf"{rule} needs scikit-learn: pip install 'fedseca\[detectors\]'"):
        fedseca.aggregate(generic(5, 4, 0), rule=rule)


@pytest.mark.parametrize(
    "rule",
    ["bulyan", "caf", "cge", "clipped_clustering", "clustering", "dnc", "flame", "foundationfl", "mda", "signguard"],
)
def test_who_answered_first_changes_not_one_bit(rule):
    """Ties too: some rows are there twice, some are turned."""
    base = generic(5, 12, 4)
    updates = Updates.collect(torch.cat([base, base[:2], -base[:2]]), [f"{k}" for k in range(9)])
    made = fedseca.make_aggregator(rule)
    for seed in range(4):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
        straight, shuffled = (
            made.aggregate(each, made.init(12), torch.Generator().manual_seed(seed))
            for each in (updates, updates.select(order))
        )
        assert torch.equal(straight.update, shuffled.update)
        for name, values in straight.diagnostics.items():
            assert torch.equal(values[order], shuffled.diagnostics[name]), name
