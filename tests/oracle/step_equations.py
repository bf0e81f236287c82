"""Oracles of the steps before a rule: each gives the mixed rows as plain loops, and who is in which of them.

Comparisons that decide something (who is nearest, whose signs are alike) are made in exact rationals.
"""

import itertools
import math
from fractions import Fraction

from tests.oracle.equations import Rows, Vector, lower_median, mean_row, norm, sign

Mixed = tuple[Rows, list[list[int]]]
"""The rows that the rule sees, and for each of them the clients that it is made of."""


def whole_numbers(rows: Rows) -> list[list[int]]:
    """The rows times a power of two that makes every number of them whole: what is compared is exact."""
    ratios = [[x.as_integer_ratio() for x in row] for row in rows]
    common = max((below for row in ratios for _, below in row), default=1)
    return [[above * (common // below) for above, below in row] for row in ratios]


def nnm(rows: Rows, ids: list[str], num_byzantine: int) -> Mixed:
    """Row i is the mean of the K − B rows nearest to it, itself first; ties by id."""
    whole = whole_numbers(rows)
    members = []
    for i in range(len(rows)):
        others = []
        for j in range(len(rows)):
            if j != i:
                others.append((sum((a - b) ** 2 for a, b in zip(whole[i], whole[j], strict=True)), ids[j], j))
        members.append([i, *(j for _, _, j in sorted(others))][: len(rows) - num_byzantine])
    return [mean_row([rows[j] for j in group]) for group in members], members


def scaled(row: Vector, factor: Fraction) -> Vector:
    return [float(Fraction(x) * factor) for x in row]


def shortened(row: Vector, radius: float) -> Vector:
    length = norm(row)
    return list(row) if length <= radius else scaled(row, Fraction(radius) / Fraction(length))


def clipping(rows: Rows, factor: float) -> Mixed:
    """Every row to at most c × the lower median norm."""
    radius = factor * lower_median([norm(row) for row in rows])
    return [shortened(row, radius) for row in rows], [[k] for k in range(len(rows))]


def normalising(rows: Rows) -> Mixed:
    """Every row to exactly the lower median norm; a zero row stays zero."""
    target = Fraction(lower_median([norm(row) for row in rows]))
    made = [scaled(row, target / Fraction(norm(row))) if norm(row) > 0 else list(row) for row in rows]
    return made, [[k] for k in range(len(rows))]


def arc(rows: Rows, num_byzantine: int) -> Mixed:
    """The ⌊2·B/K·(K − B)⌋ largest norms are clipped to the next one."""
    count = math.floor(Fraction(2 * num_byzantine, len(rows)) * (len(rows) - num_byzantine))
    radius = sorted((norm(row) for row in rows), reverse=True)[min(count, len(rows) - 1)]
    return [shortened(row, radius) for row in rows], [[k] for k in range(len(rows))]


def buckets(rows: Rows, members: list[list[int]]) -> Mixed:
    """The mean of each bucket, for buckets that were drawn."""
    return [mean_row([rows[k] for k in group]) for group in members], members


def alike(x: Vector, y: Vector, threshold: str) -> bool:
    """cos(sgn x, sgn y) > threshold, squared so that no root is drawn."""
    agreement = sum(sign(a) * sign(b) for a, b in zip(x, y, strict=True))
    nonzeros = sum(a != 0 for a in x) * sum(b != 0 for b in y)
    return agreement > 0 and Fraction(agreement) ** 2 > Fraction(threshold) ** 2 * nonzeros


def one_voice(rows: Rows, threshold: str) -> Mixed:
    """The mean of each group of clients whose signs are alike, transitively."""
    group_of = list(range(len(rows)))
    for i, j in itertools.combinations(range(len(rows)), 2):
        if alike(rows[i], rows[j], threshold) and group_of[i] != group_of[j]:
            old, new = max(group_of[i], group_of[j]), min(group_of[i], group_of[j])
            group_of = [new if group == old else group for group in group_of]
    members = [[k for k in range(len(rows)) if group_of[k] == group] for group in sorted(set(group_of))]
    return [mean_row([rows[k] for k in group]) for group in members], members
