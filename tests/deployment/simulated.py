"""Six sites on Flower's simulation runtime, the first two of them with IPM: Flower's FedAvg, then RobustStrategy.

`python -m tests.deployment.simulated FILE` writes their F1 by round. Both play in one runtime: its start takes long.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from robustapp import task

from fedseca.flower import RobustStrategy

SITES, BYZANTINE, ROUNDS = 6, 2, 5
STRENGTH = 3
"""ε > 2 turns the mean of four honest and two Byzantine updates round: 4·μ − 2·ε·μ < 0."""

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    before = dict(message.content.array_records["arrays"].to_torch_state_dict())
    site = int(context.node_config["partition-id"])
    if site >= BYZANTINE:
        after = learnt(before, site)
    else:  # it knows all honest updates g = before − after, and sends the model of −ε·mean(g)
        honest = [learnt(before, other) for other in range(BYZANTINE, SITES)]
        after = {
            name: value + STRENGTH * sum(value - model[name] for model in honest) / len(honest)
            for name, value in before.items()
        }
    metrics = MetricRecord({"num-examples": 100})
    return Message(RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)


def learnt(before: dict[str, Any], site: int) -> dict[str, Any]:
    model = task.make_model()
    model.load_state_dict(before)
    task.train(model, *task.load_training(site, SITES))
    return dict(model.state_dict())


def main(output: Path) -> None:
    scores: dict[str, list[Any]] = {}
    server_app = ServerApp()

    @server_app.main()
    def play(grid: Grid, context: Context) -> None:
        begin = ArrayRecord(task.make_model().state_dict())
        common: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": SITES, "min_available_nodes": SITES}
        for name, strategy in (
            ("FedAvg", FedAvg(**common)),
            ("fedseca", RobustStrategy(audit_dir=output.parent / "audit", **common)),
        ):
            result = strategy.start(grid, begin, num_rounds=ROUNDS, timeout=60, evaluate_fn=evaluate)
            scores[name] = [record["f1"] for record in result.evaluate_metrics_serverapp.values()]

    cores = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, SITES, backend_config=cores)  # type: ignore[arg-type]
    output.write_text(json.dumps(scores))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = task.make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"f1": task.macro_f1(model)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
