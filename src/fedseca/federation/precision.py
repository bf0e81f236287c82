"""With how many bits a network computes."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import cache

import torch

from fedseca.errors import InputError
from fedseca.federation.scenario import Precision

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.{}); a @ a"


def mixed(precision: Precision, device: torch.device) -> torch.autocast:
    """A context in which a network computes with a precision; what needs more bits gets them."""
    return torch.autocast(device.type, dtype=_TYPES.get(precision), enabled=precision in _TYPES)


def check_precision(precision: Precision, device: torch.device) -> None:
    """That it can be used there. A virtual machine may offer instructions (AMX) that end the process."""
    if precision in _TYPES and device.type == "cpu" and (end := _end_of_probe(precision)) is not None:
        raise InputError(
            f"precision {precision} cannot be used on this CPU: a product of matrices ended with {end}; take fp32, or "
            "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, which does without AMX"
        )


@cache
def _end_of_probe(precision: Precision) -> str | None:
    """The signal that ends a process that computes so; None if none does."""
    name = str(_TYPES[precision]).removeprefix("torch.")
    code = subprocess.run([sys.executable, "-c", _PROBE.format(name)], capture_output=True).returncode
    return signal.Signals(-code).name if code < 0 else None
