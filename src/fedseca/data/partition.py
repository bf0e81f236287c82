"""How the training samples are dealt to the clients: at random, by label or by the site they came from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedseca.data.samples import Samples
from fedseca.declare import Declared, param
from fedseca.errors import InputError
from fedseca.parts import Registry


@dataclass(frozen=True, kw_only=True)
class Partition(Declared, ABC):
    """A way to deal samples to clients. Every sample goes to exactly one client, and no client stays without."""

    @abstractmethod
    def owners(self, samples: Samples, num_clients: int, rng: torch.Generator) -> Tensor:
        """Which client gets each sample: int64 (N) in 0 … num_clients−1."""

    def split(self, samples: Samples, num_clients: int, rng: torch.Generator) -> list[Tensor]:
        """The indices of each client's samples, in ascending order; all randomness comes from `rng`."""
        if num_clients < 1:
            raise InputError(f"{self.name}: there must be at least one client; found {num_clients}")
        if num_clients > len(samples):
            raise InputError(
                f"{self.name}: {num_clients:,} clients cannot share {len(samples):,} samples; each needs one"
            )
        owners = _without_empty(self.owners(samples, num_clients, rng), num_clients)
        # A stable sort by owner keeps each client's samples in ascending order.
        order = owners.argsort(stable=True)
        return list(torch.split(order, torch.bincount(owners, minlength=num_clients).tolist()))

    def note(self, samples: Samples, num_clients: int) -> str | None:
        """What the user should know of how they are dealt, if anything: a sentence."""
        return None


PARTITIONS: Registry[Partition] = Registry("partition", Partition)
register = PARTITIONS.register


def _without_empty(owners: Tensor, num_clients: int) -> Tensor:
    """A client without samples gets the last one of whoever has most at that moment; of equals, the first gives."""
    counts = torch.bincount(owners, minlength=num_clients)
    empty = (counts == 0).nonzero().flatten().tolist()
    if not empty:
        return owners
    owners = owners.clone()
    order = owners.argsort(stable=True)
    ends = counts.cumsum(0)
    for client in empty:
        richest = int(counts.argmax())
        ends[richest] -= 1
        counts[richest] -= 1
        counts[client] = 1
        owners[order[ends[richest]]] = client
    return owners


@register("iid")
@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Shuffled and dealt out evenly: every client sees the same distribution."""

    def owners(self, samples: Samples, num_clients: int, rng: torch.Generator) -> Tensor:
        owners = torch.empty(len(samples), dtype=torch.int64)
        owners[torch.randperm(len(samples), generator=rng)] = torch.arange(len(samples)) % num_clients
        return owners


@register("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """For each class, the clients' shares are drawn from Dirichlet(α): small α, skewed clients (Hsu et al. 2019)."""

    alpha: float = param(1.0, gt=0, help="α: towards 0 each class goes to one client, towards ∞ all are alike")

    def owners(self, samples: Samples, num_clients: int, rng: torch.Generator) -> Tensor:
        draw = np.random.default_rng(torch.randint(2**62, (2,), generator=rng).tolist())
        owners = torch.empty(len(samples), dtype=torch.int64)
        labels = _classes(samples, self.name)
        for label in torch.unique(labels):
            of_class = (labels == label).nonzero().flatten()
            of_class = of_class[torch.randperm(len(of_class), generator=rng)]
            shares = torch.from_numpy(self._shares(num_clients, draw))
            # Rounding the borders, not the amounts, deals out every sample.
            borders = (shares.cumsum(0) * len(of_class)).round()[:-1]
            owners[of_class] = torch.bucketize(torch.arange(len(of_class)), borders, right=True)
        return owners

    def _shares(self, num_clients: int, draw: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        # Beyond these the distribution is its own limit, and drawing it would overflow or divide by zero.
        alpha = min(max(self.alpha, 1e-6), 1e12)
        return draw.dirichlet(np.full(num_clients, alpha))


@register("shards")
@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Sorted by label, cut into equal shards, a few to each client: most hold few labels (McMahan et al. 2017)."""

    per_client: int = param(2, ge=1, help="shards that each client gets")

    def owners(self, samples: Samples, num_clients: int, rng: torch.Generator) -> Tensor:
        shards = num_clients * self.per_client
        if shards > len(samples):
            found = f"{num_clients:,} clients with {self.per_client:,} each"
            raise InputError(
                f"shards: {len(samples):,} samples cannot be cut into more shards than that; found {found}"
            )
        shuffled = torch.randperm(len(samples), generator=rng)
        by_label = shuffled[_classes(samples, self.name)[shuffled].argsort(stable=True)]
        shard = torch.arange(len(samples)) * shards // len(samples)
        client_of_shard = torch.randperm(shards, generator=rng) % num_clients
        owners = torch.empty(len(samples), dtype=torch.int64)
        owners[by_label] = client_of_shard[shard]
        return owners


@register("site")
@dataclass(frozen=True, kw_only=True)
class Site(Partition):
    """By where the samples came from: client k is the k-th site; more sites than clients are dealt by size, in turn."""

    def owners(self, samples: Samples, num_clients: int, rng: torch.Generator) -> Tensor:
        if samples.sites is None:
            raise InputError("site: this data set does not say where its samples came from; take another partition")
        sites: Tensor
        which: Tensor
        sizes: Tensor
        sites, which, sizes = torch.unique(samples.sites, return_inverse=True, return_counts=True)
        if len(sites) < num_clients:
            raise InputError(f"site: {num_clients} clients, but the samples come from {len(sites)} sites; take fewer")
        if len(sites) == num_clients:
            return which
        client_of_site = torch.empty(len(sites), dtype=torch.int64)
        client_of_site[sizes.argsort(descending=True, stable=True)] = torch.arange(len(sites)) % num_clients
        return client_of_site[which]

    def note(self, samples: Samples, num_clients: int) -> str | None:
        sites = 0 if samples.sites is None else len(torch.unique(samples.sites))
        if sites <= num_clients:
            return None
        return f"{sites} sites share {num_clients} clients; --clients {sites} makes each site a client of its own"


def _classes(samples: Samples, partition: str) -> Tensor:
    if samples.labels.is_floating_point():
        raise InputError(f"{partition}: deals by class, and these labels are real numbers; take iid, or site")
    return samples.labels


def who_has_what(labels: Tensor, parts: Sequence[Tensor], num_classes: int | None) -> Tensor:
    """How many samples of each class each client has: int64 (clients × classes); of no classes, how many in all."""
    if num_classes is None:
        return torch.tensor([[len(part)] for part in parts])
    return torch.stack([torch.bincount(labels[part], minlength=num_classes) for part in parts])
