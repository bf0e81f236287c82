"""The red team: hundreds of crafts against a rule in real rounds, and how far the worst of them moves it.

What is found is what an attacker can do at least. Another craft may do more: nothing here is a proof of robustness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedseca.aggregators import Aggregator, make_aggregator
from fedseca.aggregators.fltrust import ROOT
from fedseca.attacks import Attack, Knowledge
from fedseca.attacks.strongest import book
from fedseca.errors import InputError, NotEnoughClients, NotFinite
from fedseca.server import Server

_STRENGTHS = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 100.0)
"""How far rows are pushed, in lengths of the median honest row."""
_SHRUNK = (0.0, 1e-3, 0.03, 0.1, 0.3, 0.6)
"""What is left of the honest mean."""
_FLIPPED = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.49, 0.6, 1.0)
"""Shares of the signs that are turned."""
_BETWEEN = (0.6, 0.8, 1.3, 1.6)
"""Strengths beside the worst of the grid, as multiples of it."""
_NOISE = 0.1
"""The share of the signs that is turned in noisy copies of the worst crafts."""
_MOST_COPIED = 16
"""Honest clients that are copied, at most."""

_BLOCK = 1 << 20
"""Numbers of all rows that are widened at a time."""

NO_ATTACK = "no attack"
VOID = ": the round is void"
"""Behind the name of a craft with which there is no aggregate: the model stays as it is."""


@dataclass(frozen=True)
class HonestRound:
    """What all clients of a round would send if all were honest."""

    rows: Tensor
    """(K, D): pseudo-gradients; the last ones are those of the clients that become Byzantine."""
    model: Tensor | None = None
    """(D): the global model that the round began with, for the attacks that look at it."""
    root: Tensor | None = None
    """(D): the server's own update, which it hands to the rule as that of one more client (`ROOT`)."""

    def clients(self, rows: Iterable[Tensor]) -> tuple[list[Tensor], list[str]]:
        """What the server gets if the clients send these rows, and from whom."""
        sent, own = list(rows), [] if self.root is None else [self.root]
        return [*sent, *own], [*map(str, range(len(sent))), *[ROOT] * len(own)]


class Craft(NamedTuple):
    """Rows for all Byzantine clients, and how they came about."""

    label: str
    rows: Tensor
    push: tuple[Tensor, Tensor, float, str] | None = None
    """(base, direction, strength, name) if other strengths can be tried."""


class Effect(NamedTuple):
    """What one craft makes of the aggregate F in one round; x̄ and Var are those of the honest clients."""

    round: int
    """From 1 on."""
    craft: str
    cosine: float
    """Between F and x̄; 0 where F is zero."""
    ratio: float
    """‖F‖ / ‖x̄‖."""
    kappa: float
    """‖F − x̄‖² / Var: if ξ is 0, κ is not less."""
    xi: float
    """‖F − x̄‖² / ‖x̄‖²: if κ is 0, ξ is not less."""


class Measure(NamedTuple):
    """One way to tell how bad an effect is."""

    heading: str
    of: Callable[[Effect], float]
    small_is_bad: bool = False

    def badness(self, effect: Effect) -> float:
        """The larger, the worse; what is no number is worse than all that are."""
        value = -self.of(effect) if self.small_is_bad else self.of(effect)
        return math.inf if math.isnan(value) else value


MEASURES = (
    Measure("worst cosine", lambda effect: effect.cosine, small_is_bad=True),
    Measure("least norm", lambda effect: effect.ratio, small_is_bad=True),
    Measure("largest norm", lambda effect: effect.ratio),
    Measure("κ̂", lambda effect: effect.kappa),
    Measure("ξ̂", lambda effect: effect.xi),
)
"""Norms are in lengths of x̄."""


