"""FLDetector: clients whose updates do not follow from their own past are left out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedseca import ops
from fedseca.aggregators.base import WEIGHT, Aggregation, Aggregator
from fedseca.declare import diagnostic, param
from fedseca.errors import MissingDependency
from fedseca.parts import register
from fedseca.updates import State, Updates

AGGREGATES = "aggregates"
ROUND = "round"


@register("fldetector")
@dataclass(frozen=True, kw_only=True)
class FLDetector(Aggregator):
    """The mean of the clients whose updates follow from their last one and the curvature of the loss.

    ĝ_k = g_k^(t−1) + H·(w^(t) − w^(t−1)) with the L-BFGS Hessian H of the last N aggregates; d_k = ‖ĝ_k − g_k‖, scaled
    to sum to 1 over the clients; the score of a client is its mean d over the last N rounds. If the Gap statistic
    finds more than one cluster of scores, 2-means splits them and the higher cluster is left out (Zhang et al. 2022).
    The first two rounds have no curvature yet: all are averaged. Remembers K + N + 1 vectors. Needs scikit-learn.
    Cost: O((K + N²)·D).
    """

    diagnostics = (WEIGHT, diagnostic("score", help="how little its updates follow from its past; none at first"))

    window: int = param(10, ge=1, help="N: rounds that the score and the Hessian look back")
    references: int = param(10, ge=1, help="uniform draws that the Gap statistic compares with")

    def init(self, dim: int) -> State:
        return {AGGREGATES: torch.zeros(0, dim), ROUND: torch.zeros((), dtype=torch.int64)}

    def aggregate(self, updates: Updates, state: State, rng: torch.Generator) -> Aggregation:
        memory = _Memory(state, updates)
        distances = self.unexpectedness(updates, memory)
        history = {c: memory.distances(c) + ([distances[c]] if c in distances else []) for c in updates.client_ids}
        history = {c: past[-self.window :] for c, past in history.items()}
        scores = {c: float(np.mean(past)) for c, past in history.items() if past}
        suspects = self.suspects(scores, rng)

        kept = torch.tensor([c not in suspects for c in updates.client_ids], dtype=torch.float64)
        weight = kept / kept.sum()
        update = ops.weighted_sum(updates, weight)
        score = torch.tensor([scores.get(c, torch.nan) for c in updates.client_ids], dtype=torch.float64)
        new_state = memory.after(updates, update, history, self.window)
        return Aggregation(update, {"weight": weight, "score": score}, new_state, tuple(sorted(suspects)))

    def unexpectedness(self, updates: Updates, memory: "_Memory") -> dict[str, float]:
        """d_k by client id, for the clients that were seen before."""
        known = [k for k, c in enumerate(updates.client_ids) if memory.previous(c) is not None]
        change = expected_change(updates, memory.aggregates)
        if change is None or not known:
            return {}
        current = updates.select(known)
        rows = [updates.vector_row(row) for c in current.client_ids if (row := memory.previous(c)) is not None]
        distances = ops.paired_distances(current, current.with_rows(rows, current.client_ids), change)
        if not distances.isfinite().all() or not distances.any():
            return {}
        distances = distances / distances.max()  # so that their sum is finite
        return dict(zip(current.client_ids, (distances / distances.sum()).tolist(), strict=True))

    def suspects(self, scores: dict[str, float], rng: torch.Generator) -> set[str]:
        """The clients in the higher of two clusters, if there is more than one."""
        # Sorted by score, so that the answer does not depend on who answered first.
        ordered = sorted(scores, key=lambda c: (scores[c], c))
        values = np.array([scores[c] for c in ordered])
        if len(values) < 3 or values[0] == values[-1]:
            return set()
        scaled = (values - values[0]) / (values[-1] - values[0])
        if not _has_clusters(scaled, self.references, rng):
            return set()
        labels = _two_means(scaled, rng)[1]
        return {c for c, label in zip(ordered, labels, strict=True) if label == labels[-1]}


class _Memory:
    """The state by what it means."""

    def __init__(self, state: State, updates: Updates) -> None:
        self.state = state
        self.aggregates = [row.to(updates.device, updates.compute_dtype) for row in state[AGGREGATES]]
        self.round = int(state[ROUND])

    def previous(self, client_id: str) -> Tensor | None:
        return self.state.get(f"previous/{client_id}")

    def distances(self, client_id: str) -> list[float]:
        found = self.state.get(f"distances/{client_id}")
        return [] if found is None else found.tolist()

    def after(self, updates: Updates, update: Tensor, history: dict[str, list[float]], window: int) -> State:
        """What to remember: of this round's clients anew, of the others until they were away for a whole window."""
        recent = [*self.aggregates, update.to(updates.compute_dtype)][-window - 1 :]
        new = {AGGREGATES: torch.stack(recent), ROUND: torch.tensor(self.round + 1)}
        for name, value in self.state.items():
            client_id = name.partition("/")[2]
            if client_id and self.round - int(self.state[f"seen/{client_id}"]) <= window:
                new[name] = value
        for k, client_id in enumerate(updates.client_ids):
            new[f"previous/{client_id}"] = updates.row(k).to(updates.dtype, copy=True)
            new[f"distances/{client_id}"] = torch.tensor(history[client_id], dtype=torch.float64)
            new[f"seen/{client_id}"] = torch.tensor(self.round)
        return new


