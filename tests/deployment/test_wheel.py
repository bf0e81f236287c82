"""The wheel in an environment of its own, as `pip install` makes it: only what pyproject declares is there."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.command import PATIENCE

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LARGE = {"torch", "numba", "numpy", "safetensors"}
"""Borrowed from this environment, with what they need: gigabytes."""
ENDS = {"oldest": "==", "newest": ">="}


def declared() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {found.name: found for found in map(Requirement, project["dependencies"])}


def with_what_they_need(names: Iterable[str]) -> set[str]:
    """The distributions, and those that they need here, in turn."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return found


def borrow(names: Iterable[str], packages: Path) -> None:
    for name in names:
        for file in importlib.metadata.files(name) or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)


def pip(*words: object, python: Path = Path(sys.executable)) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    subprocess.run(command, check=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module", params=ENDS)
def installed(request, wheel, tmp_path_factory) -> Path:
    """The folder of the programs of an environment with the oldest or newest of what is not borrowed."""
    home: Path = tmp_path_factory.mktemp(request.param)
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=PATIENCE)
    (packages,) = home.glob("lib/python*/site-packages")
    borrow(with_what_they_need(LARGE), packages)
    others = {name: needed for name, needed in declared().items() if name not in LARGE}
    assert others, "nothing is left to try"
    bounds = [str(needed).replace(">=", ENDS[request.param]) for needed in others.values()]
    pip("install", *bounds, python=home / "bin" / "python")
    # If anything else were needed that is not declared, it would be missing here.
    pip("install", "--no-deps", wheel, python=home / "bin" / "python")
    return home / "bin"


def run(installed: Path, *words: object) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [installed / "fedseca", *map(str, words)],
        capture_output=True, text=True, cwd=installed, timeout=PATIENCE, env=clean | {"COLUMNS": "120"},
    )  # fmt: skip


def test_its_commands_say_what_they_are(installed):
    assert run(installed, "--version").stdout.startswith("fedseca 0.")
    assert run(installed).stdout == run(installed, "--help").stdout
    for words in ([], ["run"], ["grid"], ["aggregate"], ["audit"], ["audit", "verify"], ["data", "show"]):
        done = run(installed, *words, "--help")
        assert done.returncode == 0 and "Usage: fedseca" in done.stdout, done.stderr
    assert "fedseca" in run(installed, "list", "rules").stdout


def test_it_aggregates(installed, tmp_path):
    before, out = EXAMPLES / "before.safetensors", tmp_path / "after.safetensors"
    models = sorted((EXAMPLES / "models").glob("*.safetensors"))
    done = run(installed, "aggregate", *models, "--global", before, "-o", out)
    assert done.returncode == 0 and out.exists(), done.stderr
    assert "malicious is suspect" in done.stdout


WRONG = {
    "an unknown command": (["rum"], "unknown command 'rum'; did you mean 'run'?"),
    "an unknown option": (["list", "--colour"], "option"),
    "a missing option": (["aggregate", "a.safetensors"], "Missing option"),
    "a missing file": (["aggregate", "nowhere", "-o", "out"], "nowhere: no such file"),
    "a value that is none": (["bench", "--repeats", "many"], "Invalid value for"),
    "an unknown part": (["run", "--rule", "fedsecca"], "did you mean 'fedseca'?"),
    "an extra that is missing": (["run", "--rounds", "1"], "pip install 'fedseca[simulation]'"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_bad_input_is_one_line_and_exit_code_2(installed, fault):
    words, message = WRONG[fault]
    done = run(installed, *words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
