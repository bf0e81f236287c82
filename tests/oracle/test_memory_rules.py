"""FoolsGold, RFFL, FLTrust and LASA against their oracles."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import fedseca
from fedseca.aggregators import Aggregation
from fedseca.aggregators.foolsgold import FoolsGold
from fedseca.aggregators.lasa import LASA
from fedseca.aggregators.rffl import RFFL
from fedseca.aggregators.standing import Standing
from fedseca.errors import InputError
from fedseca.updates import Updates
from tests.oracle import equations, memory_equations
from tests.oracle.matrices import assert_close, generic, matrices

SEEDS = st.integers(0, 10_000)


def ids_of(count: int) -> list[str]:
    return [f"{k:03d}" for k in range(count)]


def ask(rows, rule: str, state=None, ids=None, **parameters) -> Aggregation:
    made = fedseca.make_aggregator(rule, **parameters)
    updates = Updates.collect(rows, ids or ids_of(len(rows)))
    return made.aggregate(updates, state or made.init(updates.dim), torch.Generator())


def size(matrix: torch.Tensor) -> float:
    return float(matrix.double().abs().max())


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))


def rows_of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- foolsgold ---------------------------------------------------------------------------------------------------


@given(matrix=matrices(max_clients=5, max_dim=5), rounds=st.integers(1, 2), kappa=st.sampled_from([1.0, 0.5, 3.0]))
def test_foolsgold(matrix, rounds, kappa):
    """Round after round with other updates, so that a history is more than the last one."""
    state, histories = None, [[0.0] * matrix.shape[1] for _ in matrix]
    for number in range(rounds):
        current = matrix.roll(number, dims=1) * (1 + number)
        histories = [
            [h + x for h, x in zip(*pair, strict=True)] for pair in zip(histories, current.tolist(), strict=True)
        ]
        apart = memory_equations.foolsgold_apart(histories)
        assume(all(a == 0 or a > 1e-9 for a in apart))
        answer = ask(current, "foolsgold", state, confidence=kappa)
        trust = memory_equations.foolsgold_trust(apart, kappa)
        weights = [each / len(matrix) for each in trust]
        assert_close(answer.clients["weight"], weights, 1e-6, 1.0)
        found = answer.clients["weight"].tolist()
        assert_close(answer.update, equations.combine(current.tolist(), found), 1e-12, size(current))
        state = answer.state


def test_foolsgold_of_two_names_and_three_honest_clients_by_hand():
    matrix = torch.zeros(5, 4, dtype=torch.float64)
    matrix[0, 0], matrix[1, 1], matrix[2, 2], matrix[3:, 3] = 1, 2, 3, torch.tensor([5.0, 50.0])
    answer = ask(matrix, "foolsgold")
    assert answer.clients["weight"].tolist() == [0.2, 0.2, 0.2, 0, 0]
    assert answer.clients["similarity"].tolist() == pytest.approx([0, 0, 0, 1, 1])
    assert answer.update.tolist() == pytest.approx([0.2, 0.4, 0.6, 0])


def test_foolsgold_pardons_who_is_like_a_client_that_is_more_like_another():
    """c(C, A) = 0.6 where A has a twin at 0.9: 0.6·0.6/0.9 = 0.4, so a = 0.6 and α = ln 1.5 + ½, not ln(2/3) + ½."""
    matrix = rows_of([1, 0, 0, 0], [0.9, math.sqrt(0.19), 0, 0], [0.6, 0, 0.8, 0], [0, 0, 0, 7])
    weight = ask(matrix, "foolsgold").clients["weight"]
    assert weight.tolist() == pytest.approx([0, 0, (math.log(1.5) + 0.5) / 4, 0.25])


def test_foolsgold_scales_so_that_the_least_similar_client_has_its_full_say():
    """a = 0.3, 0.3 and 0.15 become 1, 1 and ½: without that, ln(0.3/0.7) + ½ < 0 would silence everybody."""
    weight = FoolsGold().trust(torch.tensor([[1, 0.3, 0.3], [0.3, 1, 0.3], [0.3, 0.3, 1]], dtype=torch.float64))
    assert weight.tolist() == [1, 1, 1]
    other = FoolsGold().trust(
        torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0.5], [1, 1, 0.5, 1]], dtype=torch.float64)
    )
    assert other.tolist() == pytest.approx([1, 1, 0.5, 0.5])


def test_foolsgold_looks_at_sums_over_the_rounds():
    """Two names of one attacker that are at right angles in each round: only together do their updates agree."""
    first = rows_of([0, 0, 1], [1, 1, 0], [1, -1, 0])
    second = rows_of([0, 0, 1], [1, -1, 0], [1, 1, 0])
    before = ask(first, "foolsgold")
    assert before.clients["weight"].tolist() == pytest.approx([1 / 3] * 3)
    after = ask(second, "foolsgold", before.state)
    assert after.clients["weight"].tolist() == pytest.approx([1 / 3, 0, 0])
    assert ask(second, "foolsgold").clients["weight"].tolist() == pytest.approx([1 / 3] * 3), "without a history"


def test_foolsgold_holds_where_most_clients_are_one_attacker():
    honest = torch.eye(4, 40, dtype=torch.float64) * 5 + generic(1, 40, 3)
    lie = -4 * honest.mean(dim=0)
    sybils = lie + 0.01 * torch.randn(9, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = torch.cat([honest, sybils])
    assert cosine(ask(matrix, "fedavg").update, honest.mean(dim=0)) < -0.9
    answer = ask(matrix, "foolsgold")
    assert cosine(answer.update, honest.mean(dim=0)) > 0.9
    assert float(answer.clients["weight"][4:].sum()) < 1e-9


def test_foolsgold_trusts_nobody_if_all_are_the_same_and_one_alone_fully():
    row = generic(1, 9, 0)
    answer = ask(row.repeat(4, 1) * torch.tensor([1.0, 2.0, 3.0, 0.1])[:, None], "foolsgold")
    assert not answer.update.any() and not answer.clients["weight"].any()
    assert torch.equal(ask(row, "foolsgold").update, row[0])


def test_foolsgold_may_look_at_the_last_weights_alone():
    generator = torch.Generator().manual_seed(1)
    clients = [
        {"0.weight": torch.randn(8, 4, generator=generator), "1.weight": torch.randn(3, 8, generator=generator)}
        for _ in range(5)
    ]
    for client in clients:
        client["1.bias"] = torch.randn(3, generator=generator)
    clients[4]["1.weight"] = 2 * clients[3]["1.weight"]
    last, everything = (ask(clients, "foolsgold", features=features) for features in ("last", "all"))
    assert last.clients["weight"][3:].tolist() == [0, 0] and (last.clients["weight"][:3] > 0).all()
    assert (everything.clients["weight"] > 0.1).all()
    assert last.state["history/004"].tolist() == clients[4]["1.weight"].flatten().tolist()
    vector = generic(4, 6, 1)
    whole, part = (ask(vector, "foolsgold", features=features).update for features in ("all", "last"))
    assert torch.equal(whole, part), "a plain vector has no last array"


def test_foolsgold_forgets_who_stays_away_and_survives_histories_that_overflow():
    server = fedseca.Server("foolsgold", forget_after=2)
    server.aggregate(generic(3, 5, 0), ["a", "b", "c"])
    for seed, kept in enumerate((True, True, True, False)):
        assert ("history/c" in server.state_dict()["state"]) is kept
        server.aggregate(generic(2, 5, seed), ["a", "b"])
    huge = fedseca.Server("foolsgold")
    for _ in range(3):
        out = huge.aggregate(torch.tensor([[3e38, 1.0, -3e38], [3e38, 0.0, 3e38], [0.0, 1.0, 0.0]]))
        assert out.update.isfinite().all() and out.clients["weight"].isfinite().all()


# --- standing ----------------------------------------------------------------------------------------------------


@given(
    matrix=matrices(max_clients=7, max_dim=6),
    memory=st.sampled_from([0.0, 0.5, 0.8]),
    share=st.sampled_from([0.25, 1.0]),
    doubt=st.sampled_from([0.1, 0.6]),
    length=st.sampled_from(["median", "mean"]),
)
def test_standing(matrix, memory, share, doubt, length):
    """Over several rounds, so that clients go out and come back."""
    state, before, out = None, [1.0] * len(matrix), [False] * len(matrix)
    for number in range(4):
        current = matrix.roll(number // 2, dims=1) * (1 if number % 2 else -1)
        expected = memory_equations.standing(
            current.tolist(), before, out, memory, share, doubt, leave=1 / 3, back=2 / 3, length=length
        )
        # Near a border, or where clients cancel out, rounding decides.
        borders = [
            *expected.evidence,
            *(q - 1 / 3 for q in expected.standings),
            *(q - 2 / 3 for q in expected.standings),
        ]
        assume(all(value == 0 or abs(value) > 1e-6 for value in borders))
        assume(expected.length == 0 or expected.length > 1e-4)
        answer = ask(current, "standing", state, memory=memory, share=share, doubt=doubt, length=length)
        assert_close(answer.clients["agreement"], expected.agreements, 1e-7, 1.0)
        assert_close(answer.clients["record"], expected.standings, 1e-5, 1.0)
        assert_close(answer.clients["weight"], expected.weights, 1e-9, 1.0)
        assert_close(answer.update, expected.update, 1e-5, size(current))
        assert set(answer.suspects) == {i for i, o in zip(ids_of(9), expected.out, strict=False) if o}
        state, before, out = answer.state, expected.standings, expected.out


def turned(honest: torch.Tensor) -> torch.Tensor:
    """Three honest clients, and two that send the opposite of their mean, ten times as long."""
    return torch.cat([honest, -10 * honest.mean(dim=0, keepdim=True).expand(2, -1)])


def test_standing_is_the_mean_of_directions_while_everybody_agrees():
    honest = generic(5, 400, 0)
    answer = ask(honest, "standing", length="mean")
    lengths = honest.norm(dim=1, keepdim=True)
    assert torch.allclose(answer.update, (honest / lengths).mean(dim=0) * lengths.median())
    assert answer.clients["record"].tolist() == [1.0] * 5 and answer.suspects == ()


def test_standing_leaves_attackers_out_at_once_and_calls_them_malicious_once_they_have_lost_it():
    state, called = None, []
    for number in range(3):
        honest = generic(3, 400, number)
        answer = ask(turned(honest), "standing", state)
        assert answer.clients["weight"].tolist() == pytest.approx([1 / 3] * 3 + [0, 0])
        assert cosine(answer.update, honest.mean(dim=0)) > 0.99
        called.append([*answer.suspects])
        state = answer.state
    assert called == [[], ["003", "004"], ["003", "004"]], "0.8·1 − 0.2 = 0.6, then 0.28"


def test_standing_takes_back_who_behaves_again():
    server = fedseca.Server("standing")
    for number in range(3):
        server.aggregate(turned(generic(3, 400, number)))
    back = [server.aggregate(generic(5, 400, number)).clients["weight"][4] > 0 for number in range(6)]
    assert back == [False] * 4 + [True] * 2, "0.024 is above 2/3 after 1 − 0.976·0.8⁵ = 0.68"


def test_standing_never_leaves_out_more_than_a_minority():
    for clients in range(3, 8):
        against = torch.full((clients, clients), -1 / clients, dtype=torch.float64) + torch.eye(
            clients, dtype=torch.float64
        )
        server = fedseca.Server("standing", memory=0.0, doubt=1e-6)  # each disagrees with each: all are low
        for _ in range(3):
            out = server.aggregate(against, [f"{k}" for k in range(clients)])
            aside = [k for k, weight in enumerate(out.clients["weight"].tolist()) if weight == 0]
            assert aside == [*range((clients - 1) // 2)], "of equal ones the first by id"


def test_standing_is_not_lengthened_by_clients_that_push_forwards():
    """Two that send the honest direction itself would make the mean longer than what most go along with."""
    honest = generic(3, 400, 1) + 3 * torch.randn(
        3, 400, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    pushed = torch.cat([honest, honest.mean(dim=0, keepdim=True).repeat(2, 1)])
    alone, mean, median = (
        ask(r, "standing", length=e).update.norm() for r, e in ((honest, "mean"), (pushed, "mean"), (pushed, "median"))
    )
    assert mean > 1.2 * alone and median < 1.05 * alone


def test_standing_goes_nowhere_where_clients_cancel_out_and_judges_them_alike():
    answer = ask(rows_of([1, 0], [-1, 0]), "standing")
    assert not answer.update.any() and answer.clients["record"].tolist() == pytest.approx([0.6, 0.6])
    assert answer.clients["weight"].tolist() == [0.5, 0.5] and answer.suspects == ()


def test_standing_holds_nothing_against_clients_that_are_at_right_angles():
    """A negative cosine of −0.05 costs half of the evidence of a round, no more: without δ it would be all."""
    rule = Standing()
    near = torch.tensor([0.1, 0.04, 0.02, -0.05, -0.15], dtype=torch.float64)
    assert rule.evidence(near).tolist() == pytest.approx([1, 1, 1, 1 - 0.055 / 0.1, 1 - 0.155 / 0.1])


# --- rffl --------------------------------------------------------------------------------------------------------


@given(
    matrix=matrices(max_clients=6, max_dim=6),
    memory=st.sampled_from([0.0, 0.5, 0.95]),
    threshold=st.sampled_from([0.0, 1 / 3, 0.9]),
    length=st.sampled_from([None, 0.5]),
)
def test_rffl(matrix, memory, threshold, length):
    state, before = None, [1 / len(matrix)] * len(matrix)
    for number in range(3):
        current = matrix.roll(number, dims=1)
        expected = memory_equations.rffl(current.tolist(), before, memory, threshold, length)
        # Where clients cancel out, or one is about to be out, rounding decides.
        reach = equations.norm(expected.update) / (length or equations.lower_median(current.norm(dim=1).tolist()) or 1)
        assume(reach == 0 or reach > 1e-6)
        assume(all(abs(m - threshold / len(matrix)) > 1e-3 for m in expected.moved))
        answer = ask(current, "rffl", state, memory=memory, threshold=threshold, norm=length)
        assert_close(answer.clients["weight"], before, 1e-6, 1e-6)
        assert_close(answer.clients["cosine"], expected.cosines, 1e-8, 1.0)
        assert_close(answer.clients["reputation"], expected.reputations, 1e-6, 1e-3)
        assert_close(answer.update, expected.update, 1e-6, size(current) if length is None else length)
        assert set(answer.suspects) == {i for i, r in zip(ids_of(9), expected.reputations, strict=False) if r == 0}
        state, before = answer.state, answer.clients["reputation"].tolist()


def test_rffl_by_hand():
    """r = ½·⅓ + ½·(1, 1, −1): the third is out, and its length of 100 never counted."""
    matrix = rows_of([2, 0], [2, 0], [-100, 0])
    first = ask(matrix, "rffl", memory=0.5)
    assert first.update.tolist() == pytest.approx([2 / 3, 0])
    assert first.clients["reputation"].tolist() == pytest.approx([0.5, 0.5, 0]) and first.suspects == ("002",)
    second = ask(matrix, "rffl", first.state, memory=0.5)
    assert second.update.tolist() == pytest.approx([2, 0])
    assert second.clients["weight"].tolist() == pytest.approx([0.5, 0.5, 0])


def test_rffl_compares_before_it_scales():
    """0.1·⅓ + 0.9·0.08 = 0.105 is below 1/9; scaled first, as the authors' program does, it would be 0.148."""
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    after = RFFL(memory=0.1).judged(third, torch.tensor([0.3, 0.3, 0.08], dtype=torch.float64))
    assert after.tolist() == pytest.approx([0.5, 0.5, 0])
    kept = RFFL(memory=0.1).judged(third, torch.tensor([0.3, 0.3, 0.1], dtype=torch.float64))
    assert kept[2] == pytest.approx(0.1233333 / 0.73)


