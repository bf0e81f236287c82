"""A data set in one file: a table of your own, from a pair of arrays.

    fedseca --plugin examples/data/wine.py run --dataset wine --model mlp

`fedseca.testing.check_dataset("wine")` holds it to the contract that every data set of the package keeps.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

from fedseca import param, register
from fedseca.data import Dataset, DataSource


@register("wine")
@dataclass(frozen=True, kw_only=True)
class Wine(DataSource):
    """178 wines of three growers, by thirteen measurements; every other one came from another site."""

    every: int = param(5, ge=2, help="each wine of this number is a test wine")

    def load(self, data_dir: Path | None = None) -> Dataset:
        values, growers = load_wine(return_X_y=True)
        is_test = np.arange(len(growers)) % self.every == 0
        train, test = ((values[part], growers[part]) for part in (~is_test, is_test))
        sites = np.arange(len(train[1])) % 2  # for the partition site; leave it out where there are none
        return Dataset.of(self.name, train, test, train_sites=sites)
