"""timm, which is imported when a network of it is built: with torchvision it takes seconds."""

from __future__ import annotations

import logging
import re
from functools import cache
from importlib import import_module
from typing import Any

import torch

from fedseca.errors import MissingDependency, printable

_LOG = logging.getLogger(__name__)
_MEND = "pip install torchvision --index-url https://download.pytorch.org/whl/cpu beside a CPU build of torch"
_UNDECLARED = re.compile(r"operator torchvision::(\w+) does not exist")
_MOST_OPERATORS = 20
_declared: list[torch.library.Library] = []
"""They last as long as these objects."""


@cache
def timm_library() -> Any:
    """The module `timm`; where it cannot be imported, one line that says why and how to mend it.

    PyPI's torchvision is built for CUDA, and beside a CPU build of torch its compiled operators cannot be loaded. It
    provides for that, each of its functions says so when it is called, but its import fails all the same: it describes
    operators that nobody declared. timm's networks call none of them. Declared here, without an implementation, they
    let the import pass.
    """
    for _ in range(_MOST_OPERATORS):
        try:
            found = import_module("timm")
        except ImportError as problem:
            needed = f"the model timm needs {problem.name or 'timm'}"
            raise MissingDependency(f"{needed}: pip install 'fedseca[vision]'; {_MEND}") from None
        except RuntimeError as problem:
            operator = _UNDECLARED.search(str(problem))
            if operator is None:
                raise _unfit(problem) from None
            library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            library.define(f"{operator[1]}() -> ()")
            _declared.append(library)
        else:
            if _declared:
                _LOG.warning(
                    "torchvision does not fit this torch; timm does without its operators. To mend it: %s", _MEND
                )
            return found
    raise _unfit("too many of its operators are missing")


def _unfit(problem: object) -> MissingDependency:
    reason = printable(str(problem).partition("\n")[0], limit=160)
    return MissingDependency(f"timm cannot be imported: torchvision does not fit this torch ({reason}); {_MEND}")
