"""What a malicious site sends in the place of what it learnt, and who is one."""

from collections.abc import Callable

import torch
from flwr.app import Context
from torch import Tensor

Weights = dict[str, Tensor]
Deed = Callable[[Weights, Weights], Weights]
"""From the model that came and the one that was learnt to the one that is sent."""


def honest(before: Weights, after: Weights) -> Weights:
    return after


def nan(before: Weights, after: Weights) -> Weights:
    return {name: torch.full_like(value, torch.nan) for name, value in after.items()}


def backwards(before: Weights, after: Weights) -> Weights:
    """Ten times what was learnt, in the other direction."""
    return {name: before[name] - 10 * (value - before[name]) for name, value in after.items()}


DEEDS: dict[str, Deed] = {"": honest, "nan": nan, "backwards": backwards}


def deed_of(site: int, context: Context) -> Deed:
    """Its node config says it; in a simulation, where nobody writes one, the run config says it for the first sites."""
    if "byzantine" in context.node_config:
        return parse(str(context.node_config["byzantine"]))[0]
    return dict(enumerate(parse(str(context.run_config["byzantine"])))).get(site, honest)


def parse(words: str) -> list[Deed]:
    """The deeds of sites 0, 1, …, from words with commas between them."""
    found = [word.strip() for word in words.split(",")]
    for word in found:
        if word not in DEEDS:
            raise ValueError(f'byzantine should be "nan", "backwards" or, for an honest site, "". Found {word!r}')
    return [DEEDS[word] for word in found]
