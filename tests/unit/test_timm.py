"""timm's networks: weights from files that fit and that do not, what is frozen, and torchvision that does not fit."""

import sys

import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image

from fedseca.data._images import Resized
from fedseca.data.samples import InMemory, Lazy, Normalisation
from fedseca.errors import InputError, MissingDependency
from fedseca.experiments.machine import Machine
from fedseca.experiments.runner import check
from fedseca.experiments.store import Store
from fedseca.federation import Federation, Scenario, simulate
from fedseca.federation.features import features
from fedseca.models import MODELS
from fedseca.models._library import timm_library
from fedseca.models._weights import PACKAGE
from tests.unit.data_files import make_cifar_batches

TINY = "test_resnet"
IMAGES = (3, 32, 32)


def network(architecture=TINY, classes=1000, seed=5, shape=IMAGES):
    return MODELS.make("timm", architecture=architecture).build(shape, classes, seed=seed)


def with_weights(path, architecture=TINY, outputs=10, seed=0, shape=IMAGES, **values):
    model = MODELS.make("timm", architecture=architecture, weights=str(path), **values)
    return model.build(shape, outputs, seed=seed)


def normalisation_of(model):
    found = model.normalisation()
    assert found is not None
    return found


def saved(path, tensors):
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    return path


@pytest.fixture
def weights(tmp_path):
    return saved(tmp_path / "weights.safetensors", network().state_dict())


