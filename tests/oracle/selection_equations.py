"""Float64 oracles of the rules that select: which values, which clients, which subset. Plain loops, exact comparisons.

Distances between clients are compared as exact integers of the given floats, so that a tie is a tie.
"""

import itertools
import math
from fractions import Fraction

from tests.oracle.equations import Rows, Vector, column, mean, mean_row, sign, whole


def nearest_to_median(values: Vector, keep: int) -> Vector:
    """From the median outward, one value after the other: the nearer one, at the same distance the one below."""
    ordered = sorted(values)
    middle = (len(values) - 1) // 2
    below, above, taken = middle - 1, middle + 1, [ordered[middle]]
    while len(taken) < keep:
        down = ordered[middle] - ordered[below] if below >= 0 else math.inf
        up = ordered[above] - ordered[middle] if above < len(values) else math.inf
        if above >= len(values) or (below >= 0 and down <= up):
            taken.append(ordered[below])
            below -= 1
        else:
            taken.append(ordered[above])
            above += 1
    return taken


def mean_near_median(rows: Rows, keep: int) -> Vector:
    """The mean of the `keep` values nearest to the median, coordinate by coordinate."""
    return [mean(nearest_to_median(column(rows, j), keep)) for j in range(len(rows[0]))]


def shares_near_median(rows: Rows, keep: int) -> Vector:
    """For each client, in how many coordinates its value is one of those averaged, over the sum of all."""
    taken = [set(nearest_to_median(column(rows, j), keep)) for j in range(len(rows[0]))]
    hits = [sum(x in values for x, values in zip(row, taken, strict=True)) for row in rows]
    return [h / sum(hits) for h in hits]


def meamed(rows: Rows, num_byzantine: int) -> Vector:
    """The mean of the K − B values nearest to the median."""
    return mean_near_median(rows, len(rows) - num_byzantine)


def squared_distances(rows: Rows) -> list[list[int]]:
    """‖g_i − g_k‖² of all pairs, as integers over one denominator: exact, and in the order of the distances."""
    numerators, _ = whole(rows)
    return [[sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in numerators] for x in numerators]


def krum_scores_among(rows: Rows, left: list[int], num_byzantine: int) -> dict[int, int]:
    """Σ ‖g_i − g_k‖² over the K' − B − 2 nearest others (at least one) of each of the K' left, in exact integers."""
    distances = squared_distances(rows)
    others = {i: sorted(distances[i][k] for k in left if k != i) for i in left}
    return {i: sum(of_it[: max(1, len(left) - num_byzantine - 2)]) for i, of_it in others.items()}


def bulyan_picks(rows: Rows, num_byzantine: int) -> list[int]:
    """θ = K − 2B times the client of least score among those left, ties by lower index."""
    left, picked = list(range(len(rows))), []
    for _ in range(len(rows) - 2 * num_byzantine):
        scores = krum_scores_among(rows, left, num_byzantine)
        picked.append(min(left, key=scores.__getitem__))
        left.remove(picked[-1])
    return picked


def bulyan(rows: Rows, num_byzantine: int) -> Vector:
    """The mean of the θ − 2B values nearest to the median of the picked clients."""
    picked = [rows[k] for k in bulyan_picks(rows, num_byzantine)]
    return mean_near_median(picked, len(picked) - 2 * num_byzantine)


def cge_kept(rows: Rows, num_byzantine: int) -> list[int]:
    """The K − B clients of least norm, ties by lower index."""
    numerators, _ = whole(rows)
    squares = [sum(x * x for x in row) for row in numerators]
    return sorted(sorted(range(len(rows)), key=lambda k: (squares[k], k))[: len(rows) - num_byzantine])


def cge(rows: Rows, num_byzantine: int) -> Vector:
    """Their mean."""
    return mean_row([rows[k] for k in cge_kept(rows, num_byzantine)])


def diameter(distances: list[list[int]], subset: tuple[int, ...]) -> int:
    """The largest (squared) distance of two of them."""
    return max(distances[i][k] for i in subset for k in subset)


def mda_subset(rows: Rows, num_byzantine: int) -> tuple[int, ...]:
    """All subsets of K − B in order: the first of the least diameter."""
    distances = squared_distances(rows)
    subsets = itertools.combinations(range(len(rows)), len(rows) - num_byzantine)
    return min(subsets, key=lambda subset: diameter(distances, subset))


def mda(rows: Rows, num_byzantine: int) -> Vector:
    """Their mean."""
    return mean_row([rows[k] for k in mda_subset(rows, num_byzantine)])


def signsgd_mv(rows: Rows, step: float) -> Vector:
    """η·sgn Σ_k sgn(g_k)."""
    return [step * sign(sum(sign(x) for x in column(rows, j))) for j in range(len(rows[0]))]


def foundationfl_scores(rows: Rows) -> list[Fraction]:
    """s_k² = min[‖g_k − max‖², ‖g_k − min‖²], exactly."""
    exact = [[Fraction(x) for x in row] for row in rows]
    largest = [max(values) for values in zip(*exact, strict=True)]
    least = [min(values) for values in zip(*exact, strict=True)]
    return [
        min(sum((x - e) ** 2 for x, e in zip(row, extreme, strict=True)) for extreme in (largest, least))
        for row in exact
    ]


def foundationfl(rows: Rows, num_byzantine: int, copies: int, copied: int) -> Vector:
    """The trimmed mean of the clients and so many copies of one of them, B values dropped at each end."""
    every = rows + [rows[copied]] * copies
    return [mean(sorted(column(every, j))[num_byzantine : len(every) - num_byzantine]) for j in range(len(rows[0]))]
