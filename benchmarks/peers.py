"""Our rules beside those of other packages and of plain torch, on the same updates in one process.

    python -m benchmarks.peers [--sizes 5x100,64x600000,1000x10000] [--repeats 7] [--output results/speed/peers.json]

A size is clients × coordinates. What is installed of ByzFL, ByzPy and Flower takes part: `pip install '.[peers]'`, and
`pip install --no-deps byzpy cloudpickle`, since ByzPy asks for an older torch. All are called in turns, and medians
are compared, of the clock's seconds and of the processors'. Each is handed what its users have: ours and ByzFL a
matrix, ByzPy a list of vectors, Flower lists of NumPy arrays. None of them is taken for the truth, and they need not
mean the same: of an even number of clients our median is the lower middle value, theirs the mean of both, and each
sums other neighbours in Krum.
"""

import argparse
import importlib
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedseca
from fedseca.bench import make_updates, subtractions
from fedseca.errors import FedsecaError
from fedseca.models._library import timm_library

Call = Callable[[], object]
RULES = ("fedavg", "cwmed", "cwtm", "krum", "fedseca")


def ours(matrix: Tensor, byzantine: int) -> dict[str, Call]:
    """fedseca, screening and diagnostics included."""
    settings: dict[str, dict[str, Any]] = {
        "krum": {"num_byzantine": byzantine},
        "cwtm": {"trim": byzantine / len(matrix)},
    }
    return {rule: partial(fedseca.aggregate, matrix, rule=rule, **settings.get(rule, {})) for rule in RULES}


def plain_torch(matrix: Tensor, byzantine: int) -> dict[str, Call]:
    return {
        "fedavg": lambda: matrix.mean(dim=0),
        "cwmed": lambda: matrix.median(dim=0).values,
        "cwtm": lambda: matrix.sort(dim=0).values[byzantine : len(matrix) - byzantine].mean(dim=0),
        "krum": lambda: matrix[_scores(matrix, byzantine).argmin()],
    }


def _scores(matrix: Tensor, byzantine: int) -> Tensor:
    nearest = subtractions(matrix).sort(dim=1).values[:, 1 : len(matrix) - byzantine - 1]
    return nearest.sum(dim=1)


def byzfl(matrix: Tensor, byzantine: int) -> dict[str, Call]:
    with suppress(FedsecaError):
        timm_library()  # declares what torchvision lacks beside a CPU build of torch, which ByzFL imports, too
    rules = importlib.import_module("byzfl")
    made = {
        "fedavg": rules.Average(),
        "cwmed": rules.Median(),
        "cwtm": rules.TrMean(f=byzantine),
        "krum": rules.Krum(f=byzantine),
    }
    return {name: partial(rule, matrix) for name, rule in made.items()}


def byzpy(matrix: Tensor, byzantine: int) -> dict[str, Call]:
    by_coordinate = importlib.import_module("byzpy.aggregators.coordinate_wise")
    geometric = importlib.import_module("byzpy.aggregators.geometric_wise")
    rows = list(matrix)
    made = {
        "cwmed": by_coordinate.CoordinateWiseMedian(),
        "cwtm": by_coordinate.CoordinateWiseTrimmedMean(f=byzantine),
        "krum": geometric.Krum(f=byzantine),
    }
    return {name: partial(rule.aggregate, rows) for name, rule in made.items()}


def flower(matrix: Tensor, byzantine: int) -> dict[str, Call]:
    rules = importlib.import_module("flwr.server.strategy.aggregate")
    results = [([row], 1) for row in matrix.numpy()]
    return {
        "fedavg": lambda: rules.aggregate(results),
        "cwmed": lambda: rules.aggregate_median(results),
        "cwtm": lambda: rules.aggregate_trimmed_avg(results, byzantine / len(matrix)),
        "krum": lambda: rules.aggregate_krum(results, byzantine, 0),
    }


PEERS: dict[str, Callable[[Tensor, int], dict[str, Call]]] = {
    "fedseca": ours,
    "torch": plain_torch,
    "ByzFL": byzfl,
    "ByzPy": byzpy,
    "Flower": flower,
}


def measure(calls: dict[str, Call], repeats: int, longest: float) -> dict[str, dict[str, float]]:
    """The median seconds of each, called in turns; what takes longer than `longest` is called once."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    first = {name: _seconds(call, 1) for name, call in calls.items()}  # compiles, and touches memory for the first time
    again = {name: _seconds(call, 1) for name, call in calls.items() if first[name][0] <= longest}
    first |= again
    times = {name: max(1, min(500, round(0.02 / max(wall, 1e-6)))) for name, (wall, _) in first.items()}
    for _ in range(repeats):
        for name, call in calls.items():
            if first[name][0] <= longest:
                found[name].append(_seconds(call, times[name]))
    return {
        name: {
            "seconds": statistics.median(wall for wall, _ in each or [first[name]]),
            "cpu_seconds": statistics.median(cpu for _, cpu in each or [first[name]]),
        }
        for name, each in found.items()
    }


def _seconds(call: Call, times: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        call()
    return (time.perf_counter() - wall) / times, (time.process_time() - cpu) / times


def compare(clients: int, dim: int, rules: list[str], repeats: int, longest: float) -> list[dict[str, Any]]:
    """One row for each rule and package at one size."""
    matrix, byzantine = make_updates(clients, dim), max(1, clients // 5)
    offered: dict[str, dict[str, Call]] = {}
    for name, calls in PEERS.items():
        try:
            offered[name] = calls(matrix, byzantine)
        except (ImportError, RuntimeError) as missing:
            print(f"{name} takes no part: {str(missing).partition(chr(10))[0]}")
    rows = []
    for rule in rules:
        calls_of_rule = {name: calls[rule] for name, calls in offered.items() if rule in calls}
        found = measure(calls_of_rule, repeats, longest)
        for name, times in found.items():
            ratio = times["cpu_seconds"] / found["fedseca"]["cpu_seconds"]
            rows.append({"clients": clients, "dim": dim, "rule": rule, "package": name, **times, "times_ours": ratio})
            shown = f"{clients:>6,} × {dim:<12,}{rule:<9}{name:<9}"
            print(
                f"{shown}{times['seconds']:>12.6f} s{times['cpu_seconds']:>12.6f} s CPU{ratio:>9.2f} × ours", flush=True
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="5x100,64x600000,1000x10000")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--longest", type=float, default=10.0, help="seconds; what takes longer is called only once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for size in given.sizes.split(","):
        clients, dim = map(int, size.split("x"))
        rows += compare(clients, dim, given.rules.split(","), given.repeats, given.longest)
    if given.output is not None:
        report = {"threads": given.threads, "torch": torch.__version__, "measurements": rows}
        given.output.write_text(json.dumps(report, indent=1))
    assert all(math.isfinite(row["seconds"]) for row in rows)


if __name__ == "__main__":
    main()
