"""How alike honest and Byzantine updates look under each attack, by the measures that defences use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
            "norm_honest_mean": float(honest.norm()),
            "norm_byzantine": float(byzantine.norm()),
            "cosine": float(torch.cosine_similarity(honest, byzantine, dim=0)),
            "pearson": float(pearson),
            "kendall": _kendall(honest, byzantine),
            "concordance": float((honest.sign() * byzantine.sign()).mean()),
        }


def _scipy() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise MissingDependency("Kendall's τ needs SciPy: pip install 'fedseca[simulation]'") from None
    return stats


def _kendall(left: Tensor, right: Tensor) -> float:
    if len(left) > _MOST_RANKED:
        some = torch.randperm(len(left), generator=torch.Generator().manual_seed(0))[:_MOST_RANKED]
        left, right = left[some], right[some]
    return float(_scipy().kendalltau(left.numpy(), right.numpy()).statistic)


class SimilarityOfUpdates(TableOfRuns):
    """Attacks × measures, in the round after the training that its runs are."""

    def require(self) -> None:
        _scipy()

    def outcome(self, request: Request, store: Store, data_dir: Path | None, on_step: OnStep) -> Outcome:
        """The measures as CSV, and the distributions of the values with the first seed as a picture."""
        ((_, histories),) = self.done(request, store).items()
        attacks = [attack for attack in ATTACKS if attack != "none"]
        found: dict[str, list[Similarity]] = {attack: [] for attack in attacks}
        for index, history in enumerate(histories):
            model = read_model(store.folder(history.scenario))
            for step, each in enumerate(similarities(history.scenario, model, attacks, data_dir), 1):
                on_step(f"seed {history.scenario.seed}", index * len(attacks) + step, len(histories) * len(attacks))
                found[each.attack].append(each)
        measured = {attack: [each.measures() for each in of_attack] for attack, of_attack in found.items()}
        table = ResultTable(
            title=self.title,
            row_name="attack",
            column_name="measure",
            metric="likeness",
            scores=[
                Score(
                    attack,
                    measure,
                    tuple(values[measure] for values in of_seeds),
                    runs=tuple(history.scenario.id for history in histories),
                )
                for attack, of_seeds in measured.items()
                for measure in (of_seeds[0] if of_seeds else ())
            ],
            coloured=False,
        )
        pairs = [
            (_heading(attack, measured[attack][0]), of_attack[0].honest, of_attack[0].byzantine)
            for attack, of_attack in found.items()
            if of_attack
        ]
        pictures = {f"{self.name}.png": distributions(self.title, pairs)} if pairs else {}
        return Outcome(table, {f"{self.name}.csv": as_csv(list(table.lines())), **pictures})


def _heading(attack: str, values: Mapping[str, float]) -> str:
    lengths = f"‖h‖ {values['norm_honest_mean']:.2f}  ‖b‖ {values['norm_byzantine']:.2f}"
    alike = "  ".join(f"{short} {values[name]:+.2f}" for short, name in _SHORT.items())
    return f"{attack}\n{lengths}\n{alike}"


_SHORT = {"cos": "cosine", "r": "pearson", "τ": "kendall", "ω": "concordance"}


def similarities(
    scenario: Scenario, model: dict[str, Tensor], attacks: list[str], data_dir: str | Path | None = None
) -> Iterator[Similarity]:
    """The next round after a training, once for each attack: the same honest updates, other Byzantine ones."""
    honest: dict[str, dict[str, Tensor]] = {}
    for name in attacks:
        federation = Federation(replace(scenario, attack=make_attack(name)), data_dir=data_dir)
        before = federation.fitting(model)
        layout = Layout.of(before, "median")
        start = layout.flatten(before, torch.float32)
        ids = scenario.client_ids
        byzantine = [k for k in range(scenario.clients) if scenario.is_byzantine(k)]
        if not honest:  # no attack changes what they train
            honest = {
                ids[k]: federation.train(k, before, scenario.rounds)
                for k in range(scenario.clients)
                if k not in byzantine
            }
        own = {ids[k]: federation.train(k, before, scenario.rounds) for k in byzantine}
        attackers = Byzantines(federation.scenario.attack, Server("fedseca"), scenario.rounds, before, tuple(own))
        sent, _ = attackers.craft(honest, own, {}, scenario.generator("attack", scenario.rounds))
        mean = torch.stack([start - layout.flatten(each, torch.float32) for each in honest.values()]).mean(dim=0)
        yield Similarity(name, mean, start - layout.flatten(next(iter(sent.values())), torch.float32))
