"""Oracles of the attacks of the field: their equations in plain Python, one coordinate and one client at a time.

`honest` is a list of H rows of D floats. Nothing here knows torch or the package.
"""

import math
from collections.abc import Callable, Sequence

Row = list[float]
Rows = list[Row]
Rule = Callable[[Rows], Row]


# ---------------------------------------------------------------- helpers


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def norm(x: Sequence[float]) -> float:
    return math.hypot(*x)


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def squared_distance(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))


def columns(honest: Rows) -> list[tuple[float, ...]]:
    return list(zip(*honest, strict=True))


def mean(honest: Rows) -> Row:
    return [math.fsum(column) / len(column) for column in columns(honest)]


def deviation(honest: Rows) -> Row:
    """σ, the population's."""
    return [
        math.sqrt(math.fsum((x - m) ** 2 for x in column) / len(column))
        for column, m in zip(columns(honest), mean(honest), strict=True)
    ]


# ---------------------------------------------------------------- ALIE's z


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def alie_z(clients: int, byzantine: int) -> float:
    """The largest z with Φ(z) < (n − m − s)/(n − m), s = ⌊n/2 + 1⌋ − m, by bisection."""
    supporters = math.floor(clients / 2 + 1) - byzantine
    share = (clients - byzantine - supporters) / (clients - byzantine)
    assert 0 < share < 1
    low, high = -10.0, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if normal_cdf(middle) < share else (low, middle)
    return low


# ---------------------------------------------------------------- the strength that hurts a rule most


def opt_alie_row(honest: Rows, z: float) -> Row:
    return [m - z * s for m, s in zip(mean(honest), deviation(honest), strict=True)]


def opt_ipm_row(honest: Rows, epsilon: float) -> Row:
    return [-epsilon * m for m in mean(honest)]


def damages(honest: Rows, byzantine: int, row: Callable[[Rows, float], Row], rule: Rule, grid: Row) -> Row:
    """‖μ − RAggr(honest ∪ attack)‖ for each strength of the grid."""
    mu = mean(honest)
    return [math.sqrt(squared_distance(mu, rule([*honest, *[row(honest, z)] * byzantine]))) for z in grid]


# ---------------------------------------------------------------- Fang


def krum_scores(rows: Rows, byzantine: int) -> list[float]:
    """Σ of the squared distances to the K − B − 2 nearest others."""
    scores = []
    for i, row in enumerate(rows):
        others = sorted(squared_distance(row, other) for k, other in enumerate(rows) if k != i)
        scores.append(math.fsum(others[: len(rows) - byzantine - 2]))
    return scores


def fang_krum_bound(honest: Rows, byzantine: int) -> float:
    """The upper bound of λ in Fang et al. for m workers of which c are compromised."""
    m, c = len(honest) + byzantine, byzantine
    moving = sum(1 for x in mean(honest) if x != 0)
    best = math.inf
    for i, row in enumerate(honest):
        others = sorted(squared_distance(row, other) for k, other in enumerate(honest) if k != i)
        best = min(best, math.fsum(others[: m - c - 2]))
    return math.sqrt(best / ((m - 2 * c - 1) * moving)) + max(norm(row) for row in honest) / math.sqrt(moving)


def fang_krum(honest: Rows, byzantine: int, threshold: float = 1e-5) -> tuple[Row, float]:
    """−λ·sgn(μ) and λ: halved from the bound until one of the copies has the least Krum score of all."""
    strength = fang_krum_bound(honest, byzantine)
    while True:
        row = [-strength * sign(m) for m in mean(honest)]
        scores = krum_scores([*honest, *[row] * byzantine], byzantine)
        if min(scores[len(honest) :]) < min(scores[: len(honest)]) or strength <= threshold:
            return row, strength
        strength /= 2


def fang_trim_interval(local: Sequence[float], moves: int, b: float) -> tuple[float, float]:
    """Where a parameter is drawn from, given the honest models' values of it and where their mean moves it."""
    if moves < 0:
        top = max(local)
        return (top, b * top) if top > 0 else (top, top / b)
    if moves > 0:
        bottom = min(local)
        return (bottom / b, bottom) if bottom > 0 else (b * bottom, bottom)
    middle = math.fsum(local) / len(local)
    return middle, middle


# ---------------------------------------------------------------- ROP


