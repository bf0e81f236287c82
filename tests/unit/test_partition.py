"""Every image goes to exactly one client, no client stays without, and the skew is what was asked for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedseca.data import PARTITIONS, Samples, who_has_what
from fedseca.data.samples import InMemory
from fedseca.errors import InputError, ParameterError


def samples(labels, sites=None) -> Samples:
    labels = torch.as_tensor(labels, dtype=torch.int64)
    sites = None if sites is None else torch.as_tensor(sites, dtype=torch.int64)
    return Samples(InMemory(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)), labels, sites)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def balanced(per_class: int, classes: int = 10) -> Samples:
    return samples(torch.arange(per_class * classes) % classes)


ALPHAS = st.sampled_from([1e-300, 1e-6, 0.001, 0.05, 0.5, 1.0, 10.0, 1e6, 1e300])
BY_LABEL = st.one_of(
    st.just(PARTITIONS.make("iid")),
    ALPHAS.map(lambda alpha: PARTITIONS.make("dirichlet", alpha=alpha)),
    st.integers(1, 3).map(lambda shards: PARTITIONS.make("shards", per_client=shards)),
)


@given(BY_LABEL, st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_every_image_goes_to_exactly_one_client_and_no_client_stays_without(partition, labels, data):
    room = len(labels) // getattr(partition, "per_client", 1)
    if room == 0:
        return
    clients, seed = data.draw(st.integers(1, room)), data.draw(st.integers(0, 2**31))
    given_images = samples(labels)
    parts = partition.split(given_images, clients, seeded(seed))
    assert len(parts) == clients and all(len(part) for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    assert all(torch.equal(part, part.sort().values) for part in parts)
    again = partition.split(given_images, clients, seeded(seed))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    counts = who_has_what(given_images.labels, parts, 5)
    assert counts.shape == (clients, 5) and torch.equal(counts.sum(0), torch.bincount(given_images.labels, minlength=5))


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards"])
def test_only_the_generator_decides(name):
    split = PARTITIONS.make(name).split
    torch.manual_seed(1)
    one = split(balanced(50), 5, seeded(3))
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(one, split(balanced(50), 5, seeded(3)), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, split(balanced(50), 5, seeded(4)), strict=False))
    # A generator that moved on deals anew: its state is used, not its seed.
    generator = seeded(3)
    split(balanced(50), 5, generator)
    assert not all(torch.equal(a, b) for a, b in zip(one, split(balanced(50), 5, generator), strict=False))


@given(st.integers(1, 13), st.integers(0, 1000))
def test_iid_is_even(clients, seed):
    sizes = [len(part) for part in PARTITIONS.make("iid").split(balanced(20), clients, seeded(seed))]
    assert max(sizes) - min(sizes) <= 1


def skew(partition, seed: int, clients: int = 8) -> float:
    """How far the clients' shares of each class are from equal: 0 alike, 1 − 1/K where each class has one owner."""
    data = balanced(200)
    counts = who_has_what(data.labels, partition.split(data, clients, seeded(seed)), 10).double()
    return float(((counts / counts.sum(0)) - 1 / clients).abs().sum(0).mean() / 2)


def test_the_smaller_alpha_the_more_skewed():
    for seed in range(5):
        skews = [skew(PARTITIONS.make("dirichlet", alpha=alpha), seed) for alpha in (1000, 1, 0.1, 0.001)]
        assert skews == sorted(skews) and skews[0] < 0.05 and skews[-1] > 0.8
    # The control: dealing at random is not skewed.
    assert skew(PARTITIONS.make("iid"), 0) < 0.1


def test_dirichlet_shares_have_the_moments_of_the_distribution():
    """E[p] = 1/K and Var[p] = (1/K)(1 − 1/K)/(Kα + 1)."""
    clients = 4
    data = samples(torch.arange(40_000) % 400)
    for alpha in (0.2, 1.0, 5.0):
        parts = PARTITIONS.make("dirichlet", alpha=alpha).split(data, clients, seeded(7))
        shares = who_has_what(data.labels, parts, 400).double() / 100
        assert torch.allclose(shares.mean(dim=1), torch.full((clients,), 0.25).double(), atol=0.07)
        expected = 0.25 * 0.75 / (clients * alpha + 1)
        assert abs(float(shares.var()) - expected) < 0.15 * expected


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 0.001])
def test_at_a_tiny_alpha_every_client_is_as_likely_to_own_a_class(alpha):
    data = samples(torch.arange(4000) % 400)
    counts = who_has_what(data.labels, PARTITIONS.make("dirichlet", alpha=alpha).split(data, 4, seeded(0)), 400)
    assert ((counts == 10).sum(dim=1) > 70).all()


@given(st.integers(1, 3), st.integers(0, 1000))
def test_shards_hold_few_labels(per_client, seed):
    data = balanced(60)
    clients = 10 // per_client * 2
    counts = who_has_what(
        data.labels, PARTITIONS.make("shards", per_client=per_client).split(data, clients, seeded(seed)), 10
    )
    # A shard is no larger than a class here, so it touches two labels at most.
    assert ((counts > 0).sum(dim=1) <= 2 * per_client).all()
    sizes = counts.sum(dim=1)
    assert int(sizes.max() - sizes.min()) <= per_client


def test_shards_that_fit_the_classes_hold_one_label_each():
    data = balanced(60)
    parts = PARTITIONS.make("shards", per_client=2).split(data, 10, seeded(0))
    assert ((who_has_what(data.labels, parts, 10) > 0).sum(dim=1) <= 2).all()


def test_each_site_is_a_client():
    data = samples([0, 1, 0, 1, 0], sites=[30, 10, 30, 20, 10])
    assert [part.tolist() for part in PARTITIONS.make("site").split(data, 3, seeded(0))] == [[1, 4], [3], [0, 2]]


def test_more_sites_than_clients_are_dealt_by_size_and_never_torn_apart():
    sites = [0] * 1 + [1] * 5 + [2] * 3 + [3] * 4
    parts = PARTITIONS.make("site").split(samples([0] * 13, sites), 2, seeded(0))
    owned = [{sites[i] for i in part.tolist()} for part in parts]
    assert owned == [{1, 2}, {3, 0}]


def test_what_cannot_be_dealt_is_one_line():
    data = balanced(1)
    for name, clients, message in (
        ("iid", 11, "iid: 11 clients cannot share 10 samples; each needs one"),
        ("iid", 0, "iid: there must be at least one client; found 0"),
        ("site", 2, "site: this data set does not say where its samples came from"),
        ("shards", 6, "shards: 10 samples cannot be cut into more shards than that; found 6 clients with 2 each"),
    ):
        with pytest.raises(InputError, match=message):
            PARTITIONS.make(name).split(data, clients, seeded(0))
    with pytest.raises(InputError, match="3 clients, but the samples come from 2 sites"):
        PARTITIONS.make("site").split(samples([0, 1, 0], [5, 5, 6]), 3, seeded(0))


@pytest.mark.parametrize("name", list(PARTITIONS))
def test_hyperparameters_are_declared_and_bad_values_refused(name):
    assert PARTITIONS[name].__doc__
    for declared in PARTITIONS[name].hyperparameters().values():
        for bad in declared.bad_values():
            with pytest.raises(ParameterError):
                PARTITIONS.make(name, **{declared.name: bad})


def test_many_clients_do_not_take_long():
    data = samples(torch.zeros(20_000, dtype=torch.int64))
    parts = PARTITIONS.make("dirichlet", alpha=0.001).split(data, 20_000, seeded(0))
    assert all(len(part) == 1 for part in parts)
