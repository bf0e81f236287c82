"""Rules, steps, attacks, data sets and models from files outside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from fedseca.errors import InputError

_LOADED: dict[str, None] = {}
"""Their names for a process that stands in another folder, in order."""


def load_plugin(plugin: str | Path) -> None:
    """Run a Python file, or import a module by name; what it registers is known from then on."""
    path = Path(plugin)
    if path.suffix != ".py":
        try:
            importlib.import_module(str(plugin))
        except (ImportError, TypeError, ValueError) as problem:
            raise InputError(f"plugin {plugin}: {problem}; give a .py file or an importable module") from None
        _LOADED[str(plugin)] = None
        return
    if not path.is_file():
        raise InputError(f"plugin {plugin}: no such file")
    name = f"fedseca_plugin_{path.resolve().as_posix().strip('/').replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as problem:
        del sys.modules[name]
        if not isinstance(problem, Exception):
            raise
        raise InputError(f"plugin {plugin}: {type(problem).__name__}: {problem}") from problem
    _LOADED[str(path.resolve())] = None


def loaded() -> list[str]:
    """The plugins of this process, so that another one, in another folder, can load them too."""
    return list(_LOADED)
