"""The attacks of the field against their equations in plain Python, what they promise, and whom they hurt."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedseca
from fedseca import Server
from fedseca.attacks import ATTACKS, Attack, Knowledge, make_attack
from fedseca.testing import check_attack
from fedseca.updates import State
from tests.oracle import field_attack_equations as oracle
from tests.oracle.matrices import matrices


def honest_rows(seed: int, clients: int = 7, dim: int = 23, noise: float = 1.0) -> Tensor:
    """Clients that share a direction and differ by noise."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(dim, generator=generator, dtype=torch.float64)
    return direction + noise * torch.randn(clients, dim, generator=generator, dtype=torch.float64)


def craft(
    attack: str | Attack,
    honest: Tensor,
    byzantine: int = 2,
    *,
    state: State | None = None,
    seed: int = 0,
    offers: Mapping[str, Any] | None = None,
    **hyperparameters: Any,
) -> tuple[Tensor, State]:
    attack = make_attack(attack, **hyperparameters)
    ids = tuple(str(k) for k in range(len(honest)))
    knowledge = Knowledge.of(attack, 0, byzantine, ids, **(offers or {}))
    return attack.craft(honest, knowledge, state or {}, torch.Generator().manual_seed(seed))


def aggregated(rule: str, honest: Tensor, rows: Tensor, **hyperparameters: Any) -> Tensor:
    update: Tensor = Server(rule, **hyperparameters).rehearse(torch.cat([honest, rows])).update
    return update


def same(rows: Tensor, expected: list[float], tolerance: float = 1e-9) -> bool:
    """Whether each row is the expected one, by the scale of the latter."""
    want = torch.tensor(expected, dtype=torch.float64)
    scale = float(want.abs().max()) if len(expected) else 0.0
    return bool(((rows.double() - want).abs() <= tolerance * max(scale, 1e-30)).all())


def cosine(left: Tensor, right: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(left, right, dim=0))


NAMES = (
    "alie",
    "shrink",
    "opt_alie",
    "opt_ipm",
    "fang_krum",
    "fang_trim",
    "rop",
    "poisonedfl",
    "noisy_mimic",
    "concordant_flip",
    "sparse",
    "model_replacement",
    "leaning",
)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "model_replacement"])
def test_without_byzantine_clients_nothing_is_sent_and_nobody_asked(name):
    def probe(rows):
        raise AssertionError("asked")

    offers = {"probe": probe, "model": torch.ones(23, dtype=torch.float64)}
    rows, _ = craft(name, honest_rows(0), 0, offers=offers)
    assert rows.shape == (0, 23) and rows.dtype == torch.float64


# --- alie: the paper's z -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "byzantine"), [(5, 2), (10, 4), (25, 5), (50, 12), (50, 24), (51, 25), (100, 30)])
def test_alie_takes_its_strength_from_the_numbers_of_clients(clients, byzantine):
    honest = honest_rows(clients, clients - byzantine)
    rows, _ = craft("alie", honest, byzantine, strength=None, jitter=0.0)
    z = oracle.alie_z(clients, byzantine)
    assert same(rows, oracle.opt_alie_row(honest.tolist(), z))
    # The common other variant divides by all clients: a larger z.
    other = clients // 2 + 1 - byzantine
    assert oracle.normal_cdf(z) < (clients - other) / clients - 1e-3


def test_alie_by_hand():
    # K = 5, B = 2: s = 1, Φ(z) = 2/3; K = 50, B = 24: s = 2, Φ(z) = 24/26
    assert oracle.alie_z(5, 2) == pytest.approx(0.430727, abs=1e-6)
    assert oracle.alie_z(50, 24) == pytest.approx(1.426077, abs=1e-6)
    assert oracle.alie_z(5, 1) == pytest.approx(0, abs=1e-9)  # half of the honest ones are needed


def test_alie_has_an_end_where_the_equation_has_none():
    # The attackers are the majority: s ≤ 0 and z = ∞; one supporter is then asked for, Φ(z) = 2/3.
    honest = honest_rows(0, 3)
    rows, _ = craft("alie", honest, 4, strength=None, jitter=0.0)
    assert same(rows, oracle.opt_alie_row(honest.tolist(), oracle.alie_z(5, 2)))
    for clients, byzantine in ((1, 0), (1, 1), (1, 9), (2, 0), (2, 9), (3, 0)):
        rows, _ = craft("alie", honest_rows(1, clients), byzantine, strength=None)
        assert rows.shape == (byzantine, 23) and bool(rows.isfinite().all())


