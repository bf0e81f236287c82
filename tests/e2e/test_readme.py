"""What the README shows works when it is pasted."""

import re
import tomllib
from pathlib import Path

import pytest

import fedseca
from fedseca.experiments.catalogue import EXPERIMENTS
from fedseca.plugins import GROUP
from tests.e2e.command import run
from tests.e2e.test_command_line import BEFORE, EXAMPLES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(block, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_there_are_python_blocks():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize(
    "registry", [fedseca.AGGREGATORS, fedseca.STEPS, fedseca.ATTACKS], ids=["rules", "steps", "attacks"]
)
def test_a_table_is_complete_and_says_what_the_declarations_say(registry):
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", README, flags=re.MULTILINE))
    ours = {name: cls for name, cls in registry.items() if cls.__module__.startswith("fedseca.")}
    assert rows.keys() >= ours.keys()
    for name, cls in ours.items():
        assert rows[name] == (cls.__doc__ or "").strip().splitlines()[0], name


def test_the_tables_name_nothing_that_is_not_there():
    rows = set(re.findall(r"^\| `([\w-]+)` \|", README, flags=re.MULTILINE))
    assert (
        {*EXPERIMENTS} <= rows <= {*fedseca.AGGREGATORS, *fedseca.STEPS, *fedseca.ATTACKS, *EXPERIMENTS}
    )  # plugins may be there


def test_the_commands_that_are_shown_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert f"\n{target}:" in makefile, target


def test_the_table_that_is_shown_is_what_the_command_prints(tmp_path):
    done = run("aggregate", *EXAMPLES, "--global", BEFORE, "-o", tmp_path / "out", COLUMNS="80")
    printed = [line.rstrip() for line in done.stdout.splitlines()][:-2]  # but for the name of the output
    shown = README[README.index("fedseca: 6 clients") :].splitlines()
    assert len(printed) > 10 and shown[: len(printed)] == printed


def test_the_config_that_is_shown_is_one():
    block, plugin = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    assert GROUP in tomllib.loads(plugin)["project"]["entry-points"]
    scenario = fedseca.Scenario.of(tomllib.loads(block))
    assert scenario.rounds == 20 and scenario.attack.direction == "std" and scenario.partition.name == "iid"


def test_the_commands_that_are_shown_are_known():
    words = set(re.findall(r"^fedseca (?:--plugin \S+ )?(\w+)", README, flags=re.MULTILINE)) - {"admitted"}
    assert {"run", "aggregate", "list"} <= words
    helped = run("--help").stdout
    assert all(f" {word} " in helped for word in words), words


def test_the_course_that_is_shown_is_what_make_run_prints(tmp_path):
    """But for the numbers, which another processor may round otherwise."""
    assert "fedseca demo" in (ROOT / "Makefile").read_text()
    printed = run("demo", "-o", tmp_path, "--rounds", 2, COLUMNS="80").stdout.splitlines()
    shown = README[README.index("Five clients learn") :].splitlines()
    assert shown[0] == printed[0]
    assert [line.split()[:2] for line in shown[5:7]] == [line.split()[:2] for line in printed[5:7]]
    assert "collapsed" in shown[5] and "survived" in shown[6]
