"""Images in files of the real layouts: whose they are, what a network gets of them, and what happens to broken ones."""

import hashlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning

import fedseca
from fedseca.data import DATASETS, PARTITIONS, Dataset, Samples, eurosat
from fedseca.data._images import flip_and_shift
from fedseca.data.samples import Lazy
from fedseca.errors import InputError, MissingDependency
from fedseca.federation import Federation
from tests.unit.data_files import make_cifar_batches, make_fashion
from tests.unit.image_files import (
    EUROSAT_CLASSES,
    TOWNS,
    fedisic_line,
    make_eurosat,
    make_eurosat_rgb,
    make_fedisic,
    write_geotiff,
    write_jpeg,
)
from tests.unit.test_data import assert_one_line

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
PARIS, ROME, MOSCOW, RABAT, MID_ATLANTIC = (48.86, 2.35), (41.90, 12.50), (55.75, 37.6), (34.02, -6.83), (45.0, -25.0)


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSECA_DATA", str(tmp_path / "data of this test"))


@pytest.fixture(scope="module")
def geotiffs(tmp_path_factory) -> Path:
    return make_eurosat(tmp_path_factory.mktemp("geotiffs") / "EuroSAT_MS").parent


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory) -> Path:
    return make_eurosat_rgb(tmp_path_factory.mktemp("jpegs") / "EuroSAT_RGB").parent


@pytest.fixture(scope="module")
def lesions(tmp_path_factory) -> Path:
    return make_fedisic(tmp_path_factory.mktemp("lesions"))


def load(name: str, folder: Path, **values) -> Dataset:
    return DATASETS.make(name, **values).load(folder)


def names_of(split: Samples) -> list[str]:
    assert isinstance(split.inputs, Lazy)
    return [split.inputs.source.names[index] for index in split.inputs.indices.tolist()]  # type: ignore[attr-defined]


def sites_of(data: Dataset) -> dict[str, int]:
    assert data.train.sites is not None
    return dict(zip(names_of(data.train), data.train.sites.tolist(), strict=True))


def few(folder: Path, **spots: tuple[float, float] | None) -> Path:
    """All ten folders, and an image for each `Forest_1=(latitude, longitude)`."""
    for name in EUROSAT_CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for image, spot in spots.items():
        write_geotiff(folder / image.partition("_")[0] / f"{image}.tif", spot)
    return folder


# What every one of them gives


@pytest.mark.parametrize(
    ("name", "files", "classes", "side"),
    [("eurosat", "geotiffs", 10, 224), ("eurosat", "jpegs", 10, 224), ("fedisic", "lesions", 8, 200)],
)
def test_images_come_as_a_network_takes_them(request, name, files, classes, side):
    data = load(name, request.getfixturevalue(files))
    assert data.num_classes == classes and data.shape == (3, side, side) and data.notes == ()
    facts = DATASETS[name].facts
    assert facts is not None and (data.num_classes, data.shape) == (facts.classes, facts.shape)
    for split in (data.train, data.test):
        batch = split.inputs.read(torch.tensor([1, 0]))
        assert batch.shape == (2, *data.shape) and batch.dtype == torch.float32 and batch.is_contiguous()
        assert torch.equal(batch[1], split.inputs.read(torch.tensor([0]))[0])
        pixels = batch * STD[:, None, None] + MEAN[:, None, None]
        assert float(pixels.min()) > -1e-5 and float(pixels.max()) < 1 + 1e-5 and float(pixels.std()) > 0.05
    assert not set(names_of(data.train)) & set(names_of(data.test))
    small = load(name, request.getfixturevalue(files), image_size=16)
    assert small.shape == (3, 16, 16) and small.fingerprint() != data.fingerprint()


def test_two_processes_read_what_one_reads(lesions):
    data = load("fedisic", lesions, image_size=16)
    order = list(torch.randperm(len(data.train)).split(7))
    by_processes = list(data.train.inputs.batches(order, workers=2))
    for alone, batch in zip(data.train.inputs.batches(order), by_processes, strict=True):
        assert torch.equal(alone, batch)


