"""Small files of images in exactly the layouts of the real data sets, made here so that no test needs a download."""

from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import rasterio
from affine import Affine
from PIL import Image

EUROSAT_CLASSES = [
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
]
TOWNS = {
    "Munich": (48.14, 11.58),
    "Kyiv": (50.45, 30.52),
    "Uppsala": (59.86, 17.64),
    "Bucharest": (44.43, 26.10),
    "Florence": (43.77, 11.25),
    "Madrid": (40.42, -3.70),
    "Lyon": (45.76, 4.84),
}
"""One in each of the seven subregions, in their order: latitude and longitude."""


def write_geotiff(path: Path, spot: tuple[float, float] | None, bands=None, **changes) -> None:
    """A file as EuroSAT_MS has them: 13 bands of 64×64, 10 m a pixel, in the UTM zone of the spot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if bands is None:
        bands = np.random.default_rng(len(path.name)).integers(0, 4000, (13, 64, 64))
    profile: dict[str, Any] = {"dtype": "uint16"}
    if spot is not None:
        latitude, longitude = spot
        zone = f"EPSG:326{int((longitude + 180) // 6) + 1:02}"
        east, north = pyproj.Transformer.from_crs("EPSG:4326", zone, always_xy=True).transform(longitude, latitude)
        profile |= {"crs": zone, "transform": Affine(10, 0, east - 320, 0, -10, north + 320)}
    count, height, width = bands.shape
    profile |= {"count": count, "height": height, "width": width} | changes
    with rasterio.open(path, "w", driver="GTiff", **profile) as file:
        file.write(bands.astype(profile["dtype"]))


def make_eurosat(folder: Path, towns: dict[str, tuple[float, float]] = TOWNS) -> Path:
    """Of every class an image at each town."""
    for name in EUROSAT_CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, spot in enumerate(towns.values(), start=1):
            write_geotiff(folder / name / f"{name}_{number}.tif", spot)
    return folder


def write_jpeg(path: Path, height: int = 64, width: int = 64, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Coarse, so that JPEG keeps most of it.
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((width, height)).save(path, format="JPEG")


def make_eurosat_rgb(folder: Path, count: int = 5) -> Path:
    for label, name in enumerate(EUROSAT_CLASSES):
        for number in range(1, count + 1):
            write_jpeg(folder / name / f"{name}_{number}.jpg", seed=10 * label + number)
    return folder


FEDISIC_HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"


def fedisic_line(image: str, target: int, center: int, fold: str) -> str:
    """As FLamby writes it: one-hot in nine columns, then the class, the centre and both folds."""
    return ",".join([image, *("1.0" if k == target else "0.0" for k in range(9)), f"{target},{center},{fold}", ""]) + (
        f"{fold}_{center}"
    )


def make_fedisic(folder: Path) -> Path:
    """Of each of the six centres four training images and a test image, wider than high as most of the real ones."""
    lines = [FEDISIC_HEADER]
    for number in range(30):
        image = f"ISIC_00{24306 + number}" + "_downsampled" * (number % 6 == 4)
        lines.append(fedisic_line(image, number % 8, number % 6, "test" if number >= 24 else "train"))
        write_jpeg(folder / "ISIC_2019_Training_Input_preprocessed" / f"{image}.jpg", 32, 40 + number % 3, number)
    (folder / "train_test_split").write_text("\n".join(lines) + "\n")
    return folder
