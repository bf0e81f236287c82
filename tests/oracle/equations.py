"""Float64 oracles of the aggregation rules: the equations as plain loops over clients k and coordinates j.

Where an answer depends on a comparison (Krum's ranking, cosines, skewness, votes) the comparison is made in exact
integers or rationals of the given floats, so that a tie is a tie and nothing under- or overflows.
"""

import itertools
import math
import statistics
from fractions import Fraction
from typing import NamedTuple

import numpy as np

Vector = list[float]
Rows = list[list[float]]


# ---------------------------------------------------------------- helpers


def sign(x: float | Fraction) -> int:
    """sgn(x), with sgn(0) = 0."""
    return (x > 0) - (x < 0)


def norm(x: Vector) -> float:
    """‖x‖₂ = √Σ x_j², free of underflow and overflow."""
    return math.hypot(*x)


def distance(x: Vector, y: Vector) -> float:
    """‖x − y‖₂."""
    return math.dist(x, y)


def dot(x: Vector, y: Vector) -> float:
    """xᵀy."""
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def lower_median(values: Vector) -> float:
    """The middle value; the lower of the two for an even count."""
    return sorted(values)[(len(values) - 1) // 2]


def mean(values: Vector) -> float:
    """Σ x / n, summed exactly and rounded once."""
    return float(statistics.mean(values))


def column(rows: Rows, j: int) -> Vector:
    """The values of all clients at coordinate j."""
    return [row[j] for row in rows]


def mean_row(rows: Rows) -> Vector:
    """(1/K) Σ_k g_k."""
    return [mean(column(rows, j)) for j in range(len(rows[0]))]


def combine(rows: Rows, weights: Vector) -> Vector:
    """Σ_k w_k g_k."""
    return [dot(weights, column(rows, j)) for j in range(len(rows[0]))]


def whole(rows: Rows) -> tuple[list[list[int]], int]:
    """Exact integers n and one denominator q with rows = n / q."""
    ratios = [[float(x).as_integer_ratio() for x in row] for row in rows]
    q = max((d for row in ratios for _, d in row), default=1)
    return [[n * (q // d) for n, d in row] for row in ratios], q


def signed_squared_cosine(a: Vector, b: Vector) -> Fraction:
    """sgn(cos)·cos²(a, b), exactly: it orders vectors as the cosine does; 0 beside a zero vector."""
    (x, y), _ = whole([a, b])
    xy = sum(p * q for p, q in zip(x, y, strict=True))
    xx = sum(p * p for p in x)
    yy = sum(q * q for q in y)
    return Fraction(xy * abs(xy), xx * yy) if xx and yy else Fraction(0)


# ---------------------------------------------------------------- mean, Krum, RFA, median, trimmed mean


def fedavg(rows: Rows, alpha: Vector | None = None) -> Vector:
    """Σ_k α_k g_k / Σ_k α_k, with α_k = 1/K by default."""
    if alpha is None:
        return mean_row(rows)
    total = math.fsum(alpha)
    return combine(rows, [a / total for a in alpha])


def _exact_krum_scores(rows: Rows, num_byzantine: int) -> list[Fraction]:
    """ς_i as exact rationals."""
    numerators, q = whole(rows)
    neighbours = max(0, len(rows) - num_byzantine - 2)
    scores = []
    for i, w_i in enumerate(numerators):
        squared = [
            sum((a - b) ** 2 for a, b in zip(w_i, w_k, strict=True)) for k, w_k in enumerate(numerators) if k != i
        ]
        scores.append(Fraction(sum(sorted(squared)[:neighbours]), q * q))
    return scores


def krum_scores(rows: Rows, num_byzantine: int) -> list[float]:
    """ς_i = Σ ‖w_i − w_k‖² over the K−B−2 nearest others k."""
    scores = []
    for score in _exact_krum_scores(rows, num_byzantine):
        try:
            scores.append(float(score))
        except OverflowError:
            scores.append(math.inf)
    return scores


def krum(rows: Rows, num_byzantine: int, select: int) -> Vector:
    """The mean of the `select` clients of least score, ties by lower index."""
    scores = _exact_krum_scores(rows, num_byzantine)
    order = sorted(range(len(rows)), key=lambda i: (scores[i], i))
    return mean_row([rows[i] for i in order[:select]])


def rfa(rows: Rows, iterations: int = 3, smoothing: float = 1e-6) -> Vector:
    """Smoothed Weiszfeld from the mean: v ← Σ β_i w_i / Σ β_i, β_i = (1/K) / max[ε, ‖v − w_i‖]."""
    v = mean_row(rows)
    for _ in range(iterations):
        beta = [1 / len(rows) / max(smoothing, distance(v, w)) for w in rows]
        total = math.fsum(beta)
        v = combine(rows, [b / total for b in beta])
    return v


def cwmed(rows: Rows) -> Vector:
    """The median of every coordinate."""
    return [lower_median(column(rows, j)) for j in range(len(rows[0]))]


def cwtm(rows: Rows, trim: float = 0.2) -> Vector:
    """The mean of every coordinate without its t = ⌊βK⌋ smallest and t largest values."""
    t = math.floor(trim * len(rows) + 1e-9)
    return [mean(sorted(column(rows, j))[t : len(rows) - t]) for j in range(len(rows[0]))]


# ---------------------------------------------------------------- Huber, centred clipping and its buckets


def huber(rows: Rows, threshold: float = 0.2, iterations: int = 100, tolerance: float = 1e-6) -> Vector:
    """From c = 0: c ← Σ f_k g_k / Σ f_k, f_k = min(1, τ/‖c − g_k‖), until the weights settle."""
    c = [0.0] * len(rows[0])
    before: Vector | None = None
    for _ in range(iterations):
        d = [distance(c, g) for g in rows]
        f = [1.0 if d_k == 0 else min(1.0, threshold / d_k) for d_k in d]
        total = math.fsum(f)
        w = [f_k / total for f_k in f]
        c = combine(rows, w)
        if before is not None:
            moved = math.fsum(abs(new - old) * d_k for new, old, d_k in zip(w, before, d, strict=True))
            if moved <= tolerance * threshold:
                break
        before = w
    return c


def cclip(rows: Rows, centre: Vector, radius: float = 100.0, iterations: int = 3) -> Vector:
    """Q times v ← v + (1/K) Σ_k (g_k − v)·min[1, τ/‖g_k − v‖]."""
    v = list(centre)
    for _ in range(iterations):
        steps = []
        for g in rows:
            d = distance(g, v)
            kappa = 1.0 if d == 0 else min(1.0, radius / d)
            steps.append([(g_j - v_j) * kappa for g_j, v_j in zip(g, v, strict=True)])
        v = [v_j + step_j for v_j, step_j in zip(v, mean_row(steps), strict=True)]
    return v


def cc_randbucket(
    rows: Rows, centre: Vector, buckets: list[list[int]], radius: float = 100.0, iterations: int = 1
) -> Vector:
    """CClip of the bucket means u_l."""
    u = [mean_row([rows[k] for k in bucket]) for bucket in buckets]
    return cclip(u, centre, radius, iterations)


def cc_seqbucket(
    rows: Rows, centre: Vector, buckets: list[list[int]], radius: float = 100.0, iterations: int = 1
) -> Vector:
    """u_r = CClip(G_r, u_{r−1}), u_0 the centre; the last u_r."""
    u = list(centre)
    for bucket in buckets:
        u = cclip([rows[k] for k in bucket], u, radius, iterations)
    return u


def sequential_groups(rows: Rows, centre: Vector, bucket_size: int) -> list[list[int]]:
    """A_s: clients by ascending cosine with the centre (ties by index), cut into groups of R = ⌈K/S⌉."""
    cosines = [signed_squared_cosine(g, centre) for g in rows]
    order = sorted(range(len(rows)), key=lambda k: (cosines[k], k))
    size = -(-len(rows) // bucket_size)
    return [order[start : start + size] for start in range(0, len(rows), size)]


# ---------------------------------------------------------------- COPOD-DOS


def skewnesses(matrix: list[list[float]]) -> list[float]:
    """The population skewness m₃/m₂^1.5 of every column (0 if m₂ = 0), from exact moments."""
    result = []
    for j in range(len(matrix[0])):
        x = [Fraction(value) for value in column(matrix, j)]
        centre = sum(x, Fraction(0)) / len(x)
        m2 = sum(((v - centre) ** 2 for v in x), Fraction(0)) / len(x)
        m3 = sum(((v - centre) ** 3 for v in x), Fraction(0)) / len(x)
        result.append(sign(m3) * math.sqrt(m3**2 / m2**3) if m2 else 0.0)
    return result


def copod_scores(matrix: list[list[float]]) -> list[float]:
    """COPOD: Σ over columns of max(skew-corrected tail, (U_l + U_r)/2)."""
    n = len(matrix)
    skew = skewnesses(matrix)
    scores = []
    for i in range(n):
        contributions = []
        for j, b in enumerate(skew):
            x = column(matrix, j)
            u_l = -math.log(sum(v <= x[i] for v in x) / n)
            u_r = -math.log(sum(v >= x[i] for v in x) / n)
            u_skew = u_l if b < 0 else u_r if b > 0 else u_l + u_r
            contributions.append(max(u_skew, (u_l + u_r) / 2))
        scores.append(math.fsum(contributions))
    return scores


def cosine_distance(a: Vector, b: Vector) -> float:
    """1 − cos(a, b) without cancellation: (1 − cos²)/(1 + cos) for an acute angle; 1 beside a zero vector."""
    square = signed_squared_cosine(a, b)
    cosine = sign(square) * math.sqrt(abs(square))
    return float(1 - square) / (1 + cosine) if square > 0 else 1 - cosine


def distance_matrices(rows: Rows) -> tuple[list[list[float]], list[list[float]]]:
    """M^S = [1 − cos(w_i, w_j)] with diagonal 0, and M^E = [‖w_i − w_j‖]."""
    clients = range(len(rows))
    cosine = [[0.0 if i == j else cosine_distance(rows[i], rows[j]) for j in clients] for i in clients]
    euclidean = [[distance(rows[i], rows[j]) for j in clients] for i in clients]
    return cosine, euclidean


def copod_dos(rows: Rows) -> tuple[Vector, Vector]:
    """Σ_k λ_k w_k and λ = softmax(−r), r = (COPOD(M^S) + COPOD(M^E))/2."""
    cosine, euclidean = distance_matrices(rows)
    r = [(r_s + r_e) / 2 for r_s, r_e in zip(copod_scores(cosine), copod_scores(euclidean), strict=True)]
    powers = [math.exp(min(r) - r_k) for r_k in r]
    total = math.fsum(powers)
    weights = [p / total for p in powers]
    return combine(rows, weights), weights


# ---------------------------------------------------------------- FLDetector


def fldetector_distances(previous: Rows, rows: Rows, aggregates: Rows) -> Vector:
    """d_k = ‖g_k^(t−1) + B·(−A_{t−1}) − g_k^t‖ over their sum, B the dense BFGS matrix of the aggregates."""
    size = len(rows[0])
    axes = range(size)

    pairs = []
    for older, newer in itertools.pairwise(aggregates):
        s = [-a for a in older]
        y = [b - a for a, b in zip(older, newer, strict=True)]
        # B does not change when s and y are divided by the same number: a power of two brings s to about 1
        exponent = math.frexp(max(abs(x) for x in s))[1]
        s = [math.ldexp(x, -exponent) for x in s]
        y = [math.ldexp(x, -exponent) for x in y]
        if dot(y, s) > 1e-10 * norm(s) * norm(y):
            pairs.append((s, y))

    b = [[0.0] * size for _ in axes]
    if pairs:
        s, y = pairs[-1]
        for i in axes:
            b[i][i] = dot(y, s) / dot(s, s)
    for s, y in pairs:
        bs = [dot(b[i], s) for i in axes]
        s_b_s = dot(s, bs)
        y_s = dot(y, s)
        b = [[b[i][j] - bs[i] * bs[j] / s_b_s + y[i] * y[j] / y_s for j in axes] for i in axes]

    h = [dot(b[i], [-a for a in aggregates[-1]]) for i in axes]
    d = [norm([p[j] + h[j] - g[j] for j in axes]) for p, g in zip(previous, rows, strict=True)]
    total = math.fsum(d)
    return [d_k / total for d_k in d] if total > 0 else d


# ---------------------------------------------------------------- TIES and FedSECA


def survivors(g: Vector, sparsity: float, inclusive: bool = False) -> list[bool]:
    """I(|g_j| > λ) (or ≥), λ the γ-quantile of the magnitudes; γ = 0 keeps all."""
    magnitudes = [abs(x) for x in g]
    if sparsity == 0:
        return [True] * len(g)
    threshold = float(np.quantile(np.array(magnitudes, dtype=np.float64), sparsity, method="linear"))
    return [m >= threshold if inclusive else m > threshold for m in magnitudes]


def ties(rows: Rows, sparsity: float = 0.9) -> Vector:
    """The mean of the surviving gradients that agree with u = sgn Σ_k sgn(g_k)."""
    survives = [survivors(g, sparsity) for g in rows]
    result = []
    for j in range(len(rows[0])):
        u = sign(sum(sign(g[j]) for g in rows))
        agreeing = [g[j] for g, kept in zip(rows, survives, strict=True) if kept[j] and u != 0 and sign(g[j]) == u]
        result.append(mean(agreeing) if agreeing else 0.0)
    return result


class FedsecaResult(NamedTuple):
    """What one round of FedSECA yields."""

    update: list[float]
    rho: list[float]
    clip_factor: list[float]
    adopted: list[float]
    weight: list[float]
    omega: list[list[float]]
    elected: list[int]


def fedseca(
    rows: Rows,
    *,
    sparsity: float = 0.9,
    momentum: float = 0.0,
    previous: Vector | None = None,
    variant: str = "paper",
    concordance: bool = True,
    coordinatewise: bool = True,
    election: bool = True,
    vrs: bool = True,
    clip: bool = True,
    clamp: bool = True,
) -> FedsecaResult:
    """CRISE (concordance ratios, sign election) and RoCA (clip, clamp, sparsify, merge), then server momentum."""
    if variant not in ("paper", "released"):
        raise ValueError(variant)
    released = variant == "released"
    clients, coordinates = range(len(rows)), range(len(rows[0]))
    count, size = len(rows), len(rows[0])
    clip, clamp = clip and vrs, clamp and vrs
    sgn = [[sign(x) for x in g] for g in rows]

    # ω(g_k, g_l) = (1/D) Σ_j sgn(g_k^j)·sgn(g_l^j), counted in integers
    agreement = [[sum(sgn[k][j] * sgn[m][j] for j in coordinates) for m in clients] for k in clients]
    omega = [[a / size for a in row] for row in agreement]

    # K·ρ_k = max[0, Σ_l sgn(ω(g_k, g_l))], a whole number
    ballots = [max(0, sum(sign(a) for a in agreement[k])) if concordance else count for k in clients]
    rho = [n / count for n in ballots]

    # I(|g_k^j| > λ_k)
    survives = [survivors(g, sparsity, inclusive=released) if vrs else [True] * size for g in rows]

    # s^j = sgn(Σ_k ρ_k·sgn(g_k^j))
    elected = [
        sign(sum(ballots[k] * sgn[k][j] for k in clients if survives[k][j] or not released)) for j in coordinates
    ]

    # ĝ_k = g_k·min[1, τ/‖g_k‖], τ = median ‖g_k‖
    norms = [norm(g) for g in rows]
    tau = lower_median(norms)
    clip_factor = [min(1.0, tau / length) if clip and length > 0 else 1.0 for length in norms]
    clipped = [[x * clip_factor[k] for x in rows[k]] for k in clients]

    # μ^j = median |ĝ_k^j|; whether it is 0 is counted, since the product above may underflow
    mu = [lower_median([abs(clipped[k][j]) for k in clients]) for j in coordinates]
    vanishing = [
        clamp and sum(sgn[k][j] == 0 or (clip and tau == 0) for k in clients) > (count - 1) // 2 for j in coordinates
    ]

    erased = clip and tau == 0 and not released  # every ĝ is 0 then

    # ḡ_k^j = sgn(ĝ_k^j)·min[μ^j, |ĝ_k^j|]; the released program clamps the raw gradient
    source = rows if released or not vrs else clipped
    reduced = [
        [sgn[k][j] * min(mu[j], abs(source[k][j])) if clamp else source[k][j] for j in coordinates] for k in clients
    ]

    # g̃^j = Σ_k δ_k^j·g̈_k^j / Σ_k δ_k^j, g̈_k^j = ḡ_k^j·I(survives); δ is I(s^j·g̈_k^j > 0), or ρ_k, or 1
    merged = []
    enters = [[False] * size for _ in clients]
    for j in coordinates:
        sparse = [reduced[k][j] if survives[k][j] else 0.0 for k in clients]
        present = [survives[k][j] and sgn[k][j] != 0 and not vanishing[j] and not erased for k in clients]
        if not election:
            delta = [1] * count
        elif not coordinatewise:
            delta = ballots
        else:
            delta = [int(present[k] and sgn[k][j] == elected[j]) for k in clients]
        total = sum(delta)
        merged.append(math.fsum(d / total * x for d, x in zip(delta, sparse, strict=True)) if total else 0.0)
        for k in clients:
            enters[k][j] = present[k] and delta[k] > 0

    adopted = []
    for k in clients:
        surviving = sum(survives[k][j] and sgn[k][j] != 0 for j in coordinates)
        adopted.append(sum(enters[k]) / surviving if surviving else 0.0)

    # ğ = β·ğ_before + (1 − β)·g̃
    before = previous if previous is not None else [0.0] * size
    update = [momentum * p + (1 - momentum) * g for p, g in zip(before, merged, strict=True)]
    # a client's share of all that entered, with its δ where that is the same for every coordinate
    same = [1] * count if coordinatewise or not election else ballots
    entered = [same[k] * sum(enters[k]) for k in clients]
    weight = [e / sum(entered) if sum(entered) else 0.0 for e in entered]
    return FedsecaResult(update, rho, clip_factor, adopted, weight, omega, elected)