class ROP:
    """Relocated orthogonal perturbation, round after round."""

    def __init__(self, z: float = 1.0, location: float = 1.0, reference: float = 0.9, angle: float = 90.0) -> None:
        self.z, self.location, self.reference, self.angle = z, location, reference, math.radians(angle)
        self.before: Row | None = None

    def step(self, honest: Rows, model: Row) -> Row:
        mu = mean(honest)
        if self.before is None:
            momentum, ref = [0.0] * len(mu), mu
        else:
            momentum = [b - w for b, w in zip(self.before, model, strict=True)]
            ref = [self.reference * m + (1 - self.reference) * x for m, x in zip(momentum, mu, strict=True)]
        self.before = list(model)
        along = [x / norm(ref) for x in ref]
        # Gram–Schmidt on the vector of ones
        aside = [1 - math.fsum(along) * a for a in along]
        aside = [x / norm(aside) for x in aside]
        length = self.z * math.fsum(norm(row) for row in honest) / len(honest)
        return [
            self.location * m + (1 - self.location) * x + length * (math.sin(self.angle) * p + math.cos(self.angle) * a)
            for m, x, p, a in zip(momentum, mu, aside, along, strict=True)
        ]


# ---------------------------------------------------------------- PoisonedFL


def binomial_cdf(successes: int, trials: int) -> float:
    """P(X ≤ successes) for X ~ Binomial(trials, ½), exactly."""
    return float(sum(math.comb(trials, k) for k in range(successes + 1)) / 2**trials)


class PoisonedFL:
    """The change of the model that is sent, round after round, and the factor c."""

    def __init__(self, signs: Row, c: float = 8.0, every: int = 50, beta: float = 0.7, least: float = 0.5) -> None:
        self.signs, self.c, self.every, self.beta, self.least = signs, c, every, beta, least
        self.models: Rows = []
        self.sent: Row = [0.0] * len(signs)

    def step(self, model: Row) -> Row:
        self.models.append(list(model))
        t = len(self.models) - 1
        if t == 0:
            return self.sent
        change = [new - old for new, old in zip(model, self.models[t - 1], strict=True)]
        ratio = norm(change) / norm(self.sent) if norm(self.sent) > 0 else 0.0
        magnitude = [abs(u - ratio * k) for u, k in zip(change, self.sent, strict=True)]
        if t % self.every == 0:
            total = [new - old for new, old in zip(model, self.models[t - self.every], strict=True)]
            matching = sum(sign(x) == s for x, s in zip(total, self.signs, strict=True))
            if binomial_cdf(matching, len(model)) < 0.99 and self.beta * self.c >= self.least:
                self.c *= self.beta
        scale = self.c * norm(change) / norm(magnitude) if norm(magnitude) > 0 else 0.0
        self.sent = [scale * v * s for v, s in zip(magnitude, self.signs, strict=True)]
        return self.sent


# ---------------------------------------------------------------- concordant flip


def concordance(x: Sequence[float], y: Sequence[float]) -> int:
    return sum(sign(a) * sign(b) for a, b in zip(x, y, strict=True))


def flipped(mu: Row, count: int) -> Row:
    """μ with the signs of its `count` largest coordinates turned; of equal ones the first."""
    largest = sorted(range(len(mu)), key=lambda j: (-abs(mu[j]), j))[:count]
    return [-x if j in largest else x for j, x in enumerate(mu)]


def most_flips(honest: Rows) -> int:
    """The largest n after which the concordance is positive with μ and with whoever μ had a positive one with."""
    mu = mean(honest)
    watching = [row for row in [*honest, mu] if concordance(mu, row) > 0]
    allowed = [n for n in range(len(mu) + 1) if all(concordance(flipped(mu, n), row) > 0 for row in watching)]
    return max(allowed, default=0) if watching else 0


# ---------------------------------------------------------------- sparse


def sensitive(model: Row, mu: Row, share: float) -> set[int]:
    """The coordinates with the largest |w·μ|, at least one; of equal ones the first."""
    count = max(round(share * len(mu)), 1)
    return set(sorted(range(len(mu)), key=lambda j: (-abs(model[j] * mu[j]), j))[:count])


def sparse(honest: Rows, marked: set[int], scale: float, z: float) -> Row:
    return [
        m - (scale if j in marked else z) * s
        for j, (m, s) in enumerate(zip(mean(honest), deviation(honest), strict=True))
    ]


# ---------------------------------------------------------------- model replacement


def model_replacement(own: Rows, clients: int) -> Rows:
    """K/B·own."""
    return [[clients / len(own) * x for x in row] for row in own]
