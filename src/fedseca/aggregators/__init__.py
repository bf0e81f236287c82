"""The rules, one file each. A file put into this folder is found without being named anywhere."""

import importlib
import pkgutil

from fedseca.aggregators.base import AGGREGATORS, Aggregation, Aggregator, State, make_aggregator, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["AGGREGATORS", "Aggregation", "Aggregator", "State", "make_aggregator", "register"]
