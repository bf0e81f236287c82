"""`NAME=VALUE` on the command line, in the types that were declared."""

from __future__ import annotations

from typing import Any

from fedseca.declare import Declared
from fedseca.errors import ParameterError


def parse_settings(owner: type[Declared], settings: list[str]) -> dict[str, Any]:
    """`["sparsity=0.9"]` as `{"sparsity": 0.9}`."""
    return {name: owner.declared(name).parse(text) for name, text in map(split_setting, settings)}


def split_setting(setting: str, form: str = "NAME=VALUE", option: str = "--set") -> tuple[str, str]:
    """`"sparsity=0.9"` as `("sparsity", "0.9")`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise ParameterError(f"{option} takes {form}; found {setting!r}")
    return name, text
