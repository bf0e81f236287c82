"""Heart disease in four hospitals, from the original files of UCI."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from fedseca.data._folders import FolderSource, lacking
from fedseca.data.base import Dataset, Facts, held_out, reading, register
from fedseca.errors import InputError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILES = tuple(f"processed.{hospital}.data" for hospital in HOSPITALS)
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
TARGET = "num"
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
YES_OR_NO = ("sex", "fbs", "exang")
NEVER_ZERO = ("trestbps", "chol")
"""A blood pressure or a cholesterol of 0 was not measured: in Switzerland all of them."""
MISSING = ("?", "-9", "-9.0", "")


@register("heart_disease")
@dataclass(frozen=True, kw_only=True)
class HeartDisease(FolderSource):
    """920 patients of four hospitals: Cleveland, Hungary, Switzerland, VA Long Beach (Detrano et al. 1989).

    Disease (num > 0) from 13 measurements, categories one-hot. What is missing is filled from the training patients:
    the median of a number, the most frequent of a category. A fifth of each hospital's patients is the test set. With
    the partition `site` each hospital is a client, in the order above.
    """

    how_to_get: ClassVar[str] = (
        f"put {', '.join(FILES)} of archive.ics.uci.edu/dataset/45/heart+disease into a folder and give it "
        "as --data-dir"
    )
    facts: ClassVar[Facts | None] = Facts(735, 185, 2, (22,))
    subfolders: ClassVar[tuple[str, ...]] = ("heart-disease", "heart+disease")

    def lacks(self, folder: Path) -> list[str] | None:
        return lacking(folder, FILES)

    def read(self, folder: Path) -> Dataset:
        tables = [_read(folder / file) for file in FILES]
        values = torch.cat([table[:, :-1] for table in tables])
        disease = (torch.cat([table[:, -1] for table in tables]) > 0).long()
        sites = torch.cat([torch.full((len(table),), site) for site, table in enumerate(tables)])
        is_test = torch.cat([held_out((table[:, -1] > 0).long()) for table in tables])
        features = _features(values, ~is_test)
        train, test = ((features[part], disease[part]) for part in (~is_test, is_test))
        return Dataset.of(self.name, train, test, num_classes=2, train_sites=sites[~is_test])


def _read(path: Path) -> Tensor:
    """Patients × columns, the target last; NaN where a value is missing."""
    with reading(path):
        lines = path.read_text(encoding="ascii").splitlines()
    rows = [_row(line, f"{path}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise InputError(f"{path}: holds no patients")
    return torch.tensor(rows, dtype=torch.float64)


def _row(line: str, place: str) -> list[float]:
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(COLUMNS) + 1:
        raise InputError(
            f"{place} must have {len(COLUMNS) + 1} columns ({', '.join(COLUMNS)}, {TARGET}); found {len(words)}"
        )
    row = []
    for column, word in zip((*COLUMNS, TARGET), words, strict=True):
        try:
            value = math.nan if word in MISSING else float(word)
        except ValueError:
            raise InputError(
                f"{place}: {column} must be a number, or ? where it is missing; found {word[:40]!r}"
            ) from None
        if not math.isnan(value):
            _check(column, value, place)
        row.append(math.nan if column in NEVER_ZERO and value == 0 else value)
    if math.isnan(row[-1]):
        raise InputError(f"{place}: {TARGET} is missing; every patient needs it")
    return row


def _check(column: str, value: float, place: str) -> None:
    allowed = {**CATEGORIES, **dict.fromkeys(YES_OR_NO, (0, 1)), TARGET: range(5)}.get(column)
    if allowed is not None and value not in allowed:
        raise InputError(f"{place}: {column} must be one of {', '.join(map(str, allowed))}; found {value:g}")
    if not abs(value) <= 1e6:
        raise InputError(f"{place}: {column} must be a number of this world; found {value:g}")


def _features(values: Tensor, training: Tensor) -> Tensor:
    """Filled from the training patients, categories as one column for each."""
    columns = []
    for name, column in zip(COLUMNS, values.unbind(dim=1), strict=True):
        known = column[training & ~column.isnan()]
        if not len(known):
            raise InputError(f"heart_disease: {name} is missing for every patient; are these the original files?")
        usual = known.mode().values if name in CATEGORIES or name in YES_OR_NO else known.median()
        filled = torch.where(column.isnan(), usual, column)
        columns += [(filled == each).double() for each in CATEGORIES[name]] if name in CATEGORIES else [filled]
    return torch.stack(columns, dim=1)