def expected_change(updates: Updates, aggregates: Sequence[Tensor]) -> Tensor | None:
    """H·(w^(t) − w^(t−1)), from the aggregates A of the rounds before; None while there is no curvature.

    The server steps w^(r+1) = w^(r) − η·A_r, so s_r = −A_(r−1) and y_r = A_r − A_(r−1) are the pairs of L-BFGS (a
    constant η cancels). All of them are combinations of the aggregates, so H·v is one too: the recursion works on
    coefficients, and only the aggregates' dot products are read from the data.
    """
    count = len(aggregates)
    if count < 2:
        return None
    rows = updates.with_rows([updates.vector_row(a) for a in aggregates], [str(r) for r in range(count)])
    gram = ops.dots(rows, rows)
    unit = torch.eye(count, dtype=torch.float64)
    pairs = [(-unit[r - 1], unit[r] - unit[r - 1]) for r in range(1, count)]
    coefficients = hessian_product(pairs, -unit[-1], gram)
    # In float64: what one wild round left in the memory must not overflow here.
    change = ops.weighted_sum(rows, coefficients, torch.float64)
    return change if change.isfinite().all() else None


def hessian_product(pairs: Sequence[tuple[Tensor, Tensor]], vector: Tensor, gram: Tensor) -> Tensor:
    """B·v for the BFGS matrix of the pairs (s, y), all as coefficients over vectors with this Gram matrix.

    B_(i+1) = B_i − B_i·s·sᵀ·B_i/(sᵀ·B_i·s) + y·yᵀ/(yᵀ·s), from B_0 = (yᵀs/sᵀs)·I of the newest pair. Pairs without
    positive curvature are left out, as always in L-BFGS: with them B would not be positive definite.
    """

    def inner(a: Tensor, b: Tensor) -> float:
        return float(a @ gram @ b)

    def curved(s: Tensor, y: Tensor) -> bool:
        return inner(s, y) > 1e-10 * math.sqrt(inner(s, s) * max(inner(y, y), 0.0))

    # B does not change if s and y are scaled alike: with s of unit length nothing over- or underflows needlessly.
    unit = [(s / math.sqrt(inner(s, s)), y / math.sqrt(inner(s, s))) for s, y in pairs if inner(s, s) > 0]
    kept = [(s, y) for s, y in unit if curved(s, y)]
    if not kept:
        return torch.zeros_like(vector)
    scale = inner(*kept[-1])
    terms: list[tuple[Tensor, float]] = []  # B_i = scale·I + Σ sign·u·uᵀ

    def product(v: Tensor) -> Tensor:
        return scale * v + sum((sign * inner(u, v) * u for u, sign in terms), torch.zeros_like(v))

    for s, y in kept:
        image = product(s)
        if inner(s, image) > 0:  # in exact arithmetic it always is
            terms.append((image / math.sqrt(inner(s, image)), -1.0))
            terms.append((y / math.sqrt(inner(y, s)), 1.0))
    return product(vector)


def _two_means(values: np.ndarray, rng: torch.Generator) -> tuple[float, np.ndarray]:
    """The spread within two clusters of numbers, and who is in which."""
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        raise MissingDependency("fldetector needs scikit-learn: pip install 'fedseca[detectors]'") from None
    seed = int(torch.randint(2**31, (), generator=rng, device="cpu"))
    fitted = KMeans(n_clusters=2, n_init=10, random_state=seed).fit(values[:, None])
    return float(fitted.inertia_), fitted.labels_


def _has_clusters(values: np.ndarray, references: int, rng: torch.Generator) -> bool:
    """Whether the Gap statistic of numbers in [0, 1] prefers two clusters to one.

    Gap(n) = E*[log W_n] − log W_n over uniform references; one cluster is enough if Gap(1) ≥ Gap(2) − s_2.
    """

    def log_spreads(numbers: np.ndarray) -> tuple[float, float]:
        one, two = float(((numbers - numbers.mean()) ** 2).sum()), _two_means(numbers, rng)[0]
        return float(np.log(one + 1e-12)), float(np.log(two + 1e-12))

    drawn = torch.rand(references, len(values), generator=rng, dtype=torch.float64, device="cpu").numpy()
    expected = np.array([log_spreads(reference) for reference in drawn])
    gap_one, gap_two = expected.mean(axis=0) - np.array(log_spreads(values))
    error = expected[:, 1].std() * np.sqrt(1 + 1 / references)
    return bool(gap_one < gap_two - error)
