"""A run as TensorBoard shows it."""

from __future__ import annotations

from pathlib import Path

from fedseca.errors import MissingDependency
from fedseca.federation.history import History
from fedseca.server import diagnostics_of


class TensorBoard:
    """Writes each round's metrics and each client's diagnostics; give it to `simulate` as `on_round`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependency("--tensorboard needs TensorBoard: pip install 'fedseca[tensorboard]'") from None
        self._make_writer, self._folder = SummaryWriter, str(folder)
        self._writer: SummaryWriter | None = None

    def __call__(self, history: History) -> None:
        record = history.rounds[-1]
        number = record["round"]
        if self._writer is None:  # what a killed run logged beyond its last checkpoint is not shown
            self._writer = self._make_writer(self._folder, purge_step=number)
        for metric in (*history.metrics, "loss", "admitted", "rejected"):
            if record[metric] is not None:
                self._writer.add_scalar(metric, record[metric], number)
        for line in (line for line in history.audit if line["round"] == number and line["client"] is not None):
            for each in diagnostics_of(history.scenario.aggregator).values():
                if isinstance(line.get(each.name), float):
                    self._writer.add_scalar(f"{each.name}/client {line['client']}", line[each.name], number)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
