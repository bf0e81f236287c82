"""The other thirteen rules against their oracles."""

import itertools
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import fedseca
from fedseca.aggregators import Aggregation
from fedseca.aggregators.fldetector import FLDetector, _has_clusters, _two_means, expected_change, hessian_product
from fedseca.updates import Updates
from tests.oracle import equations
from tests.oracle.matrices import assert_close, generic, matrices

CLIENTS, SEEDS = st.integers(1, 12), st.integers(0, 10_000)


def ask(matrix: torch.Tensor, rule: str, state=None, seed: int = 0, weights=None, **parameters) -> Aggregation:
    made = fedseca.make_aggregator(rule, **parameters)
    ids = [f"{k:03d}" for k in range(len(matrix))]
    updates = Updates.collect(matrix, ids, weights=weights)
    return made.aggregate(updates, state or made.init(updates.dim), torch.Generator().manual_seed(seed))


def size(matrix: torch.Tensor) -> float:
    """The largest magnitude: what an error of a rule over whole vectors is measured by."""
    return float(matrix.double().abs().max())


@given(matrix=matrices())
def test_fedavg(matrix):
    assert_close(ask(matrix, "fedavg").update, equations.fedavg(matrix.tolist()), 1e-12, size(matrix))


@given(matrix=matrices(), data=st.data())
def test_fedavg_with_weights(matrix, data):
    weights = [data.draw(st.floats(0.01, 1e6)) for _ in matrix]
    alpha = [w / math.fsum(weights) for w in weights]
    answer = ask(matrix, "fedavg", weights=weights)
    assert_close(answer.update, equations.fedavg(matrix.tolist(), alpha), 1e-12, size(matrix))
    assert_close(answer.clients["weight"], alpha, 1e-12)


@given(matrix=matrices())
def test_cwmed(matrix):
    answer = ask(matrix, "cwmed")
    assert answer.update.tolist() == equations.cwmed(matrix.tolist())
    hits = [sum(x == m for x, m in zip(row, answer.update.tolist(), strict=True)) for row in matrix.tolist()]
    assert_close(answer.clients["weight"], [h / sum(hits) for h in hits], 1e-12)


@given(matrix=matrices())
def test_cwmed_of_the_two_middle_values(matrix):
    """NumPy's convention, and that of most other libraries: for an odd number of clients there is one."""
    answer = ask(matrix, "cwmed", even="mean")
    scale = matrix.abs().max(dim=0).values
    assert_close(answer.update, [statistics.median(column) for column in matrix.T.tolist()], 1e-12, scale)
    if len(matrix) % 2:
        assert answer.update.tolist() == equations.cwmed(matrix.tolist())


@given(matrix=matrices(), trim=st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.45, 0.49]))
def test_cwtm(matrix, trim):
    scale = matrix.abs().max(dim=0).values
    answer = ask(matrix, "cwtm", trim=trim)
    assert_close(answer.update, equations.cwtm(matrix.tolist(), trim), 1e-12, scale)
    cut = math.floor(trim * len(matrix) + 1e-9)
    columns = [sorted(column) for column in matrix.T.tolist()]
    inner = [(column[cut], column[len(column) - 1 - cut]) for column in columns]
    hits = [sum(lo <= x <= hi for x, (lo, hi) in zip(row, inner, strict=True)) for row in matrix.tolist()]
    assert_close(answer.clients["weight"], [h / sum(hits) for h in hits], 1e-12)


def test_cwtm_trims_what_the_share_says_whatever_rounding_does():
    row = torch.arange(100.0, dtype=torch.float64)[:, None]
    row[:29], row[-29:] = -1e9, 1e9
    assert ask(row, "cwtm", trim=0.29).update == 49.5  # 0.29·100 is 28.999999999999996


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
@given(matrix=matrices(min_clients=4), data=st.data())
def test_krum(rule, matrix, data):
    count = len(matrix)
    byzantine = data.draw(st.integers(0, count - 3))
    select = 1 if rule == "krum" else data.draw(st.none() | st.integers(1, count))
    parameters = {} if rule == "krum" else {"select": select}
    answer = ask(matrix, rule, num_byzantine=byzantine, **parameters)
    scores = equations.krum_scores(matrix.tolist(), byzantine)
    assert_close(answer.clients["score"], scores, 1e-9)
    # Equal scores may be told apart by rounding: whoever was taken must be among the best.
    taken = [k for k in range(count) if answer.clients["weight"][k] > 0]
    number = select or count - byzantine
    assert len(taken) == number
    assert max(scores[k] for k in taken) <= sorted(scores)[number - 1] * (1 + 1e-9)
    assert_close(answer.update, equations.fedavg([matrix[k].tolist() for k in taken]), 1e-12, size(matrix))


