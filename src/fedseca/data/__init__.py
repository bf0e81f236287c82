"""The data sets, one file each, and how they are dealt to the clients. A file put into this folder is found."""

import importlib
import pkgutil

from fedseca.data.base import DATASETS, Dataset, DataSource
from fedseca.data.partition import PARTITIONS, Partition, who_has_what
from fedseca.data.samples import Samples
from fedseca.data.task import Classification, Regression, Task

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Classification",
    "DataSource",
    "Dataset",
    "Partition",
    "Regression",
    "Samples",
    "Task",
    "who_has_what",
]