def test_alie_as_it_was():
    """Runs that are kept have the strength in their ids, and their draws."""
    assert make_attack("alie").values() == {"strength": 1.0, "jitter": 0.05}
    assert fedseca.Scenario(attack="alie").id == fedseca.Scenario(attack={"name": "alie", "strength": 1.0}).id
    assert fedseca.Scenario(attack="alie").id != fedseca.Scenario(attack={"name": "alie", "strength": None}).id
    honest = honest_rows(3)
    rows, _ = craft("alie", honest, 4, seed=9)
    draws = torch.rand(4, 1, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected = honest.mean(dim=0) - (1.0 + 0.05 * (2 * draws - 1)) * honest.std(dim=0, correction=0)
    assert torch.equal(rows, expected)
    assert ATTACKS["alie"].declared("strength").parse("none") is None


# --- shrink ------------------------------------------------------------------------------------------------------


@given(matrices(max_clients=5, max_dim=6, extremes=False), st.sampled_from([0.0, 1e-3, 0.5]))
@settings(max_examples=25)
def test_shrink_is_a_little_of_the_mean(honest, factor):
    rows, _ = craft("shrink", honest, 3, factor=factor)
    assert same(rows, [factor * m for m in oracle.mean(honest.tolist())], 1e-12)
    assert bool((rows.norm(dim=1) <= factor * honest.norm(dim=1).max() * (1 + 1e-12)).all())


# --- opt_alie and opt_ipm ----------------------------------------------------------------------------------------

ROWS = {"opt_alie": oracle.opt_alie_row, "opt_ipm": oracle.opt_ipm_row}


def known(server: Server, honest: Tensor, asked: list[Tensor]):
    """The server's rule as an attacker asks it, and as the oracle does."""

    def probe(rows: Tensor) -> Tensor:
        asked.append(rows)
        update: Tensor = server.rehearse(torch.cat([honest, rows])).update
        return update

    def plain(rows: list[list[float]]) -> list[float]:
        update: list[float] = server.rehearse(torch.tensor(rows, dtype=torch.float64)).update.tolist()
        return update

    return probe, plain


@pytest.mark.parametrize("rule", ["fedavg", "cwmed", "krum", "fedseca", "cclip"])
@pytest.mark.parametrize("name", ROWS)
def test_the_strength_of_the_grid_that_hurts_most(name, rule):
    for seed in range(2):
        honest, server, asked = honest_rows(seed, 6), Server(rule), list[Tensor]()
        server.aggregate(honest_rows(50 + seed, 8))  # a memory, for the rules that have one
        probe, plain = known(server, honest, asked)
        rows, _ = craft(name, honest, offers={"probe": probe})
        grid = [0.1 * 100 ** (i / 15) for i in range(16)]
        assert len(asked) == 16 and grid[-1] == pytest.approx(10)
        assert all(same(a, ROWS[name](honest.tolist(), z)) for a, z in zip(asked, grid, strict=True))
        damage = oracle.damages(honest.tolist(), 2, ROWS[name], plain, grid)
        sent = math.dist(oracle.mean(honest.tolist()), plain([*honest.tolist(), *rows.tolist()]))
        assert sent == pytest.approx(max(damage), rel=1e-6)
        assert torch.equal(rows[0], rows[1]) and any(torch.equal(rows, a) for a in asked)


@pytest.mark.parametrize(("name", "limit", "edge"), [("opt_alie", 2.001, 4.0), ("opt_ipm", 6.0, 2**1.5)])
def test_the_grid_finds_the_last_strength_that_a_rule_takes(name, limit, edge):
    """Negative control: a rule that drops rows longer than a limit. Stronger than the edge does nothing."""
    honest = torch.tensor([[1.0], [3.0]], dtype=torch.float64)  # μ = 2, σ = 1

    def probe(rows):
        return torch.cat([honest, rows[rows.norm(dim=1) <= limit]]).mean(dim=0)

    rows, _ = craft(name, honest, offers={"probe": probe}, least=0.5, most=8.0, questions=9)
    # The grid is 0.5·2^(i/2): … 2.83, 4, 5.66, 8; |2 − z| ≤ 2 up to 4, and |−2·ε| ≤ 6 up to 3
    strength = float(2 - rows[0]) if name == "opt_alie" else float(-rows[0] / 2)
    assert strength == pytest.approx(edge)


def test_the_grid_of_one_question_and_of_equal_damage():
    honest, asked = honest_rows(0), []

    def deaf(rows):
        asked.append(rows)
        return torch.zeros(23, dtype=torch.float64)

    rows, _ = craft("opt_ipm", honest, offers={"probe": deaf}, questions=1, least=0.25)
    assert len(asked) == 1 and same(rows, oracle.opt_ipm_row(honest.tolist(), 0.25))
    rows, _ = craft("opt_ipm", honest, offers={"probe": deaf})
    assert same(rows, oracle.opt_ipm_row(honest.tolist(), 0.1))  # nothing helps: the smallest


# --- fang_krum ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "byzantine"), [(3, 1), (5, 1), (6, 2), (8, 3), (10, 3)])
def test_fang_krum_is_as_far_as_krum_goes(clients, byzantine):
    for seed in range(4):
        honest = honest_rows(seed, clients, noise=0.5 + seed)
        rows, _ = craft("fang_krum", honest, byzantine, spread=0.0)
        expected, strength = oracle.fang_krum(honest.tolist(), byzantine)
        assert same(rows, expected)
        # Krum chooses it, and would not have chosen twice of it (unless that is more than it ever does).
        if strength > 1e-4:
            chosen = aggregated("krum", honest, rows, num_byzantine=byzantine)
            assert same(chosen[None], expected, 1e-6)
            refused = aggregated("krum", honest, 2 * rows, num_byzantine=byzantine)
            assert any(torch.equal(refused, row) for row in honest) or 2 * strength > oracle.fang_krum_bound(
                honest.tolist(), byzantine
            )


def test_no_strength_beyond_the_bound_is_chosen_by_krum():
    for seed in range(5):
        honest = honest_rows(seed, 8)
        bound = oracle.fang_krum_bound(honest.tolist(), 3)
        rows = -1.001 * bound * honest.mean(dim=0).sign().repeat(3, 1)
        assert any(torch.equal(aggregated("krum", honest, rows, num_byzantine=3), row) for row in honest)


def test_the_supporters_are_near_and_not_the_same():
    honest = honest_rows(0, 8)
    rows, _ = craft("fang_krum", honest, 4, spread=0.05)
    length = float(rows[0].norm())
    assert len({float(row[0]) for row in rows}) == 4
    assert all(float((row - rows[0]).norm()) == pytest.approx(0.05 * length) for row in rows[1:])
    rows, _ = craft("fang_krum", torch.zeros(5, 3), 2)  # a mean without a sign has no opposite
    assert rows.tolist() == [[0.0] * 3] * 2
    rows, _ = craft("fang_krum", honest, 2, threshold=1e9)  # no search
    assert same(
        rows[:1], [-oracle.fang_krum_bound(honest.tolist(), 2) * oracle.sign(m) for m in honest.mean(dim=0).tolist()]
    )


# --- fang_trim ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["models", "updates"])
@pytest.mark.parametrize("factor", [2.0, 1.5])
def test_fang_trim_draws_from_the_intervals(of, factor):
    honest, model = honest_rows(1, 5), torch.randn(23, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    honest[:, 3] = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.0])  # which does not move
    rows, _ = craft("fang_trim", honest, 400, offers={"model": model}, of=of, factor=factor)
    base = model if of == "models" else torch.zeros_like(model)
    drawn, mu, kinds = base - rows, oracle.mean(honest.tolist()), set()
    for j in range(23):
        local = (base[j] - honest[:, j]).tolist()
        moves = -oracle.sign(mu[j])
        low, high = oracle.fang_trim_interval(local, moves, factor)
        kinds.add((moves, high > 0))
        values, width = drawn[:, j], high - low
        assert float(values.min()) >= low - 1e-9 and float(values.max()) <= high + 1e-9
        # Uniform over the whole of it.
        assert float(values.min()) <= low + 0.03 * width + 1e-12 and float(values.max()) >= high - 0.03 * width - 1e-12
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=0.06 * width + 1e-12)
    assert len(kinds) >= 4  # both directions, both signs of the extreme


