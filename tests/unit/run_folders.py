"""Run folders written by hand: many in little time, or with what no run would write."""

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedseca.audit import Audit
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.experiments.experiment import TableOfRuns
from fedseca.experiments.record import ExperimentRecord
from fedseca.experiments.results import Outcome, ResultTable, Score
from fedseca.federation import Scenario
from fedseca.report import Collection
from fedseca.version import __version__

_MAIN = EXPERIMENTS["main"]
assert isinstance(_MAIN, TableOfRuns)
RULES, ATTACKS = tuple(_MAIN.rows), tuple(_MAIN.columns)

DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550"
    "000000a49444154789c636800000082008177cd72b60000000049454e44ae426082"
)
"""A PNG of one point."""
SUSPECT = "weight 0.02, where the median is 0.3"


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_run(
    folder: Path,
    scenario: Scenario,
    *,
    best: float = 0.95,
    rounds: int | None = None,
    reason: str = "2 NaN, first at 0.weight[3]",
    result: bool = True,
    matrices: bool = True,
    version: str = __version__,
) -> Path:
    """A run whose F1 climbs to about `best`; the last client is left out in every third round.

    In the round after it, each Byzantine client is suspect.
    """
    rng = random.Random(str(folder.name))
    done = scenario.rounds if rounds is None else rounds
    by_round, by_client, pairs = [], [], []
    for number in range(1, done + 1):
        f1 = best * (1 - math.exp(-6 * number / scenario.rounds)) + rng.uniform(-0.01, 0.01)
        record: dict[str, Any] = {"round": number, "f1": abs(f1), "accuracy": abs(f1) + 0.01, "loss": 3 * (1.05 - f1)}
        by_round.append({**record, "void": None, "idle": False, "seconds": {"train": 0.1}})
        for k, client in enumerate(scenario.client_ids):
            audit: dict[str, Any] = {"round": number, "byzantine": scenario.is_byzantine(k), "client": client}
            if k == scenario.clients - 1 and number % 3 == 0:
                audit |= {"verdict": "left out", "reason": reason}
            else:
                suspect = scenario.is_byzantine(k) and number % 3 == 1
                audit |= {"verdict": "suspect", "reason": SUSPECT} if suspect else {"verdict": "used"}
                trust = 0.02 if scenario.is_byzantine(k) else 0.3
                for name in ("norm", "weight", "rho", "clip_factor", "adopted"):
                    audit[name] = abs(trust + rng.gauss(0, 0.03))
            by_client.append(audit)
        if not matrices:
            continue
        matrix = [[1.0 if i == j else rng.uniform(-1, 1) for j in scenario.client_ids] for i in scenario.client_ids]
        pairs.append({"round": number, "clients": list(scenario.client_ids), "concordance": matrix})
    folder.mkdir(parents=True)
    config = {"format": 2, "scenario": scenario.values(), "data": "0"}
    (folder / "config.json").write_text(json.dumps(config))
    for name, records in (("rounds", by_round), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text(lines(records))
    with Audit(folder / "clients.jsonl", every_line_synced=False) as chain:
        chain.append(by_client)
    if result:
        (folder / "result.json").write_text(json.dumps({"rounds": done, "versions": {"fedseca": version}}))
    return folder


def as_format_1(folder: Path) -> Path:
    """A run that was written in today's format, in the words of the version before: no hashes, and no verdicts."""
    told = []
    for line in (folder / "clients.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["client"] is None:  # it had no line of its own for a void round
            continue
        for name in ("previous", "hash"):
            del record[name]
        told.append(_in_words_of_format_1(record))
    (folder / "clients.jsonl").write_text(lines(told))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"format": 1}))
    return folder


def _in_words_of_format_1(record: dict[str, Any]) -> dict[str, Any]:
    verdict, reason = record.pop("verdict"), record.pop("reason", None)
    where = {"round": record.pop("round"), "client": record.pop("client"), "byzantine": record.pop("byzantine")}
    if verdict in (None, "no answer"):
        absence = "was not asked" if verdict is None else "did not answer"
        return {**where, "present": False, "admitted": False, "reason": absence}
    if verdict == "left out":
        return {**where, "present": True, "admitted": False, "reason": reason}
    if verdict == "round void":
        return {**where, "present": True, "admitted": True}
    return {**where, "present": True, "admitted": True, "suspect": verdict == "suspect", **record}


def write_grid(folder: Path, rules: Sequence[str] = RULES, attacks: Sequence[str] = ATTACKS, **common: Any) -> Path:
    """A run for each rule and attack; FedAvg collapses under some, others drop."""
    hurt = {("fedavg", "ipm"): 0.05, ("fedavg", "fang"): 0.04, ("krum", "alie"): 0.4, ("cwtm", "mimic"): 0.7}
    for rule, attack in itertools.product(rules, attacks):
        scenario = Scenario(aggregator=rule, attack=attack, **{"rounds": 50, **common})
        write_run(folder / "runs" / scenario.title, scenario, best=hurt.get((rule, attack), 0.95))
    return folder


def write_experiment(folder: Path, outcome: Outcome, *, name: str = "main") -> Path:
    """The record and the pictures, as `fedseca reproduce` leaves them beside its runs."""
    record = ExperimentRecord.of(name, f"fedseca reproduce {name} --seeds 0,1", outcome)
    folder.mkdir(exist_ok=True)
    for file, content in {**outcome.files, record.file: record.content()}.items():
        (folder / file).write_bytes(content)
    return folder / record.file


def table_of(found: Collection) -> ResultTable:
    """Three rules under two attacks; Krum broke under ALIE in the paper."""
    scores = []
    for place in itertools.product(("krum", "fedavg", "fedseca"), ("ipm", "alie")):
        runs = [run for run in found.runs if (run["config"]["aggregator"], run["config"]["attack"]) == place]
        paper = 0.1 if place == ("krum", "alie") else 0.88
        values, ids = (tuple(run[name] for run in runs) for name in ("score", "id"))
        scores.append(Score(*place, values, paper, ids))
    return ResultTable(
        title="Rules <b>under</b> attack",
        setting=["digits", "5 <b>clients</b>"],
        row_name="aggregator",
        column_name="attack",
        metric="f1",
        scores=scores,
        paper_setting="CIFAR-10, <b>ResNet18</b>",
    )
