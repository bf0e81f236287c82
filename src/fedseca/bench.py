"""How long aggregation takes and how much memory, beside the plain ways to do it and the paper's own table.

Everything that is compared is measured in one run on one machine: only ratios mean something on a busy one.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedseca.aggregators import AGGREGATORS
from fedseca.errors import InputError
from fedseca.paper import read_table
from fedseca.server import aggregate

Work = Callable[[Any], object]
SMALL = 4096
"""Coordinates that a rule is tried on before it is measured."""
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
    form: str = "rows"
    """How the updates came."""
    cpu_seconds: float = math.nan
    """The median of what all threads together took; NaN if it was done only once."""

    @property
    def update_bytes(self) -> int:
        """How large the updates are."""
        return self.clients * self.dim * {"float64": 8, "bfloat16": 2, "float16": 2}.get(self.form, 4)


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


@dataclass(frozen=True)
class Form:
    """A form that updates come in: from float32 rows to it, in a folder for what is written to disk."""

    make: Callable[[Tensor, Path], Any]
    options: Callable[[Tensor], dict[str, Any]] = lambda matrix: {}
    """What `aggregate` is to be told with it."""


def _models(matrix: Tensor, folder: Path) -> list[dict[str, Tensor]]:
    """As Flower hands them over: arrays of some sizes, each the global model less the update."""
    origin = _global_model(matrix)
    return [{name: origin[name] - part for name, part in _arrays(row).items()} for row in matrix]


def _global_model(matrix: Tensor) -> dict[str, Tensor]:
    return _arrays(matrix[0].roll(1))


def _arrays(row: Tensor) -> dict[str, Tensor]:
    ends = [0, len(row) // 2, 3 * len(row) // 4, len(row)]
    return {f"layer {number}": row[start:stop].clone() for number, (start, stop) in enumerate(itertools.pairwise(ends))}


def _files(matrix: Tensor, folder: Path) -> list[str]:
    names = [str(folder / f"{k}.safetensors") for k in range(len(matrix))]
    for name, row in zip(names, matrix, strict=True):
        save_file(_arrays(row), name)
    return names


FORMS = {
    "rows": Form(lambda matrix, folder: matrix),
    "models": Form(_models, lambda matrix: {"before": _global_model(matrix)}),
    "float64": Form(lambda matrix, folder: matrix.double()),
    "bfloat16": Form(lambda matrix, folder: matrix.bfloat16()),
    "float16": Form(lambda matrix, folder: matrix.half()),
    "files": Form(_files, lambda matrix: {"in_place": True}),
}
"""float32 rows of a matrix; models with the global model they started from; rows of other dtypes; safetensors files."""


@dataclass(frozen=True)
class Planned:
    """One thing to measure."""

    name: str
    form: str
    clients: int
    dim: int
    plain: Work | None = None
    """The plain way in torch, if it is one; else the rule of this name is asked."""

    def __str__(self) -> str:
        form = "" if self.form == "rows" else f" of {self.form}"
        return f"{self.name}{form}, {self.clients:,} clients × {self.dim:,}"


def plan_measurements(
    rules: list[str],
    compare: list[str],
    dims: list[int],
    clients: list[int],
    compare_at: list[int] | None = None,
    forms: list[str] | None = None,
) -> list[Planned]:
    """What to measure, in order: at each size the mean first, since all else is measured by it."""
    forms = forms or ["rows"]
    for rule in rules:
        AGGREGATORS.check(rule)
    for what, names, known in (("comparison", compare, ("pseudocode", "torch")), ("form", forms, tuple(FORMS))):
        for name in names:
            if name not in known:
                raise InputError(f"unknown {what} {name!r}. Known: {', '.join(known)}")
    if not dims or not clients or min(dims) < 1 or min(clients) < 1:
        raise InputError("--dim and --clients must be at least 1")
    planned: list[Planned] = []
    for dim, count in itertools.product(dims, clients):
        planned.append(Planned("torch.mean", "rows", count, dim, PLAIN["fedavg"][1]))
        planned += [Planned(rule, form, count, dim) for form in forms for rule in rules]
        if compare_at is not None and count not in compare_at:
            continue
        if "torch" in compare:
            plain = {PLAIN[rule][0]: PLAIN[rule][1] for rule in rules if rule in PLAIN and rule != "fedavg"}
            planned += [Planned(name, "rows", count, dim, work) for name, work in plain.items()]
        if "pseudocode" in compare and "fedseca" in rules:
            planned.append(Planned("pseudocode", "rows", count, dim, pseudocode))
    return planned


def measure(planned: list[Planned], repeats: int, longest: float = 20.0) -> Iterator[Measurement]:
    """Measure one after the other; what takes longer than `longest` seconds is not repeated."""
    with tempfile.TemporaryDirectory() as folder:
        for (count, dim), of_size in itertools.groupby(planned, key=lambda each: (each.clients, each.dim)):
            matrix = make_updates(count, dim)
            for form, of_form in itertools.groupby(of_size, key=lambda each: each.form):
                given, options = FORMS[form].make(matrix, Path(folder)), FORMS[form].options(matrix)
                for each in of_form:
                    work = each.plain or _ask(each.name, options)
                    yield _measured(each, work, given, repeats, longest)
                del given
            del matrix  # the old one goes before the new one comes


def _ask(rule: str, options: dict[str, Any]) -> Work:
    return lambda updates: aggregate(updates, rule=rule, **options)


def _measured(what: Planned, work: Work, given: Any, repeats: int, longest: float) -> Measurement:
    if what.plain is None:
        work(given if what.dim < SMALL or what.form != "rows" else given[:, :SMALL])  # compiles
    extra, seconds = memory_and_time(work, given)
    # What is over at once is done many times in a repeat: a clock's own time would count otherwise.
    times = max(1, min(1000, round(0.02 / max(seconds, 1e-6))))
    walls, processors = [seconds], [math.nan]
    while len(walls) <= repeats and seconds < longest:
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(times):
            work(given)
        walls.append((time.perf_counter() - start) / times)
        processors.append((time.process_time() - busy) / times)
    # The first has touched fresh memory for the first time; where there are others, they tell.
    walls, processors = walls[1:] or walls, processors[1:] or processors
    return Measurement(
        what.name, what.clients, what.dim, statistics.median(walls), max(walls) - min(walls), len(walls), extra,
        what.form, statistics.median(processors),
    )  # fmt: skip


def memory_and_time(work: Work, matrix: Any) -> tuple[int | None, float]:
    """How far the memory rises while it works, in bytes (None: cannot be told), and how many seconds it takes."""
    gc.collect()
    _give_back()
    before = _reset_peak()
    start = time.perf_counter()
    work(matrix)
    seconds = time.perf_counter() - start
    return (None if before is None else max(0, _status("VmHWM") - before)), seconds


def _give_back() -> None:
    """Hand freed memory to the system: else what is taken again would not show."""
    with suppress(OSError, AttributeError, TypeError):  # not every C library can
        ctypes.CDLL(None).malloc_trim(0)


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