def test_rffl_lets_nobody_back_in_and_a_new_client_begins_like_the_others():
    server = fedseca.Server("rffl", memory=0.2)
    honest = generic(4, 30, 5)
    server.aggregate(torch.cat([honest, -honest[:1]]), list("abcde"))
    for _ in range(3):
        out = server.aggregate(torch.cat([honest, honest[:1]]), list("abcde"))
        assert out.clients["weight"][4] == 0 and out.suspects == ("e",)
    out = server.aggregate(torch.cat([honest, honest[:1]]), list("abcdf"))
    assert out.clients["weight"].sum() == pytest.approx(1) and out.clients["weight"][4] == pytest.approx(0.2)


def test_rffl_forgets_who_stays_away():
    server = fedseca.Server("rffl", forget_after=1)
    server.aggregate(generic(3, 5, 0), list("abc"))
    for kept in (True, True, False):
        assert ("reputation/c" in server.state_dict()["state"]) is kept
        server.aggregate(generic(2, 5, 1), list("ab"))


def test_rffl_puts_nobody_out_where_everybody_would_be():
    server = fedseca.Server("rffl", memory=0.0)
    for _ in range(2):
        out = server.aggregate(torch.zeros(3, 4))
        assert out.clients["reputation"].tolist() == pytest.approx([1 / 3] * 3) and not out.suspects


