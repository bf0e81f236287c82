"""What all tests share: one thread for each worker, and Hypothesis without deadlines (the machine may be busy)."""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "fedseca", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedseca")
