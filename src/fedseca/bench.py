"""How long aggregation takes and how much memory, beside the plain ways to do it and the paper's own table.

Everything that is compared is measured in one run on one machine: only ratios mean something on a busy one.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseca.aggregators import AGGREGATORS
from fedseca.errors import InputError
from fedseca.paper import read_table
from fedseca.server import aggregate

Work = Callable[[Tensor], object]
RESNET18 = 11_200_000
"""Its parameters, which the paper's times are for."""


@dataclass(frozen=True)
class Measurement:
    """One way to aggregate, at one number of clients."""

    name: str
    clients: int
    dim: int
    seconds: float
    """The median of the repeats."""
    spread: float
    """From the fastest repeat to the slowest."""
    repeats: int
    extra_bytes: int | None
    """How far the memory rose above what was there before, the updates themselves not counted; None: cannot be told."""


def paper_seconds() -> dict[tuple[str, int], float]:
    """The paper's table: (rule, clients) to seconds, ResNet18 (11.2 M parameters) on 8 cores."""
    rows = read_table("aggregation_seconds_resnet18")
    return {(row["aggregator"], int(row["clients"])): float(row["seconds"]) for row in rows}


def pseudocode(matrix: Tensor) -> Tensor:
    """FedSECA as the paper's pseudocode has it, line by line in plain torch (γ = 0.9, no momentum)."""
    magnitude, sign = matrix.abs(), matrix.sign()
    ratings = []
    for k in range(len(matrix)):
        omega = torch.nn.functional.cosine_similarity(sign, sign[k].view(1, -1))
        ratings.append(omega.sign().mean())
    rho = torch.stack(ratings).view(-1, 1).clamp(min=0)
    voted_sign = (sign * rho).sum(dim=0)
    norms = matrix.norm(dim=1)
    clipped = matrix * torch.minimum(torch.tensor(1.0), norms.median() / norms).view(-1, 1)
    middle = clipped.abs().median(dim=0).values
    clamped = torch.clamp(matrix, min=-middle, max=middle)
    # torch.quantile refuses more than 16 million elements, so it is given one row at a time
    threshold = torch.stack([_quantile(row) for row in magnitude]).view(-1, 1)
    clamped[magnitude < threshold] = 0
    mask = clamped * voted_sign > 0
    return (clamped * mask).sum(dim=0) / mask.sum(dim=0).clamp(min=1)


def _quantile(row: Tensor) -> Tensor:
    if row.numel() < 16_000_000:
        return row.quantile(0.9)
    return row.kthvalue(int(0.9 * (row.numel() - 1)) + 1).values


def subtractions(matrix: Tensor) -> Tensor:
    """All squared distances by K broadcast subtractions."""
    return torch.stack([(matrix - row).square().sum(dim=1) for row in matrix])


PLAIN: dict[str, tuple[str, Work]] = {
    "fedavg": ("torch.mean", lambda matrix: matrix.mean(dim=0)),
    "cwmed": ("torch.median", lambda matrix: matrix.median(dim=0)),
    "cwtm": ("torch.sort", lambda matrix: matrix.sort(dim=0)),
    "krum": ("K subtractions", subtractions),
    "multi_krum": ("K subtractions", subtractions),
    "copod_dos": ("K subtractions", subtractions),
}
"""The plain way in torch to do what a rule mostly does."""
PLAIN_NAMES = {"pseudocode", *(name for name, _ in PLAIN.values())}


def make_updates(clients: int, dim: int) -> Tensor:
    """Clients that share a direction, as quickly as memory can be written."""
    generator = torch.Generator().manual_seed(0)
    direction, noise = torch.randn(2, dim, generator=generator)
    matrix = torch.empty(clients, dim)
    for k in range(clients):
        torch.add(direction, noise.roll(7919 * k + 1), alpha=2.0, out=matrix[k])
    return matrix


def plan_measurements(
    rules: list[str], compare: list[str], dim: int, clients: list[int], compare_at: list[int] | None = None
) -> list[tuple[str, int, Work]]:
    """(name, clients, what to do) in order: the mean first, since all else is measured by it."""
    for rule in rules:
        AGGREGATORS.check(rule)
    for other in compare:
        if other not in ("pseudocode", "torch"):
            raise InputError(f"unknown comparison {other!r}. Known: pseudocode, torch")
    if dim < 1 or not clients or min(clients) < 1:
        raise InputError("--dim and --clients must be at least 1")
    planned: list[tuple[str, int, Work]] = []
    for count in clients:
        planned.append(("torch.mean", count, PLAIN["fedavg"][1]))
        planned += [(rule, count, _ask(rule)) for rule in rules]
        if compare_at is not None and count not in compare_at:
            continue
        if "torch" in compare:
            plain = {PLAIN[rule][0]: PLAIN[rule][1] for rule in rules if rule in PLAIN and rule != "fedavg"}
            planned += [(name, count, work) for name, work in plain.items()]
        if "pseudocode" in compare and "fedseca" in rules:
            planned.append(("pseudocode", count, pseudocode))
    return planned


def _ask(rule: str) -> Work:
    return lambda matrix: aggregate(matrix, rule=rule)


def measure(
    planned: list[tuple[str, int, Work]], dim: int, repeats: int, longest: float = 20.0
) -> Iterator[Measurement]:
    """Measure one after the other; what takes longer than `longest` seconds is not repeated."""
    matrix = torch.empty(0)
    for name, count, work in planned:
        if len(matrix) != count:
            del matrix  # the old one goes before the new one comes
            matrix = make_updates(count, dim)
        if name not in PLAIN_NAMES:
            work(matrix[:, : min(dim, 4096)])  # compiles
        extra, seconds = memory_and_time(work, matrix)
        times = [seconds]
        while len(times) < repeats and seconds < longest:
            start = time.perf_counter()
            work(matrix)
            times.append(time.perf_counter() - start)
        # The first has touched fresh memory for the first time; where there are others, they tell.
        times = times[1:] or times
        yield Measurement(name, count, dim, statistics.median(times), max(times) - min(times), len(times), extra)


def memory_and_time(work: Work, matrix: Tensor) -> tuple[int | None, float]:
    """How far the memory rises while it works, in bytes (None: cannot be told), and how many seconds it takes."""
    gc.collect()
    before = _reset_peak()
    start = time.perf_counter()
    work(matrix)
    seconds = time.perf_counter() - start
    return (None if before is None else max(0, _status("VmHWM") - before)), seconds


def _reset_peak() -> int | None:
    """Start the kernel's record of the most memory anew; the memory now in bytes, or None where there is no such."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return _status("VmRSS")
    except OSError:
        return None


def _status(key: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))