def test_krum_where_public_implementations_part():
    """Σd, Σd² and Σd⁴, over K−B−2 or K−B−1 neighbours, choose four different clients here; the equation chooses one."""
    generator = torch.Generator().manual_seed(0)
    told_apart = 0
    for _ in range(200):
        matrix = torch.randn(8, 3, generator=generator, dtype=torch.float64)
        distances = torch.cdist(matrix, matrix).fill_diagonal_(math.inf).sort(dim=1).values
        chosen = {int((distances[:, :n] ** p).sum(dim=1).argmin()) for n in (4, 5) for p in (1, 2, 4)}
        told_apart += len(chosen) > 1
        assert ask(matrix, "krum", num_byzantine=2).update.tolist() == equations.krum(matrix.tolist(), 2, 1)
    assert told_apart > 50


@given(matrix=matrices(), iterations=st.integers(1, 5))
def test_rfa(matrix, iterations):
    expected = equations.rfa(matrix.tolist(), iterations)
    found = ask(matrix, "rfa", iterations=iterations).update
    # A client within rounding of the centre has a weight that rounding decides.
    mean = matrix.double().mean(dim=0)
    near = (matrix.double() - mean).norm(dim=1)
    assume(bool(((near > 1e-6 * size(matrix)) | (near == 0)).all()) or size(matrix) == 0)
    assert_close(found, expected, 1e-6, size(matrix))


@given(clients=CLIENTS, seed=SEEDS)
def test_rfa_on_generic_clients(clients, seed):
    matrix = generic(clients, 7, seed)
    answer = ask(matrix, "rfa")
    assert_close(answer.update, equations.rfa(matrix.tolist()), 1e-10, size(matrix))
    assert_close(answer.clients["weight"] @ matrix, answer.update.tolist(), 1e-12, size(matrix))


@given(matrix=matrices(), threshold=st.sampled_from([0.2, 5.0, 1e6]))
def test_huber(matrix, threshold):
    expected = equations.huber(matrix.tolist(), threshold)
    found = ask(matrix, "huber", threshold=threshold).update
    # It rests within 1e-6·τ; the two may rest one iteration apart.
    assert_close(found, expected, 1e-6, max(size(matrix), threshold))


@given(clients=CLIENTS, seed=SEEDS)
def test_huber_on_generic_clients(clients, seed):
    matrix = generic(clients, 7, seed)
    answer = ask(matrix, "huber")
    assert_close(answer.update, equations.huber(matrix.tolist()), 1e-6, size(matrix))
    assert_close(answer.clients["weight"] @ matrix, answer.update.tolist(), 1e-12, size(matrix))


@given(clients=CLIENTS, seed=SEEDS, threshold=st.sampled_from([0.2, 1.0, 100.0]))
def test_huber_rests_where_the_loss_has_no_slope(clients, seed, threshold):
    """Σ_k Φ'(‖c − g_k‖)·(c − g_k)/‖c − g_k‖ = Σ_k min[1, τ/‖c − g_k‖]·(c − g_k) = 0"""
    matrix = generic(clients, 7, seed)
    centre = ask(matrix, "huber", threshold=threshold, iterations=5000, tolerance=1e-12).update
    offsets = centre - matrix
    lengths = offsets.norm(dim=1, keepdim=True)
    assume(bool((lengths > 1e-3).all()))  # at a client itself the slope jumps where τ is small
    slope = (offsets * (threshold / lengths).clamp(max=1)).sum(dim=0)
    assert float(slope.norm()) < 1e-5 * threshold * clients


@given(matrix=matrices(), radius=st.sampled_from([0.5, 100.0]), iterations=st.integers(1, 4), data=st.data())
def test_cclip(matrix, radius, iterations, data):
    centre = data.draw(st.sampled_from([0.0, 1.0, -50.0])) * torch.ones(matrix.shape[1], dtype=torch.float64)
    found = ask(matrix, "cclip", {"centre": centre}, radius=radius, iterations=iterations).update
    expected = equations.cclip(matrix.tolist(), centre.tolist(), radius, iterations)
    assert_close(found, expected, 1e-9, min(size(matrix), iterations * radius) + float(centre.abs().max()))


def buckets_of(answer: Aggregation) -> list[list[int]]:
    bucket = answer.clients["bucket"].long().tolist()
    return [[k for k, b in enumerate(bucket) if b == index] for index in range(max(bucket) + 1)]


