"""How alike honest and Byzantine updates look under each attack, by the measures that defences use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedseca.attacks import make_attack
from fedseca.errors import MissingDependency
from fedseca.federation import Federation, Scenario
from fedseca.federation.byzantine import Byzantines
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


def similarities(
    scenario: Scenario, model: dict[str, Tensor], attacks: list[str], data_dir: str | Path | None = None
) -> Iterator[Similarity]:
    """The next round after a training, once for each attack: the same honest updates, other Byzantine ones."""
    for name in attacks:
        federation = Federation(replace(scenario, attack=make_attack(name)), data_dir=data_dir)
        before = federation.fitting(model)
        layout = Layout.of(before, "median")
        start = layout.flatten(before, torch.float32)
        ids = federation.scenario.client_ids
        trained = {ids[k]: federation.train(k, before, scenario.rounds) for k in range(scenario.clients)}
        honest = {i: trained[i] for k, i in enumerate(ids) if not federation.scenario.is_byzantine(k)}
        own = {i: trained[i] for i in ids if i not in honest}
        attack = federation.scenario.attack
        attackers = Byzantines(attack, Server("fedseca"), scenario.rounds, before, tuple(own))
        rng = scenario.generator("attack", scenario.rounds)
        sent, _ = attackers.craft(honest, own, {}, rng)
        mean = torch.stack([start - layout.flatten(each, torch.float32) for each in honest.values()]).mean(dim=0)
        yield Similarity(name, mean, start - layout.flatten(next(iter(sent.values())), torch.float32))