def test_rffl_leaves_an_attacker_behind_that_fedavg_follows():
    honest, lie = generic(5, 50, 2), -1e6 * generic(5, 50, 2)[:2]
    matrix = torch.cat([honest, lie])
    rule = fedseca.Server("rffl", memory=0.8)
    for _ in range(6):
        out = rule.aggregate(matrix)
    assert cosine(out.update, honest.mean(dim=0)) > 0.9 and out.clients["weight"][5:].tolist() == [0, 0]
    assert float(out.update.norm()) <= float(honest.norm(dim=1).max())
    assert cosine(ask(matrix, "fedavg").update, honest.mean(dim=0)) < -0.5


def test_rffl_scales_only_without_a_length_of_its_own():
    assert RFFL().scales and RFFL().returns_identical
    assert not RFFL(norm=0.5).scales and not RFFL(norm=0.5).returns_identical
    assert float(ask(generic(1, 6, 0), "rffl", norm=0.5).update.norm()) == pytest.approx(0.5)


# --- fltrust -----------------------------------------------------------------------------------------------------


def told_apart(rows: list[list[float]], reference: list[float]) -> bool:
    """Whether no cosine is so near to 0 that rounding decides whether it is trusted."""
    return all(c <= 0 or c > 1e-8 for c in (memory_equations.precise_cosine(row, reference) for row in rows))


