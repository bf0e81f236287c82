"""Every rule in examples/rules is held to the contract like the package's own."""

from pathlib import Path

from fedseca.plugins import load_plugin

for _file in sorted((Path(__file__).parents[2] / "examples" / "rules").glob("*.py")):
    load_plugin(_file)
