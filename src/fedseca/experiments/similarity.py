"""How alike honest and Byzantine updates look under each attack, by the measures that defences use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedseca.attacks import make_attack
from fedseca.errors import MissingDependency
from fedseca.experiments.experiment import ATTACKS, OnStep, Request, TableOfRuns
from fedseca.experiments.plots import distributions
from fedseca.experiments.results import Outcome, ResultTable, Score, as_csv
from fedseca.experiments.store import Store
from fedseca.federation import Federation, Scenario
from fedseca.federation.byzantine import Byzantines
from fedseca.federation.folder import read_model
from fedseca.layout import Layout
from fedseca.server import Server

_MOST_RANKED = 20_000
"""Coordinates that Kendall's τ is computed on; drawn at random where there are more."""


@dataclass(frozen=True)
class Similarity:
    """The mean of the honest updates beside one Byzantine update."""

    attack: str
    honest: Tensor
    byzantine: Tensor

    def measures(self) -> dict[str, float]:
        """The lengths, then four ways to compare: near 1 is alike, −1 opposite.

        ω = 1/D·Σ_j sgn(g_h^j)·sgn(g_b^j) is FedSECA's sign concordance.
        """
        honest, byzantine = self.honest.double(), self.byzantine.double()
        pearson = torch.corrcoef(torch.stack([honest, byzantine]))[0, 1]
        return {
            "norm_honest": float(honest.norm()),
            "norm_byzantine": float(byzantine.norm()),
            "cosine": float(torch.cosine_similarity(honest, byzantine, dim=0)),
            "pearson": float(pearson),
            "kendall": _kendall(honest, byzantine),
            "concordance": float((honest.sign() * byzantine.sign()).mean()),
        }


def _kendall(left: Tensor, right: Tensor) -> float:
    try:
        from scipy.stats import kendalltau
    except ImportError:
        raise MissingDependency("Kendall's τ needs SciPy: pip install 'fedseca[simulation]'") from None
    if len(left) > _MOST_RANKED:
        some = torch.randperm(len(left), generator=torch.Generator().manual_seed(0))[:_MOST_RANKED]
        left, right = left[some], right[some]
    return float(kendalltau(left.numpy(), right.numpy()).statistic)


class SimilarityOfUpdates(TableOfRuns):
    """Attacks × measures, in the round after the training that its one run is."""

    def outcome(self, request: Request, store: Store, data_dir: Path | None, on_step: OnStep) -> Outcome:
        """The measures as CSV, and the distributions of the values as a picture."""
        run = self.cells(request)[0].scenarios[0]
        found: list[Similarity] = []
        if store.state(run) == "done":
            attacks = [attack for attack in ATTACKS if attack != "none"]
            model = read_model(store.folder(run))
            for done, attack in enumerate(attacks):
                on_step(attack, done, len(attacks))
                found.append(similarity(run, model, attack, data_dir))
        measured = {each.attack: each.measures() for each in found}
        table = ResultTable(
            title=self.title,
            row_name="attack",
            column_name="measure",
            metric="value",
            scores=[
                Score(attack, measure, (value,), runs=(run.id,))
                for attack, measures in measured.items()
                for measure, value in measures.items()
            ],
            coloured=False,
        )
        lines = [
            {"attack": attack, **{key: f"{value:.4g}" for key, value in measures.items()}}
            for attack, measures in measured.items()
        ]
        pairs = [(_heading(each.attack, measured[each.attack]), each.honest, each.byzantine) for each in found]
        pictures = {f"{self.name}.png": distributions(self.title, pairs)} if pairs else {}
        return Outcome(table, {f"{self.name}.csv": as_csv(lines), **pictures})


def _heading(attack: str, values: Mapping[str, float]) -> str:
    lengths = f"‖h‖ {values['norm_honest']:.2f}  ‖b‖ {values['norm_byzantine']:.2f}"
    alike = "  ".join(f"{short} {values[name]:+.2f}" for short, name in _SHORT.items())
    return f"{attack}\n{lengths}\n{alike}"


_SHORT = {"cos": "cosine", "r": "pearson", "τ": "kendall", "ω": "concordance"}


def similarity(
    scenario: Scenario, model: dict[str, Tensor], attack: str, data_dir: str | Path | None = None
) -> Similarity:
    """The next round after a training, with this attack: the honest updates are the same with every attack."""
    federation = Federation(replace(scenario, attack=make_attack(attack)), data_dir=data_dir)
    before = federation.fitting(model)
    layout = Layout.of(before, "median")
    start = layout.flatten(before, torch.float32)
    ids = federation.scenario.client_ids
    trained = {ids[k]: federation.train(k, before, scenario.rounds) for k in range(scenario.clients)}
    honest = {i: trained[i] for k, i in enumerate(ids) if not federation.scenario.is_byzantine(k)}
    own = {i: trained[i] for i in ids if i not in honest}
    attackers = Byzantines(federation.scenario.attack, Server("fedseca"), scenario.rounds, before, tuple(own))
    sent, _ = attackers.craft(honest, own, {}, scenario.generator("attack", scenario.rounds))
    mean = torch.stack([start - layout.flatten(each, torch.float32) for each in honest.values()]).mean(dim=0)
    return Similarity(attack, mean, start - layout.flatten(next(iter(sent.values())), torch.float32))