def test_the_fingerprint_tells_other_files(tmp_path, lesions):
    original = load("fedisic", lesions).fingerprint()
    copy = shutil.copytree(lesions, tmp_path / "copy")
    assert load("fedisic", copy).fingerprint() == original
    write_jpeg(copy / "ISIC_2019_Training_Input_preprocessed" / "ISIC_0024306.jpg", 33, 40)
    assert load("fedisic", copy).fingerprint() != original


def test_the_fingerprint_tells_files_of_the_same_size(tmp_path, geotiffs):
    """As all that are not compressed have."""
    original = load("eurosat", geotiffs).fingerprint()
    copy = shutil.copytree(geotiffs, tmp_path / "copy")
    (changed,) = copy.rglob("Forest_1.tif")
    size = changed.stat().st_size
    write_geotiff(changed, PARIS, np.full((13, 64, 64), 7))
    assert changed.stat().st_size == size and load("eurosat", copy).fingerprint() != original


# EuroSAT


def test_each_subregion_is_a_site(geotiffs):
    data = load("eurosat", geotiffs)
    assert {name: int(re.findall(r"_(\d)\.tif", name)[0]) - 1 for name in names_of(data.train)} == sites_of(data)
    assert len(data.train) == 56 and len(data.test) == 14
    assert sorted(sites_of(data).values()) == [site for site in range(7) for _ in range(8)]  # a fifth of each is not
    for name, label in zip(names_of(data.train), data.train.labels.tolist(), strict=True):
        assert name.startswith(EUROSAT_CLASSES[label] + "/")
    parts = PARTITIONS.make("site").split(data.train, 7, torch.Generator())
    assert [len(part) for part in parts] == [8] * 7


def test_a_fifth_of_each_site_and_class_is_the_test_set(tmp_path):
    few(tmp_path)
    for town, spot in (("Munich", (48.14, 11.58)), ("Madrid", (40.42, -3.70))):
        for name, count in (("Forest", 10), ("River", 5)):
            for number in range(count):
                write_geotiff(tmp_path / name / f"{name}_{town}{number}.tif", spot)
    data = load("eurosat", tmp_path, image_size=8)
    held = [name.rstrip("0123456789.tif") for name in names_of(data.test)]
    assert sorted(held) == sorted(
        f"{name}/{name}_{town}" for town in ("Munich", "Madrid") for name in ("Forest", "Forest", "River")
    )


COUNTRIES = {
    "AT": (48.2, 16.37), "BE": (50.85, 4.35), "BG": (42.7, 23.32), "BY": (53.9, 27.56), "CH": (46.95, 7.44),
    "CY": (34.9, 33.6), "CZ": (49.2, 16.6), "DE": (51.05, 13.74), "DK": (55.4, 10.38), "EE": (58.38, 26.72),
    "ES": (37.39, -5.98), "FI": (66.5, 25.73), "FR": (43.6, 1.44), "GB": (53.48, -2.24), "GR": (37.98, 23.73),
    "HR": (45.8, 15.98), "HU": (46.25, 20.15), "IE": (53.27, -9.05), "IS": (65.68, -18.1), "IT": (40.85, 14.27),
    "LT": (54.9, 23.9), "LU": (49.61, 6.13), "LV": (56.95, 24.1), "MD": (47.0, 28.85), "MK": (41.99, 21.43),
    "MT": (35.9, 14.45), "NL": (52.09, 5.12), "NO": (69.65, 18.96), "PL": (52.23, 21.01), "PT": (38.72, -9.14),
    "RO": (46.77, 23.6), "SE": (65.58, 22.15), "SI": (46.05, 14.5), "SK": (48.72, 21.26), "UA": (49.84, 24.03),
    "XK": (42.66, 21.16),
}  # fmt: skip
"""Spots in the 34 countries of EuroSAT and in two others, by hand from an atlas."""


def test_the_country_of_a_spot_and_its_subregion(tmp_path):
    few(tmp_path, **{f"Forest_{number}": spot for number, spot in enumerate(COUNTRIES.values(), start=1)})
    names = [f"Forest/Forest_{number}.tif" for number in range(1, len(COUNTRIES) + 1)]
    assert eurosat._countries(tmp_path, names) == list(COUNTRIES)
    assert set(COUNTRIES) <= eurosat.SITE_OF.keys()
    assert load("eurosat", tmp_path).notes == ()


