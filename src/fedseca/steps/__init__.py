"""The steps before and after a rule, one file each. A file put into this folder is found without being named."""

import importlib
import pkgutil

from fedseca.steps.base import STEPS, Mix, Step, StepAfter, StepBefore, check_mix

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["STEPS", "Mix", "Step", "StepAfter", "StepBefore", "check_mix"]