@given(matrices(max_clients=6, max_dim=6, extremes=False))
@settings(max_examples=25)
def test_fang_trim_lies_beyond_every_honest_client_on_the_wrong_side(honest):
    rows, _ = craft("fang_trim", honest, 2, offers={"model": torch.ones(honest.shape[1], dtype=torch.float64)})
    mean, slack = honest.mean(dim=0), 1e-12 * (1 + float(honest.abs().max()))
    assert bool((rows <= honest.amin(dim=0) + slack)[:, mean > 0].all())
    assert bool((rows >= honest.amax(dim=0) - slack)[:, mean < 0].all())
    assert bool((rows.abs() <= slack)[:, mean == 0].all())


# --- rop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"strength": 2.5, "location": 0.0, "reference": 0.0, "angle": 135.0},
        {"strength": 0.5, "location": 0.4, "reference": 0.6, "angle": 270.0},
    ],
)
def test_rop_round_after_round(values):
    reference = oracle.ROP(*(values.get(name, default) for name, default in make_attack("rop").values().items()))
    state: State = {}
    model = torch.zeros(23, dtype=torch.float64)
    for round in range(4):
        honest = honest_rows(round)
        rows, state = craft("rop", honest, state=state, offers={"model": model}, **values)
        assert same(rows, reference.step(honest.tolist(), model.tolist()))
        model = model - honest_rows(20 + round, 1)[0]  # what the server did


