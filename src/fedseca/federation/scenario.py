"""`Scenario`: one federated training, described completely."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch

from fedseca.aggregators import AGGREGATORS
from fedseca.attacks import ATTACKS
from fedseca.data import DATASETS, PARTITIONS
from fedseca.declare import Declared, Hyperparameter, param
from fedseca.errors import ParameterError
from fedseca.layout import BufferPolicy
from fedseca.models import MODELS
from fedseca.parts import Grammar, flat, table

Precision = Literal["fp32", "bf16", "fp16"]


class Difference(NamedTuple):
    """A setting that is not the default."""

    path: str
    """`clients`, `aggregator.clamp`, `aggregator.nnm.num_byzantine`."""
    value: Any
    default: Any
    help: str


_TOLD = "num_byzantine"
"""What a scenario tells its rule, unless it is given."""


@dataclass(frozen=True, kw_only=True)
class Scenario(Declared):
    """A federation and its training; the same scenario gives the same numbers.

    `aggregator`, `attack`, `dataset`, `partition` and `model` are given by name, as a mapping of name and
    hyperparameters, or made already: `Scenario(aggregator="nnm+krum")`,
    `Scenario(attack={"name": "ipm", "strength": 2.0})`; without a name, a mapping refines the default. Every part of
    the rule that assumes a number of Byzantine clients (`num_byzantine`) is told the true one, unless it is given. With
    `root_samples` the server trains too, and hands its update to the rule as that of a client "server". `fltrust` looks
    for that id, any other rule takes it for one more client.
    """

    name: ClassVar[str] = "scenario"

    aggregator: Any = param("fedseca", registry=AGGREGATORS, help="the server's rule, or a chain: nnm+cwmed")
    attack: Any = param("ipm", registry=ATTACKS, help="what the Byzantine clients do")
    dataset: Any = param("digits", registry=DATASETS, help="what is learnt")
    partition: Any = param("dirichlet", registry=PARTITIONS, help="how the training samples are dealt to the clients")
    model: Any = param("cnn", registry=MODELS, help="the network")
    clients: int = param(5, ge=1, help="how many clients there are, the Byzantine ones included")
    byzantine: int = param(2, ge=0, help="how many of them are Byzantine: the last ones")
    byzantine_clients: str | None = param(
        None,
        later=True,
        help="which of them are Byzantine, counted from 0: 3,4 (in a grid 3+4); then byzantine is their number",
    )
    rounds: int = param(40, ge=1, help="how often the clients train and the server aggregates")
    local_epochs: int = param(1, ge=1, help="passes of a client over its samples in a round")
    batch_size: int = param(8, ge=1, help="samples in a step of a client")
    learning_rate: float = param(1e-3, gt=0, help="of a client's AdamW")
    weight_decay: float = param(1e-6, ge=0, help="of a client's AdamW")
    server_learning_rate: float = param(1.0, gt=0, help="η in w ← w − η·g̃")
    participation: float = param(1.0, gt=0, le=1, help="share of the clients that is asked in each round")
    dropout: float = param(0.0, ge=0, lt=1, help="probability that a client that was asked does not answer")
    buffers: BufferPolicy = param(
        "median", choices=get_args(BufferPolicy), help="running statistics of normalisation layers"
    )
    precision: Precision = param(
        "fp32",
        choices=get_args(Precision),
        later=True,
        help="of a network's arithmetic: fp32, or mixed with bf16 or fp16, which GPUs compute faster",
    )
    train_images: int | None = param(None, ge=1, help="how many training samples are used; none: all")
    test_images: int | None = param(None, ge=1, help="how many test samples are used; none: all")
    root_samples: int = param(
        0,
        ge=0,
        later=True,
        help="training samples that no client gets: the server trains on them, and its rule is handed the result, too",
    )
    seed: int = param(0, ge=0, help="of every draw that is made")

    def __post_init__(self) -> None:
        byzantine = self.declared("byzantine").check(self.byzantine)
        if self.byzantine_clients is not None:
            clients = self.declared("clients").check(self.clients)
            chosen = _numbers(self.declared("byzantine_clients").check(self.byzantine_clients), clients)
            if byzantine not in (self.declared("byzantine").default, len(chosen)):
                raise ParameterError(
                    f"scenario: byzantine_clients={self.byzantine_clients!r} are {len(chosen)}; found "
                    f"byzantine={byzantine}, leave it out"
                )
            byzantine = len(chosen)
            object.__setattr__(self, "byzantine", byzantine)
            object.__setattr__(self, "byzantine_clients", ",".join(map(str, chosen)))
        object.__setattr__(self, "aggregator", _informed(self.aggregator, byzantine))
        super().__post_init__()
        if self.byzantine >= self.clients:
            raise ParameterError(
                f"scenario: byzantine must be below clients, at least one is honest; "
                f"found byzantine={self.byzantine} of clients={self.clients}"
            )
        if self.aggregator.min_clients() > self.asked:
            way_out = self.aggregator.way_out(self.asked)
            raise ParameterError(
                f"scenario: {self.aggregator.name} needs at least {self.aggregator.min_clients()} clients in a round; "
                f"found {self.asked} (clients={self.clients}, participation={self.participation:g})"
                + (f"; {way_out}" if way_out else "")
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Scenario:
        """The scenario of a config, which may say `rule` for `aggregator`; an unknown name is an error."""
        return cls(**GRAMMAR.renamed(values))

    @property
    def id(self) -> str:
        """A short hash of everything in it."""
        content = json.dumps(self.values(), sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(content.encode(), digest_size=5).hexdigest()

    @property
    def title(self) -> str:
        """For people, and unique: `digits-fedseca-ipm-0f3a…`."""
        return f"{self.dataset.name}-{self.aggregator.name}-{self.attack.name}-{self.id}"

    def differences(self) -> list[Difference]:
        """In what it is not the default scenario, nor its parts what their names alone stand for."""
        found = []
        for path, value in flat(self).items():
            declared = self._declared_at(path)
            # A rule that is not told how many are Byzantine is told the true number.
            informed = path.startswith("aggregator.") and declared.name == _TOLD
            default = self.byzantine if informed else declared.default
            if value != default:
                found.append(Difference(path, value, default, declared.help))
        return found

    def _declared_at(self, path: str) -> Hyperparameter:
        field, _, inner = path.partition(".")
        part: Declared = getattr(self, field)
        return part.declared(inner) if inner else self.declared(field)

    @property
    def asked(self) -> int:
        """How many clients are asked in each round."""
        return max(1, round(self.participation * self.clients))

    @property
    def client_ids(self) -> tuple[str, ...]:
        return tuple(str(k) for k in range(self.clients))

    def is_byzantine(self, client: int) -> bool:
        if self.byzantine_clients is not None:
            return str(client) in self.byzantine_clients.split(",")
        return client >= self.clients - self.byzantine

    def generator(self, purpose: str, *indices: int) -> torch.Generator:
        """A generator for one purpose, round and client.

        None of them depends on what was drawn before, so a run that goes on later draws what it would have drawn.
        """
        purpose_number = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "big")
        sequence = np.random.SeedSequence([self.seed, purpose_number, *indices])
        return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))


GRAMMAR = Grammar(
    Scenario,
    aliases={"rule": "aggregator", "train_samples": "train_images", "test_samples": "test_images"},
    takes_back={"byzantine": "byzantine_clients"},
)
"""How the parts of a scenario and their hyperparameters are named."""


def _numbers(text: str, clients: int) -> list[int]:
    """`3,4`, or `3+4` where commas stand between several values, as in a grid."""
    words = [word.strip() for word in text.replace("+", ",").split(",")]
    found = sorted({int(word) for word in words if word.isdecimal() and len(word) < 10})
    if len(found) != len(words) or found[-1] >= clients:
        raise ParameterError(
            f"scenario: byzantine_clients must be different clients from 0 to {clients - 1}, with commas between them; "
            f"found {text!r}"
        )
    return found


def _informed(rule: Any, byzantine: int) -> Any:
    """The rule, told how many Byzantine clients there are if a part of it asks and nobody said."""
    if not isinstance(rule, str | Mapping):
        return rule
    given = table(rule, Scenario.declared("aggregator").default)
    asks = isinstance(given["name"], str) and _TOLD in AGGREGATORS.hyperparameters(given["name"])
    return {_TOLD: byzantine, **given} if asks else given
