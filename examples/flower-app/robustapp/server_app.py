"""What the server does. An app that uses FedAvg becomes this one by the name of the strategy and its options."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from fedseca.flower import RobustStrategy
from robustapp import byzantine, task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    timeout, output_dir = float(config["timeout"]), str(config["output-dir"])
    byzantine.parse(str(config["byzantine"]))  # a wrong word ends the run here, not at every site
    strategy = RobustStrategy(
        rule=str(config["rule"]),
        audit_dir=str(config["audit-dir"]) or None,
        checkpoint_dir=str(config["checkpoint-dir"]) or None,
        anchor=str(config["anchor"]) or None,
        fraction_evaluate=0.0,
    )
    if output_dir:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    wait_for_sites(grid, int(config["min-nodes"]), timeout)
    result = strategy.start(
        grid,
        ArrayRecord(task.make_model().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=timeout,
        evaluate_fn=evaluate,
    )
    if output_dir:
        scores = {number: metrics["f1"] for number, metrics in result.evaluate_metrics_serverapp.items()}
        Path(output_dir, "f1.json").write_text(json.dumps(scores, indent=1))
        save_file(result.arrays.to_torch_state_dict(), Path(output_dir, "model.safetensors"))


def wait_for_sites(grid: Grid, enough: int, seconds: float) -> None:
    """Once, at the start: FedAvg's own `min_available_nodes` waits before every round, and without an end."""
    deadline = time.monotonic() + seconds
    while (found := len(list(grid.get_node_ids()))) < enough:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {enough} sites came within {seconds:g} s: start more, or lower min-nodes")
        time.sleep(1)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = task.make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"f1": task.macro_f1(model)})
