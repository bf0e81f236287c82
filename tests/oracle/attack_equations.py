"""Float64 oracles of the attacks: the equations as plain loops over honest clients k and coordinates j.

`honest` is the (H, D) matrix of the honest clients' gradients. Strengths come already jittered. Sums are rounded once
(`math.fsum`), so that the sign of a mean is the sign of the exact sum.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rule = Callable[[Array], Array]


# ---------------------------------------------------------------- helpers


def sign(x: float) -> float:
    """sgn(x), with sgn(0) = 0."""
    return 1.0 if x > 0 else -1.0 if x < 0 else 0.0


def mean(honest: Array) -> Array:
    """μ^j = (1/H) Σ_k g_k^j."""
    count, size = honest.shape
    return np.array([math.fsum(float(honest[k, j]) for k in range(count)) / count for j in range(size)])


def deviation(honest: Array) -> Array:
    """σ^j = √((1/H) Σ_k (g_k^j − μ^j)²), the population's."""
    count, size = honest.shape
    mu = mean(honest)
    return np.array(
        [math.sqrt(math.fsum((float(honest[k, j]) - mu[j]) ** 2 for k in range(count)) / count) for j in range(size)]
    )


def norm(x: Array) -> float:
    """‖x‖₂ = √Σ_j x_j²."""
    return math.hypot(*x.tolist())


# ---------------------------------------------------------------- attacks in closed form


def alie(honest: Array, z: float) -> Array:
    """g_b = μ − z·σ."""
    return mean(honest) - z * deviation(honest)


def ipm(honest: Array, epsilon: float) -> Array:
    """g_b = −ε·μ."""
    return -epsilon * mean(honest)


def fang(honest: Array, lam: float) -> Array:
    """g_b = −λ·sgn(μ)."""
    return np.array([-lam * sign(m) for m in mean(honest)])


def scaling(honest: Array, factor: float) -> Array:
    """g_b = ε·μ."""
    return factor * mean(honest)


def labelflip(labels: Iterable[int], num_classes: int) -> list[int]:
    """y' = C − 1 − y for labels 0 … C−1."""
    return [num_classes - 1 - int(y) for y in labels]


# ---------------------------------------------------------------- mimic


class Mimic:
    """The client to mimic, round after round: the one farthest along the direction z of largest variance.

    Ties go to the lower index. If all honest clients sit on μ in the first round the recursion gives z = 0, which has
    no unit length: z then stays as it was.
    """

    def __init__(self) -> None:
        self.t = 0
        self.mu: Array | None = None
        self.z: Array | None = None
        self.index: int | None = None

    def step(self, honest: Array, z0: Array, warmup: int = 5) -> int:
        """The index of the mimicked client in this round; z0 (unit length) is used at the first call only."""
        if self.index is not None and self.t >= warmup:
            return self.index
        count, size = honest.shape
        t = self.t
        mu_before = np.zeros(size) if self.mu is None else self.mu
        z_before = np.array(z0, dtype=np.float64) if self.z is None else self.z

        # μ^(t+1) = t/(1+t)·μ^(t) + 1/(1+t)·(1/H) Σ_k g_k^(t+1)
        mu = t / (1 + t) * mu_before + 1 / (1 + t) * mean(honest)

        # C = Σ_k (g_k − μ)(g_k − μ)ᵀ
        scatter = np.zeros((size, size))
        for k in range(count):
            scatter += np.outer(honest[k] - mu, honest[k] - mu)

        # z^(t+1) = t/(1+t)·z^(t) + 1/(1+t)·C·z^(t), brought to unit length
        z = t / (1 + t) * z_before + 1 / (1 + t) * (scatter @ z_before)
        z = z / norm(z) if norm(z) > 0 else z_before

        # k* = argmax_k zᵀg_k
        scores = [math.fsum((z * honest[k]).tolist()) for k in range(count)]
        self.index = max(range(count), key=lambda k: (scores[k], -k))
        self.mu, self.z, self.t = mu, z, t + 1
        return self.index


# ---------------------------------------------------------------- min-max: directions


def unit_direction(honest: Array) -> Array:
    """p = −μ/‖μ‖, and 0 if μ = 0."""
    mu = mean(honest)
    length = norm(mu)
    return -mu / length if length > 0 else np.zeros_like(mu)


def sign_direction(honest: Array) -> Array:
    """p = −sgn(μ)."""
    return np.array([-sign(m) for m in mean(honest)])


def std_direction(honest: Array) -> Array:
    """p = −σ."""
    return -deviation(honest)