def test_the_nearest_place_is_nearest_in_kilometres_not_in_degrees():
    """Checked against the cosine rule over all places; in degrees, other places would be nearest."""
    tree, _ = eurosat._places()
    rng = np.random.default_rng(0)
    spots = np.column_stack([rng.uniform(-10, 30, 30), rng.uniform(36, 70, 30)])
    places = np.degrees(np.column_stack([np.arctan2(tree.data[:, 1], tree.data[:, 0]), np.arcsin(tree.data[:, 2])]))
    in_degrees = 0
    for spot, chord, found in zip(spots, *tree.query(eurosat._on_sphere(spots)), strict=True):
        a, b = np.radians(spot[1]), np.radians(places[:, 1])
        cosine = np.sin(a) * np.sin(b) + np.cos(a) * np.cos(b) * np.cos(np.radians(spot[0] - places[:, 0]))
        assert int(cosine.argmax()) == found
        assert 2 * np.arcsin(chord / 2) == pytest.approx(float(np.arccos(cosine.max())), abs=1e-7)
        in_degrees += int(((places - spot) ** 2).sum(axis=1).argmin()) == found
    assert in_degrees < 30


def test_an_image_that_is_moved_to_another_country_changes_its_site(tmp_path):
    forests = {f"Forest_{number}": PARIS if number <= 5 else ROME for number in range(1, 11)}
    before = sites_of(load("eurosat", few(tmp_path, **forests)))
    assert before["Forest/Forest_2.tif"] == 6 and sorted(before.values()) == [4] * 4 + [6] * 4
    write_geotiff(tmp_path / "Forest" / "Forest_2.tif", ROME)
    after = sites_of(load("eurosat", tmp_path))
    assert after["Forest/Forest_2.tif"] == 4
    assert {name: after[name] for name in after if name != "Forest/Forest_2.tif" and name in before}.items() <= (
        before.items()
    )


def test_images_outside_the_seven_subregions_are_skipped_and_counted(tmp_path):
    forests = {f"Forest_{number}": PARIS for number in range(1, 11)}
    outside = {"River_1": MOSCOW, "River_2": MOSCOW, "SeaLake_1": MID_ATLANTIC, "Pasture_1": RABAT}
    data = load("eurosat", few(tmp_path, **forests, **outside))
    assert data.notes == (
        "eurosat: 4 of 14 images were skipped, of no subregion of Europe: 2 in RU, 1 more than 160 km from every "
        "place, 1 in MA",
    )
    assert len(data.train) == 8 and len(data.test) == 2 and set(data.train.labels.tolist()) == {1}
    federation = Federation(
        fedseca.Scenario(
            dataset={"name": "eurosat", "image_size": 8}, model="logistic", partition="site", clients=1, byzantine=0
        ),
        data_dir=tmp_path,
    )
    assert federation.notes == data.notes
    with pytest.raises(InputError) as problem:
        load("eurosat", few(tmp_path / "none", Forest_1=MOSCOW))
    assert_one_line(problem, "no image is of a country of EuroSAT; 1 of 1 images were skipped", "1 in RU")


def test_red_green_and_blue_are_bands_4_3_and_2_up_to_a_value_of_3000(tmp_path):
    bands = np.zeros((13, 64, 64)) + np.arange(13)[:, None, None] * 400  # band k, counted from 1, is 400·(k − 1)
    bands[:, 32:, :] = 20_000
    few(tmp_path)
    for number in (1, 2, 3, 4):
        write_geotiff(tmp_path / "Forest" / f"Forest_{number}.tif", PARIS, bands)
    image, *_ = load("eurosat", tmp_path, image_size=64).train.inputs.read()
    pixels = image * STD[:, None, None] + MEAN[:, None, None]
    dark = [1200 / 3000, 800 / 3000, 400 / 3000]
    assert torch.allclose(pixels[:, :31].mean(dim=(1, 2)), torch.tensor(dark), atol=0.002)
    assert torch.allclose(pixels[:, 33:], torch.ones(3, 31, 64), atol=1e-5)


def test_jpeg_files_have_no_sites_and_a_fifth_of_each_class_is_the_test_set(jpegs):
    data = load("eurosat", jpegs)
    assert data.train.sites is None
    assert (
        torch.bincount(data.train.labels).tolist() == [4] * 10 and torch.bincount(data.test.labels).tolist() == [1] * 10
    )
    with pytest.raises(InputError, match="site: this data set does not say where its samples came from"):
        PARTITIONS.make("site").split(data.train, 2, torch.Generator())


