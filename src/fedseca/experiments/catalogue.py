"""The paper's results by name, and the field's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedseca.experiments.cost import CostOfDefence
from fedseca.experiments.experiment import ATTACKS, Experiment, Published, TableOfRuns
from fedseca.experiments.field import COLUMNS, ROWS, WORST, FieldOfRules
from fedseca.experiments.results import between, counted
from fedseca.experiments.similarity import SimilarityOfUpdates
from fedseca.experiments.timing import Timing
from fedseca.experiments.trust import TrustOverRounds
from fedseca.federation.presets import Changes
from fedseca.paper import read_table

_RULES = (
    "fedavg",
    "krum",
    "rfa",
    "cwtm",
    "huber",
    "cclip",
    "cc_randbucket",
    "cc_seqbucket",
    "copod_dos",
    "fldetector",
    "ties",
    "fedseca",
)

_QUICK = "one_voice+normalising+fedseca"
_COMPARED: dict[str, Changes] = {
    **{rule: {"aggregator": rule} for rule in ("fedavg", "fedseca", "standing", "huber", "rffl", "clipped_clustering")},
    f"{_QUICK}, β = 0": {"aggregator": {"name": _QUICK, "momentum": 0.0}},
}
"""Rules whose price is worth knowing: the mean, and those that hold under most attacks."""
_NONE = "none"
_COSTLY = (
    _NONE, "alie", "ipm", "fang", "labelflip", "mimic", "scaling", "minmax",
    "noisy_mimic", "shrink", "signflip", "concordant_flip", "opt_ipm",
)  # fmt: skip
"""The paper's attacks, and those of the field that hurt most without many questions to the rule."""


def _fedseca(**hyperparameters: Any) -> Changes:
    return {"aggregator": {"name": "fedseca", **hyperparameters}}


_ABLATIONS: dict[str, Changes] = {
    "full": _fedseca(),
    "no_concordance_ratio": _fedseca(concordance=False),
    "no_coordinatewise_aggregation": _fedseca(coordinatewise=False),
    "no_crise": _fedseca(election=False),
    "no_vrs": _fedseca(vrs=False),
    "no_sparsification": _fedseca(sparsity=0.0),
    "no_clip_and_clamp": _fedseca(clip=False, clamp=False),
    "no_clipping": _fedseca(clip=False),
    "no_clamping": _fedseca(clamp=False),
    "no_server_momentum": _fedseca(momentum=0.0),
}


def _main_f1(dataset: str) -> dict[tuple[str, str], float]:
    rows = (row for row in read_table("main_f1") if row["dataset"] == dataset)
    return {(row["aggregator"], row["attack"]): float(row["f1"]) for row in rows}


_MAIN = TableOfRuns(
    name="main",
    title=lambda rows, columns: f"{counted(len(rows), 'rule')} under {counted(len(columns), 'attack')}",
    source="the paper's Figure 3",
    row_name="aggregator",
    column_name="attack",
    rows={rule: {"aggregator": rule} for rule in _RULES},
    any_rule=True,
    columns=ATTACKS,
    paper=_main_f1("cifar10"),
    other_papers={
        "eurosat": Published("EuroSAT, DeiT-S", _main_f1("eurosat")),
        "fedisic": Published("FedISIC, ConvNeXt-nano", _main_f1("fedisic")),
    },
)

_ABLATION = TableOfRuns(
    name="ablation",
    title=lambda rows, columns: (
        f"FedSECA without its parts: {counted(len(rows), 'variant')} under {counted(len(columns), 'attack')}"
    ),
    source="the paper's Table 1",
    row_name="component_removed",
    column_name="attack",
    rows=_ABLATIONS,
    columns=ATTACKS,
    paper={(row["component_removed"], row["attack"]): float(row["f1"]) for row in read_table("ablation_f1_cifar10")},
)

_SENSITIVITY = TableOfRuns(
    name="sensitivity",
    title=lambda rows, columns: (
        f"FedSECA's hyperparameters: {counted(len(rows), 'value')} under {counted(len(columns), 'attack')}"
    ),
    source="the paper's Figure 4",
    row_name="hyperparameter",
    column_name="attack",
    rows={
        **{f"momentum={value:g}": _fedseca(momentum=value) for value in (0.9, 0.75, 0.5, 0.25, 0.1, 0.0)},
        **{f"sparsity={value:g}": _fedseca(sparsity=value) for value in (0.99, 0.9, 0.82, 0.67, 0.51, 0.22)},
    },
    columns=ATTACKS,
)

