"""The angles between the clients, and the larger of two groups of them, which several rules need."""

import torch
from torch import Tensor

from fedseca import ops
from fedseca.errors import MissingDependency
from fedseca.updates import Updates


def cosine_distances(updates: Updates) -> Tensor:
    """1 − cos(g_i, g_j) = ½·‖g_i/‖g_i‖ − g_j/‖g_j‖‖², which keeps its digits for close clients; 1 beside a zero."""
    norms = ops.norms(updates)
    zero = norms == 0
    distances = ops.squared_distances(updates, scale=1 / torch.where(zero, 1.0, norms)) / 2
    distances[zero, :] = 1
    distances[:, zero] = 1
    return distances.fill_diagonal_(0)


def larger_group(distances: Tensor, linkage: str, rule: str) -> Tensor:
    """Who is in the larger of the two clusters that agglomerative clustering ends with; of two equal ones, the first's.

    Each client begins as a cluster, and the two nearest clusters are joined until two are left. How far apart clusters
    are is the largest (complete), the mean (average) or the least distance (single) of a client here and one there.
    """
    count = len(distances)
    if count < 2:
        return torch.ones(count, dtype=torch.bool)
    try:
        from sklearn.cluster import AgglomerativeClustering
    except ImportError:
        raise MissingDependency(f"{rule} needs scikit-learn: pip install 'fedseca[detectors]'") from None
    fitted = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage=linkage).fit(distances.numpy())
    with_first = torch.from_numpy(fitted.labels_ == fitted.labels_[0])
    return with_first if 2 * int(with_first.sum()) >= count else ~with_first