DIRECTIONS: dict[str, Callable[[Array], Array]] = {
    "unit": unit_direction,
    "sign": sign_direction,
    "std": std_direction,
}


# ---------------------------------------------------------------- min-max: γ against a known rule


def damage(honest: Array, num_byzantine: int, direction: Array, rule: Rule, gamma: float) -> float:
    """‖μ − RAggr(honest ∪ B copies of μ + γp)‖; the honest rows come first."""
    mu = mean(honest)
    attack = mu + gamma * direction
    everyone = np.array([*honest, *[attack] * num_byzantine], dtype=np.float64)
    return norm(mu - rule(everyone))


def agr_probes(
    honest: Array,
    num_byzantine: int,
    direction: Array,
    rule: Rule,
    start: float = 10.0,
    threshold: float = 1e-5,
    floor: float = -math.inf,
) -> list[tuple[float, float]]:
    """Every (γ, damage) of the halving search, in order.

    γ = start, s = start/2. While s ≥ threshold: probe γ; if its damage is larger than the best so far (than `floor`
    at first), γ ← γ + s, else γ ← γ − s; s ← s/2.
    """
    probes: list[tuple[float, float]] = []
    gamma, step, best = start, start / 2, floor
    while step >= threshold:
        harm = damage(honest, num_byzantine, direction, rule, gamma)
        probes.append((gamma, harm))
        if harm > best:
            best = harm
            gamma = gamma + step
        else:
            gamma = gamma - step
        step = step / 2
    return probes


def agr_updates_gamma(
    honest: Array,
    num_byzantine: int,
    direction: Array,
    rule: Rule,
    start: float = 10.0,
    threshold: float = 1e-5,
    floor: float = -math.inf,
) -> tuple[float, float]:
    """The probed γ of largest ‖μ − RAggr(honest ∪ attack)‖ (the earliest of equals) and that damage."""
    return _first_largest(agr_probes(honest, num_byzantine, direction, rule, start, threshold, floor))


def brute_force_gamma(
    honest: Array, num_byzantine: int, direction: Array, rule: Rule, grid: Iterable[float]
) -> tuple[float, float]:
    """The γ of the grid of largest ‖μ − RAggr(honest ∪ attack)‖ (the earliest of equals) and that damage."""
    return _first_largest(
        [(float(gamma), damage(honest, num_byzantine, direction, rule, float(gamma))) for gamma in grid]
    )


def _first_largest(probes: list[tuple[float, float]]) -> tuple[float, float]:
    """The first (γ, damage) of largest damage."""
    best = probes[0]
    for probe in probes[1:]:
        if probe[1] > best[1]:
            best = probe
    return best


# ---------------------------------------------------------------- MinMax and MinSum, which need no rule


def minmax_agnostic_gamma(honest: Array, direction: Array) -> float:
    """The largest γ ≥ 0 with max_i ‖m − g_i‖ ≤ max_ij ‖g_i − g_j‖, m = μ + γp (0 if p = 0)."""
    honest = np.array(honest, dtype=np.float64)
    mu = mean(honest)
    bound = max(norm(g_i - g_j) for g_i in honest for g_j in honest)

    def reach(gamma: float) -> float:
        # m − g_i = (μ − g_i) + γp
        return max(norm((mu - g_i) + gamma * direction) for g_i in honest)

    return _largest_within(reach, bound, direction)


def minsum_gamma(honest: Array, direction: Array) -> float:
    """The largest γ ≥ 0 with Σ_i ‖m − g_i‖² ≤ max_i Σ_j ‖g_i − g_j‖², m = μ + γp (0 if p = 0)."""
    honest = np.array(honest, dtype=np.float64)
    mu = mean(honest)
    bound = max(math.fsum(norm(g_i - g_j) ** 2 for g_j in honest) for g_i in honest)

    def reach(gamma: float) -> float:
        return math.fsum(norm((mu - g_i) + gamma * direction) ** 2 for g_i in honest)

    return _largest_within(reach, bound, direction)


def _largest_within(reach: Callable[[float], float], bound: float, direction: Array) -> float:
    """The largest γ ≥ 0 with reach(γ) ≤ bound by bisection, to 1e-12 of itself.

    `reach` is convex in γ and holds at γ = 0, so the γ that keep the bound are an interval from 0. All clients equal
    (bound 0) leave only γ = 0; p = 0 leaves every γ, and 0 stands for it since m = μ whatever γ is.
    """
    if bound == 0 or not np.any(direction):
        return 0.0
    low, high = 0.0, 1.0
    while reach(high) <= bound:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if reach(middle) <= bound:
            low = middle
        else:
            high = middle
    return low
