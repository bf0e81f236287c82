"""Hyperparameters are declared once; checks, parsing and messages follow from that."""

from dataclasses import dataclass

import numpy as np
import pytest

import fedseca
from fedseca.declare import Declared, Registry, param
from fedseca.errors import ParameterError, UnknownName

THINGS: Registry[Declared] = Registry("thing")


@THINGS.register("sample")
@dataclass(frozen=True, kw_only=True)
class Sample(Declared):
    """A thing."""

    number: int = param(3, ge=1, le=9, help="a number")
    share: float = param(0.5, gt=0, lt=1, help="a share", memoryless=0.25)
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
    assert THINGS.make("sample", memoryless=True).values()["share"] == 0.25
    assert THINGS.make("sample", memoryless=True, share=0.5).values()["share"] == 0.5


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
    with pytest.raises(UnknownName, match=r"unknown rule 'fedsecca'; did you mean 'fedseca'\? Known: cc_"):
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
