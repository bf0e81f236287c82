"""What the README shows works when it is pasted."""

import re
from pathlib import Path

import pytest

import fedseca
from tests.e2e.test_command_line import BEFORE, EXAMPLES, run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(block, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_there_are_python_blocks():
    assert len(BLOCKS) >= 2


def test_the_table_of_rules_is_complete_and_says_what_the_declarations_say():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", README, flags=re.MULTILINE))
    ours = {name: cls for name, cls in fedseca.AGGREGATORS.items() if cls.__module__.startswith("fedseca.")}
    assert rows.keys() == ours.keys()
    for name, cls in ours.items():
        assert rows[name] == (cls.__doc__ or "").strip().splitlines()[0], name


def test_the_commands_that_are_shown_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert f"\n{target}:" in makefile, target


def test_the_table_that_is_shown_is_what_make_run_prints(tmp_path):
    done = run("aggregate", *EXAMPLES, "--global", BEFORE, "-o", tmp_path / "out", COLUMNS="80")
    printed = [line.rstrip() for line in done.stdout.splitlines()][:-2]  # but for the name of the output
    shown = README[README.index("fedseca: 6 clients") :].splitlines()
    assert len(printed) > 10 and shown[: len(printed)] == printed