def test_rop_is_orthogonal_to_the_servers_last_step_and_beside_it():
    honest, step = honest_rows(0), honest_rows(1, 1)[0]
    _, state = craft("rop", honest, offers={"model": step})
    rows, _ = craft("rop", honest, state=state, offers={"model": torch.zeros_like(step)}, reference=1.0)
    aside = rows[0] - step
    assert abs(cosine(aside, step)) < 1e-12
    assert float(aside.norm()) == pytest.approx(float(honest.norm(dim=1).mean()))
    # With one coordinate there is no right angle, and without any update nothing to go by.
    rows, _ = craft("rop", torch.ones(3, 1), offers={"model": torch.ones(1)})
    assert rows.abs().max() < 1e-15  # the cosine of 90 degrees, as floats have it
    rows, _ = craft("rop", torch.zeros(3, 4), offers={"model": torch.ones(4)})
    assert rows.tolist() == [[0.0] * 4] * 2


# --- poisonedfl --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("succeeds", "strength", "after"), [(True, 8.0, 8.0), (False, 8.0, 8.0 * 0.7**4), (False, 0.6, 0.6)]
)
def test_poisonedfl_round_after_round(succeeds, strength, after):
    generator = torch.Generator().manual_seed(3)
    state: State = {}
    model = torch.randn(40, generator=generator, dtype=torch.float64)
    reference = None
    for _ in range(13):
        rows, state = craft(
            "poisonedfl", honest_rows(0, dim=40), state=state, offers={"model": model}, every=3, strength=strength
        )
        reference = reference or oracle.PoisonedFL(state["signs"].tolist(), c=strength, every=3)
        assert same(-rows, reference.step(model.tolist()))
        assert float(state["strength"]) == pytest.approx(reference.c)
        moved = 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
        model = model + (0.3 * state["signs"] + moved if succeeds else moved)
    assert float(state["strength"]) == pytest.approx(after)


@given(st.integers(0, 5))
@settings(max_examples=6)
def test_poisonedfl_keeps_its_signs_and_knows_no_honest_client(seed):
    state: State = {}
    model = torch.zeros(30, dtype=torch.float64)
    signs = None
    for round in range(5):
        rows, after = craft("poisonedfl", honest_rows(round, dim=30), state=state, seed=seed, offers={"model": model})
        unaware, _ = craft("poisonedfl", -honest_rows(99, dim=30), state=state, seed=seed, offers={"model": model})
        assert torch.equal(rows, unaware) and torch.equal(rows[0], rows[1])
        signs = after["signs"] if signs is None else signs
        assert bool((rows == 0).all()) if round == 0 else bool(((-rows[0]).sign() == signs).all())
        if round > 0:  # c·‖u‖ long
            assert float(rows[0].norm()) == pytest.approx(8 * float((model - state["model"]).norm()))
        state, model = after, model + honest_rows(40 + round, 1, 30)[0]