@pytest.mark.parametrize("bucket_size", [1, 2, 3])
@given(matrix=matrices(), seed=SEEDS, radius=st.sampled_from([1.0, 100.0]))
def test_cc_randbucket(bucket_size, matrix, seed, radius):
    clients, centre = len(matrix), generic(1, matrix.shape[1], seed)[0]
    answer = ask(matrix, "cc_randbucket", {"centre": centre}, seed, radius=radius, bucket_size=bucket_size)
    buckets = buckets_of(answer)
    full, rest = divmod(clients, bucket_size)
    assert [len(b) for b in buckets] == [bucket_size] * full + [rest] * (rest > 0)
    expected = equations.cc_randbucket(matrix.tolist(), centre.tolist(), buckets, radius)
    scale = size(matrix) + size(centre)
    assert_close(answer.update, expected, 1e-10, scale)
    combined = answer.clients["weight"] @ matrix + (1 - answer.clients["weight"].sum()) * centre
    assert_close(combined, expected, 1e-10, scale)


def test_random_buckets_are_random_and_seeded():
    matrix = generic(8, 5, 0)
    drawn = [tuple(map(tuple, buckets_of(ask(matrix, "cc_randbucket", seed=seed)))) for seed in range(20)]
    assert len(set(drawn)) > 15
    assert drawn == [tuple(map(tuple, buckets_of(ask(matrix, "cc_randbucket", seed=seed)))) for seed in range(20)]


@pytest.mark.parametrize("bucket_size", [1, 2, 3])
@given(matrix=matrices(), seed=SEEDS, radius=st.sampled_from([1.0, 100.0]), first=st.booleans())
def test_cc_seqbucket(bucket_size, matrix, seed, radius, first):
    clients = len(matrix)
    centre = generic(1, matrix.shape[1], seed)[0] * (not first)
    answer = ask(matrix, "cc_seqbucket", {"centre": centre}, seed, radius=radius, bucket_size=bucket_size)
    buckets = buckets_of(answer)
    groups = equations.sequential_groups(matrix.tolist(), centre.tolist(), bucket_size)
    assert len(buckets) == math.ceil(clients / bucket_size)
    cosines = [equations.signed_squared_cosine(g, centre.tolist()) for g in matrix.tolist()]
    told_apart = first or min((abs(a - b) for a, b in itertools.pairwise(sorted(cosines)) if a != b), default=1) > 1e-9
    for bucket in buckets if told_apart and len(set(cosines)) == len(cosines) else ():
        # one client from each group, where there is one left
        owners = [next(s for s, group in enumerate(groups) if k in group) for k in bucket]
        assert len(set(owners)) == len(owners)
    # The order within a bucket does not matter to clipping.
    expected = equations.cc_seqbucket(matrix.tolist(), centre.tolist(), buckets, radius)
    scale = size(matrix) + size(centre)
    assert_close(answer.update, expected, 1e-10, scale)
    combined = answer.clients["weight"] @ matrix + (1 - answer.clients["weight"].sum()) * centre
    assert_close(combined, expected, 1e-10, scale)


@given(clients=CLIENTS, seed=SEEDS, repeat=st.booleans(), zero=st.booleans())
def test_copod_dos(clients, seed, repeat, zero):
    matrix = generic(clients, 5, seed) * 10.0 ** (seed % 61 - 30)
    if repeat and clients > 2:
        matrix[1] = matrix[0]
    if zero:
        matrix[-1] = 0
    # COPOD looks at the sign of a column's skewness: where it is almost 0, rounding decides.
    for distances in equations.distance_matrices(matrix.tolist()):
        assume(all(b == 0 or abs(b) > 1e-6 for b in equations.skewnesses(distances)))
    expected, weights = equations.copod_dos(matrix.tolist())
    answer = ask(matrix, "copod_dos")
    assert_close(answer.clients["weight"], weights, 1e-8)
    assert_close(answer.update, expected, 1e-8, size(matrix))


def test_copod_dos_gives_an_outlier_less_weight():
    matrix = generic(8, 20, 3)
    matrix[2] *= -30
    weight = ask(matrix, "copod_dos").clients["weight"]
    assert weight.argmin() == 2 and weight[2] < weight.sort().values[1] / 2


@given(matrix=matrices(), sparsity=st.sampled_from([0.0, 0.5, 0.9]))
def test_ties(matrix, sparsity):
    scale = matrix.abs().max(dim=0).values
    assert_close(ask(matrix, "ties", sparsity=sparsity).update, equations.ties(matrix.tolist(), sparsity), 1e-12, scale)


