"""Float64 oracles of the rules that filter clients by spectra, signs and angles, as plain loops.

Where the rules work on K×K matrices, these work on the D×D covariance, and the other way round. An answer that hangs on
a comparison comes with its margin: how far the comparison was from a tie, which rounding would decide.
"""

import itertools
import math
from typing import NamedTuple

from tests.oracle.equations import Rows, Vector, combine, cosine_distance, dot, lower_median, mean_row, norm

Matrix = list[list[float]]


class Kept(NamedTuple):
    """Who is averaged, and how far the choice was from another one."""

    members: list[int]
    margin: float


# ---------------------------------------------------------------- spectra


def eigenpairs(matrix: Matrix) -> list[tuple[float, Vector]]:
    """The eigenvalues of a symmetric matrix with their vectors, the largest first: cyclic Jacobi rotations."""
    size = len(matrix)
    a = [list(row) for row in matrix]
    v = [[float(i == j) for j in range(size)] for i in range(size)]
    for _ in range(60):
        if math.fsum(a[i][j] ** 2 for i in range(size) for j in range(size) if i != j) == 0:
            break
        for p, q in itertools.combinations(range(size), 2):
            if a[p][q] == 0:
                continue
            theta = (a[q][q] - a[p][p]) / (2 * a[p][q])
            t = math.copysign(1, theta) / (abs(theta) + math.hypot(theta, 1))
            c = 1 / math.hypot(t, 1)
            s = t * c
            for k in range(size):
                a[k][p], a[k][q] = c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]
            for k in range(size):
                a[p][k], a[q][k] = c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]
                v[k][p], v[k][q] = c * v[k][p] - s * v[k][q], s * v[k][p] + c * v[k][q]
    pairs = [(a[i][i], [v[k][i] for k in range(size)]) for i in range(size)]
    return sorted(pairs, key=lambda pair: -pair[0])


class Axis(NamedTuple):
    """The top eigenvalue of a weighted covariance, the squared projections on its vector, and the share of the next."""

    spread: float
    projections: Vector
    next: float


def top_axis(rows: Rows, weights: Vector) -> Axis:
    """λ_max and v of Σ_k w_k·(g_k − μ)(g_k − μ)ᵀ with μ = Σ_k w_k·g_k, and ⟨g_k − μ, v⟩²; the weights sum to 1."""
    mu = combine(rows, weights)
    centred = [[x - m for x, m in zip(row, mu, strict=True)] for row in rows]
    axes = range(len(mu))
    covariance = [
        [math.fsum(w * row[i] * row[j] for w, row in zip(weights, centred, strict=True)) for j in axes] for i in axes
    ]
    pairs = eigenpairs(covariance)
    spread, vector = pairs[0]
    following = pairs[1][0] / spread if len(pairs) > 1 and spread > 0 else 0.0
    return Axis(max(spread, 0.0), [dot(row, vector) ** 2 for row in centred], following)


def dnc_scores(rows: Rows) -> Axis:
    """s_k = ⟨g_k − μ, v⟩², v the top right singular vector of the centred rows."""
    return top_axis(rows, [1 / len(rows)] * len(rows))


def dnc(rows: Rows, draws: list[list[int]], dropped: int) -> Kept:
    """Of each draw of coordinates the K − dropped clients of least score; those that are kept most often."""
    times, margin = [0] * len(rows), math.inf
    for drawn in draws:
        axis = dnc_scores([[row[j] for j in drawn] for row in rows])
        order = sorted(range(len(rows)), key=lambda k: axis.projections[k])
        for k in order[: len(rows) - dropped]:
            times[k] += 1
        if dropped:
            last, first = (axis.projections[order[len(rows) - dropped + shift]] for shift in (-1, 0))
            margin = min(margin, 1 - axis.next, (first - last) / max(axis.projections) if first > 0 else 0.0)
    return Kept([k for k, number in enumerate(times) if number == max(times)], margin)


class Filtered(NamedTuple):
    """The weights of CAF's answer and of its last turn, how many turns it took, and how far it was from a tie."""

    weights: Vector
    last: Vector
    turns: int
    margin: float


