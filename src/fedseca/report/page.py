"""The page: a template with the style, the program, Plotly and the runs put into it, in one file.

A run folder may quote clients that want to do harm. So the runs stand in the page as data that cannot end their
element, the program shows text as text only, and the page's policy runs no program but those whose digest it names and
lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fedseca.errors import MissingDependency
from fedseca.paper import COLLAPSED, NOTICEABLE, SEVERE
from fedseca.report.collect import Collection
from fedseca.version import __version__

_PROGRAM = ("elements.js", "plots.js", "run.js", "grid.js", "experiment.js", "page.js")
"""In the order in which they need each other."""


def make_page(collection: Collection) -> str:
    """HTML that opens from a file, without a network. Experiments stand above the runs."""
    data = {
        "made_by": f"fedseca {__version__}",
        "experiments": collection.experiments,
        "runs": collection.runs,
        "varied": collection.varied(),
        "versions": collection.versions,
        "limits": {"collapsed": COLLAPSED, "severe": SEVERE, "noticeable": NOTICEABLE},
        "left_out": [each._asdict() for each in collection.left_out],
    }
    return assemble("page.html", ("page.css",), _PROGRAM, data)


def assemble(template: str, styles: Sequence[str], program: Sequence[str], data: Mapping[str, Any]) -> str:
    """A template of this folder with files of this folder, Plotly and the data in it."""
    scripts = {"plotly": require_plotly(), "program": "\n".join(map(_part, program))}
    slots = {
        "policy": _policy(list(scripts.values())),
        "style": "\n".join(map(_part, styles)),
        "data": _embedded(data),
        **scripts,
    }
    # Split, not replaced: a slot's name inside of what was put in is left alone.
    first, *rest = _part(template).split("{{")
    pieces = [first]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [slots[name], after]
    return "".join(pieces)


def _part(name: str) -> str:
    return files("fedseca.report").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def require_plotly() -> str:
    """Its program; better asked for before hours of runs than after."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingDependency("the page needs Plotly: pip install 'fedseca[report]'") from None
    program = str(get_plotlyjs())
    if "</script" in program.lower():
        raise MissingDependency(
            "this Plotly cannot stand in a page (its program holds </script); install another version"
        )
    return program


def _policy(scripts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Plotly writes its own style rules, and makes a picture of a plot as data.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON in which no character can end or open an element."""
    content = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return content.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