@given(matrix=matrices(min_clients=2), place=st.integers(0, 8))
def test_fltrust_with_a_root(matrix, place):
    place = place % len(matrix)
    ids = ids_of(len(matrix))
    ids[place] = "server"
    rows = matrix.tolist()
    root = rows.pop(place)
    assume(told_apart(rows, root))
    expected, trust = memory_equations.fltrust(rows, root)
    answer = ask(matrix, "fltrust", ids=ids)
    others = [k for k in range(len(matrix)) if k != place]
    assert_close(answer.update, expected, 1e-9, equations.norm(root))
    assert_close(answer.clients["trust"][others], trust, 1e-9, 1e-3)
    weights = [ts / math.fsum(trust) if ts else 0.0 for ts in trust]
    assert_close(answer.clients["weight"][others], weights, 1e-6)
    assert answer.clients["weight"][place] == 0 and answer.clients["rooted"].tolist() == [1.0] * len(matrix)


@given(matrix=matrices(min_clients=1))
def test_fltrust_without_a_root_takes_the_median(matrix):
    reference = equations.cwmed(matrix.tolist())
    assume(told_apart(matrix.tolist(), reference))
    expected, _ = memory_equations.fltrust(matrix.tolist(), reference)
    answer = ask(matrix, "fltrust")
    assert_close(answer.update, expected, 1e-9, equations.norm(reference))
    assert answer.clients["rooted"].tolist() == [0.0] * len(matrix)