@dataclass(frozen=True)
class Stress:
    """All that was tried on a rule."""

    rule: str
    effects: Sequence[Effect]
    unharmed: Sequence[Effect] = field(default_factory=list)
    """Of the same rounds without an attack: a rule may shrink or bend what it aggregates by itself."""

    def worst(self) -> dict[str, Effect]:
        """The worst effect by the heading of each measure."""
        return {measure.heading: max(self.effects, key=measure.badness) for measure in MEASURES}


def stress(
    rule: Aggregator | str,
    rounds: Sequence[HonestRound],
    num_byzantine: int,
    *,
    seed: int = 0,
    on_craft: Callable[[int], None] | None = None,
) -> Stress:
    """Try every craft on a rule in each of some rounds.

    The rule has seen the rounds before, all clients being honest; then the last `num_byzantine` clients send the craft.
    `on_craft` is told how many were tried. Beside the rounds it holds the rows of the craft that is tried, those of the
    worst so far by each measure, and a few vectors. An attack with a memory begins anew in each round.
    """
    _check(rounds)
    clients = {len(each.rows) for each in rounds}
    if len(clients) != 1 or not 0 < num_byzantine < min(clients) - 1:
        raise InputError(
            f"a red team needs rounds of the same clients, at least two of them honest and one Byzantine; found "
            f"{num_byzantine} Byzantine of {', '.join(map(str, sorted(clients))) or 'no'} clients"
        )
    made = make_aggregator(rule)
    server = Server(made, seed=seed)
    effects: list[Effect] = []
    unharmed: list[Effect] = []
    for number, recorded in enumerate(rounds, start=1):
        stage = _Stage(server, recorded, num_byzantine, number)
        unharmed.append(stage.effect(Craft(NO_ATTACK, stage.own)))
        for effect in stage.play(torch.Generator().manual_seed(seed + number)):
            effects.append(effect)
            if on_craft is not None:
                on_craft(len(effects))
        server.aggregate(*recorded.clients(recorded.rows))
    return Stress(made.name, effects, unharmed)


def _check(rounds: Sequence[HonestRound]) -> None:
    """That the rounds are numbers to compute with."""
    dims = set()
    for number, each in enumerate(rounds, start=1):
        rows, single = each.rows, [vector for vector in (each.model, each.root) if vector is not None]
        if rows.ndim != 2 or rows.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"round {number}: rows must be a (clients, coordinates) matrix of float32 or float64; found "
                f"{rows.dtype} of shape {tuple(rows.shape)}; widen halves first (rows.float())"
            )
        if any(vector.shape != rows.shape[1:] for vector in single):
            found = ", ".join(str(tuple(vector.shape)) for vector in single)
            raise InputError(f"round {number}: model and root must have {rows.shape[1]} coordinates; found {found}")
        if not all(bool(vector.isfinite().all()) for vector in (*rows, *single)):
            raise InputError(f"round {number}: honest clients must send finite numbers; found NaN or Inf")
        dims.add(rows.shape[1])
    if len(dims) > 1:
        raise InputError(f"all rounds must have the same coordinates; found {', '.join(map(str, sorted(dims)))}")


