"""FedISIC: skin lesions of six centres, in the folder and the table of FLamby."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from fedseca.data._csv import read_rows, whole
from fedseca.data._folders import FolderSource
from fedseca.data._images import AUGMENT_HELP, LARGEST_SIDE, ImageFiles, dataset_of_files, pillow, read_jpeg
from fedseca.data.base import Dataset, Facts, reading, register
from fedseca.declare import param
from fedseca.errors import InputError

IMAGES = "ISIC_2019_Training_Input_preprocessed"
TABLE = "train_test_split"
CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@register("fedisic")
@dataclass(frozen=True, kw_only=True)
class FedIsic(FolderSource):
    """23,247 photographs of skin lesions in eight classes, of six centres (Ogier du Terrail et al. 2022, FLamby).

    Both splits are FLamby's, the test images of all centres together. With the partition `site` each centre is a
    client, in FLamby's order: BCN, HAM_vidir_molemax, HAM_vidir_modern, HAM_rosendahl, MSK, HAM_vienna_dias.
    """

    how_to_get: ClassVar[str] = (
        "run download_isic.py and resize_images.py of FLamby (github.com/owkin/FLamby, fed_isic2019), put its "
        f"{TABLE} beside the folder {IMAGES}, and give the folder that holds both as --data-dir"
    )
    facts: ClassVar[Facts | None] = Facts(18_597, 4_650, 8, (3, 200, 200))

    image_size: int = param(200, ge=8, le=LARGEST_SIDE, help="to how many pixels a side each image is resized")
    augment: bool = param(False, help=AUGMENT_HELP)

    def lacks(self, folder: Path) -> list[str] | None:
        is_here = {IMAGES: os.path.isdir(folder / IMAGES), TABLE: os.path.isfile(folder / TABLE)}
        return [name for name, here in is_here.items() if not here] if any(is_here.values()) else None

    def read(self, folder: Path) -> Dataset:
        pillow(self.name)
        table: dict[str, tuple[int, int, bool]] = {}
        for place, row in read_rows(folder / TABLE, ("image", "target", "center", "fold")):
            if row["fold"] not in ("train", "test"):
                raise InputError(f"{place}: fold must be train or test; found {row['fold'][:40]!r}")
            name = f"{row['image']}.jpg"
            if name in table:
                raise InputError(f"{place}: {row['image'][:60]!r} stands in the table twice")
            target, centre = whole(row, "target", len(CLASSES), place), whole(row, "center", len(CENTRES), place)
            table[name] = target, centre, row["fold"] == "test"
        if not table:
            raise InputError(f"{folder / TABLE}: holds no images")
        with reading(folder / IMAGES):
            here = set(os.listdir(folder / IMAGES))
        # Names that are in no listing of the folder could lead out of it.
        if absent := [name for name in table if name not in here]:
            found = f"{len(absent):,} of {len(table):,} images of {TABLE}, the first is {absent[0][:60]!r}"
            raise InputError(f"{folder / IMAGES}: lacks {found}")
        targets, centres, is_test = zip(*table.values(), strict=True)
        return dataset_of_files(
            self.name,
            ImageFiles(folder / IMAGES, tuple(table), read_jpeg, self.image_size),
            targets,
            torch.tensor(is_test),
            num_classes=len(CLASSES),
            sites=torch.tensor(centres),
            augment=self.augment,
        )
