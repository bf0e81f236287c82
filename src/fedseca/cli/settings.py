"""`NAME=VALUE` on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedseca.errors import ParameterError
from fedseca.federation.scenario import GRAMMAR


def split_setting(setting: str, form: str = "NAME=VALUE", option: str = "--set") -> tuple[str, str]:
    """`"sparsity=0.9"` as `("sparsity", "0.9")`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise ParameterError(f"{option} takes {form}; found {setting!r}")
    return name, text


def put_settings(values: dict[str, Any], settings: Iterable[str]) -> set[str]:
    """Put `PART.NAME=VALUE` over the values of a scenario, one after the other; the fields that were said."""
    said = set()
    for setting in settings:
        name, text = split_setting(setting, "PART.NAME=VALUE")
        path = GRAMMAR.locate(name, {part: [value] for part, value in values.items()})
        GRAMMAR.put(values, path, text)
        said.add(path.partition(".")[0])
    return said