def test_fltrust_by_hand():
    """Cosines ½√2, 0 and −1 with (2, 0): the first alone counts, at the root's length of 2, not at its own of 141."""
    matrix = rows_of([100, 100], [0, 5], [-1, 0], [2, 0])
    answer = ask(matrix, "fltrust", ids=["a", "b", "c", "server"])
    assert answer.update.tolist() == pytest.approx([math.sqrt(2), math.sqrt(2)])
    assert answer.clients["weight"].tolist() == pytest.approx([1, 0, 0, 0])
    assert answer.clients["trust"].tolist() == pytest.approx([math.sqrt(0.5), 0, 0, 1])
    averaged = ask(matrix, "fltrust", ids=["a", "b", "c", "server"], average_root=True)
    ts = math.sqrt(0.5)
    assert averaged.update.tolist() == pytest.approx([(ts * ts * 2 + 2) / (ts + 1), ts * ts * 2 / (ts + 1)])
    assert averaged.clients["weight"].tolist() == pytest.approx([ts / (ts + 1), 0, 0, 1 / (ts + 1)])


def test_fltrust_goes_nowhere_if_nobody_goes_with_the_root():
    matrix = rows_of([-1, 0], [0, 3], [-5, 1], [2, 0])
    answer = ask(matrix, "fltrust", ids=["a", "b", "c", "server"])
    assert answer.update.tolist() == [0, 0] and not answer.clients["weight"].any()


