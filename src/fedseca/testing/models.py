"""The contract of every family of models, clause by clause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedseca.models import MODELS, Model
from fedseca.testing.check import Check, Clause, device, generator, hold, refuses_bad_hyperparameters

_OUTPUTS, _BATCH = 3, 6


@dataclass(frozen=True)
class _Built:
    """A family, for inputs of one shape."""

    model: Model
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.model.name}-{'x'.join(map(str, self.shape))}"

    def network(self, seed: int = 0) -> nn.Module:
        return self.model.build(self.shape, _OUTPUTS, seed).to(device())

    def batch(self) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(_BATCH, *self.shape, generator=generator())
        return inputs.to(device()), (torch.arange(_BATCH) % _OUTPUTS).to(device())


_CLAUSES: list[Clause[_Built]] = []


def model_checks(model: str | Model, shape: tuple[int, ...] | None = None) -> Iterator[Check[_Built]]:
    """The checks of one family; with a name, it has its default hyperparameters.

    Without a shape, for images of 3×32×32; and for rows of 20 features, unless it takes images alone.
    """
    made = MODELS.make(model) if isinstance(model, str) else model
    usual = [(3, 32, 32)] if made.only_images else [(3, 32, 32), (20,)]
    shapes = usual if shape is None else [shape]
    return (Check(_Built(made, each), clause) for each in shapes for clause in _CLAUSES)


def check_model(model: str | Model, shape: tuple[int, ...] | None = None) -> None:
    """Hold a family of models to the contract: the first clause it breaks is an AssertionError that says which."""
    hold(model_checks(model, shape))


def _clause(clause: Clause[_Built]) -> Clause[_Built]:
    _CLAUSES.append(clause)
    return clause


@_clause
def refuses_what_is_not_declared(built: _Built) -> None:
    refuses_bad_hyperparameters(built.model)


@_clause
def answers_one_number_for_each_output(built: _Built) -> None:
    network = built.network().eval()
    with torch.no_grad():
        outputs = network(built.batch()[0])
    assert outputs.shape == (_BATCH, _OUTPUTS), f"{tuple(outputs.shape)} is not {(_BATCH, _OUTPUTS)}"
    assert bool(outputs.isfinite().all())


@_clause
def the_seed_alone_decides_the_weights(built: _Built) -> None:
    before = torch.random.get_rng_state()
    first, same, other = (built.network(seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before), "the generator of torch was left in another state"
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first), "another seed gives the same weights"


@_clause
def every_parameter_takes_part(built: _Built) -> None:
    network = built.network().train()
    inputs, labels = built.batch()
    functional.cross_entropy(network(inputs), labels).backward()  # type: ignore[no-untyped-call]
    idle = [name for name, each in network.named_parameters() if each.requires_grad and each.grad is None]
    assert not idle, f"no gradient reaches {', '.join(idle[:5])}"


@_clause
def learns_a_batch(built: _Built) -> None:
    network = built.network().train()
    inputs, labels = built.batch()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[1:]) < losses[0], f"the loss never falls below {losses[0]:g}"


@_clause
def can_be_taken_down_and_set_up_again(built: _Built) -> None:
    """All that it knows is in its arrays: a server has nothing else."""
    network, other = built.network(1).eval(), built.network(2).eval()
    other.load_state_dict(network.state_dict())
    inputs, _ = built.batch()
    with torch.no_grad():
        assert torch.equal(network(inputs), other(inputs))