@pytest.mark.parametrize("where", [".", "eurosat", "EuroSAT_MS", "eurosat/EuroSAT_MS"])
def test_where_eurosat_may_lie(tmp_path, where):
    few(tmp_path / where, Forest_1=PARIS)
    assert DATASETS.make("eurosat").find(tmp_path) == tmp_path / where


def spoil_geotiff(path: Path, kind: str) -> None:
    if kind == "cut short":
        path.write_bytes(path.read_bytes()[:100])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("not an image")
    elif kind == "three bands":
        write_geotiff(path, PARIS, np.zeros((3, 64, 64)))
    elif kind == "another size":
        write_geotiff(path, PARIS, np.zeros((13, 32, 64)))
    elif kind == "another type":
        write_geotiff(path, PARIS, dtype="float32")
    elif kind == "no coordinates":
        with pytest.warns(NotGeoreferencedWarning):
            write_geotiff(path, None)
    elif kind == "no system":
        write_geotiff(path, PARIS, crs=None)
    elif kind == "nowhere":
        write_geotiff(path, PARIS, transform=Affine(10, 0, 1e12, 0, -10, 1e12))
    elif kind == "a list of other files":
        path.write_text('<VRTDataset rasterXSize="64" rasterYSize="64"></VRTDataset>')


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut short", "cannot be read: "),
        ("empty", "cannot be read: "),
        ("text", "cannot be read: "),
        ("three bands", "must have 13 bands of 64×64, uint16; found 3 of 64×64, uint16"),
        ("another size", "found 13 of 32×64, uint16"),
        ("another type", "found 13 of 64×64, float32"),
        ("no coordinates", "has no coordinates; take the original GeoTIFF files, or the JPEG files"),
        ("no system", "has no coordinates"),
        ("nowhere", "its coordinates are nowhere on Earth"),
        ("a list of other files", "cannot be read: "),
    ],
)
def test_a_broken_geotiff_is_one_line_that_names_it(tmp_path, kind, message, capfd):
    few(tmp_path, **{f"Forest_{number}": PARIS for number in range(1, 4)})
    spoil_geotiff(tmp_path / "Forest" / "Forest_2.tif", kind)
    with pytest.raises(InputError) as problem:
        load("eurosat", tmp_path)
    assert_one_line(problem, str(tmp_path / "Forest" / "Forest_2.tif"), message)
    assert capfd.readouterr() == ("", "")


def test_what_a_folder_of_eurosat_may_not_hold(tmp_path):
    faults = {
        "no images": (lambda folder: None, "must hold GeoTIFF files (.tif) or JPEG files (.jpg); found neither"),
        "both forms": (
            lambda folder: make_eurosat_rgb(few(folder, Forest_1=PARIS), 1),
            "found both: take .tif or .jpg away",
        ),
        "another class": (
            lambda folder: write_jpeg(folder / "Desert" / "Desert_1.jpg"),
            "the images in Desert are of no class; the classes are AnnualCrop, Forest",
        ),
        "an image of another class": (
            lambda folder: write_jpeg(folder / "Forest" / "River_1.jpg"),
            "its images must be named Forest_1.tif and so on; found River_1.jpg",
        ),
        "one image": (lambda folder: write_jpeg(folder / "Forest" / "Forest_1.jpg"), "no training images"),
    }
    for number, (spoil, message) in enumerate(faults.values()):
        folder = few(tmp_path / str(number))
        spoil(folder)
        with pytest.raises(InputError) as problem:
            load("eurosat", folder)
        assert_one_line(problem, str(folder), message)


def test_files_that_are_no_images_are_left_alone(tmp_path):
    few(tmp_path, **{f"Forest_{number}": PARIS for number in (1, 2, 3, 4)})
    for name in ("Forest/Forest_1.tif.aux.xml", "Forest/._Forest_1.tif", "Forest/Thumbs.db", "readme.txt"):
        (tmp_path / name).write_text("x")
    assert len(load("eurosat", tmp_path).train) == 3


