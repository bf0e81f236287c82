"""The data sets, one file each, and how they are dealt to the clients. A file put into this folder is found."""

import importlib
import pkgutil

from fedseca.data.base import DATASETS, Dataset, DataSource, Images
from fedseca.data.partition import PARTITIONS, Partition, who_has_what

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["DATASETS", "PARTITIONS", "DataSource", "Dataset", "Images", "Partition", "who_has_what"]
