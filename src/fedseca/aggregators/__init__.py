"""The rules, one file each. A file put into this folder is found without being named anywhere."""

import importlib
import pkgutil

from fedseca.aggregators._chain import AGGREGATORS, Chain, make_aggregator, make_alone
from fedseca.aggregators.base import CLIP_FACTOR, WEIGHT, Aggregation, Aggregator
from fedseca.updates import State

register = AGGREGATORS.register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "AGGREGATORS",
    "CLIP_FACTOR",
    "WEIGHT",
    "Aggregation",
    "Aggregator",
    "Chain",
    "State",
    "make_aggregator",
    "make_alone",
    "register",
]
