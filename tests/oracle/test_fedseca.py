"""FedSECA against its oracle, in both variants and all ablations, and each step against numbers computed by hand."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedseca
from fedseca.updates import Updates
from tests.oracle import equations
from tests.oracle.matrices import assert_close, generic, matrices

SWITCHES = ("concordance", "coordinatewise", "election", "vrs", "clip", "clamp")
ABLATIONS: list[dict[str, Any]] = [
    {},
    *({switch: False} for switch in SWITCHES),
    {"clip": False, "clamp": False},
    {"sparsity": 0.0},
]
VARIANTS = ("paper", "released")
PRECISION = {torch.float64: 1e-12, torch.float32: 1e-6}


def compare(matrix: torch.Tensor, previous: torch.Tensor | None = None, **parameters) -> None:
    rule = fedseca.make_aggregator("fedseca", **{"momentum": 0.0, **parameters})
    updates = Updates.collect(matrix)
    state = rule.init(updates.dim) if previous is None else {"momentum": previous}
    answer = rule.aggregate(updates, state, torch.Generator())
    before = None if previous is None else previous.double().tolist()
    expected = equations.fedseca(matrix.double().tolist(), previous=before, **{"momentum": 0.0, **parameters})

    relative = PRECISION[matrix.dtype]
    cancels = not (parameters.get("election", True) and parameters.get("coordinatewise", True)) or previous is not None
    scale = matrix.double().abs().max(dim=0).values if cancels else torch.tensor(0.0)
    if previous is not None:
        scale = torch.maximum(scale, previous.double().abs())
    assert_close(answer.update, expected.update, relative, scale)
    assert answer.clients["rho"].tolist() == expected.rho
    assert answer.clients["concordance"].tolist() == expected.omega
    assert_close(answer.clients["clip_factor"], expected.clip_factor, 1e-12)
    assert_close(answer.clients["adopted"], expected.adopted, 1e-12)
    assert_close(answer.clients["weight"], expected.weight, 1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("ablation", ABLATIONS, ids=str)
@pytest.mark.parametrize("dtype", PRECISION)
@given(data=st.data(), sparsity=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99]))
def test_equals_its_oracle(data, dtype, ablation, variant, sparsity):
    compare(data.draw(matrices(dtype)), **{"variant": variant, "sparsity": sparsity, **ablation})


@given(data=st.data(), switches=st.tuples(*[st.booleans()] * len(SWITCHES)), variant=st.sampled_from(VARIANTS))
def test_equals_its_oracle_with_any_switches_together(data, switches, variant):
    parameters = dict(zip(SWITCHES, switches, strict=True))
    compare(data.draw(matrices()), variant=variant, sparsity=0.5, **parameters)


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("clients", range(1, 65))
def test_equals_its_oracle_from_1_to_64_clients(clients, dtype):
    matrix = generic(clients, 11, seed=clients, dtype=dtype)
    matrix[:, 3] = 0
    matrix[clients // 2] = matrix[0]
    for variant, ablation in itertools.product(VARIANTS, ABLATIONS):
        compare(matrix, **{"variant": variant, "sparsity": 0.6, **ablation})


def test_without_momentum_nothing_is_remembered():
    assert fedseca.make_aggregator("fedseca", momentum=0.0).init(7) == {}
    assert fedseca.make_aggregator("fedseca", momentum=0.1).init(7)["momentum"].tolist() == [0.0] * 7


@given(data=st.data(), momentum=st.sampled_from([0.1, 0.5, 0.9]))
def test_momentum_equals_its_oracle(data, momentum):
    matrix = data.draw(matrices(extremes=False))
    previous = data.draw(st.sampled_from([0.0, 1.0, -3.0])) * torch.ones(matrix.shape[1], dtype=torch.float64)
    compare(matrix, previous, momentum=momentum, sparsity=0.5)


# --- by hand -----------------------------------------------------------------------------------------------------


def ask(rows, **parameters):
    rule = fedseca.make_aggregator("fedseca", **{"momentum": 0.0, "sparsity": 0.0, **parameters})
    updates = Updates.collect(torch.tensor(rows, dtype=torch.float64))
    return rule.aggregate(updates, rule.init(updates.dim), torch.Generator())


def test_concordance_by_hand():
    # signs: a = ++−, b = ++0, c = −−+ ; ω_ab = (1+1+0)/3, ω_ac = −1, ω_bc = (−1−1+0)/3, ω_bb = 2/3
    answer = ask([[1.0, 2.0, -3.0], [4.0, 5.0, 0.0], [-1.0, -1.0, 1.0]])
    third = 2 / 3
    assert answer.clients["concordance"].tolist() == [[1, third, -1], [third, third, -third], [-1, -third, 1]]
    # ρ_a = ρ_b = (1 + 1 − 1)/3, ρ_c = max[0, (−1 − 1 + 1)/3]
    assert answer.clients["rho"].tolist() == [1 / 3, 1 / 3, 0.0]


def test_a_zero_update_trusts_nobody_and_is_not_clipped():
    answer = ask([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    assert answer.clients["rho"].tolist() == [0.0, 2 / 3, 2 / 3]
    assert answer.clients["clip_factor"].tolist() == [1.0, 1.0, 0.5]


def test_clip_by_hand():
    # norms 5, 10, 20: τ = 10; without clamping the mean is ((3 + 6 + 6)/3, (4 + 8 + 8)/3)
    answer = ask([[3.0, 4.0], [6.0, 8.0], [12.0, 16.0]], clamp=False)
    assert answer.clients["clip_factor"].tolist() == [1.0, 1.0, 0.5]
    assert answer.update.tolist() == [5.0, 20 / 3]


def test_the_median_of_an_even_count_is_the_lower_one():
    # norms 1, 2, 3, 4: τ = 2
    answer = ask([[1.0], [2.0], [3.0], [4.0]], clamp=False)
    assert answer.clients["clip_factor"].tolist() == [1.0, 1.0, 2 / 3, 0.5]
    assert answer.update.tolist() == [(1 + 2 + 2 + 2) / 4]


def test_clamp_by_hand():
    # coordinate 0: magnitudes 1, 2, 9 → μ = 2 → mean of 1, 2, 2 ; coordinate 1: 4, 4, 4 → 4
    answer = ask([[1.0, 4.0], [2.0, 4.0], [9.0, 4.0]], clip=False)
    assert answer.update.tolist() == [5 / 3, 4.0]


def test_the_released_program_clamps_the_raw_gradient():
    # norms 1, 1, 4: τ = 1, clipped magnitudes 1, 1, 1 → μ = 1; raw clamped: 1, 1, 1; with μ from raw values of
    # coordinate 0 in the second case the difference shows: rows 1, 2, 8 → τ = 2, clipped 1, 2, 2 → μ = 2
    assert ask([[1.0], [2.0], [8.0]], variant="released").update.tolist() == [5 / 3]
    # a shorter row beside a longer one: norms √2, 4, 4·√2; τ = 4; row c is clipped by 1/√2 to 2.83 in each coordinate,
    # μ = (1, 2.83): clipped-then-clamped c enters coordinate 1 with 2.83, raw-then-clamped with min[4, 2.83] = 2.83
    rows = [[1.0, 1.0], [0.0, 4.0], [4.0, 4.0]]
    clipped = 4 / 2**0.5
    for variant in ("paper", "released"):
        assert ask(rows, variant=variant).update.tolist() == pytest.approx([1.0, (1 + clipped + clipped) / 3])
    # without the clamp the variants part: paper merges the clipped 2.83, released the raw 4
    assert ask(rows, clamp=False).update.tolist() == pytest.approx([(1 + clipped) / 2, (1 + 4 + clipped) / 3])
    assert ask(rows, clamp=False, variant="released").update.tolist() == pytest.approx([(1 + 4) / 2, 3.0])


def test_sparsify_by_hand():
    # |g| = 1, 2, 3, 4, 5 and γ = 0.5: λ = 3. The paper keeps what exceeds it, the released program keeps it too.
    row = [1.0, -2.0, 3.0, -4.0, 5.0]
    assert ask([row] * 3, sparsity=0.5).update.tolist() == [0, 0, 0, -4, 5]
    assert ask([row] * 3, sparsity=0.5, variant="released").update.tolist() == [0, 0, 3, -4, 5]
    # γ = 0.6: λ = 3 + 0.4·(4 − 3), between two values
    assert ask([row] * 3, sparsity=0.6, variant="released").update.tolist() == [0, 0, 0, -4, 5]
    assert ask([row] * 3, sparsity=0.0).update.tolist() == row


def test_election_by_hand():
    # coordinate 0: +, +, − → + wins, the mean of 2 and 4 clamped to μ = 2 (magnitudes 2, 4, 1) → 2
    answer = ask([[2.0, 1.0, 1.0], [4.0, 1.0, 1.0], [-1.0, 1.0, 1.0]], clip=False)
    assert answer.update.tolist() == [2.0, 1.0, 1.0]
    assert answer.clients["adopted"].tolist() == [1.0, 1.0, 2 / 3]


def test_a_tie_elects_nobody():
    """0.2 + 0.4 − 0.6 is not 0 in floating point; the votes 1 + 2 − 3 of five clients are."""
    rule = fedseca.make_aggregator("fedseca", sparsity=0.0, momentum=0.0)
    assert ask([[1.0, 1.0], [-1.0, 1.0]]).update.tolist() == [0.0, 1.0]
    generator = torch.Generator().manual_seed(0)
    ties = 0
    for _ in range(300):
        matrix = torch.randint(-1, 2, (5, 9), generator=generator).double()
        expected = equations.fedseca(matrix.tolist(), sparsity=0.0)
        votes = [sum(int(5 * r + 0.5) * int(g[j]) for r, g in zip(expected.rho, matrix, strict=True)) for j in range(9)]
        answer = rule.aggregate(Updates.collect(matrix), {}, torch.Generator())
        ties += sum(v == 0 for v in votes)
        assert all(answer.update[j] == 0 for j in range(9) if votes[j] == 0)
    assert ties > 50


def test_only_survivors_vote_in_the_released_program():
    # coordinate 0: two small −1 against one large +9. γ = 0.5 drops the small ones (|g| < λ = 5), so + is elected.
    rows = [[-1.0, 9.0], [-1.0, 9.0], [9.0, 9.0]]
    paper = ask(rows, sparsity=0.5, clamp=False, clip=False)
    released = ask(rows, sparsity=0.5, clamp=False, clip=False, variant="released")
    assert paper.update.tolist() == [0.0, 9.0]
    assert released.update.tolist() == [9.0, 9.0]


def test_ablations_by_hand():
    rows = [[2.0, 1.0], [4.0, 1.0], [-3.0, 1.0]]
    plain = {"clip": False, "clamp": False}
    # δ = 1: the mean
    assert ask(rows, election=False, **plain).update.tolist() == [1.0, 1.0]
    # ρ: ω_ab > 0, ω_ac = ω_bc = 0 → ρ = 2/3, 2/3, 1/3 ; δ = ρ: (2·2/3 + 4·2/3 − 3·1/3) / (5/3)
    assert ask(rows, coordinatewise=False, **plain).update.tolist() == pytest.approx([9 / 5, 1.0])
    # ρ = 1 elects + as well
    assert ask(rows, concordance=False, **plain).clients["rho"].tolist() == [1.0, 1.0, 1.0]
    # raw gradients are merged, nothing is dropped
    assert ask(rows, vrs=False, sparsity=0.9).update.tolist() == [3.0, 1.0]


def test_momentum_by_hand():
    server = fedseca.Server("fedseca", sparsity=0.0, momentum=0.5)
    assert server.aggregate(torch.full((3, 1), 8.0)).update == 4  # starts from 0
    assert server.aggregate(torch.full((3, 1), 8.0)).update == 6
    assert fedseca.aggregate(torch.full((3, 1), 8.0), sparsity=0.0) == 8  # no memory, no momentum
    assert fedseca.aggregate(torch.full((3, 1), 8.0), sparsity=0.0, momentum=0.5) == 4  # unless it is given