_64_CLIENTS = TableOfRuns(
    name="byzantine-count",
    title=lambda rows, columns: (
        f"FedSECA with {between(rows)} Byzantine clients under {counted(len(columns), 'attack')}"
    ),
    source="the paper's Figure 5 (64 clients)",
    row_name="byzantine",
    row_label="{} Byzantine",
    column_name="attack",
    rows={str(count): {"byzantine": count} for count in (8, 17, 31, 34, 40)},
    columns=ATTACKS,
    base={"aggregator": "fedseca", "clients": 64, "partition": "iid", "batch_size": 16},
)

_BYZANTINE_COUNT = replace(
    _64_CLIENTS,
    rows={str(count): {"byzantine": count} for count in (2, 4, 7, 9, 10)},
    base={"aggregator": "fedseca", "clients": 16, "partition": "iid"},
    in_the_paper=_64_CLIENTS,
)

_CLIENT_COUNT = TableOfRuns(
    name="client-count",
    title=lambda rows, columns: f"{counted(len(columns), 'rule')} with {between(rows)} clients",
    source="the paper's Table 2",
    row_name="clients",
    row_label="{} clients",
    column_name="aggregator",
    rows={str(count): {"clients": count} for count in (5, 10, 25, 50, 100, 200)},
    columns={"fedavg": {"aggregator": "fedavg"}, "fedseca": {"aggregator": "fedseca"}},
    base={"attack": "none", "byzantine": 0, "partition": "iid"},
    metric="accuracy",
    last=10,
    paper={
        (row["clients"], row["aggregator"]): float(row["accuracy"]) / 100
        for row in read_table("client_count_cifar10_iid")
    },
)

_CONCORDANCE = TrustOverRounds(
    name="concordance",
    title=lambda rows, columns: (
        f"The say of every client in FedSECA's election under {counted(len(columns), 'attack')}"
    ),
    row_name="aggregator",
    column_name="attack",
    rows={"fedseca": _fedseca()},
    columns=ATTACKS,
)

_SIMILARITY = SimilarityOfUpdates(
    name="similarity",
    title=lambda rows, columns: f"Honest and Byzantine updates side by side under {counted(len(rows), 'attack')}",
    source="the paper's Figure 1",
    row_name="aggregator",
    column_name="attack",
    rows={"fedavg": {"aggregator": "fedavg"}},
    columns={"none": {"attack": "none"}},
    base={"rounds": 5},
)

_FIELD = FieldOfRules(
    name="field",
    title=lambda rows, columns: (
        f"The field: {counted(len(rows), 'rule')} under {counted(len({*columns} - {WORST, 'none'}), 'attack')}"
    ),
    row_name="aggregator",
    column_name="attack",
    rows=ROWS,
    columns=COLUMNS,
    any_rule=True,
    courses=False,
    base={"rounds": 20},
)

_COST = CostOfDefence(
    name="cost",
    title=lambda rows, columns: f"What a defence costs, and what it is worth: {counted(len(rows), 'rule')}",
    row_name="aggregator",
    column_name="attack",
    rows=_COMPARED,
    columns={_NONE: COLUMNS[_NONE], **COLUMNS},
    long_runs={attack: COLUMNS[attack] for attack in _COSTLY},
    short_presets=("digits", "breast_cancer", "heart_disease"),
    any_rule=True,
    courses=False,
)

_TIMING = Timing(
    name="timing",
    title=lambda rows, columns: f"Seconds that {counted(len(rows), 'rule')} took to aggregate",
    rules=_RULES,
    clients=(4, 8, 16, 32, 64, 128, 256),
)

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        _MAIN,
        _ABLATION,
        _SENSITIVITY,
        _BYZANTINE_COUNT,
        _CLIENT_COUNT,
        _TIMING,
        _CONCORDANCE,
        _SIMILARITY,
        _FIELD,
        _COST,
    )
}