def test_the_folder_of_another_data_set(tmp_path, lesions, jpegs):
    make_fashion(tmp_path)
    for name, folder in (("eurosat", tmp_path), ("eurosat", lesions), ("fedisic", tmp_path), ("fedisic", jpegs)):
        with pytest.raises(InputError) as problem:
            load(name, folder)
        assert_one_line(problem, f"{name} is not in {folder}: {DATASETS[name].how_to_get}")
    shutil.rmtree(few(tmp_path, Forest_1=PARIS) / "River")
    with pytest.raises(InputError) as problem:
        load("eurosat", tmp_path)
    assert_one_line(problem, f"eurosat in {tmp_path} lacks River;")


def test_the_docs_have_the_table_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\w+ Europe) \| (.+) \|$", text, flags=re.MULTILINE)
    told = {name: " ".join(sorted(re.findall(r"\(([A-Z]{2})\)", countries))) for _, name, countries in rows}
    assert told == eurosat.SUBREGIONS and [number for number, *_ in rows] == list("0123456")


@pytest.mark.parametrize("library", ["rasterio", "pyproj", "reverse_geocoder"])
def test_a_library_of_the_extra_that_is_not_installed(geotiffs, monkeypatch, library):
    eurosat._places.cache_clear()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else found(name))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency) as problem:
        load("eurosat", geotiffs)
    assert str(problem.value) == f"eurosat from GeoTIFF files needs {library}: pip install 'fedseca[geo]'"


@pytest.mark.parametrize(("name", "files"), [("eurosat", "jpegs"), ("fedisic", "lesions")])
def test_without_pillow(request, monkeypatch, name, files):
    folder = request.getfixturevalue(files)  # Pillow makes it
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match=rf"{name} needs Pillow: pip install 'fedseca\[simulation\]'"):
        load(name, folder)


# Images that turn out to be broken when they are read


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("files", ["geotiffs", "jpegs", "lesions"])
def test_a_broken_image_is_one_line_that_names_it_whoever_reads_it(request, tmp_path, files, workers, capfd):
    name = "fedisic" if files == "lesions" else "eurosat"
    folder = shutil.copytree(request.getfixturevalue(files), tmp_path / "copy")
    data = load(name, folder, image_size=8)
    broken = data.train.inputs.source.folder / names_of(data.train)[5]  # type: ignore[attr-defined]
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 3])
    order = list(torch.arange(len(data.train)).split(4))
    batches = data.train.inputs.batches(order, workers)
    assert len(next(batches)) == 4
    with pytest.raises(InputError) as problem:
        list(batches)
    assert_one_line(problem, f"{broken}: cannot be read: ")
    assert "previous exception" not in str(problem.value)
    broken.write_bytes(content)
    assert len(list(data.train.inputs.batches(order, workers))) == len(order)  # and its reader goes on afterwards
    assert capfd.readouterr().err == ""
    del data, batches  # now, or its processes would wait until the garbage of the exception is collected


def test_a_broken_first_image_is_not_told_as_a_fault_of_the_network(tmp_path, lesions):
    folder = shutil.copytree(lesions, tmp_path / "copy")
    broken = folder / "ISIC_2019_Training_Input_preprocessed" / "ISIC_0024306.jpg"
    broken.write_bytes(b"")
    scenario = fedseca.Scenario(dataset={"name": "fedisic", "image_size": 8}, model="logistic")
    with pytest.raises(InputError) as problem:
        Federation(scenario, data_dir=folder)
    assert str(problem.value).startswith(f"{broken}: cannot be read: ")


def test_what_only_calls_itself_a_jpeg(tmp_path, jpegs, monkeypatch):
    folder = shutil.copytree(jpegs / "EuroSAT_RGB", tmp_path / "copy")
    data = load("eurosat", folder)
    first = folder / names_of(data.train)[0]
    Image.new("RGB", (64, 64)).save(first, format="PNG")
    with pytest.raises(InputError) as problem:
        data.train.inputs.read(torch.tensor([0]))
    assert_one_line(problem, f"{first}: cannot be read: ")
    Image.new("L", (64, 64), 128).save(first, format="JPEG")  # grey is a colour
    assert data.train.inputs.read(torch.tensor([0])).shape == (1, 3, 224, 224)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)  # of which 4096 are more: only warned of by Pillow
    with pytest.raises(InputError) as problem:
        data.train.inputs.read(torch.tensor([0]))
    assert_one_line(problem, f"{first}: cannot be read: DecompressionBombWarning")


