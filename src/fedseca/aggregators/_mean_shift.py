"""MeanShift with a flat kernel, for the few numbers that a rule has of each client."""

import numpy as np
from numpy.typing import NDArray

_STILL = 1e-3
"""In bandwidths: a centre that moves no farther has arrived."""
_MOST_STEPS = 301
_DIGITS = 12
"""Of centres: what is beyond them is rounding."""

Points = NDArray[np.float64]


def largest_cluster(points: Points, quantile: float) -> NDArray[np.bool_]:
    """Which points are in the largest of MeanShift's clusters; one beyond the bandwidth of every centre is in none.

    A centre begins at each point and moves to the mean of the points within the bandwidth, until it stands still. Of
    centres within a bandwidth of each other the one with most points is left, and a point belongs to the nearest. The
    bandwidth is the mean distance of a point to the ⌊quantile·K⌋-th nearest, itself the first. Of clusters of the same
    size that of the densest centre is the largest.
    """
    rank = max(1, int(quantile * len(points) + 1e-9)) - 1
    # A point at the very bandwidth is within it, whatever rounding says; so are equal ones, if there is none.
    bandwidth = float(np.partition(_distances(points, points), rank, axis=1)[:, rank].mean()) + 1e-6
    distances = _distances(points, _apart(*_shifted(points, bandwidth), bandwidth))
    nearest = distances.argmin(axis=1)
    belongs = distances.min(axis=1) <= bandwidth
    largest = np.bincount(nearest[belongs]).argmax()
    return np.asarray(belongs & (nearest == largest))


def _distances(left: Points, right: Points) -> Points:
    """The distance of each point here to each point there, coordinate by coordinate: never as differences of all."""
    total = np.zeros((len(left), len(right)))
    for a, b in zip(left.T, right.T, strict=True):
        total += np.square(a[:, None] - b)
    return np.sqrt(total, out=total)


def _shifted(points: Points, bandwidth: float) -> tuple[Points, NDArray[np.int64]]:
    """Where the centres end that begin at the points, and how many points are within the bandwidth there."""
    centres = np.unique(points, axis=0)
    sizes = np.zeros(len(centres), np.int64)
    moving = np.arange(len(centres))
    for _ in range(_MOST_STEPS):
        near = _distances(centres[moving], points) <= bandwidth
        sizes[moving] = near.sum(axis=1)  # never 0: the mean of points in a ball has one of them as near to it
        before = centres[moving]
        centres[moving] = near @ points / sizes[moving, None]
        moving = moving[np.linalg.norm(centres[moving] - before, axis=1) > _STILL * bandwidth]
        if not len(moving):
            break
    return centres, sizes


def _apart(centres: Points, sizes: NDArray[np.int64], bandwidth: float) -> Points:
    """The centres without those that are within a bandwidth of a denser one; the densest first."""
    order = np.lexsort((*np.round(centres, _DIGITS).T[::-1], sizes))[::-1]
    left, chosen = centres[order], []
    while len(left):
        chosen.append(left[0])
        left = left[_distances(left[:1], left)[0] > bandwidth]
    return np.array(chosen)
