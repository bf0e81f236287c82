"""Strongest: an attacker who knows the rule tries a whole book of attacks on it, and sends what hurts most."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedseca.attacks.base import ATTACKS, Attack, Knowledge, register
from fedseca.declare import Hyperparameter, param
from fedseca.errors import ParameterError
from fedseca.updates import State

_TIMES = (0.3, 1.0, 3.0, 10.0)
"""A strength is tried so many times its default."""
_STRENGTHS = ("strength", "factor")
_NOISE = (0.08, 0.2)
"""Shares of the signs that are flipped in noisy copies, by each client other ones."""
_CHOSEN = "chosen/"
_OF = ": "
"""Between a craft and what its attack remembers."""


class _Tried(NamedTuple):
    """A craft with what it did to the server."""

    label: str
    harm: float
    rows: Tensor


@register("strongest")
@dataclass(frozen=True, kw_only=True)
class Strongest(Attack):
    """Each round it tries every other attack at several strengths on a copy of the server, and sends the worst.

    The book are all registered attacks that craft rows: each strength or factor × 0.3, 1, 3 and 10, each choice of a
    direction. The worst craft is the one after which the honest clients' loss is highest (a white box: it knows the
    rule, its memory and their data), or, where there is no loss to ask, the one whose aggregate has the least inner
    product with the honest mean. The `refined` worst are also tried as noisy copies, no two of which are alike, and in
    pairs, half of the Byzantine clients each. Attacks on data are not in the book: they train before the round is
    seen. What was sent is said of each round (`craft`). Cost: a rehearsal of the rule for each craft.
    """

    needs: ClassVar[tuple[str, ...]] = ("own", "model", "probe", "loss")

    refined: int = param(3, ge=0, help="how many of the worst crafts are also tried with noise and in pairs")

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        if knowledge.num_byzantine == 0:
            return honest[:0].clone(), state
        worst: list[_Tried] = []  # the worst first; of equals, the one that was tried first
        memory: dict[str, Tensor] = {}

        def attempt(label: str, rows: Tensor) -> None:
            if rows.isfinite().all():
                worst.append(_Tried(label, self.harm(rows, honest, knowledge), rows))
                worst.sort(key=lambda each: -each.harm)
                del worst[max(self.refined, 1) :]  # the rows of the whole book would be many matrices

        for label, attack in book():
            rows, after = attack.craft(honest, knowledge, _of_craft(label, state), rng)
            memory |= {f"{label}{_OF}{name}": value for name, value in after.items()}
            attempt(label, rows)
        refined = worst[: self.refined]
        for each, share in itertools.product(refined, _NOISE):
            attempt(f"{each.label}, {share:.0%} of the signs flipped", _noisy(each.rows, share, rng))
        for one, other in itertools.combinations(refined, 2) if knowledge.num_byzantine > 1 else ():
            half = knowledge.num_byzantine // 2
            attempt(f"{one.label} and {other.label}", torch.cat([one.rows[:half], other.rows[half:]]))
        if not worst:  # whatever is sent of rows that are not finite, nothing can be aggregated
            return knowledge.own.clone(), memory
        chosen = worst[0]
        return chosen.rows.clone(), {**memory, f"{_CHOSEN}{chosen.label}": torch.tensor(chosen.harm)}

    def harm(self, rows: Tensor, honest: Tensor, knowledge: Knowledge) -> float:
        """What the attacker wants to be large: the honest clients' loss, or how far the aggregate points backwards."""
        if knowledge.loss_is_known:
            return knowledge.loss(rows)
        return -float(knowledge.probe(rows).double() @ honest.double().mean(dim=0))

    def told(self, state: State) -> str | None:
        return next((name.removeprefix(_CHOSEN) for name in state if name.startswith(_CHOSEN)), None)


def book() -> Iterator[tuple[str, Attack]]:
    """Every craft with its label: `ipm strength=3.9`."""
    for name, attack in ATTACKS.items():
        if attack is Strongest or attack.attacks_data() or not (attack.finite and attack.harms):
            continue
        tried = {each.name: _values(each) for each in attack.hyperparameters().values()}
        varied = {key: values for key, values in tried.items() if values}
        for values in itertools.product(*varied.values()):
            settings = dict(zip(varied, values, strict=True))
            said = " ".join(
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()
            )
            yield f"{name} {said}".strip(), attack(**settings)


def _values(declared: Hyperparameter) -> list[Any]:
    """What of a hyperparameter is tried; nothing if it stays as it is."""
    if declared.choices is not None:
        return list(declared.choices)
    if declared.type is not float or declared.name not in _STRENGTHS or declared.default is None:
        return []
    return [times * declared.default for times in _TIMES if _is_allowed(declared, times * declared.default)]


def _is_allowed(declared: Hyperparameter, value: float) -> bool:
    try:
        declared.check(value)
    except ParameterError:
        return False
    return True


def _of_craft(label: str, state: State) -> State:
    start = f"{label}{_OF}"
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def _noisy(rows: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """A share of the signs flipped, in each row others."""
    return torch.where(torch.rand(rows.shape, generator=rng).to(rows.device) < share, -rows, rows)
