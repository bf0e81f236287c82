"""The contract suite over every family of models, and over the example."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from fedseca.models import MODELS, Model
from fedseca.plugins import load_plugin
from fedseca.testing import check_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "networks" / "gated.py"
load_plugin(EXAMPLE)
LARGE = {"resnet18": (1, 8, 8)}
"""On images as small as they may be."""


@pytest.mark.parametrize("name", list(MODELS))
def test_contract(name):
    check_model(name, LARGE.get(name))


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 30


@dataclass(frozen=True, kw_only=True)
class Linear(Model):
    """What the broken ones below are made of."""

    name = "linear"

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return _linear(shape, outputs)


def _linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), outputs))


class Forgetful(Linear):
    """Keeps something beside its arrays."""

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        network, shift = _linear(shape, outputs), torch.rand(1)
        network.register_forward_hook(lambda module, inputs, output: output + shift)
        return network


class Unseeded(Linear):
    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        network = _linear(shape, outputs)
        nn.init.normal_(network[1].weight, generator=torch.Generator().manual_seed(torch.seed() % 1000))  # type: ignore[index]
        return network


class OneTooMany(Linear):
    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return _linear(shape, outputs + 1)


class Idle(Linear):
    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        network = _linear(shape, outputs)
        network[1].register_parameter("unused", nn.Parameter(torch.zeros(2)))  # type: ignore[index]
        return network


def test_an_honest_one_passes():
    check_model(Linear(), (6,))


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (Forgetful, "can_be_taken_down_and_set_up_again"),
        (Unseeded, "the_seed_alone_decides_the_weights"),
        (OneTooMany, "answers_one_number_for_each_output"),
        (Idle, "every_parameter_takes_part: AssertionError: no gradient reaches 1.unused"),
    ],
)
def test_a_broken_one_is_told_which_clause(broken, clause):
    with pytest.raises(AssertionError, match=clause):
        check_model(broken(), (6,))
