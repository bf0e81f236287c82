"""The contract of every attack: what Byzantine clients send, given what they see."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedseca.attacks.trigger import Trigger
from fedseca.declare import Declared, unknown
from fedseca.errors import FedsecaError
from fedseca.parts import Registry
from fedseca.updates import State


@dataclass(frozen=True)
class Knowledge:
    """What an attack may look at beside the honest updates of the round.

    `own`, `model`, `probe` and `loss` are there for an attack that declares them in `needs`, and for no other: what an
    attack knows can be read off its declaration.
    """

    round: int
    """From 0 on."""
    num_byzantine: int
    """B, how many of the clients of this round are Byzantine."""
    honest_ids: tuple[str, ...]
    """Whose the rows are that the attack sees: the honest clients; the attackers' own in a round without any."""
    offered: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        attack: Attack,
        round: int,
        num_byzantine: int,
        honest_ids: tuple[str, ...],
        *,
        own: Tensor | None = None,
        model: Tensor | None = None,
        probe: Callable[[Tensor], Tensor] | None = None,
        loss: Callable[[Tensor], float] | None = None,
    ) -> Knowledge:
        """Of all there is, what this attack declares."""
        all_there_is = {"own": own, "model": model, "probe": probe, "loss": loss}
        for name in attack.needs:
            if name not in all_there_is:
                raise FedsecaError(unknown(f"need of {attack.name}", name, all_there_is))
        return cls(round, num_byzantine, honest_ids, {name: all_there_is[name] for name in attack.needs})

    def _offer(self, name: str) -> Any:
        value = self.offered.get(name)
        if value is None:
            raise FedsecaError(f"the attack looks at {name!r} but does not declare it: needs = ({name!r},)")
        return value

    @property
    def own(self) -> Tensor:
        """(B, D): what the Byzantine clients' own training gave, on the labels that `poison` made."""
        return self._offer("own")  # type: ignore[no-any-return]

    @property
    def model(self) -> Tensor:
        """(D): the global model that the round began with."""
        return self._offer("model")  # type: ignore[no-any-return]

    def probe(self, rows: Tensor) -> Tensor:
        """The aggregate (D) that the server would come to if the Byzantine clients sent these rows.

        The server's true rule is asked, on a copy of its state: however often, the server does not notice.
        """
        return self._offer("probe")(rows)  # type: ignore[no-any-return]

    @property
    def loss_is_known(self) -> bool:
        """Whether there is somebody to ask for the loss: there is none outside of a simulated federation."""
        return self.offered.get("loss") is not None

    def loss(self, rows: Tensor) -> float:
        """The honest clients' loss of the model that the server would come to if the Byzantine clients sent these rows;
        infinite if it is not a number. The server does not notice, as with `probe`."""
        return self._offer("loss")(rows)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Attack(Declared, ABC):
    """What the Byzantine clients of a federation do; they see every honest update of the round.

    An attack is frozen and its methods are pure: what it remembers between rounds goes in and comes out as `state`,
    and every draw is made from the generator handed in.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """What of `Knowledge` it looks at: "own", "model", "probe", "loss"."""
    harms: ClassVar[bool] = True
    """The mean of all clients is moved by it."""
    finite: ClassVar[bool] = True
    """Finite honest updates give finite rows."""

    def poison(self, labels: Tensor, num_classes: int) -> Tensor:
        """The labels that a Byzantine client trains on, for attacks on data."""
        return labels

    @property
    def trigger(self) -> Trigger | None:
        """What a targeted attack plants in the model; None: it is after the model as a whole. With one, how often it
        fires is measured after each round: the attack success rate."""
        return None

    @classmethod
    def attacks_data(cls) -> bool:
        """Whether the Byzantine clients train on other samples than they have."""
        return cls.poison is not Attack.poison or cls.trigger is not Attack.trigger

    def craft(self, honest: Tensor, knowledge: Knowledge, state: State, rng: torch.Generator) -> tuple[Tensor, State]:
        """The B rows that are sent, given the honest rows (H, D), H ≥ 1; and what to hand in next round.

        Rows are pseudo-gradients g = w_before − w. Without a craft of its own, the attack sends what its training gave.
        """
        return knowledge.own.clone(), state

    def told(self, state: State) -> str | None:
        """What it did in the round that it remembers so, in a word, if that differs from round to round."""
        return None


ATTACKS: Registry[Attack] = Registry("attack", Attack)
register = ATTACKS.register


def make_attack(attack: str | Attack, /, **hyperparameters: Any) -> Attack:
    """An attack by its name and hyperparameters: `make_attack("ipm", strength=2.0)`."""
    if isinstance(attack, Attack):
        if hyperparameters:
            raise TypeError("hyperparameters go with the name of an attack, not with an attack that is made already")
        return attack
    return ATTACKS.make(attack, **hyperparameters)


def strengths(strength: float, jitter: float, knowledge: Knowledge, honest: Tensor, rng: torch.Generator) -> Tensor:
    """strength + δ_b with δ_b ~ Uniform(−jitter, jitter), a column of one number for each Byzantine client.

    No two of them send the same, which a server might look for.
    """
    draws = torch.rand(knowledge.num_byzantine, 1, generator=rng, dtype=torch.float64)
    return (strength + jitter * (2 * draws - 1)).to(honest)


def copies(row: Tensor, knowledge: Knowledge) -> Tensor:
    """The same row from every Byzantine client (B, D)."""
    return row.repeat(knowledge.num_byzantine, 1)