# --- shapes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (5, 64, 48)], ids=str)
@pytest.mark.parametrize("architecture", ["test_vit", "test_convnext", "test_resnet", "test_efficientnet"])
def test_every_image_fits(architecture, shape):
    made = network(architecture, classes=7, shape=shape)
    assert made(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("architecture", ["deit_small_patch16_224", "convnext_nano"])
def test_the_paper_s_networks(architecture):
    """22.1 and 15.6 million parameters with ImageNet's classes (Touvron et al. 2021; timm)."""
    size = sum(p.numel() for p in network(architecture, shape=(3, 64, 64)).parameters())
    assert round(size / 1e6, 1) == {"deit_small_patch16_224": 22.1, "convnext_nano": 15.6}[architecture]


def test_images_are_enlarged_inside_of_the_network():
    plain, enlarging = (
        MODELS.make("timm", architecture=TINY, image_size=size).build(IMAGES, 10, seed=0).eval() for size in (None, 64)
    )
    assert list(plain.state_dict()) == list(enlarging.state_dict())
    images = torch.randn(2, *IMAGES)
    by_hand = torch.nn.functional.interpolate(images, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(enlarging(images), plain(by_hand))
    assert not torch.allclose(enlarging(images), plain(images))


@pytest.mark.parametrize(
    "name, near", [("convnext_nan", "convnext_nano"), ("convnext_nano.d1h_in2k", "convnext_nano.d1h_in1k")]
)
def test_an_unknown_architecture_names_the_nearest(name, near):
    with pytest.raises(InputError, match=rf"timm has no architecture '{name}'; did you mean '{near}'\? \("):
        network(name)


# --- weights that fit --------------------------------------------------------------------------------------------


def test_all_but_the_classifier_is_taken(weights, caplog):
    found, other_seed = (with_weights(weights, seed=seed).state_dict() for seed in (0, 1))
    for name, value in network().state_dict().items():
        if name.startswith("fc."):
            assert len(found[name]) == 10 and len(value) == 1000
        else:
            assert torch.equal(found[name], value), name
    assert not torch.equal(found["fc.weight"], other_seed["fc.weight"])
    assert "weights.safetensors: its classifier is left out: it has 1000 classes, the data 10" in caplog.text


def test_a_classifier_of_as_many_classes_is_taken(tmp_path, caplog):
    trained = network(classes=10)
    found = with_weights(saved(tmp_path / "w.safetensors", trained.state_dict()))
    assert all(torch.equal(found.state_dict()[name], value) for name, value in trained.state_dict().items())
    assert not caplog.text


def test_a_file_without_a_classifier_fits(tmp_path):
    kept = {name: value for name, value in network().state_dict().items() if not name.startswith("fc.")}
    found = with_weights(saved(tmp_path / "w.safetensors", kept)).state_dict()
    assert all(torch.equal(found[name], value) for name, value in kept.items()) and len(found["fc.bias"]) == 10


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_is_read(tmp_path, wrapper, zipped):
    tensors = network().state_dict()
    content = tensors if wrapper is None else {wrapper: tensors, "epoch": 3}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
    assert torch.equal(with_weights(tmp_path / "w.pth").state_dict()["conv1.0.weight"], tensors["conv1.0.weight"])


def test_channels_and_sizes_are_adapted(tmp_path):
    path = saved(tmp_path / "w.safetensors", network("test_vit").state_dict())
    found = with_weights(path, "test_vit", shape=(1, 28, 28), image_size=64)
    assert found(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def efficientnet_pytorch(tensors):
    """The names of that library are others; what they end with and their order are the same."""
    names = ["_conv_stem.weight", *(f"_blocks.{k}.{name.rpartition('.')[2]}" for k, name in enumerate(tensors))][:-2]
    names = [names[0], *names[2:], "_fc.weight", "_fc.bias"]
    return dict(zip(names, tensors.values(), strict=True))


def test_the_names_of_efficientnet_pytorch_are_mapped_in_order(tmp_path):
    tensors = network("test_efficientnet").state_dict()
    torch.save(efficientnet_pytorch(tensors), tmp_path / "w.pth")
    found = with_weights(tmp_path / "w.pth", "test_efficientnet").state_dict()
    assert all(torch.equal(found[name], value) for name, value in tensors.items() if not name.startswith("classifier"))
    # Weight and bias of a normalisation have one shape: their names must agree, too.
    places = list(tensors)
    first, second = places.index("bn1.weight"), places.index("bn1.bias")
    places[first], places[second] = places[second], places[first]
    torch.save(efficientnet_pytorch({name: tensors[name] for name in places}), tmp_path / "swapped.pth")
    with pytest.raises(InputError, match=r"swapped\.pth: does not fit test_efficientnet: it has the layers of another"):
        with_weights(tmp_path / "swapped.pth", "test_efficientnet")


@pytest.mark.parametrize("picture, truth", [("china.jpg", 698), ("flower.jpg", 985)])
def test_the_weights_of_the_package_know_imagenet(picture, truth):
    """A palace and a daisy, on photographs that come with scikit-learn."""
    model = MODELS.make("timm", architecture="tf_efficientnet_lite0", weights=PACKAGE, image_size=224)
    pixels = torch.tensor(load_sample_image(picture)).permute(2, 0, 1).float()
    side = min(pixels.shape[1:])
    middle = (pixels.shape[2] - side) // 2
    mean, std = normalisation_of(model)
    image = ((pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1))[None, :, :side, middle : middle + side]
    built = model.build(tuple(image.shape[1:]), 1000, seed=0).eval()
    with torch.inference_mode():
        assert int(built(image).argmax()) == truth


# --- weights that do not fit -------------------------------------------------------------------------------------


def without(name):
    return lambda tensors: tensors.pop(name)


UNFIT = {
    "a single number": (lambda tensors: tensors.update({"fc.weight": torch.tensor(1.0)}), "(Missing|Unexpected) key"),
    "a layer is missing": (without("conv1.0.weight"), "Missing key"),
    "a layer too many": (lambda tensors: tensors.update(more=torch.zeros(1)), "Unexpected key"),
    "another shape": (lambda tensors: tensors.update({"conv1.0.weight": torch.zeros(2, 3, 3, 3)}), "size mismatch"),
}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("outputs", [10, 1000])
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path, case, outputs):
    change, reason = UNFIT[case]
    tensors = network().state_dict()
    change(tensors)
    path = saved(tmp_path / "w.safetensors", tensors)
    with pytest.raises(InputError, match=rf"^.*w\.safetensors: does not fit test_resnet: {reason}.*$") as raised:
        with_weights(path, outputs=outputs)
    assert "\n" not in str(raised.value)


def test_the_weights_of_another_network_are_refused(weights):
    for other in ("test_vit", "test_convnext", "test_efficientnet"):
        with pytest.raises(InputError, match=rf"does not fit {other}: "):
            with_weights(weights, other)


class Pickled:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


NO_WEIGHTS = {
    "text": lambda path: path.write_text("these are no weights"),
    "nothing": lambda path: path.write_bytes(b""),
    "half a file": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "code": lambda path: torch.save({"fc.weight": Pickled(path.with_name("ran"))}, path),
    "code in the old form": lambda path: torch.save(
        {"fc.weight": Pickled(path.with_name("ran"))}, path, _use_new_zipfile_serialization=False
    ),
    "a list": lambda path: torch.save([torch.zeros(1)], path),
    "no tensors": lambda path: torch.save({}, path),
    "words": lambda path: torch.save({"fc.weight": "words"}, path),
    "sparse": lambda path: torch.save({"fc.weight": torch.eye(3).to_sparse()}, path),
}


@pytest.mark.parametrize("case", NO_WEIGHTS)
def test_what_holds_no_weights_is_refused_in_one_line_and_nothing_is_run(weights, case):
    NO_WEIGHTS[case](weights)
    with pytest.raises(InputError, match=r"^.*weights\.safetensors: holds no weights: [^\n]+$"):
        with_weights(weights)
    assert not weights.with_name("ran").exists()


def test_weights_that_are_not_finite_are_refused(weights):
    saved(weights, network().state_dict() | {"conv1.0.weight": torch.full((16, 3, 3, 3), torch.nan)})
    with pytest.raises(InputError, match=r"weights must be finite; conv1\.0\.weight are not"):
        with_weights(weights)


def test_a_path_without_a_file(tmp_path):
    with pytest.raises(InputError, match=r"weights .*nowhere: no such file; a path, imagenet or efficientnet-lite0"):
        with_weights(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"weights .*: not a file; "):
        with_weights(tmp_path)


def test_the_package_is_what_it_was(tmp_path, monkeypatch):
    copy = tmp_path / PACKAGE.replace("-", "_")
    (copy / "models").mkdir(parents=True)
    (copy / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, copy.name, raising=False)
    with pytest.raises(InputError, match=r"57934424\.pth: cannot be read: .*; install efficientnet-lite0"):
        with_weights(PACKAGE)
    (copy / "models" / "efficientnet-lite0-57934424.pth").write_bytes(b"other weights")
    with pytest.raises(InputError, match=r"is not what it was: its SHA-256 is \w{64}, expected 57934424"):
        with_weights(PACKAGE)


# --- the weights are part of a run -------------------------------------------------------------------------------


def tiny(weights, **changes):
    model = {"name": "timm", "architecture": TINY, "weights": str(weights)}
    return Scenario(**{"model": model, "rounds": 2, "train_images": 60, "test_images": 20, **changes})


def test_a_run_is_not_resumed_with_other_weights(tmp_path, weights):
    simulate(tiny(weights), folder=tmp_path / "run")
    simulate(tiny(weights), folder=tmp_path / "run", resume=True)
    saved(weights, network(seed=6).state_dict())
    with pytest.raises(InputError, match=r"data is '\w{16}, weights \w{16}' there and '\w{16}, weights \w{16}' here"):
        simulate(tiny(weights), folder=tmp_path / "run", resume=True)


def test_a_grid_does_not_go_on_with_other_weights(tmp_path, weights):
    cell, store = tiny(weights), Store(tmp_path / "grid")
    store.plan([cell])
    simulate(cell, folder=store.folder(cell))
    check([cell], store, Machine())
    saved(weights, network(seed=6).state_dict())
    with pytest.raises(InputError, match="holds runs with other weights; choose a new folder"):
        check([cell], store, Machine())


def test_bytes_are_normalised_as_the_weights_were_learnt(weights):
    inputs = torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4)
    mean, std = normalisation_of(MODELS.make("timm", architecture="deit_small_patch16_224", weights=str(weights)))
    torch.testing.assert_close(mean, torch.tensor([123.675, 116.28, 103.53]))  # of ImageNet, as torchvision says them
    torch.testing.assert_close(std, torch.tensor([58.395, 57.12, 57.375]))
    normalisation = Normalisation(mean, std)
    as_it_was = Normalisation(torch.zeros(3), torch.ones(3))
    expected = (inputs[0, 1].float() - mean[1]) / std[1]
    in_memory = InMemory(inputs, as_it_was)
    forms = [in_memory, Lazy(inputs, torch.tensor([0]), (3, 4, 4), b"", as_it_was), Resized(in_memory, 4)]
    for form in forms:
        normalised = form.normalised(normalisation)
        torch.testing.assert_close(normalised.read()[0, 1], expected)
        assert torch.equal(form.read()[0, 1], inputs[0, 1].float()), "the original stays as it was"
    grey = InMemory(inputs[:, :1], Normalisation(torch.zeros(1), torch.ones(1)))
    ready = Lazy(inputs.float(), torch.tensor([0]), (3, 4, 4), b"")
    for untouched in (grey, InMemory(inputs.float()), ready):
        assert untouched.normalised(normalisation) is untouched
    assert MODELS.make("timm", architecture=TINY).normalisation() is None


# --- what is frozen ----------------------------------------------------------------------------------------------

FROZEN = {"classifier": TINY, "last": "test_efficientnet"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSECA_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "features"


def frozen(trained, **changes):
    model = {"name": "timm", "architecture": FROZEN[trained], "trained": trained, "image_size": 32}
    return Scenario(**{"model": model, "rounds": 1, "train_images": 60, "test_images": 20, **changes})


@pytest.mark.parametrize("trained", FROZEN)
def test_what_is_frozen_and_what_is_trained_are_the_whole_network(trained):
    model = frozen(trained).model
    images = torch.randn(4, 1, 8, 8)
    whole = model.build((1, 8, 8), 10, seed=0).eval()
    expected = whole(images)
    before, after = model.split(whole)
    torch.testing.assert_close(after.eval()(before(images)), expected)
    assert not any(p.requires_grad for p in before.parameters()) and all(p.requires_grad for p in after.parameters())
    named = {name.partition(".")[0] for name, _ in after.named_parameters()}
    assert named == {"classifier": {"classifier"}, "last": {"conv_head", "bn2", "classifier"}}[trained]


@pytest.mark.parametrize("trained", FROZEN)
def test_clients_train_on_features_that_were_computed_once(trained, cache, monkeypatch, caplog):
    first = simulate(frozen(trained))
    assert len(list(cache.glob("*.safetensors"))) == 2 and caplog.text.count("computing once what the frozen") == 2
    model, data = frozen(trained).model, frozen(trained).dataset.load()
    before, _ = model.split(model.build(data.shape, 10, frozen(trained).generator("model").initial_seed()))
    federation = Federation(frozen(trained))
    order = torch.randperm(len(data.test), generator=frozen(trained).generator("test images"))[:20].sort().values
    torch.testing.assert_close(federation.test_set.inputs.read(), before(data.test.inputs.read(order)))
    monkeypatch.setattr("fedseca.federation.features._computed", None)  # whatever asked for them would fail
    again = simulate(frozen(trained))
    assert first.scores == again.scores and first.model is not None and again.model is not None
    assert all(torch.equal(first.model[name], again.model[name]) for name in first.model)


BROKEN = {
    "cut off": lambda content: content[: len(content) // 2],
    "a flipped bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_damaged_file_of_features_is_made_again(cache, damage):
    Federation(frozen("classifier"))
    kept = {path: path.read_bytes() for path in cache.glob("*.safetensors")}
    for path, content in kept.items():
        path.write_bytes(BROKEN[damage](content))
    Federation(frozen("classifier"))
    assert {path: path.read_bytes() for path in cache.glob("*.safetensors")} == kept


def test_other_weights_sizes_and_samples_have_other_features(cache):
    changes = [{}, {"train_images": 61}, {"seed": 1}]
    counts = []
    for change in changes:
        Federation(frozen("classifier", **change))
        counts.append(len(list(cache.glob("*.safetensors"))))
    # Twice both splits; the test set is the same where only the training set is larger.
    assert counts == [2, 3, 5]


def test_other_sizes_and_normalisations_have_other_features(cache):
    model = frozen("classifier").model
    before, _ = model.split(model.build(IMAGES, 10, seed=0))
    images = InMemory(torch.arange(2 * 3 * 32 * 32).to(torch.uint8).view(2, *IMAGES))
    some, others = (Normalisation(torch.zeros(3), torch.full((3,), std)) for std in (1.0, 2.0))
    found = [
        features(before, inputs, torch.device("cpu")).values
        for inputs in (
            images.normalised(some),
            images.normalised(others),
            Resized(images.normalised(some), 48),
            Resized(images.normalised(others), 48),
        )
    ]
    assert len(list(cache.glob("*.safetensors"))) == 4
    assert not any(torch.equal(a, b) for k, a in enumerate(found) for b in found[:k])


def test_features_that_are_kept_and_images_that_change_do_not_go_together(tmp_path):
    folder = make_cifar_batches(tmp_path)
    changes = {"dataset": {"name": "cifar10", "augment": True}, "train_images": 20, "test_images": 5}
    with pytest.raises(InputError, match=r"^cifar10 augments its images, and what frozen .*trained=all, or"):
        Federation(frozen("classifier", **changes), data_dir=folder)


def test_features_that_cannot_be_kept_are_one_line(tmp_path):
    (tmp_path / "data").write_text("a file where a folder should be")
    with pytest.raises(InputError, match=r"data.*: what the frozen layers give cannot be kept: .*; set FEDSECA_DATA"):
        Federation(frozen("classifier"))


@pytest.mark.parametrize("architecture", ["test_vit", "test_resnet", "test_convnext"])
def test_a_network_that_cannot_be_cut_there(architecture):
    model = {"name": "timm", "architecture": architecture, "trained": "last"}
    with pytest.raises(InputError, match=f"{architecture} cannot be cut before a last convolution; trained must be"):
        Federation(Scenario(model=model))


# --- torchvision -------------------------------------------------------------------------------------------------


@pytest.fixture
def import_anew(tmp_path, monkeypatch):
    """timm and torchvision as packages that hold a given line."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("fedseca.models._library._declared", [])
    monkeypatch.syspath_prepend(tmp_path)

    def make(timm, torchvision="", missing=()):
        (tmp_path / "timm.py").write_text(timm)
        (tmp_path / "torchvision.py").write_text(torchvision)
        for name in missing:
            monkeypatch.setitem(sys.modules, name, None)
        return timm_library.__wrapped__()

    return make


def test_operators_that_could_not_be_loaded_are_declared(import_anew, caplog):
    """As in torchvision: it describes operators that its compiled part would have declared."""
    undeclared = "import torch\n" + "".join(
        f"@torch.library.register_fake('torchvision::{name}')\ndef {name}(): ...\n" for name in ("first", "second")
    )
    found = import_anew("import torchvision\nanswer = 42", undeclared)
    assert found.answer == 42
    assert "torchvision does not fit this torch; timm does without its operators. To mend it: pip" in caplog.text


def test_nothing_is_said_where_torchvision_fits(import_anew, caplog):
    import_anew("import torchvision")
    assert not caplog.records


@pytest.mark.parametrize("missing", ["timm", "torchvision"])
def test_what_is_not_installed_is_one_line(import_anew, missing):
    with pytest.raises(MissingDependency, match=rf"the model timm needs {missing}: pip install 'fedseca\[vision\]'"):
        import_anew("import torchvision", missing=[missing])


def test_another_fault_of_torchvision_is_one_line(import_anew):
    with pytest.raises(MissingDependency, match=r"does not fit this torch \(undefined symbol\); pip install torchv"):
        import_anew("import torchvision", "raise RuntimeError('undefined symbol\\nmore lines')")
