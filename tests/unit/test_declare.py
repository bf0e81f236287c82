"""Hyperparameters are declared once; checks, parsing and messages follow from that."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedseca
from fedseca.aggregators import make_alone
from fedseca.declare import Declared, diagnostic, param
from fedseca.errors import ParameterError, UnknownName
from fedseca.federation.scenario import GRAMMAR as SCENARIO
from fedseca.parts import Grammar, Registry, flat

THINGS: Registry[Declared] = Registry("thing")


@THINGS.register("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Declared):
    """A thing."""

    number: int = param(3, ge=1, le=9, help="a number")
    share: float = param(0.5, gt=0, lt=1, help="a share")
    flag: bool = param(True, help="a flag")
    kind: str = param("one", choices=("one", "two"), help="a kind")
    maybe: int | None = param(None, ge=0, help="perhaps")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"number": 0}, "sample: number must be integer ≥ 1, ≤ 9; found 0"),
        ({"number": 10}, "found 10"),
        ({"number": True}, "found True"),
        ({"number": 2.0}, "found 2.0"),
        ({"share": 1}, "sample: share must be float > 0, < 1; found 1"),
        ({"share": float("nan")}, "found nan"),
        ({"share": "0.5"}, "found '0.5'"),
        ({"flag": 1}, "sample: flag must be true | false; found 1"),
        ({"kind": "three"}, "sample: kind must be one | two; found 'three'"),
        ({"maybe": -1}, "sample: maybe must be integer ≥ 0 | none; found -1"),
        ({"nunber": 3}, "unknown hyperparameter of sample 'nunber'; did you mean 'number'? Known: number, share,"),
    ],
)
def test_a_bad_value_is_refused_in_one_clear_line(values, message):
    with pytest.raises(ParameterError) as refused:
        THINGS.make("sample", **values)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_good_values_come_out_in_their_declared_type():
    made = THINGS.make("sample", number=np.int64(4), share=np.float32(0.5), maybe=0)
    assert made.values() == {"number": 4, "share": 0.5, "flag": True, "kind": "one", "maybe": 0}
    assert type(made.values()["number"]) is int and type(made.values()["share"]) is float


def test_defaults_without_memory():
    assert fedseca.make_aggregator("fedseca").values()["momentum"] == 0.5
    assert make_alone("fedseca").values()["momentum"] == 0.0
    assert make_alone("fedseca", momentum=0.5).values()["momentum"] == 0.5
    assert make_alone("nnm+fedseca").values()["fedseca.momentum"] == 0.0
    assert make_alone("nnm+fedseca", **{"fedseca.momentum": 0.5}).values()["fedseca.momentum"] == 0.5
    for name, rule in fedseca.AGGREGATORS.items():  # what is set there is declared, and in bounds
        assert make_alone(name) == fedseca.make_aggregator(name, **rule.alone)
    made = fedseca.make_aggregator("fedseca")
    assert make_alone(made) is made


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("number", "4", 4),
        ("share", "1e-3", 1e-3),
        ("flag", "False", False),
        ("kind", "two", "two"),
        ("maybe", "none", None),
    ],
)
def test_values_are_parsed_by_their_declaration(name, text, value):
    assert Sample.hyperparameters()[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"), [("number", "4.5"), ("number", ""), ("flag", "1"), ("share", "2"), ("kind", "")]
)
def test_text_that_is_no_value_is_refused(name, text):
    with pytest.raises(ParameterError, match=f"{name} must be"):
        Sample.hyperparameters()[name].parse(text)


def test_every_generated_bad_value_is_bad_and_covers_every_bound():
    for declared in Sample.hyperparameters().values():
        bad = list(declared.bad_values())
        assert len(bad) >= 4 + len(declared.bounds) - (declared.type is bool or declared.optional)
        for value in bad:
            with pytest.raises(ParameterError):
                declared.check(value)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownName, match=r"unknown rule 'fedsecca'; did you mean 'fedseca'\? Known: bulyan, caf, cc_"):
        fedseca.make_aggregator("fedsecca")
    assert "fedsecca" not in fedseca.AGGREGATORS
    assert fedseca.AGGREGATORS.get("fedsecca") is None


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="thing 'sample' is registered already"):
        THINGS.register("sample")(Sample)


def test_an_undeclared_field_is_a_programming_error():
    @dataclass(frozen=True, kw_only=True)
    class Loose(Declared):
        number: int = 3

    with pytest.raises(TypeError, match=r"Loose.number must be declared with param"):
        Loose()


def test_a_rule_that_is_made_takes_no_further_hyperparameters():
    with pytest.raises(TypeError, match="go with the name of a rule"):
        fedseca.aggregate(np.ones((3, 4)), rule=fedseca.make_aggregator("cwmed"), trim=0.1)


def test_a_diagnostic_is_declared_once():
    trust = diagnostic("clip_factor", help="how short it was made", share=True)
    assert trust.heading == "clip factor" and trust.show(0.25) == "25.0%" and trust.show(None) == "–"
    assert diagnostic("norm", heading="length", help="how long it is").heading == "length"
    assert diagnostic("norm", help="how long it is").show(1234.5678) == "1235"
    for parts in (fedseca.AGGREGATORS, fedseca.STEPS):
        for name, part in parts.items():
            declared = part.diagnostics
            assert all(each.help and "\n" not in each.help for each in declared), name
            assert len({each.name for each in declared}) == len(declared), name


# --- the grammar of paths ----------------------------------------------------------------------------------------

OTHERS: Registry[Declared] = Registry("other")


@OTHERS.register("plain")
@dataclass(frozen=True, kw_only=True)
class Plain(Declared):
    """Another thing."""

    number: int = param(1, ge=0, help="a number")
    size: float = param(1.0, gt=0, help="a size")


@dataclass(frozen=True, kw_only=True)
class Whole(Declared):
    """Made of two things."""

    name = "whole"

    thing: Declared = param("sample", registry=THINGS, help="a thing")
    other: Declared = param("plain", registry=OTHERS, help="another")
    count: int = param(1, ge=1, help="a count")


GRAMMAR = Grammar(Whole, {"item": "thing"})


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("count", "count"),
        ("thing", "thing"),
        ("item", "thing"),
        ("thing.share", "thing.share"),
        ("item.share", "thing.share"),
        ("share", "thing.share"),
        ("size", "other.size"),
        ("other.number", "other.number"),
    ],
)
def test_a_short_path_has_one_whole_path(path, whole):
    assert GRAMMAR.locate(path, {}) == whole


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("number", "'number' is a hyperparameter of more than one part; say which: other.number, thing.number"),
        ("shares", "unknown hyperparameter of whole 'shares'; did you mean 'share'?"),
        ("thing.shares", "unknown hyperparameter of sample 'shares'; did you mean 'share'?"),
        ("item.size", "unknown hyperparameter of sample 'size'"),
        ("count.share", "unknown hyperparameter of whole 'count.share'"),
        ("thng.share", "'thng.share': unknown part of this whole 'thng'; did you mean 'thing'?"),
        ("", "unknown hyperparameter of whole ''"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_in_one_clear_line(path, message):
    with pytest.raises(ParameterError) as refused:
        GRAMMAR.locate(path, {})
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_text_is_put_where_its_path_leads_as_what_is_declared_there():
    values: dict[str, Any] = {}
    for path, text in (("count", "4"), ("thing", "sample"), ("thing.number", "7"), ("other.size", "2")):
        GRAMMAR.put(values, path, text)
    assert values == {"count": 4, "thing": {"name": "sample", "number": 7}, "other": {"name": "plain", "size": 2.0}}
    GRAMMAR.put(values, "thing", "sample")  # the same name leaves its table as it is
    assert flat(Whole(**values)) == {
        "thing": "sample",
        **{f"thing.{name}": value for name, value in Sample(number=7).values().items()},
        "other": "plain",
        "other.number": 1,
        "other.size": 2.0,
        "count": 4,
    }
    for path, message in (
        ("thing.number", "sample: number must be integer ≥ 1, ≤ 9; found 10"),
        ("thing.size", "unknown hyperparameter of sample 'size'"),
        ("count.size", "whole: count has no hyperparameters of its own; found 'count.size'"),
        ("nothing", "unknown hyperparameter of whole 'nothing'"),
    ):
        before = dict(values)
        with pytest.raises(ParameterError, match=re.escape(message)):
            GRAMMAR.put(values, path, "10")
        assert values == before
    GRAMMAR.put(values, "thing.size", "10", lenient=True)  # passed over
    assert values["thing"] == {"name": "sample", "number": 7}


def test_other_words_for_a_field_are_understood_once():
    assert GRAMMAR.renamed({"item": "sample", "count": 3}) == {"thing": "sample", "count": 3}
    with pytest.raises(ParameterError, match="whole: thing is given twice, as 'item' too; give it once"):
        GRAMMAR.renamed({"thing": "sample", "item": "sample"})
    with pytest.raises(ParameterError, match=r"unknown hyperparameter of whole 'things'; did you mean 'thing'\?"):
        GRAMMAR.renamed({"things": "sample"})


def test_a_hyperparameter_of_a_chosen_part_is_found_by_the_name_of_the_part():
    def whole(path: str, rule: str) -> str:
        return SCENARIO.locate(path, {"aggregator": [rule]})

    assert whole("fedseca.sparsity", "fedseca") == "aggregator.sparsity"
    assert whole("ipm.strength", "fedseca") == "attack.strength"
    assert whole("nnm.num_byzantine", "nnm+cwmed") == "aggregator.nnm.num_byzantine"
    known = "Known: nnm.num_byzantine, cwmed.even"
    with pytest.raises(ParameterError, match=rf"unknown hyperparameter of nnm\+cwmed 'trim'\. {known}"):
        fedseca.make_aggregator("nnm+cwmed", trim=1)
    with pytest.raises(ParameterError, match=r"unknown hyperparameter of nnm 'sparsity'\. Known: num_byzantine"):
        whole("nnm.sparsity", "nnm+cwmed")
    with pytest.raises(ParameterError, match=r"'sparsity'.*; its parts: nnm.cwmed, ipm, digits, dirichlet, cnn"):
        whole("sparsity", "nnm+cwmed")


def test_what_is_shown_of_a_bare_hyperparameter_of_a_chain():
    both = fedseca.Scenario(aggregator={"name": "nnm+krum", "num_byzantine": 1})
    assert SCENARIO.shown(both, "aggregator.num_byzantine") == "1" and SCENARIO.shown(both, "seed") == "0"
    apart = fedseca.Scenario(aggregator={"name": "nnm+krum", "num_byzantine": 1, "nnm.num_byzantine": 0})
    assert SCENARIO.shown(apart, "aggregator.num_byzantine") == "nnm 0, krum 1"
    assert SCENARIO.shown(apart, "aggregator.sparsity") == "–"


def test_registries_answer_by_path():
    assert list(fedseca.AGGREGATORS.hyperparameters("krum")) == ["num_byzantine", "select"]
    chain = fedseca.AGGREGATORS.hyperparameters("nnm+krum")
    assert {"nnm.num_byzantine", "krum.num_byzantine", "num_byzantine"} <= chain.keys()
    assert fedseca.AGGREGATORS.declared("nnm+krum", "nnm.num_byzantine").owner == "nnm"
    with pytest.raises(ParameterError, match="nnm\\+krum has no part 'cwmed'; its parts are nnm, krum"):
        fedseca.AGGREGATORS.declared("nnm+krum", "cwmed.trim")


def test_what_is_declared_later_changes_no_name_of_what_was_kept():
    assert "even" in fedseca.make_aggregator("cwmed").hyperparameters()
    assert fedseca.make_aggregator("cwmed").describe() == {"name": "cwmed"}
    other = fedseca.make_aggregator("nnm+cwmed", even="mean")
    assert other.values()["cwmed.even"] == "mean" and other.remade(**{"cwmed.even": "lower"}).values().keys() == {
        "nnm.num_byzantine"
    }


@pytest.mark.parametrize(
    ("rule", "given", "clients", "expected"),
    [
        ("krum", {"num_byzantine": 9}, 5, "with 5 clients num_byzantine can be at most 2, and its bound holds up to 1"),
        ("krum", {"num_byzantine": 9}, 3, "with 3 clients num_byzantine can be at most 0"),
        ("krum", {"num_byzantine": 10**9}, 3, "with 3 clients num_byzantine can be at most 0"),
        ("krum", {"select": 9}, 5, ""),
        ("krum", {}, 2, ""),
        ("fedseca", {}, 1, ""),
    ],
)  # fmt: skip
def test_too_few_clients_have_a_way_out(rule, given, clients, expected):
    assert fedseca.make_aggregator(rule, **given).way_out(clients) == expected


def test_what_is_declared_later_is_compared_and_shown_all_the_same():
    lower, mean = (fedseca.Scenario(aggregator={"name": "cwmed", "even": even}) for even in ("lower", "mean"))
    assert [SCENARIO.shown(each, "aggregator.even") for each in (lower, mean)] == ["lower", "mean"]
    assert flat(lower).keys() == flat(mean).keys() and lower.id != mean.id
    assert fedseca.Scenario(aggregator={"name": "cwmed", "even": "lower"}).id == fedseca.Scenario(aggregator="cwmed").id


def test_who_asks_for_more_clients_than_the_rule_is_told_no_way_out():
    with pytest.raises(fedseca.NotEnoughClients) as refused:
        fedseca.Server("krum", num_byzantine=1).aggregate(np.ones((5, 2)), min_clients=6)
    assert str(refused.value) == "krum needs at least 6 clients, 5 of 5 were admitted"
