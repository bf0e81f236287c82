"""Rules, steps, attacks, data sets and models from outside the package: from files, and from installed packages."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from pathlib import Path

from fedseca.errors import InputError, printable

_LOG = logging.getLogger(__name__)
GROUP = "fedseca.plugins"
"""Under this name a package says in its metadata which module registers something."""
_looked = False
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


def load_installed() -> None:
    """Import what installed packages offer as entry points of the group `fedseca.plugins`, once.

    One that cannot be imported is a warning: whoever uses another rule must not be kept from it.
    """
    global _looked
    if _looked:
        return
    _looked = True  # first, since what a plugin imports asks again
    from importlib.metadata import entry_points  # only now: --help and --version need no plugin

    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as problem:
            told = printable(f"{type(problem).__name__}: {problem}", limit=200)
            _LOG.warning("the plugin %s (%s) cannot be loaded: %s", point.name, point.value, told)


def loaded() -> list[str]:
    """The plugins of this process, so that another one, in another folder, can load them too."""
    return list(_LOADED)