# FedISIC


def test_the_centres_are_the_sites_and_the_split_is_that_of_the_table(lesions):
    data = load("fedisic", lesions)
    assert len(data.train) == 24 and len(data.test) == 6
    assert data.train.sites is not None and data.train.sites.tolist() == [k % 6 for k in range(24)]
    assert data.train.labels.tolist() == [k % 8 for k in range(24)]
    assert names_of(data.train)[4] == "ISIC_0024310_downsampled.jpg"
    assert data.test.labels.tolist() == [k % 8 for k in range(24, 30)]
    assert len(PARTITIONS.make("site").split(data.train, 6, torch.Generator())) == 6


def test_of_a_wide_image_the_middle_square_is_kept(tmp_path):
    make_fedisic(tmp_path)
    pixels = np.zeros((32, 64, 3), dtype=np.uint8)
    pixels[:, 16:48] = 255
    path = tmp_path / "ISIC_2019_Training_Input_preprocessed" / "ISIC_0024306.jpg"
    for turned in (pixels, pixels.transpose(1, 0, 2)):
        Image.fromarray(turned).save(path, format="JPEG", quality=100, subsampling=0)
        (image,) = load("fedisic", tmp_path, image_size=32).train.inputs.read(torch.tensor([0]))
        assert torch.allclose(image * STD[:, None, None] + MEAN[:, None, None], torch.ones(3, 32, 32), atol=0.02)


LINE = fedisic_line("ISIC_0024306", 0, 0, "train")
BAD_TABLES = {
    "no target": (lambda text: text.replace(",target,", ",label,"), "lacks the column target; found image, MEL"),
    "no header": (lambda text: text.partition("\n")[2], "lacks the columns image, target, center, fold"),
    "nothing": (lambda text: "", "lacks the columns image, target, center, fold; found nothing"),
    "no rows": (lambda text: text.partition("\n")[0], "holds no images"),
    "unknown class": (lambda text: text.replace("0.0,0,0,train", "0.0,8,0,train", 1), "target must be a whole number"),
    "no number": (lambda text: text.replace("0.0,0,0,train", "0.0,0.0,0,train", 1), "from 0 to 7; found '0.0'"),
    "below 0": (lambda text: text.replace("0.0,0,0,train", "0.0,-1,0,train", 1), "from 0 to 7; found '-1'"),
    "other digits": (lambda text: text.replace("0.0,0,0,train", "0.0,٣,0,train", 1), "found '٣'"),
    "endless": (lambda text: text.replace("0.0,0,0,train", f"0.0,{'1' * 5000},0,train", 1), "found '111"),
    "a seventh centre": (lambda text: text.replace("0.0,0,0,train", "0.0,0,6,train", 1), "center must be a whole"),
    "a third fold": (lambda text: text.replace(",train,", ",val,", 1), "fold must be train or test; found 'val'"),
    "twice": (lambda text: text + LINE + "\n", "line 32: 'ISIC_0024306' stands in the table twice"),
    "too short": (lambda text: text + "ISIC_1,0.0\n", "line 32 must have 14 columns, as the first line; found fewer"),
    "no test images": (lambda text: text.replace("test", "train"), "holds no test images; found 30 images in all"),
    "not text": (lambda text: "\0" + text, "train_test_split"),
}


@pytest.mark.parametrize("fault", BAD_TABLES)
def test_what_the_table_may_not_be(tmp_path, fault):
    spoil, message = BAD_TABLES[fault]
    table = make_fedisic(tmp_path) / "train_test_split"
    table.write_text(spoil(table.read_text()))
    with pytest.raises(InputError) as problem:
        load("fedisic", tmp_path)
    assert_one_line(problem, str(tmp_path), message)


def test_images_of_the_table_that_are_not_there(tmp_path):
    table = make_fedisic(tmp_path) / "train_test_split"
    images = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    shutil.copy(images / "ISIC_0024306.jpg", tmp_path / "outside.jpg")
    (images / "ISIC_0024307.jpg").unlink()
    table.write_text(table.read_text() + fedisic_line("../outside", 0, 0, "train") + "\n")
    with pytest.raises(InputError) as problem:
        load("fedisic", tmp_path)
    assert_one_line(problem, f"{images}: lacks 2 of 31 images of train_test_split, the first is 'ISIC_0024307.jpg'")


