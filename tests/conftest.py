"""What all tests share: a seed, one thread for each worker, Hypothesis without deadlines (the machine may be busy)."""

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "fedseca", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedseca")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
