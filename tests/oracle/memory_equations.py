"""Oracles of the rules that weigh clients by trust (FoolsGold, RFFL, FLTrust) and of LASA, as plain loops.

Cosines are computed from exact whole numbers with fifty digits, so that what is alike is exactly alike.
"""

import itertools
import math
import statistics
from decimal import Decimal, localcontext
from typing import NamedTuple

from tests.oracle.equations import Rows, Vector, combine, lower_median, norm, sign, whole

_DIGITS = 50


def precise_cosine(a: Vector, b: Vector) -> Decimal:
    """cos(a, b) to fifty digits; 0 beside a zero vector."""
    (x, y), _ = whole([a, b])
    xy = sum(p * q for p, q in zip(x, y, strict=True))
    xx, yy = sum(p * p for p in x), sum(q * q for q in y)
    if not xx or not yy:
        return Decimal(0)
    with localcontext(prec=_DIGITS):
        return Decimal(xy) / (Decimal(xx) * Decimal(yy)).sqrt()


# ---------------------------------------------------------------- FoolsGold


def foolsgold_apart(histories: Rows) -> list[Decimal]:
    """1 − max_l c_kl of each client after pardoning; where nobody is like it, 1."""
    clients = range(len(histories))
    with localcontext(prec=_DIGITS):
        c = {(k, m): precise_cosine(histories[k], histories[m]) for k, m in itertools.combinations(clients, 2)}
        c |= {(m, k): value for (k, m), value in c.items()}
        v = [max([Decimal(0), *(c[k, m] for m in clients if m != k)]) for k in clients]
        for k, m in c:
            if v[m] > v[k]:
                c[k, m] *= v[k] / v[m]
        return [1 - max([Decimal(0), *(c[k, m] for m in clients if m != k)]) for k in clients]


def foolsgold_trust(apart: list[Decimal], confidence: float = 1.0) -> Vector:
    """α_k = κ·(ln(a_k/(1 − a_k)) + ½) of the rescaled a, clipped to 0 … 1; all 0 if all histories are the same."""
    if max(apart) == 0:
        return [0.0] * len(apart)
    trust = []
    with localcontext(prec=_DIGITS):
        for a in apart:
            share = a / max(apart)
            if share == 0:
                trust.append(0.0)
            elif share == 1:
                trust.append(1.0)
            else:
                trust.append(min(1.0, max(0.0, confidence * (float((share / (1 - share)).ln()) + 0.5))))
    return trust


# ---------------------------------------------------------------- RFFL


class Judged(NamedTuple):
    """One round of RFFL."""

    update: Vector
    cosines: Vector
    moved: Vector
    """α·r + (1−α)·cos, before anybody is left out."""
    reputations: Vector


def rffl(rows: Rows, before: Vector, memory: float, threshold: float, length: float | None = None) -> Judged:
    """g̃ = Σ r_k·Γ·g_k/‖g_k‖, then r_k ← α·r_k + (1−α)·cos(g_k, g̃); out below β/K; the rest sums to 1."""
    norms = [norm(row) for row in rows]
    gamma = lower_median(norms) if length is None else length
    directions = [[x / n for x in row] if n else list(row) for row, n in zip(rows, norms, strict=True)]
    update = [gamma * x for x in combine(directions, before)]
    rest = norm(combine(directions, before))
    cosines = [float(precise_cosine(row, update)) if rest > 1e-9 else 0.0 for row in rows]
    moved = [memory * r + (1 - memory) * c for r, c in zip(before, cosines, strict=True)]
    stays = [r > 0 and m > 0 and m >= threshold / len(rows) - 1e-12 for r, m in zip(before, moved, strict=True)]
    if not any(stays):
        return Judged(update, cosines, moved, before)
    total = math.fsum(m for m, stay in zip(moved, stays, strict=True) if stay)
    return Judged(update, cosines, moved, [m / total if stay else 0.0 for m, stay in zip(moved, stays, strict=True)])


# ---------------------------------------------------------------- Standing


class Stood(NamedTuple):
    """One round of Standing."""

    update: Vector
    agreements: Vector
    evidence: Vector
    standings: Vector
    out: list[bool]
    weights: Vector
    length: float
    """‖ū‖/τ before it is shortened."""


