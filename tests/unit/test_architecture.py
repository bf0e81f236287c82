"""The house stands as it was drawn: imports point one way, and the facade is small and documented."""

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import torch

import fedseca
from fedseca import declare, server, testing, updates

SOURCE = Path(fedseca.__file__).parent

# Each may import from those before it, never from those after.
ORDER = [
    "version",
    "errors",
    "declare",
    "parts",
    "files",
    "verdict",
    "suspicion",
    "checkpoint",
    "paper",
    "layout",
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
    "plugins",
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
    heavy = ["sklearn", "pyod", "matplotlib", "typer", "rich", "scipy", "flwr", "ray", "plotly"]
    code = f"import sys, fedseca; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_nothing_unpickles():
    for file in SOURCE.rglob("*.py"):
        forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        if file == SOURCE / "data" / "_pickled.py":  # reads pickles of which it runs nothing
            forbidden.remove("pickle")
            assert used_of("pickle", file) == {"Unpickler", "UnpicklingError"}
            assert "from pickle" not in file.read_text()
        assert not imported(file) & forbidden, file
        assert "torch.load" not in file.read_text() and "allow_pickle" not in file.read_text(), file


def used_of(module: str, file: Path) -> set[str]:
    """The names behind `module.` in a file."""
    nodes = ast.walk(ast.parse(file.read_text()))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == module}
