"""Matrices of updates as Hypothesis draws them: zeros, ties, repeated rows, huge and tiny values, odd and even K."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st

_ROUND = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0])
_PLAIN = st.floats(-10, 10, allow_nan=False, allow_subnormal=False, width=32)
_EXTREME = st.sampled_from([1e30, -1e30, 1e-30, -1e-30, 1e20, -1e-20, 3e38, -3e38])


@st.composite
def matrices(draw, dtype: torch.dtype = torch.float64, min_clients=1, max_clients=9, max_dim=10, extremes=True):
    """A K×D tensor of exactly representable values."""
    clients, dim = draw(st.integers(min_clients, max_clients)), draw(st.integers(1, max_dim))
    value = st.one_of(_ROUND, _PLAIN, _EXTREME) if extremes else st.one_of(_ROUND, _PLAIN)
    rows = [[draw(value) for _ in range(dim)] for _ in range(clients)]
    for k in range(clients):
        size = draw(st.sampled_from([1.0] * 6 + [1e-30, 1e8, 1e28])) if extremes else 1.0
        rows[k] = [max(-3e38, min(3e38, x * size)) for x in rows[k]]
    for k in range(1, clients):
        if draw(st.integers(0, 5)) == 0:
            rows[k] = list(rows[draw(st.integers(0, k - 1))])
    return torch.tensor(rows, dtype=torch.float32).to(dtype)


def generic(clients: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Clients that share a direction and differ by noise."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=dim) + 0.8 * rng.normal(size=(clients, dim))).to(dtype)


def assert_close(found: torch.Tensor, expected: Sequence[float], relative: float, scale: torch.Tensor | float = 0.0):
    """|found − expected| ≤ relative·max(|expected|, scale), coordinate by coordinate."""
    want = torch.tensor(expected, dtype=torch.float64)
    least = float(torch.finfo(found.dtype).tiny)  # below it numbers lose their digits
    bound = relative * torch.maximum(want.abs(), torch.as_tensor(scale, dtype=torch.float64).expand_as(want)) + least
    wrong = ~((found.double() - want).abs() <= bound)
    assert not wrong.any(), f"coordinates {wrong.nonzero().flatten().tolist()}: {found[wrong]}, expected {want[wrong]}"