def test_a_folder_without_the_table_or_the_images(tmp_path, lesions):
    shutil.copytree(lesions, tmp_path / "a")
    (tmp_path / "a" / "train_test_split").unlink()
    shutil.copytree(lesions, tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "ISIC_2019_Training_Input_preprocessed")
    for folder, lacking in (("a", "train_test_split"), ("b", "ISIC_2019_Training_Input_preprocessed")):
        with pytest.raises(InputError) as problem:
            load("fedisic", tmp_path / folder)
        assert_one_line(problem, f"fedisic in {tmp_path / folder} lacks {lacking}; run download_isic.py")


# CIFAR-10 with a given split, of another size


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    return make_cifar_batches(tmp_path_factory.mktemp("cifar"))  # 30 training images, 6 test images


def split_file(folder: Path, rows: dict[int, int]) -> str:
    path = folder / "split.csv"
    path.write_text("site,image\n" + "".join(f"{site},{image}\n" for image, site in rows.items()))
    return str(path)


def test_a_given_split_of_cifar10(tmp_path, cifar):
    whole = load("cifar10", cifar)
    owner = {image: (7 * image) % 5 for image in reversed(range(30))}
    data = load("cifar10", cifar, split=split_file(tmp_path, owner))
    assert data.train.sites is not None and data.train.sites.tolist() == [(7 * image) % 5 for image in range(30)]
    assert torch.equal(data.train.inputs.read(), whole.train.inputs.read()) and data.notes == ()
    assert data.fingerprint() != whole.fingerprint() and whole.train.sites is None
    parts = PARTITIONS.make("site").split(data.train, 5, torch.Generator())
    assert [[owner[image] for image in part.tolist()] for part in parts] == [[k] * 6 for k in range(5)]
    swapped = load("cifar10", cifar, split=split_file(tmp_path, owner | {3: owner[4], 4: owner[3]}))
    assert swapped.fingerprint() != data.fingerprint()  # a run is not resumed with another split in the same file


def test_images_that_a_split_does_not_deal_are_counted(tmp_path, cifar):
    path = split_file(tmp_path, {4: 0, 29: 1, 2: 0})
    data = load("cifar10", cifar, split=path)
    assert data.train.labels.tolist() == load("cifar10", cifar).train.labels[[2, 4, 29]].tolist()
    assert data.train.sites is not None and data.train.sites.tolist() == [0, 0, 1]
    assert data.notes == (f"cifar10: 27 of 30 training images are not in {path}",)


BAD_SPLITS = {
    "no such image": ("image,site\n30,0\n", "line 2: image must be a whole number from 0 to 29; found '30'"),
    "no site": ("image,client\n3,0\n", "lacks the column site; found image, client"),
    "a word": ("image,site\n3,berlin\n", "site must be a whole number from 0 to 29; found 'berlin'"),
    "twice": ("image,site\n3,0\n3,1\n", "line 3: image 3 stands in the table twice; it can be at one site only"),
    "empty": ("image,site\n", "deals no image to any site"),
    "bytes": ("\udcff", "cannot be read"),
}


@pytest.mark.parametrize("fault", BAD_SPLITS)
def test_what_a_given_split_may_not_be(tmp_path, cifar, fault):
    content, message = BAD_SPLITS[fault]
    (tmp_path / "split.csv").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as problem:
        load("cifar10", cifar, split=str(tmp_path / "split.csv"))
    assert_one_line(problem, str(tmp_path / "split.csv"), message)


def test_a_split_that_is_not_there(tmp_path, cifar):
    with pytest.raises(InputError) as problem:
        load("cifar10", cifar, split=str(tmp_path / "no.csv"))
    assert_one_line(problem, f"{tmp_path / 'no.csv'}: cannot be read: No such file or directory")


