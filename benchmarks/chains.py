"""What a step before a rule costs, beside what it is made of, in one run on one machine.

    python benchmarks/chains.py [--clients 16] [--dim 11200000] [--repeats 7]

`nnm+cwmed` is compared with the sum of its pieces measured apart: the distances, a mean of the mixes (which reads them
all once), and the median of plain rows. `one_voice+fedseca` is compared with `fedseca`, where nobody is joined and
where a quarter of the clients are copies. All in turns; the medians of the repeats are compared, and the memory that
each takes beyond the updates.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fedseca import ops
from fedseca.aggregators import make_alone
from fedseca.bench import make_updates, memory_and_time
from fedseca.steps import STEPS, StepBefore
from fedseca.updates import Updates


def measure(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median seconds of each, all measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()  # compiles
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def _extra_memory(work: Callable[[], object], updates: torch.Tensor) -> int | None:
    """Megabytes beyond the updates, if this system tells."""
    extra, _ = memory_and_time(lambda _: work(), updates)
    return None if extra is None else round(extra / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--dim", type=int, default=11_200_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    matrix = make_updates(given.clients, given.dim)
    updates = Updates.collect(matrix)
    updates = replace(updates, norms=ops.norms(updates))  # as screening hands them over
    copied = matrix.clone()
    copied[: given.clients // 4] = copied[0]
    copies = Updates.collect(copied)
    copies = replace(copies, norms=ops.norms(copies))
    rng = torch.Generator()

    def ask(rule: str, of: Updates) -> Callable[[], object]:
        made = make_alone(rule)
        return lambda: made.aggregate(of, made.init(of.dim), rng)

    nnm = STEPS.make("nnm")
    assert isinstance(nnm, StepBefore)
    mixed = nnm.mix(updates, {}, rng).rows(updates)
    works = {
        "distances": lambda: ops.squared_distances(updates),
        "a mean of the mixes": lambda: ops.weighted_sum(mixed, mixed.fractions()),
        "cwmed": ask("cwmed", updates),
        "nnm+cwmed": ask("nnm+cwmed", updates),
        "fedseca": ask("fedseca", updates),
        "one_voice+fedseca": ask("one_voice+fedseca", updates),
        "one_voice+fedseca, a quarter copies": ask("one_voice+fedseca", copies),
    }
    seconds = measure(works, given.repeats)
    pieces = seconds["distances"] + seconds["a mean of the mixes"] + seconds["cwmed"]
    memory = {name: _extra_memory(works[name], matrix) for name in ("nnm+cwmed", "one_voice+fedseca")}
    report = {
        "clients": given.clients,
        "dim": given.dim,
        "threads": torch.get_num_threads(),
        "seconds": {name: round(each, 4) for name, each in seconds.items()},
        "nnm+cwmed / its pieces": round(seconds["nnm+cwmed"] / pieces, 3),
        "one_voice+fedseca / fedseca": round(seconds["one_voice+fedseca"] / seconds["fedseca"], 3),
        "one_voice+fedseca / fedseca, a quarter copies": round(
            seconds["one_voice+fedseca, a quarter copies"] / seconds["fedseca"], 3
        ),
        "extra MB": memory,
        "updates MB": round(4 * given.clients * given.dim / 1e6),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
