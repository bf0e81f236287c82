"""`NAME=VALUE` on the command line."""

from __future__ import annotations

from fedseca.errors import ParameterError


def split_setting(setting: str, form: str = "NAME=VALUE", option: str = "--set") -> tuple[str, str]:
    """`"sparsity=0.9"` as `("sparsity", "0.9")`."""
    name, equals, text = setting.partition("=")
    if not equals:
        raise ParameterError(f"{option} takes {form}; found {setting!r}")
    return name, text
