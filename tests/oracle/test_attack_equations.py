"""The attack oracles against examples worked out by hand."""

import math

import numpy as np
import pytest

from tests.oracle import attack_equations as attack

# μ = (3, −1, 0); deviations ±(1, 2, 5), so σ = (1, 2, 5)
PAIR = np.array([[2.0, 1.0, 5.0], [4.0, -3.0, -5.0]])


def test_closed_forms():
    assert attack.alie(PAIR, 1.5).tolist() == [1.5, -4.0, -7.5]
    assert attack.ipm(PAIR, 2.0).tolist() == [-6.0, 2.0, 0.0]
    assert attack.fang(PAIR, 0.25).tolist() == [-0.25, 0.25, 0.0]
    assert attack.scaling(PAIR, 10.0).tolist() == [30.0, -10.0, 0.0]
    assert attack.labelflip([0, 1, 2, 3], 4) == [3, 2, 1, 0]
    assert attack.labelflip([0, 1, 2], 3) == [2, 1, 0]


def test_sigma_is_the_populations():
    # 0, 0, 3: μ = 1, σ² = (1 + 1 + 4)/3 = 2
    honest = np.array([[0.0], [0.0], [3.0]])
    np.testing.assert_allclose(attack.alie(honest, 1.0), [1 - math.sqrt(2)], rtol=1e-15)


def test_the_sign_of_a_mean_is_that_of_the_exact_sum():
    # summed from the left, 1e16 + 1 − 1e16 is 0
    assert attack.fang(np.array([[1e16], [1.0], [-1e16]]), 0.1).tolist() == [-0.1]


def test_directions():
    honest = np.array([[2.0, -3.0], [4.0, -5.0]])  # μ = (3, −4), σ = (1, 1)
    assert attack.unit_direction(honest).tolist() == [-3 / 5, 4 / 5]
    assert attack.sign_direction(honest).tolist() == [-1.0, 1.0]
    assert attack.std_direction(honest).tolist() == [-1.0, -1.0]
    assert attack.unit_direction(np.array([[1.0], [-1.0]])).tolist() == [0.0]
    assert attack.sign_direction(PAIR).tolist() == [-1.0, 1.0, 0.0]