def test_cifar10_of_another_size(cifar):
    whole, large = load("cifar10", cifar), load("cifar10", cifar, image_size=64)
    assert large.shape == (3, 64, 64) and large.fingerprint() != whole.fingerprint()
    some = torch.tensor([3, 7])
    images, small = large.train.inputs.read(some), whole.train.inputs.read(some)
    assert images.shape == (2, 3, 64, 64)
    # Each new pixel lies between old ones: the corners are kept, and so is the mean.
    assert torch.allclose(images[:, :, 0, 0], small[:, :, 0, 0], atol=1e-5)
    assert torch.allclose(images.mean(dim=(2, 3)), small.mean(dim=(2, 3)), atol=1e-4)
    chosen = large.test.select(torch.tensor([5]))
    assert torch.equal(chosen.inputs.read(), large.test.inputs.read(torch.tensor([5])))


def test_runs_that_are_kept_of_cifar10_keep_their_names():
    assert DATASETS.make("cifar10").describe() == {"name": "cifar10"}
    assert DATASETS.make("cifar10", augment=True).describe() == {"name": "cifar10", "augment": True}


# Augmentation


@given(st.integers(0, 2**31), st.sampled_from([(8, 8), (16, 24), (17, 9)]))
def test_an_augmented_image_is_one_that_was_shifted_and_perhaps_flipped(seed, size):
    height, width = size
    images = torch.randn(3, 2, height, width, generator=torch.Generator().manual_seed(seed))
    made = flip_and_shift(images, torch.Generator().manual_seed(seed))
    again = flip_and_shift(images, torch.Generator().manual_seed(seed))
    assert torch.equal(made, again) and made.shape == images.shape
    for image, changed in zip(images.numpy(), made.numpy(), strict=True):
        down, right = height // 8, width // 8
        padded = np.pad(image, ((0, 0), (down, down), (right, right)), mode="edge")
        shifted = [
            padded[:, top : top + height, left : left + width]
            for top in range(2 * down + 1)
            for left in range(2 * right + 1)
        ]
        assert any(np.array_equal(changed, each) or np.array_equal(changed, each[:, :, ::-1]) for each in shifted)


def test_half_of_the_images_are_flipped_and_every_shift_occurs():
    picture = torch.arange(64.0).reshape(1, 1, 8, 8).repeat(4000, 1, 1, 1)
    made = flip_and_shift(picture, torch.Generator().manual_seed(0))
    flipped = made[:, 0, 4, 3] > made[:, 0, 4, 4]
    assert abs(float(flipped.float().mean()) - 0.5) < 0.03
    _, counts = torch.unique(made.flatten(1), dim=0, return_counts=True)
    assert len(counts) == 18 and int(counts.min()) > 150  # three rows, three columns, two sides


def federation(folder: Path, workers: int = 0, **values) -> Federation:
    scenario = fedseca.Scenario(
        dataset={"name": "fedisic", "image_size": 16, **values}, model="logistic", partition="site", clients=6
    )
    return Federation(scenario, data_dir=folder, workers=workers)


def digest(model: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.values())).hexdigest()


def test_augmented_training_gives_the_same_numbers_for_any_number_of_workers(lesions):
    alone = federation(lesions, augment=True)
    before = alone.arrays()
    first, second = (alone.train(1, before, round) for round in (0, 1))
    by_processes = federation(lesions, workers=2, augment=True)
    # Its second round without its first, as a run that goes on.
    assert digest(by_processes.train(1, before, 1)) == digest(second) != digest(first)
    plain = federation(lesions)
    assert digest(plain.train(1, before, 1)) not in (digest(first), digest(second))
    assert plain.evaluate(before) == alone.evaluate(before) == by_processes.evaluate(before)


def test_cifar10_is_augmented_in_training(cifar):
    trained = []
    for augment in (False, True):
        dataset = {"name": "cifar10", "augment": augment}
        made = Federation(fedseca.Scenario(dataset=dataset, model="logistic", clients=3), data_dir=cifar)
        trained.append((digest(made.train(0, made.arrays(), 0)), made.evaluate(made.arrays())))
    assert trained[0] != trained[1]


def test_a_run_on_sites_from_files(geotiffs):
    scenario = fedseca.Scenario(
        dataset={"name": "eurosat", "image_size": 16, "augment": True},
        model="logistic", partition="site", clients=7, byzantine_clients="3,4", rounds=2,
    )  # fmt: skip
    alone, by_processes = (fedseca.simulate(scenario, data_dir=geotiffs, workers=workers) for workers in (0, 2))
    assert alone.scores == by_processes.scores and len(alone.rounds) == 2
    assert len(TOWNS) == scenario.clients