def caf(rows: Rows, num_byzantine: int) -> Filtered:
    """c ← c·(1 − τ/max τ) while Σc > K − 2B; the weights c/Σc of the least λ_max."""
    count = len(rows)
    c = [1.0] * count
    best, least = [1 / count] * count, math.inf
    share, turns, margin = best, 0, math.inf
    while math.fsum(c) > count - 2 * num_byzantine + 1e-9:
        share = [each / math.fsum(c) for each in c]
        axis = top_axis(rows, share)
        turns += 1
        if turns > 1:
            margin = min(margin, abs(axis.spread - least) / least if least > 0 else 0.0)
        margin = min(margin, 1 - axis.next)
        if axis.spread < least:
            best, least = share, axis.spread
        tau = [t if each > 0 else 0.0 for t, each in zip(axis.projections, c, strict=True)]
        if max(tau) <= 1e-30:
            break
        c = [each * (1 - t / max(tau)) for t, each in zip(tau, c, strict=True)]
        c = [each if each > 1e-12 else 0.0 for each in c]
        margin = min(margin, abs(math.fsum(c) - (count - 2 * num_byzantine)))
    return Filtered(best, share, turns, margin)


# ---------------------------------------------------------------- angles


def cosine_distances(rows: Rows) -> Matrix:
    """1 − cos(g_i, g_j), 0 on the diagonal."""
    clients = range(len(rows))
    return [[0.0 if i == j else cosine_distance(rows[i], rows[j]) for j in clients] for i in clients]


def linked(values: Vector, linkage: str) -> float:
    """The distance of two clusters, of the distances between their members."""
    if linkage == "average":
        return math.fsum(values) / len(values)
    return max(values) if linkage == "complete" else min(values)


def agglomerate(distances: Matrix, linkage: str) -> tuple[list[list[int]], float]:
    """The nearest two clusters are joined until two are left; and the least gap to the next nearest two."""
    clusters, margin = [[k] for k in range(len(distances))], math.inf
    while len(clusters) > 2:
        between = sorted(
            (linked([distances[i][j] for i in a for j in b], linkage), m, n)
            for (m, a), (n, b) in itertools.combinations(enumerate(clusters), 2)
        )
        margin = min(margin, between[1][0] - between[0][0])
        _, m, n = between[0]
        clusters[m] = clusters[m] + clusters[n]
        del clusters[n]
    return clusters, margin


def larger_group(distances: Matrix, linkage: str) -> Kept:
    """The larger of the two clusters; of two of the same size the one with the first client."""
    clusters, margin = agglomerate(distances, linkage)
    largest: list[int] = max(clusters, key=lambda cluster: (len(cluster), 0 in cluster))
    return Kept(sorted(largest), margin)