# --- fldetector: several rounds ----------------------------------------------------------------------------------


def training(clients: int, rounds: int, seed: int, liars: int = 0) -> list[torch.Tensor]:
    """Updates of clients that descend a quadratic bowl, so that curvature tells the next update; liars send noise."""
    rng = torch.Generator().manual_seed(seed)
    curvature = torch.rand(6, generator=rng, dtype=torch.float64) * 0.5 + 0.1
    optima = torch.randn(clients, 6, generator=rng, dtype=torch.float64)
    w, updates = torch.full((6,), 5.0, dtype=torch.float64), []
    for _ in range(rounds):
        g = curvature * (w - optima)
        if liars:
            g[-liars:] = 3 * torch.randn(liars, 6, generator=rng, dtype=torch.float64)
        updates.append(g)
        w = w - g[: clients - liars].mean(dim=0)
    return updates


@given(clients=st.integers(1, 6), seed=SEEDS, window=st.integers(1, 5))
def test_fldetector_scores(clients, seed, window):
    server = fedseca.Server("fldetector", window=window)
    aggregates: list[list[float]] = []
    history: list[list[float]] = []
    previous = None
    for matrix in training(clients, 8, seed):
        noisy = matrix + 0.05 * generic(clients, 6, seed)
        out = server.aggregate(noisy)
        if len(aggregates) >= 2 and previous is not None:
            history.append(equations.fldetector_distances(previous, noisy.tolist(), aggregates[-window - 1 :]))
            recent = history[-window:]
            expected = [math.fsum(d[k] for d in recent) / len(recent) for k in range(clients)]
            assert_close(out.clients["score"], expected, 1e-5)
        else:
            assert out.clients["score"].isnan().all() and not out.suspects
        kept = [noisy[k].tolist() for k in range(clients) if str(k) not in out.suspects]
        assert_close(out.update, equations.fedavg(kept), 1e-12, size(noisy))
        aggregates.append(out.update.tolist())
        previous = noisy.tolist()


@given(values=st.lists(st.floats(0, 1), min_size=3, max_size=9), seed=SEEDS)
def test_two_means_is_the_best_split_of_the_numbers(values, seed):
    ordered = sorted(values)
    assume(ordered[-1] - ordered[0] > 1e-3)

    def spread(numbers: list[float]) -> float:
        return math.fsum((x - math.fsum(numbers) / len(numbers)) ** 2 for x in numbers)

    best = min(spread(ordered[:cut]) + spread(ordered[cut:]) for cut in range(1, len(ordered)))
    found, labels = _two_means(np.array(ordered), torch.Generator().manual_seed(seed))
    assert found == pytest.approx(best, rel=1e-6, abs=1e-9)
    halves = [[x for x, label in zip(ordered, labels, strict=True) if label == side] for side in (0, 1)]
    assert spread(halves[0]) + spread(halves[1]) == pytest.approx(best, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "clusters"),
    [
        ([0.0, 0.01, 0.02, 0.03, 0.98, 0.99, 1.0], True),
        ([0.0, 0.02, 0.03, 0.01, 0.02, 1.0], True),
        ([0.0, 0.15, 0.3, 0.42, 0.58, 0.7, 0.86, 1.0], False),
    ],
)
def test_the_gap_statistic_sees_clusters_where_there_are_some(values, clusters):
    for seed in range(5):
        assert _has_clusters(np.array(values), 20, torch.Generator().manual_seed(seed)) is clusters


def dense_bfgs(pairs):
    """B from its recursion, entry by entry; pairs without positive curvature are left out."""
    curved = [(s, y) for s, y in pairs if s @ y > 0]
    s, y = curved[-1]
    matrix = (y @ s) / (s @ s) * np.eye(len(s))
    for s, y in curved:
        image = matrix @ s
        matrix = matrix - np.outer(image, image) / (s @ image) + np.outer(y, y) / (y @ s)
    return matrix


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
@pytest.mark.parametrize("seed", range(4))
def test_the_expected_change_is_that_of_the_dense_bfgs_matrix(seed, scale):
    generator = np.random.default_rng(seed)
    root = generator.standard_normal((7, 7))
    # Gradients of a quadratic, with a step against the curvature among them, and one that does not move.
    steps = generator.standard_normal((6, 7))
    changes = steps @ (root @ root.T + np.eye(7))
    changes[2] *= -1
    steps[4] = 0.0
    vectors = scale * np.concatenate([steps, changes, generator.standard_normal((1, 7))])
    unit = torch.eye(len(vectors), dtype=torch.float64)
    found = hessian_product([(unit[k], unit[6 + k]) for k in range(6)], unit[-1], torch.from_numpy(vectors @ vectors.T))
    expected = dense_bfgs(list(zip(vectors[:6], vectors[6:12], strict=True))) @ vectors[-1]
    np.testing.assert_allclose(found.numpy() @ vectors, expected, rtol=1e-8, atol=1e-8 * scale)