def standing(
    rows: Rows,
    before: Vector,
    was_out: list[bool],
    memory: float,
    share: float,
    doubt: float,
    leave: float,
    back: float,
    length: str,
) -> Stood:
    """The equations of the rule's docstring, client by client; ids in the order of the rows."""
    clients, half = range(len(rows)), len(rows) // 2
    cosine = [[float(precise_cosine(a, b)) for b in rows] for a in rows]
    others = [sorted((cosine[k][m] for m in clients if m != k), reverse=True) for k in clients]
    agreed = [others[k][half - 1] if half else 1.0 for k in clients]
    enough = share * max(0.0, sorted(agreed, reverse=True)[min(half, len(rows) - 1)])
    evidence = [max(-1.0, min(1.0, 1 - (enough - a) / max(enough, doubt))) for a in agreed]
    stands = [memory * q + (1 - memory) * v for q, v in zip(before, evidence, strict=True)]
    most = len(rows) - half - 1

    def chosen(low: list[bool], by: Vector) -> list[bool]:
        order = sorted((k for k in clients if low[k]), key=lambda k: (round(by[k], 9), k))
        return [k in order[:most] for k in clients]

    out = chosen([q < (back if w else leave) - 1e-9 for q, w in zip(stands, was_out, strict=True)], stands)
    low = [o or v < -1e-9 for o, v in zip(out, evidence, strict=True)]
    aside = chosen(low, [q - 10 if o else v for o, q, v in zip(out, stands, evidence, strict=True)])
    within = [k for k in clients if not aside[k]]
    weights = [0.0 if aside[k] else 1 / len(within) for k in clients]
    norms = [norm(row) for row in rows]
    tau = lower_median(norms)
    directions = [[x / n for x in row] if n else [0.0] * len(row) for row, n in zip(rows, norms, strict=True)]
    mean = combine(directions, weights)
    factor = 1.0
    if length == "median" and norm(mean) > 1e-9:
        along = [math.fsum(x * y for x, y in zip(directions[k], mean, strict=True)) for k in within]
        factor = max(0.0, min(1.0, lower_median(along) / norm(mean) ** 2))
    return Stood([tau * factor * x for x in mean], agreed, evidence, stands, out, weights, norm(mean))


# ---------------------------------------------------------------- FLTrust


def fltrust(rows: Rows, reference: Vector) -> tuple[Vector, Vector]:
    """Σ TS_k·(‖g₀‖/‖g_k‖)·g_k / Σ TS_k and TS_k = max[0, cos(g_k, g₀)]; 0 if nobody is trusted."""
    trust = [max(0.0, float(precise_cosine(row, reference))) for row in rows]
    total = math.fsum(trust)
    update = [0.0] * len(reference)
    for row, ts in zip(rows, trust, strict=True):
        if ts > 0:
            scale = ts / total * norm(reference) / norm(row)
            update = [u + x * scale for u, x in zip(update, row, strict=True)]
    return update, trust


# ---------------------------------------------------------------- LASA


class Layered(NamedTuple):
    """One round of LASA."""

    update: Vector
    kept: list[list[int]]
    """By layer: who was averaged."""
    lengths: list[Vector]
    purities: list[Vector]


def deviations(values: Vector) -> Vector:
    """|x − median|/σ with the population σ; 0 where all values are the same."""
    spread = statistics.pstdev(values)
    if spread <= 1e-9 * max(abs(x) for x in values):
        return [0.0] * len(values)
    middle = statistics.median(values)
    return [abs(x - middle) / spread for x in values]


def lasa(rows: Rows, sizes: list[int], sparsity: float, norm_bound: float, sign_bound: float) -> Layered:
    """Clip to the median norm, keep the largest magnitudes of the whole vector, filter and average each layer."""
    radius = lower_median([norm(row) for row in rows])
    count = max(1, math.floor((1 - sparsity) * len(rows[0]) + 1e-9))
    sparse = []
    for row in rows:
        least = sorted((abs(x) for x in row), reverse=True)[count - 1]
        factor = min(1.0, radius / norm(row)) if norm(row) > 0 else 1.0
        sparse.append([x * factor if abs(x) >= least else 0.0 for x in row])
    result, start = Layered([], [], [], []), 0
    for size in sizes:
        layer = [row[start : start + size] for row in sparse]
        lengths = [norm(row) for row in layer]
        purities: Vector = []
        for row in (each[start : start + size] for each in rows):
            signs = [sign(x) for x, left in zip(row, layer[len(purities)], strict=True) if left != 0]
            purities.append(0.5 * (1 + sum(signs) / len(signs)) if signs else 0.5)
        far = zip(deviations(lengths), deviations(purities), strict=True)
        kept = [k for k, (n, s) in enumerate(far) if n <= norm_bound + 1e-9 and s <= sign_bound + 1e-9]
        kept = kept or list(range(len(rows)))
        result.update.extend(math.fsum(layer[k][j] for k in kept) / len(kept) for j in range(size))
        result.kept.append(kept)
        result.lengths.append(lengths)
        result.purities.append(purities)
        start += size
    return result