def test_what_poisonedfl_calls_success():
    attack: Any = make_attack("poisonedfl")
    # The numbers of coordinates from which on the authors' program, for its four networks, sees success.
    for dim, least in ((1204682, 603618), (139960, 70415), (717924, 359948), (145212, 73049)):
        assert attack.succeeded(least, dim) and not attack.succeeded(least - 1, dim)
    for dim in (20, 60, 200):
        differing = [n for n in range(dim + 1) if attack.succeeded(n, dim) != (oracle.binomial_cdf(n, dim) >= 0.99)]
        assert len(differing) <= 1  # the approximation may be one off
    assert not attack.succeeded(100, 200) and attack.succeeded(200, 200)


def test_poisonedfl_stands_still_with_the_model():
    model = torch.ones(5, dtype=torch.float64)
    _, state = craft("poisonedfl", honest_rows(0, dim=5), offers={"model": model})
    rows, _ = craft("poisonedfl", honest_rows(0, dim=5), state=state, offers={"model": model})
    assert bool((rows == 0).all())


# --- noisy_mimic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_noisy_mimic_turns_a_share_of_the_signs_of_whom_mimic_copies(share):
    state: State = {}
    plain_state: State = {}
    for past in range(7):
        honest = honest_rows(past, dim=200)
        copied, plain_state = craft("mimic", honest, 3, state=plain_state, seed=5)
        rows, state = craft("noisy_mimic", honest, 3, state=state, seed=5, share=share)
        assert torch.equal(rows.abs(), copied.abs())
        assert (rows != copied).sum(dim=1).tolist() == [round(share * 200)] * 3
        if 0 < share < 1:
            assert not torch.equal(rows[0], rows[1]) and not torch.equal(rows[1], rows[2])
    assert state.keys() == plain_state.keys()


# --- concordant_flip ---------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=60)
def test_concordant_flip_turns_as_many_as_nobody_notices(data):
    clients, dim = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    whole = st.integers(-3, 3)  # whole numbers: sums are exact, and so is what is equal
    rows = [[float(data.draw(whole)) for _ in range(dim)] for _ in range(clients)]
    sent, _ = craft("concordant_flip", torch.tensor(rows, dtype=torch.float64), 2)
    mu = oracle.mean(rows)
    assert sent.tolist() == [oracle.flipped(mu, oracle.most_flips(rows))] * 2