def test_fltrust_holds_where_all_clients_but_one_attack():
    honest = generic(2, 60, 4)
    lie = -1e6 * honest[:1] + generic(8, 60, 5)
    matrix, ids = torch.cat([honest, lie]), ["server", *ids_of(9)]
    rule = fedseca.make_aggregator("fltrust", without_root="error")
    assert rule.tolerates(len(matrix)) == 9
    assert cosine(ask(matrix, "fedavg").update, honest.mean(dim=0)) < -0.8
    answer = ask(matrix, "fltrust", ids=ids)
    assert cosine(answer.update, honest[1]) > 0.99 and answer.update.norm() == pytest.approx(float(honest[0].norm()))
    assert cosine(ask(matrix, "fltrust").update, honest[1]) < 0, "without the root the majority decides"


def test_fltrust_may_refuse_a_round_without_a_root():
    server = fedseca.Server("fltrust", without_root="error")
    with pytest.raises(InputError, match="no update of the server's own; hand it in as that of the client 'server'"):
        server.aggregate(generic(3, 4, 0))
    out = server.aggregate(generic(3, 4, 0), ["a", "server", "b"])
    assert out.update.isfinite().all()


def test_fltrust_knows_the_root_by_the_id_that_it_is_told():
    matrix = generic(4, 7, 0)
    one = ask(matrix, "fltrust", ids=["a", "b", "c", "server"])
    other = ask(matrix, "fltrust", ids=["a", "b", "c", "trusted"], root="trusted")
    assert torch.equal(one.update, other.update)
    assert not torch.equal(ask(matrix, "fltrust", ids=["a", "b", "c", "trusted"]).update, one.update)


def test_the_root_is_not_suspect_for_having_no_weight():
    matrix = generic(6, 500, 0)
    matrix[2] *= -1
    out = fedseca.Server("fltrust").aggregate(matrix, ["a", "b", "bad", "c", "server", "d"])
    assert out.suspects == ("bad",)


# --- lasa --------------------------------------------------------------------------------------------------------


def layered(matrix: torch.Tensor, sizes: list[int]) -> list[dict[str, torch.Tensor]]:
    """The rows as models of several arrays."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [{f"{i}": row[a:b] for i, (a, b) in enumerate(itertools.pairwise(ends))} for row in matrix]


def flat(update) -> torch.Tensor:
    return update if isinstance(update, torch.Tensor) else torch.cat(list(update.values()))


def clear(values: list[float], bound: float) -> bool:
    """Whether rounding does not decide who is within the bound."""
    largest = max(abs(x) for x in values)
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values)) if largest < 1e150 else math.inf
    if not (spread <= 1e-12 * largest or spread > 1e-6 * largest):
        return False
    return all(abs(d - bound) < 1e-12 or abs(d - bound) > 1e-6 for d in memory_equations.deviations(values))


@given(
    matrix=matrices(max_clients=7, max_dim=8),
    sparsity=st.sampled_from([0.0, 0.3, 0.6, 0.99]),
    norm_bound=st.sampled_from([0.5, 1.0, 2.0]),
    sign_bound=st.sampled_from([0.5, 1.0, 2.0]),
    data=st.data(),
)
def test_lasa(matrix, sparsity, norm_bound, sign_bound, data):
    dim = matrix.shape[1]
    cuts = sorted(data.draw(st.sets(st.integers(1, dim - 1), max_size=3))) if dim > 1 else []
    sizes = [b - a for a, b in itertools.pairwise([0, *cuts, dim])]
    expected = memory_equations.lasa(matrix.tolist(), sizes, sparsity, norm_bound, sign_bound)
    assume(all(clear(lengths, norm_bound) for lengths in expected.lengths))
    assume(all(clear(purities, sign_bound) for purities in expected.purities))
    bounds = {"sparsity": sparsity, "norm_bound": norm_bound, "sign_bound": sign_bound}
    answer = ask(layered(matrix, sizes), "lasa", **bounds)
    assert_close(answer.update, expected.update, 1e-9, size(matrix))
    weights, layers = [0.0] * len(matrix), [0.0] * len(matrix)
    for width, kept in zip(sizes, expected.kept, strict=True):
        for k in kept:
            weights[k] += width / dim / len(kept)
            layers[k] += 1 / len(sizes)
    assert_close(answer.clients["weight"], weights, 1e-9)
    assert_close(answer.clients["layers"], layers, 1e-9)
    if len(sizes) == 1:
        assert torch.equal(ask(matrix, "lasa", **bounds).update, answer.update), "a plain vector is one layer"


@pytest.mark.parametrize("seed", range(4))
def test_lasa_on_generic_clients(seed):
    """Hypothesis's small numbers meet few borders; here who is kept differs from layer to layer."""
    matrix, sizes = generic(9, 60, seed), [30, 1, 20, 9]
    expected = memory_equations.lasa(matrix.tolist(), sizes, 0.3, 1.0, 1.0)
    assert len({tuple(kept) for kept in expected.kept}) > 2
    assert_close(ask(layered(matrix, sizes), "lasa").update, expected.update, 1e-10, size(matrix))


