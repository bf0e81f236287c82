"""How alike honest and Byzantine updates look under each attack, by the measures that defences use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedseca.attacks import make_attack
from fedseca.errors import MissingDependency
from fedseca.experiments.experiment import ATTACKS, Files, OnStep, Request, TableOfRuns
from fedseca.experiments.machine import Machine
from fedseca.experiments.plots import Histogram, distributions
from fedseca.experiments.results import (
    About,
    Outcome,
    ResultTable,
    Score,
    as_csv,
    counted,
    kept_scores,
    read_csv,
    short,
)
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

    def histogram(self, bins: int = 61) -> list[dict[str, Any]]:
        """How many values lie between two edges, in what most of the honest ones lie in; others count at its ends."""
        edge = 4 * float(self.honest.std())
        edges = [edge * (2 * bin / bins - 1) for bin in range(bins + 1)]
        counts = (
            torch.histc(vector.clamp(-edge, edge), bins, -edge, edge).int().tolist()
            for vector in (self.honest, self.byzantine)
        )
        return [
            {"attack": self.attack, "from": short(start), "to": short(end), "honest": honest, "byzantine": byzantine}
            for start, end, honest, byzantine in zip(edges[:-1], edges[1:], *counts, strict=True)
        ]


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

    def outcome(self, request: Request, store: Store, machine: Machine, on_step: OnStep) -> Outcome:
        """The measures as CSV, and the distributions of the values with the first seed as a picture."""
        ((_, histories),) = self.done(request, store).items()
        attacks = [attack for attack in ATTACKS if attack != "none"]
        found: dict[str, list[Similarity]] = {attack: [] for attack in attacks}
        for index, history in enumerate(histories):
            model = read_model(store.folder(history.scenario))
            for step, each in enumerate(similarities(history.scenario, model, attacks, machine), 1):
                on_step(f"seed {history.scenario.seed}", index * len(attacks) + step, len(histories) * len(attacks))
                found[each.attack].append(each)
        measured = {attack: [each.measures() for each in of_attack] for attack, of_attack in found.items()}
        scores = [
            Score(
                attack,
                measure,
                tuple(values[measure] for values in of_seeds),
                runs=tuple(history.scenario.id for history in histories),
            )
            for attack, of_seeds in measured.items()
            for measure in (of_seeds[0] if of_seeds else ())
        ]
        about = About.of(self.runs(request), request.seeds)
        table = self.table(about, scores)
        lines = [line for of_attack in found.values() if of_attack for line in of_attack[0].histogram()]
        numbers = {f"{self.name}.csv": as_csv(list(table.lines())), f"{self.name}-values.csv": as_csv(lines)}
        return self.finished(table, about, numbers)

    def table(self, about: About, scores: Sequence[Score]) -> ResultTable:
        after = f"in the round after {counted(about.setting['rounds'], 'round')} without attack"
        return ResultTable(
            title=self.title(list({score.row: None for score in scores}), []),
            setting=[*about.federation, after, about.seeds_of(scores), *self.compare],
            row_name="attack",
            column_name="measure",
            metric="likeness",
            scores=scores,
            coloured=False,
        )

    def figures(self, kept: Files) -> dict[str, Any]:
        """The distributions of the values with the first seed, under what the measures say of all seeds."""
        about = self.about(kept)
        table = self.table(about, kept_scores(read_csv(kept[f"{self.name}.csv"]), "attack", "measure", "likeness"))
        of_attacks: dict[str, list[dict[str, str]]] = {}
        for line in read_csv(kept.get(f"{self.name}-values.csv", b"")):
            of_attacks.setdefault(line["attack"], []).append(line)
        if not of_attacks:
            return {}
        places = table.by_place()
        shown = [
            Histogram(
                attack,
                _in_words({measure: places[attack, measure].mean or 0.0 for measure in table.columns}),
                [float(lines[0]["from"]), *(float(line["to"]) for line in lines)],
                *([int(line[who]) for line in lines] for who in ("honest", "byzantine")),
            )
            for attack, lines in of_attacks.items()
        ]
        setting = [*table.setting, "values beyond the edges are counted in the last bins"]
        return {f"{self.name}.png": distributions(table.title, setting, shown)}


def _in_words(values: Mapping[str, float]) -> str:
    alike = " · ".join(f"{word} {values[name]:+.2f}" for word, name in _SHORT.items()).replace("-", "−")
    return f"length: honest {values['norm_honest_mean']:.2f}, Byzantine {values['norm_byzantine']:.2f}\n{alike}"


_SHORT = {"cosine": "cosine", "Pearson": "pearson", "Kendall": "kendall", "signs": "concordance"}


def similarities(
    scenario: Scenario, model: dict[str, Tensor], attacks: list[str], machine: Machine
) -> Iterator[Similarity]:
    """The next round after a training, once for each attack: the same honest updates, other Byzantine ones."""
    honest: dict[str, dict[str, Tensor]] = {}
    for name in attacks:
        changed = replace(scenario, attack=make_attack(name))
        federation = Federation(changed, data_dir=machine.data_dir, device=machine.device)
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