class _Stage:
    """One round, in which crafts are tried on a server that does not notice."""

    def __init__(self, server: Server, recorded: HonestRound, num_byzantine: int, number: int) -> None:
        self.server, self.recorded, self.number, self.num_byzantine = server, recorded, number, num_byzantine
        self.honest, self.own = recorded.rows[:-num_byzantine], recorded.rows[-num_byzantine:]
        self.model = torch.zeros_like(self.honest[0]) if recorded.model is None else recorded.model
        self.mean = torch.cat([self.honest[:, some].mean(dim=0, dtype=torch.float64) for some in _blocks(self.honest)])
        self.square = float(self.mean @ self.mean)
        self.length = float(torch.stack([row.double().norm() for row in self.honest]).median())
        self.variance = sum(float((row.double() - self.mean).square().sum()) for row in self.honest) / len(self.honest)

    def aggregate(self, rows: Tensor) -> Tensor | None:
        """None of a void round."""
        try:
            update: Tensor = self.server.rehearse(*self.recorded.clients([*self.honest, *rows])).update
        except (NotEnoughClients, NotFinite):
            return None
        return update

    def probe(self, rows: Tensor) -> Tensor:
        """What an attacker sees who asks a copy of the server."""
        found = self.aggregate(rows)
        return torch.zeros_like(self.model) if found is None else found

    def effect(self, craft: Craft) -> Effect:
        found = self.aggregate(craft.rows)
        moved = torch.zeros_like(self.mean) if found is None else found.double()
        square, error = float(moved @ moved), float((moved - self.mean).square().sum())
        both = math.sqrt(square) * math.sqrt(self.square)
        cosine = float(moved @ self.mean) / both if both > 0 else 0.0
        return Effect(
            self.number,
            craft.label + (VOID if found is None else ""),
            cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine)),
            _share(math.sqrt(square), math.sqrt(self.square)),
            _share(error, self.variance),
            _share(error, self.square),
        )

    def play(self, rng: torch.Generator) -> Iterator[Effect]:
        """The effects of all crafts; then of crafts like the worst of them."""
        worst: dict[str, tuple[float, Craft]] = {}
        for crafts in (self.crafts(rng), self._beside(worst), self._together(worst, rng)):
            for craft in crafts:
                if craft.rows.isfinite().all():  # else the server would leave it out
                    effect = self.effect(craft)
                    _remember(worst, effect, craft)
                    yield effect

    def _beside(self, worst: Mapping[str, tuple[float, Craft]]) -> Iterator[Craft]:
        """The worst at strengths between those of the grid."""
        pushed = {craft.label: craft.push for _, craft in worst.values() if craft.push is not None}
        for base, direction, strength, name in pushed.values():
            for times in _BETWEEN:
                yield self.pushed(base, direction, times * strength, name)

    def _together(self, worst: Mapping[str, tuple[float, Craft]], rng: torch.Generator) -> Iterator[Craft]:
        """Noisy copies of the worst, so that they are not all alike; and two of the worst at once."""
        alike = list({craft.label: craft for _, craft in worst.values()}.values())
        yield from self._noisy(alike, rng)
        yield from self._paired(alike)

    def _noisy(self, crafts: Sequence[Craft], rng: torch.Generator) -> Iterator[Craft]:
        for craft in crafts:
            turned = torch.rand(craft.rows.shape, generator=rng).to(craft.rows.device) < _NOISE
            label = f"{craft.label}, {_NOISE:.0%} of the signs turned"
            yield Craft(label, torch.where(turned, -craft.rows, craft.rows))

    def _paired(self, crafts: Sequence[Craft]) -> Iterator[Craft]:
        half = self.num_byzantine // 2
        for k, one in enumerate(crafts):
            for other in crafts[k + 1 :] if half else ():
                yield Craft(f"{one.label} and {other.label}", torch.cat([one.rows[:half], other.rows[half:]]))

    def crafts(self, rng: torch.Generator) -> Iterator[Craft]:
        """The registered attacks at several strengths; directions × strengths; mimicry, shrinking, flips."""
        for label, attack in book():
            yield Craft(label, self._attacked(attack, rng))
        nothing = torch.zeros_like(self.mean)
        for name, direction in self._directions(rng):
            for strength in _STRENGTHS:
                yield self.pushed(self.mean, direction, strength, f"the mean pushed {name}")
                yield self.pushed(nothing, direction, strength, name)
        for factor in _SHRUNK:
            yield Craft(f"{factor:g} of the mean", self._same(factor * self.mean))
        for k, row in enumerate(self.honest[:_MOST_COPIED]):
            yield Craft(f"a copy of honest client {k}", self._same(row))
        order = self.mean.abs().argsort(descending=True)
        for share in _FLIPPED:
            count = round(share * order.numel())
            drawn = torch.randperm(order.numel(), generator=rng).to(order.device)
            for what, places in (("largest", order), ("smallest", order.flip(0)), ("drawn", drawn)):
                flipped = self.mean.clone()
                flipped[places[:count]] *= -1
                yield Craft(f"the mean with {share:.0%} of the signs turned, the {what}", self._same(flipped))

    def pushed(self, base: Tensor, direction: Tensor, strength: float, name: str) -> Craft:
        rows = self._same(base + strength * self.length * direction)
        return Craft(f"{name} × {strength:g}", rows, (base, direction, strength, name))

    def _same(self, row: Tensor) -> Tensor:
        """The same row from every Byzantine client, held once."""
        return row.to(self.honest.dtype).expand(self.num_byzantine, -1)

    def _attacked(self, attack: Attack, rng: torch.Generator) -> Tensor:
        ids = tuple(str(k) for k in range(len(self.honest)))
        number, count = self.number - 1, self.num_byzantine
        knowledge = Knowledge.of(attack, number, count, ids, own=self.own, model=self.model, probe=self.probe)
        return attack.craft(self.honest, knowledge, {}, rng)[0]

    def _directions(self, rng: torch.Generator) -> Iterator[tuple[str, Tensor]]:
        """Unit vectors by name; one that does not exist, of honest clients that are all alike, is left out."""
        for name, vector in self._vectors(rng):
            length = float(vector.norm())
            if 0 < length < math.inf:
                yield name, vector / length

    def _vectors(self, rng: torch.Generator) -> Iterator[tuple[str, Tensor]]:
        yield "backwards", -self.mean
        yield "forwards", self.mean
        yield "against its signs", -self.mean.sign()
        yield "against it by the deviations", -self.mean.sign() * self._deviations()
        main = self._main_deviation()
        yield "along the main deviation", main
        yield "back along the main deviation", -main
        largest = torch.zeros_like(self.mean)
        place = self.mean.abs().argmax()
        largest[place] = -self.mean[place].sign()
        yield "against its largest coordinate", largest
        noise = torch.randn(self.mean.shape, generator=rng, dtype=torch.float64).to(self.mean.device)
        yield "at random", noise
        yield "at a right angle", noise - (noise @ self.mean) / (self.square or 1.0) * self.mean

    def _deviations(self) -> Tensor:
        """The standard deviation of each coordinate."""
        apart = (self.honest[:, some].double() - self.mean[some] for some in _blocks(self.honest))
        return torch.cat([block.square().mean(dim=0).sqrt() for block in apart])

    def _main_deviation(self) -> Tensor:
        """In which the honest clients differ most: from their products, so that nothing large is decomposed."""
        count = len(self.honest)
        products = torch.zeros(count, count, dtype=torch.float64)
        for some in _blocks(self.honest):
            apart = self.honest[:, some].double() - self.mean[some]
            products += (apart @ apart.T).cpu()
        weights = torch.linalg.eigh(products).eigenvectors[:, -1].to(self.mean.device)
        main = torch.cat([weights @ (self.honest[:, some].double() - self.mean[some]) for some in _blocks(self.honest)])
        # Of the two directions the one along the mean, so that every machine has the same.
        return main if float(main @ self.mean) >= 0 else -main


def _blocks(rows: Tensor) -> Iterator[slice]:
    """Coordinates a few at a time: all rows in float64 would be twice as large as they are."""
    size = max(1, _BLOCK // len(rows))
    for start in range(0, rows.shape[1], size):
        yield slice(start, start + size)


def _remember(worst: dict[str, tuple[float, Craft]], effect: Effect, craft: Craft) -> None:
    """Keep the worst craft of each measure."""
    for measure in MEASURES:
        if measure.heading not in worst or measure.badness(effect) > worst[measure.heading][0]:
            worst[measure.heading] = (measure.badness(effect), craft)


def _share(part: float, whole: float) -> float:
    """part / whole; of a whole that is 0: 0 if the part is 0 too, infinity otherwise."""
    if whole > 0:
        return part / whole
    return 0.0 if part == 0 else math.inf
