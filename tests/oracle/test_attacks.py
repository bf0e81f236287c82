"""The attacks against their equations in plain NumPy, written without sight of the package's code."""

import numpy as np
import pytest
import torch

from fedseca import Server
from fedseca.aggregators import State
from fedseca.attacks import Knowledge, make_attack
from fedseca.attacks._directions import direction
from tests.oracle import attack_equations as oracle


def honest_rows(seed, clients=5, dim=17):
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    return direction + torch.randn(clients, dim, generator=generator, dtype=torch.float64)


def craft(attack, honest, byzantine=3, state=None, probe=None, ids=None, seed=0):
    ids = ids or tuple(str(k) for k in range(len(honest)))
    knowledge = Knowledge.of(attack, 0, byzantine, ids, probe=probe)
    return attack.craft(honest, knowledge, state or {}, torch.Generator().manual_seed(seed))


def close(rows, expected):
    return np.allclose(rows.numpy(), expected, rtol=1e-10, atol=1e-12)


SIMPLE = {"alie": (oracle.alie, 1.0), "ipm": (oracle.ipm, 1.3), "fang": (oracle.fang, 0.1)}


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("seed", range(4))
def test_a_strength_with_its_noise(name, seed):
    equation, strength = SIMPLE[name]
    honest = honest_rows(seed)
    rows, _ = craft(make_attack(name, jitter=0.0), honest)
    assert all(close(row, equation(honest.numpy(), strength)) for row in rows)
    # With the noise every client has a strength of its own within ±0.05, and the row is the equation's for it.
    rows, _ = craft(make_attack(name), honest, byzantine=40, seed=seed)
    base, slope = equation(honest.numpy(), 0.0), equation(honest.numpy(), 1.0) - equation(honest.numpy(), 0.0)
    strengths = [float((row.numpy() - base) @ slope / (slope @ slope)) for row in rows]
    assert all(close(row, equation(honest.numpy(), s)) for row, s in zip(rows, strengths, strict=True))
    offsets = np.array(strengths) - strength
    assert len(set(strengths)) == 40 and np.abs(offsets).max() <= 0.05
    assert offsets.max() > 0.035 and offsets.min() < -0.035  # uniform, not all near 0


def test_scaling_and_labelflip():
    honest = honest_rows(1)
    rows, _ = craft(make_attack("scaling"), honest)
    assert all(close(row, oracle.scaling(honest.numpy(), 10.0)) for row in rows)
    for classes in (2, 7, 10):
        labels = torch.arange(classes)
        assert make_attack("labelflip").poison(labels, classes).tolist() == oracle.labelflip(labels.tolist(), classes)


