"""What a round costs in Flower: our strategy beside Flower's own, on the same replies, in one run.

    python -m benchmarks.flower_overhead [--replies 20] [--parameters 1000000] [--repeats 9] [--output figures.json]

Times `aggregate_train` alone: what each strategy does between the arrival of the replies and the new model. All get
equal replies, made anew each time (Flower's FedMedian empties them), in turns, so that a busy machine is fair to both.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, Krum
from flwr.supercore.task_identity import TaskIdentity

from fedseca.flower import RobustStrategy

PAIRS: dict[str, tuple[Callable[[], FedAvg], Callable[[], FedAvg]]] = {
    "fedseca beside FedMedian": (lambda: RobustStrategy("fedseca"), FedMedian),
    "cwmed beside FedMedian": (lambda: RobustStrategy("cwmed"), FedMedian),
    "krum beside Krum": (
        lambda: RobustStrategy("krum", hyperparameters={"num_byzantine": 4}),
        lambda: Krum(num_malicious_nodes=4),
    ),
    "fedavg beside FedAvg": (lambda: RobustStrategy("fedavg"), FedAvg),
}


def make_arrays(parameters: int, seed: int, before: ArrayRecord | None = None) -> ArrayRecord:
    """A model of four arrays; with one before it, a small step away from it."""
    rng = np.random.default_rng(seed)
    sizes = [parameters // 2, parameters // 4, parameters // 8]
    sizes.append(parameters - sum(sizes))
    steps = {f"layer{k}": rng.standard_normal(size, dtype=np.float32) for k, size in enumerate(sizes)}
    if before is not None:
        steps = {name: before[name].numpy() - np.float32(0.01) * (step + 0.5) for name, step in steps.items()}
    return ArrayRecord({name: Array(value) for name, value in steps.items()})


class Questions:
    """Stands for a grid: it has nodes, and a message to each gets an id."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> list[int]:
        return list(range(100, 100 + self.nodes))


def seconds_of(strategy: FedAvg, before: ArrayRecord, models: list[ArrayRecord]) -> float:
    grid: Any = Questions(len(models))
    messages = list(strategy.configure_train(1, before, ConfigRecord(), grid))
    replies = []
    for number, (message, model) in enumerate(zip(messages, models, strict=True)):
        message.metadata.__dict__["_message_id"] = f"question {number}"
        content = RecordDict({"arrays": ArrayRecord(dict(model)), "metrics": MetricRecord({"num-examples": 10})})
        replies.append(Message(content, reply_to=message))
    start = time.perf_counter()
    strategy.aggregate_train(1, replies)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="where the figures are written as JSON")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # messages are made in a run only
    before = make_arrays(options.parameters, 0)
    models = [make_arrays(options.parameters, 1 + k, before) for k in range(options.replies)]
    print(f"{options.replies} replies × {options.parameters:,} parameters, medians of {options.repeats}")
    figures: dict[str, dict[str, float]] = {}
    for name, (ours, theirs) in PAIRS.items():
        seconds_of(ours(), before, models)  # kernels are compiled or loaded once
        rounds = [
            (seconds_of(ours(), before, models), seconds_of(theirs(), before, models)) for _ in range(options.repeats)
        ]
        figures[name] = {
            "ours": round(median(each for each, _ in rounds), 4),
            "Flower's": round(median(each for _, each in rounds), 4),
            "ratio": round(median(mine / other for mine, other in rounds), 3),
        }
        print(f"{name:26} " + "  ".join(f"{what} {value:.3f}" for what, value in figures[name].items()))
    if options.output is not None:
        options.output.write_text(json.dumps({"arguments": vars(options), "seconds": figures}, indent=1, default=str))


if __name__ == "__main__":
    main()
