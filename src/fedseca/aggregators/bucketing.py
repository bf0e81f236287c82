"""What centered clipping over buckets of clients needs."""

from dataclasses import dataclass

import torch

from fedseca.aggregators.cclip import Clipping
from fedseca.declare import param
from fedseca.updates import Updates


@dataclass(frozen=True, kw_only=True)
class Bucketing(Clipping):
    """What the rules over buckets share: the size of a bucket."""

    bucket_size: int = param(2, ge=1, help="S: clients in a bucket")


def shuffled(indices: list[int], rng: torch.Generator) -> list[int]:
    """The indices in a random order."""
    order = torch.randperm(len(indices), generator=rng, device="cpu").tolist()
    return [indices[i] for i in order]


def by_id(updates: Updates) -> list[int]:
    """The clients in an order that does not depend on who answered first."""
    return sorted(range(len(updates)), key=lambda k: updates.client_ids[k])