def least_similar_split(distances: Matrix) -> float:
    """max over all splits in two of the least distance across: Sattler's min max cos, by trying all of them."""
    clients = range(len(distances))
    best = -math.inf
    for size in range(1, len(distances) // 2 + 1):
        for some in itertools.combinations(clients, size):
            across = [distances[i][j] for i in some for j in clients if j not in some]
            best = max(best, min(across))
    return best


def majority(distances: Matrix) -> Kept:
    """The first component with more than half of the clients while pairs are joined from the nearest on.

    That is all that is left of HDBSCAN where a cluster must have a majority: the clusters of single linkage that have
    one lie in each other, and the least of them is the densest.
    """
    count = len(distances)
    lengths = sorted({distances[i][j] for i, j in itertools.combinations(range(count), 2)} | {0.0})
    for place, length in enumerate(lengths):
        component = {k: k for k in range(count)}
        for i, j in itertools.combinations(range(count), 2):
            if distances[i][j] <= length:
                old, new = component[j], component[i]
                component = {k: new if name == old else name for k, name in component.items()}
        for name in set(component.values()):
            members = [k for k in range(count) if component[k] == name]
            if len(members) > count // 2:
                following = lengths[place + 1] if place + 1 < len(lengths) else math.inf
                return Kept(members, following - length)
    raise AssertionError("all together are a majority")


# ---------------------------------------------------------------- lengths and signs


def clipped_mean(rows: Rows, members: list[int], radius: float) -> Vector:
    """The mean of g_k·min[1, τ/‖g_k‖] over the members."""
    factors = [1.0 if norm(row) <= radius else radius / norm(row) for row in rows]
    return mean_row([[factors[k] * x for x in rows[k]] for k in members])


def sign_shares(rows: Rows, drawn: list[int]) -> Matrix:
    """The shares of positive, zero and negative numbers."""
    return [
        [
            sum(row[j] > 0 for j in drawn) / len(drawn),
            sum(row[j] == 0 for j in drawn) / len(drawn),
            sum(row[j] < 0 for j in drawn) / len(drawn),
        ]
        for row in rows
    ]


def mean_shift(points: Matrix, quantile: float) -> Kept:
    """The largest cluster of MeanShift with a flat kernel, begun at every point.

    The bandwidth is the mean distance of a point to its n-th nearest, itself the first, n = ⌊quantile·K⌋. A point at
    the very bandwidth is within it.
    """
    count = len(points)
    nearest = [sorted(math.dist(a, b) for b in points)[max(1, int(count * quantile)) - 1] for a in points]
    bandwidth = math.fsum(nearest) / count + 1e-6
    margin = math.inf

    def within(a: Vector, others: Matrix) -> list[int]:
        nonlocal margin
        distances = [math.dist(a, b) for b in others]
        margin = min(margin, *(abs(d - bandwidth) for d in distances))
        return [k for k, d in enumerate(distances) if d <= bandwidth]

    found: dict[tuple[float, ...], int] = {}
    for seed in points:
        centre = list(seed)
        for _ in range(301):
            near = within(centre, points)
            moved, centre = centre, [math.fsum(points[k][i] for k in near) / len(near) for i in range(len(seed))]
            step = math.dist(moved, centre)
            margin = min(margin, math.inf if abs(step - 1e-3 * bandwidth) > 1e-12 else 0.0)
            if step <= 1e-3 * bandwidth:
                break
        found[tuple(centre)] = len(near)
    ranked = sorted(found, key=lambda centre: (found[centre], centre), reverse=True)
    centres: Matrix = []
    for each in ranked:
        if not centres or not within(list(each), centres):
            centres.append(list(each))
    clusters: list[list[int]] = [[] for _ in centres]
    for k, point in enumerate(points):
        distances = [math.dist(point, centre) for centre in centres]
        ordered = sorted(distances)
        margin = min(margin, abs(ordered[0] - bandwidth), *(b - a for a, b in itertools.pairwise(ordered[:2])))
        if ordered[0] <= bandwidth:
            clusters[distances.index(ordered[0])].append(k)
    sizes = [len(cluster) for cluster in clusters]
    if sizes.count(max(sizes)) > 1 and len(set(found.values())) < len(found):
        margin = 0.0  # which of them comes first may hang on the last digit of a centre
    return Kept(clusters[sizes.index(max(sizes))], margin)


def signguard(rows: Rows, drawn: list[int], lower: float = 0.1, upper: float = 3.0, quantile: float = 0.5) -> Kept:
    """The clients of usual length in the largest cluster of sign shares; of usual length only, if that is nobody."""
    norms = [norm(row) for row in rows]
    usual = lower_median(norms)
    long_enough = [k for k, length in enumerate(norms) if lower * usual <= length <= upper * usual]
    alone = len(rows) * quantile < 2  # MeanShift would see each client as its own nearest
    cluster = Kept(list(range(len(rows))), 1.0) if alone else mean_shift(sign_shares(rows, drawn), quantile)
    edges = [abs(length - bound * usual) / usual for length in norms for bound in (lower, upper)] if usual else [1.0]
    both = [k for k in long_enough if k in cluster.members]
    return Kept(both or long_enough, min(cluster.margin, *edges))
