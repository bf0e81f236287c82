"""The attacks, one file each. A file put into this folder is found without being named anywhere."""

import importlib
import pkgutil

from fedseca.attacks.base import ATTACKS, Attack, Knowledge, make_attack, register
from fedseca.attacks.trigger import Trigger

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["ATTACKS", "Attack", "Knowledge", "Trigger", "make_attack", "register"]