@pytest.mark.parametrize("share", [0.1, 0.3, 0.49])
def test_concordant_flip_of_a_share(share):
    for dim in (1, 2, 3, 10, 101):
        honest = honest_rows(dim, dim=dim)
        honest[:, : dim // 5] = 0  # has no sign to turn
        rows, _ = craft("concordant_flip", honest, share=share)
        mu, moving = oracle.mean(honest.tolist()), dim - dim // 5
        assert same(rows, oracle.flipped(mu, min(int(share * moving), (moving - 1) // 2)))
        assert oracle.concordance(rows[0].tolist(), mu) > 0
        if dim == 101 and share > 0.1:
            assert float(rows[0] @ honest.mean(dim=0)) < 0  # most signs are right, the direction is not


# --- sparse ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "scale", "strength", "z"), [(0.005, 5.0, 1.0, 1.0), (0.2, 3.0, 0.25, 0.25), (0.1, 1.5, None, None)]
)
def test_sparse_shifts_what_is_sensitive_far_and_the_rest_a_little(share, scale, strength, z):
    model = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    values = {"share": share, "scale": scale, "strength": strength}
    state: State = {}
    first = honest_rows(0, dim=50)
    marked = oracle.sensitive(model.tolist(), oracle.mean(first.tolist()), share)
    assert len(marked) == max(round(share * 50), 1)
    for past in range(3):
        honest = honest_rows(past, dim=50)
        # Later models change what is sensitive; what was marked at first stays.
        rows, state = craft("sparse", honest, 3, state=state, offers={"model": model * (1 - past)}, **values)
        used = oracle.alie_z(10, 3) if z is None else z
        assert same(rows, oracle.sparse(honest.tolist(), marked, scale, used))


# --- model_replacement -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("byzantine", [1, 2, 5])
def test_model_replacement_makes_the_mean_its_own(byzantine):
    honest, own = honest_rows(0), honest_rows(5, byzantine)
    rows, _ = craft("model_replacement", honest, byzantine, offers={"own": own})
    expected = oracle.model_replacement(own.tolist(), 7 + byzantine)
    assert all(same(row[None], want) for row, want in zip(rows, expected, strict=True))
    # Where the honest updates cancel, the average is what the attackers' training gave.
    cancelling = honest - honest.mean(dim=0)
    assert same(torch.cat([cancelling, rows]).mean(dim=0)[None], own.mean(dim=0).tolist())
    rows, _ = craft("model_replacement", honest, byzantine, offers={"own": own}, factor=3.0)
    assert torch.equal(rows, 3 * own)


def test_the_labels_that_model_replacement_trains_on():
    labels = torch.tensor([0, 1, 4, 9])
    for choice, expected in (("flip", [9, 8, 5, 0]), ("next", [1, 2, 5, 0]), ("true", [0, 1, 4, 9])):
        assert make_attack("model_replacement", labels=choice).poison(labels, 10).tolist() == expected
    rows, _ = craft("model_replacement", honest_rows(0), 0, offers={"own": torch.zeros(0, 23)})
    assert rows.shape == (0, 23)


# --- whom they hurt, and whom not --------------------------------------------------------------------------------


def crafted(name: str, honest: Tensor, byzantine: int, rule: str, seed: int, **values: Any) -> Tensor:
    """The rows of one round against a rule, whose model was half as large in every coordinate as an update."""
    server = Server(rule, **values)
    model = 0.5 * torch.randn(honest.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 77))
    probe, _ = known(server, honest, [])
    rows, _ = craft(name, honest, byzantine, seed=seed, offers={"probe": probe, "model": model})
    return rows


def alignment(name: str, rule: str, honest: Tensor, byzantine: int, seed: int, **values: Any) -> tuple[float, float]:
    """Of the aggregate under attack: its cosine with the honest mean, and its length in lengths of that."""
    rows = crafted(name, honest, byzantine, rule, seed, **values)
    aggregate, mean = aggregated(rule, honest, rows, **values), honest.mean(dim=0)
    return cosine(aggregate, mean), float(aggregate.norm() / mean.norm())


TOLD = {"num_byzantine": 3}
TURNED = [  # attack, honest and Byzantine clients; a rule that it turns around, and one that it does not
    ("fang_krum", 8, 3, ("krum", TOLD), ("fedavg", {})),
    ("concordant_flip", 8, 3, ("krum", TOLD), ("cwmed", {})),
    ("opt_ipm", 8, 3, ("fedavg", {}), ("cwmed", {})),
    ("opt_ipm", 8, 3, ("krum", TOLD), ("nnm+cwmed", TOLD)),
    ("fang_trim", 6, 5, ("cwmed", {}), ("nnm+cwmed", {"num_byzantine": 5})),
]


@pytest.mark.parametrize(("name", "clients", "byzantine", "broken", "whole"), TURNED)
def test_an_attack_turns_one_rule_around_and_not_another(name, clients, byzantine, broken, whole):
    for seed in range(3):
        honest = honest_rows(seed, clients, 300, 2.0)
        assert alignment(name, broken[0], honest, byzantine, seed, **broken[1])[0] < -0.1
        assert alignment(name, whole[0], honest, byzantine, seed, **whole[1])[0] > 0.4


def test_shrink_stops_rules_that_look_for_the_middle_and_slows_a_mean():
    for seed in range(3):
        honest = honest_rows(seed, 8, 300, 2.0)
        assert alignment("shrink", "krum", honest, 3, seed, num_byzantine=3)[1] < 0.1
        assert alignment("shrink", "fedavg", honest, 3, seed)[1] == pytest.approx((8 + 3e-3) / 11)
        # Half of the clients: of the two norms in the middle the lower one is a short one's.
        half = honest_rows(seed, 3, 300, 0.3)
        for rule in ("normalising+fedavg", "fedseca"):
            assert alignment("shrink", rule, half, 3, seed)[1] < 0.1, rule
        assert alignment("shrink", "fedavg", half, 3, seed)[1] == pytest.approx(0.5005)


def test_the_papers_alie_pulls_a_median_below_zero_and_not_a_mean():
    for seed in range(3):
        # Every coordinate of the mean is 0.5, with a spread of 1; K = 21, B = 9: s = 2, Φ(z) = 10/12.
        noise = torch.randn(12, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        honest = 0.5 + noise - noise.mean(dim=0)
        rows, _ = craft("alie", honest, 9, strength=None)
        assert float(aggregated("cwmed", honest, rows).mean()) < -0.2
        assert float(aggregated("fedavg", honest, rows).mean()) > 0.05


@pytest.mark.parametrize(("name", "plain"), [("opt_alie", "alie"), ("opt_ipm", "ipm")])
def test_who_asks_does_more_damage_than_who_does_not(name, plain):
    for seed in range(2):
        honest = honest_rows(seed, 8, 100, 2.0)
        mean = honest.mean(dim=0)
        for rule in ("fedavg", "cwtm"):
            with_questions, without = (
                float((aggregated(rule, honest, crafted(each, honest, 3, rule, seed)) - mean).norm() / mean.norm())
                for each in (name, plain)
            )
            assert with_questions > 1.5 and without < 1
        # What is clipped first has an end.
        clipped = aggregated("clipping+fedavg", honest, crafted(name, honest, 3, "clipping+fedavg", seed))
        assert float((clipped - mean).norm() / mean.norm()) < 1


def training(name: str, rule: str, rounds: int, seed: int, **values: Any) -> tuple[Tensor, Tensor, State]:
    """Where a model went on average in a round, where the honest clients wanted it to go, what the attack remembers."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(100, generator=generator, dtype=torch.float64)
    state: State = {}
    model, server = torch.zeros(100, dtype=torch.float64), Server(rule, **values)
    for round in range(rounds):
        honest = direction + 2 * torch.randn(8, 100, generator=generator, dtype=torch.float64)
        rows, state = craft(name, honest, 3, state=state, seed=round, offers={"model": model})
        model = model - server.aggregate(torch.cat([honest, rows])).update
    return -model / rounds, direction, state


def test_rop_leads_centered_clipping_aside():
    for seed in range(2):
        moved, wanted, _ = training("rop", "cclip", 12, seed, radius=2.0)
        assert cosine(moved, wanted) < 0.8
        moved, wanted, _ = training("ipm", "cclip", 12, seed, radius=2.0)
        assert cosine(moved, wanted) > 0.95  # the clipped mean is only slowed by an attack that looks backwards
        moved, wanted, _ = training("rop", "nnm+cwmed", 12, seed, num_byzantine=3)
        assert cosine(moved, wanted) > 0.95


def test_poisonedfl_leads_a_mean_where_it_wants():
    for seed in range(2):
        moved, wanted, state = training("poisonedfl", "fedavg", 12, seed)
        assert float(moved.norm()) > 100 * float(wanted.norm())
        assert float(((-moved).sign() == state["signs"]).double().mean()) > 0.95
        moved, wanted, state = training("poisonedfl", "multi_krum", 12, seed, num_byzantine=3)
        assert cosine(moved, wanted) > 0.95
        assert float(((-moved).sign() == state["signs"]).double().mean()) < 0.7


def test_noisy_mimic_is_not_seen_by_who_looks_for_copies():
    for seed in range(3):
        honest = honest_rows(seed, 6, 300)
        mean, moved = honest.mean(dim=0), dict[tuple[str, float], float]()
        for name in ("mimic", "noisy_mimic"):
            rows, _ = craft(name, honest, 4, seed=seed)
            for threshold in (0.9, 0.5):
                found = aggregated("one_voice+fedavg", honest, rows, threshold=threshold)
                moved[name, threshold] = float((found - mean).norm() / mean.norm())
        assert moved["mimic", 0.9] < 1e-6 and moved["noisy_mimic", 0.9] > 0.2
        assert moved["noisy_mimic", 0.5] < 0.1  # who looks closer sees it
        assert float((aggregated("fedavg", honest, craft("mimic", honest, 4, seed=seed)[0]) - mean).norm()) > 0.2


def test_concordant_flip_has_fedsecas_full_trust_and_a_reversal_has_none():
    for seed in range(3):
        honest = honest_rows(seed, 6, 300, 2.0)
        rows = crafted("concordant_flip", honest, 5, "fedseca", seed)
        out = Server("fedseca", momentum=0.0, sparsity=0.0).aggregate(torch.cat([honest, rows]))
        assert out.clients["rho"][6:].tolist() == [1.0] * 5
        reversal = Server("fedseca").aggregate(torch.cat([honest, -honest.mean(dim=0).repeat(5, 1)]))
        assert reversal.clients["rho"][6:].tolist() == [0.0] * 5
        # The rule with their votes is off by as much as the mean is long; without trust in them it is not.
        mean = honest.mean(dim=0)
        assert float((out.update - mean).norm() / mean.norm()) > 0.9
        assert cosine(aggregated("one_voice+fedavg", honest, rows), mean) > 0.9  # five copies have one voice


@given(t=st.floats(-1, 1), seed=st.integers(0, 1000))
def test_leaning_has_the_cosine_it_is_told_with_the_farthest_client_and_the_least_with_the_mean(t, seed):
    honest = honest_rows(seed, 4)
    row = craft("leaning", honest, cosine=t)[0][0]
    mean = honest.mean(dim=0)
    farthest = min(honest, key=lambda client: cosine(client, mean))
    apart = math.acos(cosine(farthest, mean))
    assert float(row.norm()) == pytest.approx(sorted(honest.norm(dim=1).tolist())[1])
    if apart + math.acos(t) <= math.pi:
        assert cosine(row, farthest) == pytest.approx(t, abs=1e-6)
    # No direction at that cosine from the client is farther from the mean: angles on a sphere add up at most.
    assert cosine(row, mean) == pytest.approx(math.cos(min(math.pi, apart + math.acos(t))), abs=1e-6)


def test_leaning_is_the_mean_backwards_where_all_point_the_same_way():
    honest = honest_rows(0, 1).repeat(3, 1) * torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    assert same(craft("leaning", honest)[0], (-honest[1]).tolist(), 1e-6)
    assert not craft("leaning", torch.zeros(3, 4, dtype=torch.float64))[0].any()


def test_leaning_stays_in_good_standing_where_the_mean_backwards_does_not():
    for seed in range(3):
        honest = honest_rows(seed, 3, 2000, 1.0)
        server, plain = Server("standing"), Server("standing")
        for _ in range(6):
            leant = server.aggregate(torch.cat([honest, craft("leaning", honest, cosine=0.2)[0]]))
            turned = plain.aggregate(torch.cat([honest, -honest.mean(dim=0).repeat(2, 1)]))
        assert (leant.clients["weight"][3:] > 0).all() and not turned.clients["weight"][3:].any()
        mean = honest.mean(dim=0)
        assert cosine(leant.update, mean) < 0.8 and cosine(turned.update, mean) > 0.99


def test_sparse_moves_krum_beyond_all_clients_where_it_is_sensitive_and_a_median_never():
    for seed in range(3):
        honest = honest_rows(seed, 8, 300, 2.0)
        model = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        rows, state = craft("sparse", honest, 3, offers={"model": model})
        marked, least = state["sensitive"], honest.amin(dim=0)
        assert int(marked.sum()) == 2
        assert bool((aggregated("krum", honest, rows, num_byzantine=3) < least)[marked].all())
        assert bool((aggregated("cwmed", honest, rows) >= least)[marked].all())
        assert bool((rows >= least - 1.0).all(dim=0)[~marked].all())  # elsewhere it is near the others


def test_model_replacement_turns_a_mean_around_and_not_multi_krum():
    for seed in range(3):
        honest, own = honest_rows(seed, 8, 300, 0.5), -honest_rows(seed, 11, 300, 0.5)[8:]
        rows, _ = craft("model_replacement", honest, 3, offers={"own": own})
        assert cosine(aggregated("fedavg", honest, rows), honest.mean(dim=0)) < -0.2
        assert cosine(aggregated("multi_krum", honest, rows, num_byzantine=3), honest.mean(dim=0)) > 0.99
        rows, _ = craft("model_replacement", honest, 3, offers={"own": own}, factor=0.5)
        assert cosine(aggregated("fedavg", honest, rows), honest.mean(dim=0)) > 0.9  # without the boost


@pytest.mark.parametrize("name", NAMES)
def test_in_a_federation(name):
    """Two rounds on digits, the second with a memory; whoever is fewer than half does not end the training."""
    scenario = fedseca.Scenario(
        aggregator="cwmed", attack=name, rounds=2, train_images=120, test_images=60, batch_size=32
    )
    history = fedseca.simulate(scenario)
    assert len(history.rounds) == 2 and all(line["void"] is None for line in history.rounds)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fang_trim", {"of": "updates"}),
        ("rop", {"location": 0.0, "reference": 0.0, "angle": 180.0}),
        ("concordant_flip", {"share": 0.45}),
        ("model_replacement", {"labels": "next", "factor": 2.0}),
        ("leaning", {"cosine": -1.0}),
        ("leaning", {"cosine": 1.0}),
    ],
)
def test_contract_with_other_hyperparameters(name, values):
    check_attack(make_attack(name, **values))