def test_without_any_curvature_no_change_is_expected():
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    unit = torch.eye(3, dtype=torch.float64)
    assert hessian_product([(unit[0], unit[1])], unit[2], vectors @ vectors.T).tolist() == [0.0] * 3


def test_fldetector_expects_what_the_curvature_of_its_aggregates_says():
    """s_r = −A_(r−1), y_r = A_r − A_(r−1), and the last step is −A_(t−1)."""
    generator = torch.Generator().manual_seed(3)
    aggregates = [torch.randn(7, generator=generator, dtype=torch.float64)]
    for _ in range(4):  # each is about what the one before left: positive curvature
        aggregates.append(0.6 * aggregates[-1] + 0.05 * torch.randn(7, generator=generator, dtype=torch.float64))
    updates = fedseca.Server("fedavg").screen(torch.ones(2, 7, dtype=torch.float64)).updates
    assert expected_change(updates, aggregates[:1]) is None, "one aggregate has no curvature"
    for count in (2, 3, 5):
        rows = [each.numpy() for each in aggregates[:count]]
        pairs = [(-rows[r - 1], rows[r] - rows[r - 1]) for r in range(1, count)]
        found = expected_change(updates, aggregates[:count])
        assert found is not None
        np.testing.assert_allclose(found.numpy(), dense_bfgs(pairs) @ -rows[-1], rtol=1e-8)


@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_fldetector_suspects_the_higher_of_two_clusters_wherever_they_lie(shift, scale):
    rule, generator = FLDetector(references=20), torch.Generator().manual_seed(0)
    values = {"e": 0.01, "a": 0.0, "d": 0.02, "c": 0.005, "high": 0.98, "b": 0.015, "higher": 1.0}
    scores = {client: scale * (shift + value) for client, value in values.items()}
    assert rule.suspects(scores, generator) == {"high", "higher"}
    assert rule.suspects(dict.fromkeys("abcd", shift), generator) == set(), "all the same"
    assert rule.suspects({"a": 0.0, "b": 1.0}, generator) == set(), "of two clients none is a cluster"


def test_fldetector_finds_the_liars_and_suspects_no_one_else():
    server = fedseca.Server("fldetector")
    for t, matrix in enumerate(training(9, 12, seed=1, liars=3)):
        out = server.aggregate(matrix)
        if t >= 4:
            assert out.suspects == ("6", "7", "8")
            assert out.clients["weight"].tolist() == pytest.approx([1 / 6] * 6 + [0] * 3)


def test_fldetector_seldom_suspects_honest_clients():
    generator = torch.Generator().manual_seed(0)
    server = fedseca.Server("fldetector")
    suspected = 0
    for matrix in training(9, 12, seed=1):
        noise = 0.3 * torch.randn(9, 6, generator=generator, dtype=torch.float64)
        suspected += len(server.aggregate(matrix + noise).suspects)
    assert suspected <= 9 * 12 / 5


def test_fldetector_remembers_a_window_of_changes_and_meets_new_clients():
    server = fedseca.Server("fldetector", window=2)
    for number, kept in enumerate((1, 2, 3, 3, 3)):
        server.aggregate(torch.randn(3, 5), ["a", "b", "c"])
        assert server.state_dict()["state"]["aggregates"].shape == (kept, 5), f"round {number}"
    out = server.aggregate(torch.randn(3, 5), ["d", "e", "f"])
    assert out.client_ids == ("d", "e", "f") and out.suspects == ()


def test_fldetector_forgets_clients_that_stay_away():
    server = fedseca.Server("fldetector", window=2)
    everyone = [f"site {k}" for k in range(4)]
    server.aggregate(torch.randn(4, 5), everyone)
    for _ in range(2):
        server.aggregate(torch.randn(3, 5), everyone[:3])
    assert "previous/site 3" in server.state_dict()["state"]
    for _ in range(2):
        server.aggregate(torch.randn(3, 5), everyone[:3])
    assert not [name for name in server.state_dict()["state"] if "site 3" in name]
