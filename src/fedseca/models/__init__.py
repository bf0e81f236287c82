"""The models, one file for each family. A file put into this folder is found without being named anywhere."""

import importlib
import pkgutil

from fedseca.models.base import MODELS, Model

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["MODELS", "Model"]
