"""Every rule, step and attack in examples/ is held to the contract like the package's own."""

from pathlib import Path

from fedseca.plugins import load_plugin

_EXAMPLES = Path(__file__).parents[2] / "examples"
for _folder in ("rules", "steps", "attacks"):
    for _file in sorted((_EXAMPLES / _folder).glob("*.py")):
        load_plugin(_file)
