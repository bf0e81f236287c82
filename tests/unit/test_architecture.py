"""The house stands as it was drawn: imports point one way, and the facade is small and documented."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedseca
from fedseca import declare, server, testing, updates
from fedseca.cli.app import COMMANDS, load

SOURCE = Path(fedseca.__file__).parent

# Each may import from those before it, never from those after.
ORDER = [
    "version",
    "errors",
    "plugins",
    "declare",
    "parts",
    "files",
    "verdict",
    "suspicion",
    "checkpoint",
    "paper",
    "layout",
    "npy",
    "reading",
    "updates",
    "ops",
    "screening",
    "steps",
    "aggregators",
    "attacks",
    "server",
    "rounds",
    "audit",
    "book",
    "bench",
    "stress",
    "data",
    "models",
    "federation",
    "experiments",
    "report",
    "flower",
    "testing",
    "cli",
]


def part_of(module: str) -> str | None:
    """`fedseca.ops.reference` belongs to `ops`."""
    names = module.split(".")
    return names[1] if names[0] == "fedseca" and len(names) > 1 else None


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fedseca":
            found |= {f"fedseca.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file} imports relatively"
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_imports_point_only_upward():
    for file in SOURCE.rglob("*.py"):
        part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in ORDER, f"{file.name} has no place in the house"
        for module in imported(file):
            other = part_of(module)
            if other is not None:
                assert ORDER.index(other) <= ORDER.index(part), f"{file.relative_to(SOURCE)} imports {module}"


def test_every_public_name_is_documented():
    for name in set(fedseca.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(fedseca, name)), f"fedseca.{name} has no docstring"
    for registry in (fedseca.AGGREGATORS, fedseca.STEPS):
        for name, part in registry.items():
            assert "Cost: " in (part.__doc__ or ""), f"{name} does not say what it costs"
    assert len(fedseca.__all__) <= 30


def test_the_examples_in_docstrings_hold():
    for module in (server, declare, updates, testing):
        assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
    assert doctest.testmod(server, extraglobs={"torch": torch}).attempted >= 3


def test_importing_brings_in_no_optional_library():
    heavy = ["sklearn", "pyod", "matplotlib", "typer", "rich", "scipy", "flwr", "ray", "plotly", "timm", "torchvision"]
    code = f"import sys; from fedseca import *; print(Server, [m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "<class 'fedseca.server.Server'> []"


def test_the_facade_says_the_same_to_a_type_checker_as_to_python():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: node.module for node in imports for alias in node.names}
    assert told.keys() == set(fedseca.__all__) - {"__version__"} <= set(dir(fedseca))
    for name, module in told.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(fedseca, name)
    code = "import fedseca; print(fedseca.errors.StateError, fedseca.testing.check_step, fedseca.server.Server)"
    assert "StateError" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    with pytest.raises(AttributeError, match="module 'fedseca' has no attribute 'agregate'"):
        fedseca.agregate  # noqa: B018


def test_help_and_version_need_none_of_the_large_libraries():
    """They take seconds to import: what the commands do is imported when one is called."""
    for words in (["--version"], ["--help"], ["rum"]):
        code = (
            f"import sys; sys.argv = ['fedseca', *{words}]\nfrom fedseca.cli import main\ntry:\n main()\n"
            "except SystemExit:\n print([m for m in ('torch', 'numpy', 'numba', 'scipy') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_the_list_of_commands_says_what_each_says_of_itself():
    for name, (_, summary) in COMMANDS.items():
        assert load(name).help.partition("\n")[0] == summary


def test_nothing_unpickles():
    for file in SOURCE.rglob("*.py"):
        forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        if file == SOURCE / "data" / "_pickled.py":  # reads pickles of which it runs nothing
            forbidden.remove("pickle")
            assert used_of("pickle", file) == {"Unpickler", "UnpicklingError"}
            assert "from pickle" not in file.read_text()
        assert not imported(file) & forbidden, file
        safe = file == SOURCE / "models" / "_weights.py"  # of a file of torch it reads the tensors, and runs nothing
        loads = re.findall(r"torch\.load\b.*", file.read_text())
        assert len(loads) == safe and all("weights_only=True" in line for line in loads), file
        assert "allow_pickle" not in file.read_text(), file


def used_of(module: str, file: Path) -> set[str]:
    """The names behind `module.` in a file."""
    nodes = ast.walk(ast.parse(file.read_text()))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == module}