def test_mimic_two_rounds():
    mimic = attack.Mimic()
    z0 = np.array([0.6, 0.8])
    # round 1: μ = 0, C = diag(2, 8), C·z0 = (1.2, 6.4)
    first = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, -2.0], [0.0, 2.0]])
    assert mimic.step(first, z0) == 3
    assert mimic.z is not None and mimic.mu is not None
    z1 = np.array([1.2, 6.4]) / math.hypot(1.2, 6.4)
    np.testing.assert_allclose(mimic.z, z1, rtol=1e-15)
    # round 2: the round's mean is (2, 0), μ = ½·0 + ½·(2, 0) = (1, 0); g − μ = (3,0) (1,0) (0,1) (0,−1), so
    # C = diag(10, 2) and z ∝ ½·z1 + ½·C·z1 = (5.5·z1_x, 1.5·z1_y) ∝ (6.6, 9.6)
    second = np.array([[4.0, 0.0], [2.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
    # scores ∝ 26.4, 13.2, 16.2, −3
    assert mimic.step(second, np.array([1.0, 0.0])) == 0
    np.testing.assert_allclose(mimic.mu, [1.0, 0.0], rtol=1e-15)
    np.testing.assert_allclose(mimic.z, np.array([6.6, 9.6]) / math.hypot(6.6, 9.6), rtol=1e-15)


def test_mimic_stays_after_the_warmup():
    mimic = attack.Mimic()
    z0 = np.array([1.0])
    right, left = np.array([[1.0], [-1.0]]), np.array([[-1.0], [1.0]])
    # in one dimension z stays (1): the larger client is mimicked, for five rounds
    assert [mimic.step(g, z0) for g in (right, left, right, right, left)] == [0, 1, 0, 0, 1]
    z = mimic.z
    assert [mimic.step(g, z0) for g in (right, left, right)] == [1, 1, 1]
    assert mimic.t == 5 and mimic.z is z


def test_mimic_without_variance_keeps_z():
    mimic = attack.Mimic()
    assert mimic.step(np.ones((3, 2)), np.array([0.6, 0.8])) == 0
    assert mimic.z is not None and mimic.z.tolist() == [0.6, 0.8]


def average(rows):
    """The mean of all rows."""
    return rows.mean(axis=0)


def test_agr_against_the_mean_goes_up_to_twice_the_start():
    # H = 2, B = 2, ‖p‖ = 1: damage = ‖γp·B/K‖ = γ/2, so every probe succeeds: γ = 10 + 5 + 2.5 + …
    honest = np.array([[2.0, -3.0], [4.0, -5.0]])
    p = attack.unit_direction(honest)
    probes = attack.agr_probes(honest, 2, p, average)
    # steps 5/2^n ≥ 1e-5 for n = 0 … 18
    assert len(probes) == 19
    assert [g for g, _ in probes[:4]] == [10.0, 15.0, 17.5, 18.75]
    gamma, harm = attack.agr_updates_gamma(honest, 2, p, average)
    assert gamma == 20 - 10 / 2**18
    assert harm == pytest.approx(gamma / 2, rel=1e-14)


def bounded(limit):
    """A rule that averages the rows no longer than limit."""
    return lambda rows: rows[np.linalg.norm(rows, axis=1) <= limit].mean(axis=0)


def test_agr_finds_the_edge_of_a_rejecting_rule():
    # μ = 2, p = −1, m = 2 − γ enters while |m| ≤ 10, that is γ ≤ 12, with damage γ/3; beyond that damage is 0
    honest = np.array([[1.0], [3.0]])
    p = attack.unit_direction(honest)
    assert [g for g, _ in attack.agr_probes(honest, 1, p, bounded(10.0))[:5]] == [10.0, 15.0, 12.5, 11.25, 11.875]
    gamma, harm = attack.agr_updates_gamma(honest, 1, p, bounded(10.0))
    assert 0 <= 12 - gamma <= 5 / 2**17  # the last step taken
    assert harm == pytest.approx(gamma / 3, rel=1e-14)
    brute, brute_harm = attack.brute_force_gamma(honest, 1, p, bounded(10.0), np.arange(0, 20, 0.5))
    assert brute == 12.0
    assert brute_harm == pytest.approx(4.0, rel=1e-14)
    assert harm >= brute_harm - 5 / 2**17 / 3 - 1e-14


def test_agr_with_a_first_probe_that_does_nothing():
    # γ = 10 is rejected (edge at γ = 6). Nothing being worse than nothing, 10 is the best so far and the search
    # settles around it; with floor 0 a damage of 0 is no success and it walks down to the edge
    honest = np.array([[1.0], [3.0]])
    p = attack.unit_direction(honest)
    assert attack.agr_updates_gamma(honest, 1, p, bounded(4.0)) == (10.0, 0.0)
    assert [g for g, _ in attack.agr_probes(honest, 1, p, bounded(4.0), floor=0.0)[:4]] == [10.0, 5.0, 7.5, 6.25]
    gamma, harm = attack.agr_updates_gamma(honest, 1, p, bounded(4.0), floor=0.0)
    assert 0 <= 6 - gamma <= 5 / 2**17
    assert harm == pytest.approx(gamma / 3, rel=1e-14)
    assert attack.brute_force_gamma(honest, 1, p, bounded(4.0), [0, 6, 7])[0] == 6.0


def test_minmax_and_minsum_in_one_dimension():
    # 1, 3: μ = 2, p = −1. max |m − g| = 1 + γ ≤ 2; Σ(m − g)² = 2 + 2γ² ≤ 4
    honest = np.array([[1.0], [3.0]])
    p = attack.unit_direction(honest)
    assert attack.minmax_agnostic_gamma(honest, p) == pytest.approx(1.0, rel=2e-12)
    assert attack.minsum_gamma(honest, p) == pytest.approx(1.0, rel=2e-12)
    # 0, 0, 6: μ = 2, σ = √8, p = −σ. max |m − g| = 4 + √8·γ ≤ 6, γ = 1/√2; 24 + 3·8γ² ≤ 72, γ = √2
    honest = np.array([[0.0], [0.0], [6.0]])
    p = attack.std_direction(honest)
    assert attack.minmax_agnostic_gamma(honest, p) == pytest.approx(1 / math.sqrt(2), rel=2e-12)
    assert attack.minsum_gamma(honest, p) == pytest.approx(math.sqrt(2), rel=2e-12)


def test_minmax_and_minsum_in_two_dimensions():
    # (4,3), (4,−3): μ = (4, 0), p = (−1, 0). √(γ² + 9) ≤ 6, γ = √27; 2(γ² + 9) ≤ 36, γ = 3
    honest = np.array([[4.0, 3.0], [4.0, -3.0]])
    for p in (attack.unit_direction(honest), attack.sign_direction(honest)):
        assert p.tolist() == [-1.0, 0.0]
        assert attack.minmax_agnostic_gamma(honest, p) == pytest.approx(math.sqrt(27), rel=2e-12)
        assert attack.minsum_gamma(honest, p) == pytest.approx(3.0, rel=2e-12)


def test_minmax_and_minsum_without_room_or_direction():
    same = np.full((3, 2), 0.1)
    zero_mean = np.array([[1.0], [-1.0]])
    for gamma in (attack.minmax_agnostic_gamma, attack.minsum_gamma):
        assert gamma(same, attack.unit_direction(same)) == 0.0
        assert gamma(zero_mean, attack.unit_direction(zero_mean)) == 0.0