def test_lasa_keeps_the_largest_of_the_whole_vector_and_averages_what_is_left():
    """⌊0.7·10⌋ = 7 of ten: all three that go are in the layer of small numbers. Dense ones would leave them in."""
    row = torch.tensor([9.0, -8, 7, 6, 5, 0.4, 0.3, -0.2, 0.1, 1.0], dtype=torch.float64)
    answer = ask(layered(row.repeat(3, 1), [5, 5]), "lasa")
    assert answer.update.tolist() == pytest.approx([9, -8, 7, 6, 5, 0.4, 0, 0, 0, 1])
    assert ask(layered(row.repeat(3, 1), [5, 5]), "lasa", sparsity=0.0).update.tolist() == pytest.approx(row.tolist())


def test_lasa_leaves_a_client_out_of_the_layer_in_which_it_lies():
    """Short in the first layer, one-sided in the third: each is seen by one of the two measures."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(9, 300, generator=generator, dtype=torch.float64)
    matrix[0, :100] *= 0.5
    matrix[0, 200:] = matrix[0, 200:].abs()
    rule = LASA(norm_bound=2.0, sign_bound=2.0)
    updates = Updates.collect(layered(matrix, [100, 100, 100]), ids_of(9))
    answer = rule.aggregate(updates, {}, torch.Generator())
    assert answer.clients["layers"][0] == pytest.approx(1 / 3)
    first, second = (
        LASA(norm_bound=n, sign_bound=s).aggregate(updates, {}, torch.Generator()).clients["layers"][0]
        for n, s in ((2.0, 1e9), (1e9, 2.0))
    )
    assert first == pytest.approx(2 / 3) and second == pytest.approx(2 / 3)


def test_lasa_measures_from_the_median_not_from_the_mean():
    """Lengths 1, 1, 1, 1, 6 (σ = 2): 0 and 2.5 deviations from the median; from the mean of 2 they are ½ and 2."""
    rule = LASA(norm_bound=2.2, sign_bound=1e9)
    assert rule.kept(torch.tensor([1.0, 1, 1, 1, 6]).double(), torch.full((5,), 0.5).double()) == [0, 1, 2, 3]
    half = LASA(norm_bound=0.25, sign_bound=1e9)
    assert half.kept(torch.tensor([1.0, 1, 1, 1, 6]).double(), torch.full((5,), 0.5).double()) == [0, 1, 2, 3]


def test_lasa_averages_all_where_nobody_is_within_both_bounds():
    lengths, purity = torch.tensor([0.0, 0, 0, 9]).double(), torch.tensor([0.1, 0.2, 0.8, 0.5]).double()
    assert LASA(norm_bound=0.1, sign_bound=0.1).kept(lengths, purity) == [0, 1, 2, 3]


def test_lasa_holds_where_fedavg_is_carried_off():
    honest = generic(8, 200, 6)
    lie = -1e6 * honest.mean(dim=0) * torch.tensor([[1.0], [1.1], [1.2]], dtype=torch.float64)
    models = layered(torch.cat([honest, lie]), [120, 80])
    assert cosine(ask(models, "fedavg").update, honest.mean(dim=0)) < -0.9
    found = ask(models, "lasa").update
    assert cosine(found, honest.mean(dim=0)) > 0.3 and float(found.norm()) <= 2 * float(honest.norm(dim=1).max())