@pytest.mark.parametrize("warmup", [1, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_mimic_copies_the_client_of_the_equations(seed, warmup):
    attack, reference = make_attack("mimic", warmup=warmup), oracle.Mimic()
    state: State = {}
    start = torch.randn(17, generator=torch.Generator().manual_seed(seed)).double()
    chosen = []
    for round in range(9):
        honest = honest_rows(1000 * seed + round)
        rows, state = craft(attack, honest, state=state, seed=seed)
        index = reference.step(honest.numpy(), (start / start.norm()).numpy(), warmup=warmup)
        chosen.append(index)
        assert all(torch.equal(row, honest[index]) for row in rows), f"round {round}"
    assert len(set(chosen[warmup - 1 :])) == 1


def test_mimic_follows_its_client_and_has_a_stand_in():
    attack, honest = make_attack("mimic", warmup=1), honest_rows(3)
    ids = tuple("abcde")
    rows, state = craft(attack, honest, ids=ids)
    copied = next(k for k in range(5) if torch.equal(rows[0], honest[k]))
    order = [4, 3, 2, 1, 0]
    rows, state = craft(attack, honest[order], state=state, ids=tuple(ids[k] for k in order))
    assert torch.equal(rows[0], honest[copied])
    others = [k for k in range(5) if k != copied]
    rows, state = craft(attack, honest[others], state=state, ids=tuple(ids[k] for k in others))
    assert any(torch.equal(rows[0], honest[k]) for k in others)
    rows, state = craft(attack, honest, state=state, ids=ids)
    assert torch.equal(rows[0], honest[copied])


@pytest.mark.parametrize("rule", ["fedavg", "cwmed", "krum", "fedseca", "cclip", "rfa"])
@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
def test_minmax_finds_what_the_search_finds(rule, direction):
    for seed in range(3):
        honest, server = honest_rows(seed, clients=6), Server(rule)
        server.aggregate(honest_rows(50 + seed, clients=8))  # a memory, for the rules that have one
        asked: list[torch.Tensor] = []

        def probe(rows, server=server, honest=honest, asked=asked):
            asked.append(rows)
            return server.rehearse(torch.cat([honest, rows])).update

        def plain(matrix, server=server):
            return server.rehearse(torch.from_numpy(matrix)).update.numpy()

        attack = make_attack("minmax", direction=direction)
        rows, _ = craft(attack, honest, byzantine=2, probe=probe)
        push = oracle.DIRECTIONS[direction](honest.numpy())
        _, expected = oracle.agr_updates_gamma(honest.numpy(), 2, push, plain, floor=0.0)
        mean = oracle.mean(honest.numpy())
        damage = oracle.norm(mean - plain(np.concatenate([honest.numpy(), rows.numpy()])))
        assert damage == pytest.approx(expected, rel=1e-6)
        assert torch.equal(rows[0], rows[1]) and len(asked) == 19


def test_minmax_goes_as_far_as_it_can_against_a_mean():
    """Negative control of the search: against the mean more is always worse, so γ approaches 2·start."""
    honest = honest_rows(0)
    probe = lambda rows: torch.cat([honest, rows]).mean(dim=0)  # noqa: E731
    rows, _ = craft(make_attack("minmax"), honest, probe=probe)
    assert float((rows[0] - honest.mean(dim=0)).norm()) == pytest.approx(20, abs=1e-3)


@pytest.mark.parametrize(("start", "threshold", "questions"), [(8.0, 1.0, 3), (8.0, 1.01, 2), (8.0, 5.0, 0)])
def test_minmax_asks_until_its_step_is_smaller_than_the_threshold(start, threshold, questions):
    honest, asked = honest_rows(0), []

    def probe(rows):
        asked.append(rows)
        return torch.cat([honest, rows]).mean(dim=0)

    craft(make_attack("minmax", start=start, threshold=threshold), honest, probe=probe)
    assert len(asked) == questions
    rows, _ = craft(make_attack("minmax"), honest, byzantine=0, probe=probe)
    assert rows.shape == (0, 17) and len(asked) == questions, "nobody is there to send anything"


@pytest.mark.parametrize(("longest", "edge"), [(10.0, 12.0), (4.0, 6.0), (0.5, 2.5)])
def test_minmax_comes_back_to_the_edge_of_what_a_rule_takes(longest, edge):
    """The rule drops rows longer than a limit, so 2 − γ is taken up to the edge. The search begins at γ = 10."""
    honest = torch.tensor([[1.0], [3.0]], dtype=torch.float64)

    def probe(rows):
        return torch.cat([honest, rows[rows.norm(dim=1) <= longest]]).mean(dim=0)

    rows, _ = craft(make_attack("minmax"), honest, byzantine=1, probe=probe)
    gamma = float(honest.mean() - rows)
    assert edge - 1e-3 < gamma <= edge


@pytest.mark.parametrize("direction", ["unit", "sign", "std"])
@pytest.mark.parametrize(
    ("name", "gamma"), [("minmax_agnostic", oracle.minmax_agnostic_gamma), ("minsum", oracle.minsum_gamma)]
)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_largest_step_within_the_bound(name, gamma, direction, scale):
    for seed in range(8):
        honest = scale * honest_rows(seed, clients=2 + seed)
        rows, _ = craft(make_attack(name, direction=direction), honest)
        push = oracle.DIRECTIONS[direction](honest.numpy())
        expected = oracle.mean(honest.numpy()) + gamma(honest.numpy(), push) * push
        assert np.allclose(rows.numpy(), expected, rtol=1e-7, atol=1e-8 * scale)


def test_random_has_the_length_it_says():
    honest = honest_rows(0, dim=20_000)
    rows, _ = craft(make_attack("random", factor=4.0), honest)
    length = float(honest.norm(dim=1).mean())
    assert all(float(row.norm()) == pytest.approx(4 * length, rel=0.03) for row in rows)
    assert abs(float(torch.nn.functional.cosine_similarity(rows[0], rows[1], dim=0))) < 0.05


def test_signflip_and_nonfinite():
    honest, own = honest_rows(0), honest_rows(9, clients=2)
    knowledge = Knowledge.of(make_attack("signflip"), 0, 2, tuple("abcde"), own=own)
    rows, _ = make_attack("signflip", factor=3.0).craft(honest, knowledge, {}, torch.Generator())
    assert torch.equal(rows, -3 * own)
    for value, check in (("nan", torch.isnan), ("inf", torch.isposinf), ("-inf", torch.isneginf)):
        rows, _ = craft(make_attack("nonfinite", value=value, count=4), honest)
        assert all(int(check(row).sum()) == 4 == int((~row.isfinite()).sum()) for row in rows)
    for count, dim, replaced in ((9, 17, 9), (4, 3, 3), (17, 17, 17)):
        rows, _ = craft(make_attack("nonfinite", count=count), honest_rows(0, dim=dim))
        assert all(int((~row.isfinite()).sum()) == replaced for row in rows)
    rows, _ = craft(make_attack("nonfinite"), honest)
    assert all(row.isnan().any() and row.isinf().any() for row in rows)


@pytest.mark.parametrize("name", oracle.DIRECTIONS)
@pytest.mark.parametrize("scale", [1e-9, 0.1, 1.0, 1e9])
def test_directions_at_any_length_of_the_updates(name, scale):
    honest = scale * honest_rows(0)
    assert np.allclose(direction(name, honest).numpy(), oracle.DIRECTIONS[name](honest.numpy()), rtol=1e-10, atol=0)
    assert direction(name, torch.zeros(3, 4)).tolist() == [0.0] * 4
