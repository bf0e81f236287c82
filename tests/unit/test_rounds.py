"""The one keeper of rounds: every client has its verdict, and nothing that one sent ends a round."""

from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any

import pytest
import torch

import fedseca
from fedseca.aggregators.fedavg import FedAvg
from fedseca.errors import InputError, MissingDependency, StateError
from fedseca.rounds import Failed, NoAnswer, Played, Unreadable, play_round
from fedseca.verdict import KINDS, MEANINGS, USED, Verdict

Model = dict[str, torch.Tensor]
BEFORE: Model = {"w": torch.zeros(40, 5), "b": torch.ones(5)}
COMMON = {name: torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) for name, value in BEFORE.items()}


def model(seed: int, factor: float = 1.0) -> Model:
    """What a client has after training: all want about the same."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value - factor * (COMMON[name] + 0.3 * torch.randn(value.shape, generator=generator))
        for name, value in BEFORE.items()
    }


def broken(seed: int) -> Model:
    made = model(seed)
    made["w"][3, 2] = torch.nan
    return made


def answers() -> dict[str, Any]:
    """Seven that are fine, and one of each other kind."""
    fine = {f"site-{k}": model(k) for k in range(7)}
    return fine | {
        "absent": NoAnswer("no answer within 10 s"),
        "silent": NoAnswer(),
        "garbled": Unreadable("not a readable message"),
        "nan": broken(8),
        "twenty": model(9, -20.0),
        "strange": {"w": torch.zeros(3)},
    }


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def state_of(server: fedseca.Server) -> tuple[Any, dict[str, torch.Tensor]]:
    saved = server.state_dict()
    tensors = saved.pop("state")
    return saved, tensors


def test_one_verdict_for_each_client_of_the_right_kind_with_a_reason():
    server = fedseca.Server("fedseca")
    given = answers()
    played = play_round(server, given, BEFORE)
    assert list(played.verdicts) == list(given)  # in their order
    kinds = {client: verdict.kind for client, verdict in played.verdicts.items()}
    assert kinds == dict.fromkeys((f"site-{k}" for k in range(7)), "used") | {
        "absent": "no answer",
        "silent": "no answer",
        "garbled": "left out",
        "nan": "left out",
        "twenty": "suspect",
        "strange": "left out",
    }
    reasons = {client: verdict.reason for client, verdict in played.verdicts.items() if verdict.reason is not None}
    assert reasons.keys() == {"absent", "silent", "garbled", "nan", "twenty", "strange"}
    assert reasons["absent"] == "no answer within 10 s" and reasons["silent"] == "none came"
    assert reasons["garbled"] == "not a readable message"
    assert reasons["nan"] == "1 NaN, first at w[3, 2]"
    assert "where the median is" in reasons["twenty"]
    assert reasons["strange"] == "missing key 'b'"
    assert played.void is None and not played.idle and server.round == 1
    assert played.of_kind("no answer") == ["absent", "silent"] and played.of_kind("used", "suspect")[-1] == "twenty"


def test_the_model_is_that_of_the_clients_that_could_be_used():
    usable = {client: answer for client, answer in answers().items() if client.startswith("site") or client == "twenty"}
    server, twin = fedseca.Server("fedseca"), fedseca.Server("fedseca")
    played = play_round(server, answers(), BEFORE)
    expected = twin.aggregate(list(usable.values()), list(usable), before=BEFORE)
    assert same(played.model, expected.model) and played.round is not None
    assert played.round.client_ids == tuple(usable)
    assert state_of(server)[0] == state_of(twin)[0] and same(state_of(server)[1], state_of(twin)[1])


def test_records_are_flat_and_have_the_numbers_of_those_that_were_admitted():
    played = play_round(fedseca.Server("fedseca"), answers(), BEFORE)
    records = {record["client"]: record for record in played.records()}
    assert list(records) == list(answers())
    numbers = {"norm", "weight", "rho", "clip_factor", "adopted"}
    for client, record in records.items():
        verdict = played.verdicts[client]
        assert record["verdict"] == verdict.kind and record.get("reason") == verdict.reason
        own = {"client", "verdict"} | ({"reason"} if verdict.reason else set())
        assert record.keys() == own | (numbers if verdict.admitted else set())
    assert records["twenty"]["weight"] == 0 and records["twenty"]["norm"] > 10 * records["site-0"]["norm"]


def test_an_id_that_cannot_be_shown_is_its_own_all_the_same():
    """The server names a client so that a terminal obeys nothing in it; a round is kept by the ids that came in."""
    wild = "si\x1b[2Jte"
    played = play_round(fedseca.Server("fedavg"), {"a": model(0), "b": model(1), wild: model(2)}, BEFORE)
    assert played.verdicts[wild].kind == "used"
    assert {record["client"]: "norm" in record for record in played.records()}[wild]
    played = play_round(fedseca.Server("fedavg"), {"a": model(0), "b": model(1), wild: broken(2)}, BEFORE)
    assert played.verdicts[wild] == Verdict("left out", "1 NaN, first at w[3, 2]")


# --- rounds that come to nothing ---------------------------------------------------------------------------------


def remembering(rule: Any = "fedseca", **settings: Any) -> fedseca.Server:
    """A server that has something to lose."""
    server = fedseca.Server(rule, **settings)
    server.aggregate([model(k) for k in range(5)], before=BEFORE)
    return server


def is_void(played: Played, server: fedseca.Server, before: tuple[Any, dict[str, torch.Tensor]]) -> bool:
    now = state_of(server)
    assert played.model is BEFORE and played.round is None and not played.idle
    assert played.records()[-1] == {"client": None, "void": played.void}
    return bool(played.void) and "\n" not in str(played.void) and now[0] == before[0] and same(now[1], before[1])


def test_too_few_answers_for_the_rule():
    server = remembering("krum", num_byzantine=2)
    before = state_of(server)
    given = {"a": model(0), "b": broken(1), "c": NoAnswer(), "d": Unreadable("torn"), "e": model(2)}
    played = play_round(server, given, BEFORE)
    assert is_void(played, server, before)
    assert played.void == "at least 5 answers needed, 2 usable of 5 asked"
    assert played.verdicts == {
        "a": Verdict("round void"),
        "b": Verdict("left out", "1 NaN, first at w[3, 2]"),
        "c": Verdict("no answer", "none came"),
        "d": Verdict("left out", "torn"),
        "e": Verdict("round void"),
    }
    assert play_round(server, {str(k): model(k) for k in range(5)}, BEFORE).void is None and server.round == 2


@pytest.mark.parametrize("chain", ["krum", "caf", "bulyan", "nnm+krum"])
def test_whoever_is_left_out_is_one_of_those_that_the_rule_was_told_of(chain):
    """What cannot be used makes no round void: the others are as many as the rule needs for the B that may be left."""
    made = fedseca.make_aggregator(chain, num_byzantine=2)
    clients = made.min_clients()
    fine = {str(k): model(k) for k in range(clients - 2)}
    played = play_round(fedseca.Server(made), {**fine, "x": Unreadable("torn"), "y": broken(1)}, BEFORE)
    assert played.void is None and played.of_kind("left out") == ["x", "y"]
    # Of B is left what has its bound among the others, or else as much as they are enough for.
    rules = {b: fedseca.make_aggregator(chain, num_byzantine=b) for b in (2, 1, 0)}
    defined = [b for b, rule in rules.items() if rule.min_clients() <= clients - 2]
    told = next((b for b in defined if b and rules[b].tolerates(clients - 2) >= b), defined[0])
    assert played.round is not None and played.round.assumed_byzantine == (told if told < 2 else None)
    expected = play_round(fedseca.Server(chain, num_byzantine=told), fine, BEFORE)
    assert same(played.model, expected.model)
    # Who does not answer may be honest: nothing is concluded from that.
    silent = {**fine, "x": NoAnswer(), "y": Failed("out of memory")}
    played = play_round(fedseca.Server(made), silent, BEFORE)
    assert played.void is not None
    assert played.verdicts["x"].kind == "no answer" and played.verdicts["y"] == Verdict("left out", "out of memory")


def test_a_rule_assumes_no_fewer_byzantine_clients_than_it_must():
    rule = fedseca.make_aggregator("krum", num_byzantine=3)  # needs 6 clients, one fewer for each that B is smaller
    assert rule.after_leaving_out(0, 4) is rule and rule.after_leaving_out(1, 6).assumed_byzantine() == 3
    assert rule.after_leaving_out(2, 6).assumed_byzantine() == 1, "which it has a bound for, among six"
    assert rule.after_leaving_out(3, 5).assumed_byzantine() == 1
    assert rule.after_leaving_out(3, 3).assumed_byzantine() == 0
    assert rule.after_leaving_out(1, 4) is rule, "one was left out, and two fewer would be needed"
    assert fedseca.make_aggregator("cwmed").after_leaving_out(2, 3).assumed_byzantine() is None
    mda = fedseca.make_aggregator("mda", num_byzantine=2)
    assert mda.tolerates(4) == 0 and mda.after_leaving_out(1, 4).tolerates(4) == 1
    twice = fedseca.Server("krum", num_byzantine=2)
    with pytest.raises(fedseca.NotEnoughClients):  # a second answer of an admitted client is nobody left out
        twice.aggregate([model(k) for k in (0, 1, 2, 3, 3)], ["a", "b", "c", "d", "d"], before=BEFORE)


@pytest.mark.parametrize("rule", ["fedavg", "fedseca", "nnm+cwmed"])
def test_too_few_answers_for_the_one_who_asks(rule):
    server = remembering(rule)
    before = state_of(server)
    given = {"a": model(0), "b": model(1), "c": NoAnswer()}
    assert is_void(played := play_round(server, given, BEFORE, min_clients=3), server, before)
    assert played.void == "at least 3 answers needed, 2 usable of 3 asked"
    assert play_round(server, given, BEFORE, min_clients=2).void is None


@pytest.mark.parametrize("given", [{}, {"a": NoAnswer(), "b": Unreadable("torn")}])
def test_no_answers_at_all(given):
    server = remembering()
    before = state_of(server)
    assert is_void(played := play_round(server, given, BEFORE), server, before)
    assert f"0 usable of {len(given)} asked" in str(played.void) and played.verdicts.keys() == given.keys()


class _Explodes(FedAvg):
    def aggregate(self, updates, state, rng):
        answer = super().aggregate(updates, state, rng)
        return replace(answer, update=answer.update * torch.inf, state={"seen": torch.ones(1)})


def test_a_result_that_is_not_finite():
    server = remembering()
    server.rule = _Explodes()
    before = state_of(server)
    for rule_may_fail in (True, False):
        given = {"a": model(0), "b": NoAnswer()}
        assert is_void(played := play_round(server, given, BEFORE, rule_may_fail=rule_may_fail), server, before)
        assert str(played.void).startswith("the aggregate is not finite")
        assert played.verdicts == {"a": Verdict("round void"), "b": Verdict("no answer", "none came")}


@dataclass(frozen=True, kw_only=True)
class _Fails(FedAvg):
    def aggregate(self, updates, state, rng):
        raise ZeroDivisionError("of what a client sent\n\x1b[2J" + 1000 * "x")


def test_a_rule_that_fails_makes_the_round_void_where_it_may(caplog):
    server = remembering()
    server.rule = _Fails()
    before = state_of(server)
    assert is_void(played := play_round(server, {"a": model(0), "b": broken(1)}, BEFORE), server, before)
    assert str(played.void).startswith("fedavg failed: ZeroDivisionError('of what a client sent")
    assert "\x1b" not in str(played.void) and len(str(played.void)) < 250
    assert played.verdicts["a"] == Verdict("round void")
    (logged,) = caplog.records
    assert logged.levelname == "WARNING" and logged.exc_info  # whoever looks for it finds where


def test_a_rule_that_fails_is_an_error_where_it_must_not():
    server = remembering()
    server.rule = _Fails()
    before = state_of(server)
    with pytest.raises(ZeroDivisionError, match="of what a client sent"):
        play_round(server, {"a": model(0)}, BEFORE, rule_may_fail=False)
    now = state_of(server)
    assert now[0] == before[0] and same(now[1], before[1])


@pytest.mark.parametrize("problem", [InputError("mine"), StateError("mine"), MissingDependency("mine")])
def test_what_is_wrong_on_the_servers_own_side_is_an_error_always(problem):
    class Wrong(FedAvg):
        def aggregate(self, updates, state, rng):
            raise problem

    for rule_may_fail in (True, False):
        with pytest.raises(type(problem), match="mine"):
            play_round(fedseca.Server(Wrong()), {"a": model(0)}, BEFORE, rule_may_fail=rule_may_fail)


def test_an_interruption_is_not_taken_for_a_failure_of_the_rule():
    class Interrupted(FedAvg):
        def aggregate(self, updates, state, rng):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_round(fedseca.Server(Interrupted()), {"a": model(0)}, BEFORE)


def test_weights_are_those_of_the_clients_that_answered():
    given = {"a": model(0), "absent": NoAnswer(), "b": model(1), "lies": model(2)}
    weights = {"a": 1, "absent": 7, "b": 3, "lies": "many"}
    played = play_round(fedseca.Server("fedavg"), given, BEFORE, weights=weights)
    assert played.round is not None and played.round.diagnostics["weight"].tolist() == [0.25, 0.75]
    assert played.verdicts["lies"] == Verdict("left out", "weight 'many', expected a finite number above 0")


def test_a_round_in_which_nobody_has_weight_is_idle():
    """Three that agree with nobody: FedSECA takes nothing from any of them."""
    rows = torch.eye(3).repeat(1, 4) - 0.6
    given = dict(zip("abc", rows, strict=True))
    played = play_round(fedseca.Server("fedseca"), given, torch.zeros(12))
    assert played.idle and played.void is None and played.of_kind("used") == ["a", "b", "c"]
    assert not play_round(fedseca.Server("fedavg"), given, torch.zeros(12)).idle


# --- verdicts ----------------------------------------------------------------------------------------------------


def test_every_kind_of_verdict_has_a_meaning():
    assert set(KINDS) == MEANINGS.keys() == {"used", "suspect", "left out", "no answer", "round void"}
    assert [kind for kind in KINDS if Verdict(kind).admitted] == ["used", "suspect", "round void"]
    assert USED.record() == {"verdict": "used"}
    assert Verdict("left out", "1 NaN").record() == {"verdict": "left out", "reason": "1 NaN"}


def test_what_was_found_cannot_be_changed_afterwards():
    played = play_round(fedseca.Server("fedavg"), {"a": model(0)}, BEFORE)
    for made, field in (
        (played, "void"), (played.verdicts["a"], "kind"), (NoAnswer(), "reason"), (Unreadable("torn"), "reason"),
    ):  # fmt: skip
        with pytest.raises(FrozenInstanceError):
            setattr(made, field, "another")


@pytest.mark.parametrize("ids", [("a\n", "a\\n"), ("a", 7)])
def test_ids_that_cannot_be_told_apart_are_refused_before_anything_is_played(ids):
    server = fedseca.Server("fedseca")
    with pytest.raises(InputError, match="client ids must be texts that look different when printed"):
        play_round(server, {i: model(k) for k, i in enumerate(ids)}, BEFORE)
    assert server.round == 0


def test_who_hands_the_rule_fewer_clients_is_told(caplog):
    out = fedseca.Server("krum", num_byzantine=2).aggregate([model(0), model(1), model(2), broken(1), broken(2)])
    assert out.assumed_byzantine == 0 and "at most 0 assumed Byzantine" in repr(out)
    assert "krum: 2 of 5 clients were left out; of the others at most 0 are assumed Byzantine" in caplog.text
    whole = fedseca.Server("krum", num_byzantine=2).aggregate([model(k) for k in range(5)])
    assert whole.assumed_byzantine is None and "Byzantine" not in repr(whole)


def test_copies_that_a_step_joins_make_no_round_void():
    """Two attackers send the same row, so that krum sees four rows where it needs five for two Byzantine clients."""
    honest = torch.randn(3, 400, generator=torch.Generator().manual_seed(0))
    attack = torch.randn(1, 400, generator=torch.Generator().manual_seed(1)).expand(2, -1)
    out = fedseca.Server("one_voice+krum", num_byzantine=2).aggregate(torch.cat([honest, attack]))
    four = torch.cat([honest, attack[:1]])
    assert torch.equal(out.update, fedseca.Server("krum", num_byzantine=1).aggregate(four).update)
