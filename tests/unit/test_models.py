"""The networks: shapes, sizes, seeds, and BatchNorm where it is asked for."""

import pytest
import torch
from torch import nn

from fedseca.models import MODELS

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 13)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_cnn_fits_every_image(shape, batch_norm):
    network = MODELS.make("cnn", batch_norm=batch_norm).build(shape, 10, seed=0)
    assert network(torch.randn(3, *shape)).shape == (3, 10)
    names = [name for name, _ in network.named_buffers()]
    assert any("running_mean" in name for name in names) == batch_norm


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 9, 11)], ids=str)
def test_the_cnn_is_convolutions_relu_and_torch_s_pooling(shape):
    """The same bits, forward and backward, as the blocks that it is described by."""
    network = MODELS.make("cnn").build(shape, 10, seed=0)
    assert isinstance(network, nn.Sequential)
    images = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    convolutions = [layer for layer in network if isinstance(layer, nn.Conv2d)]
    plain = nn.Sequential(
        *(layer for each in convolutions for layer in (each, nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))),
        *list(network)[3 * len(convolutions) :],
    )
    with torch.no_grad():
        assert torch.equal(network(images), plain(images))
    gradients = []
    for each in (network, plain):
        each.zero_grad()
        answer = each(images)
        answer.square().sum().backward()
        gradients.append([answer, *(parameter.grad for parameter in each.parameters())])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*gradients, strict=True))


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet18(stem):
    network = MODELS.make("resnet18", stem=stem).build((3, 32, 32), 10, seed=0)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    # He et al. 2016: the two stems differ by the kernel of the first convolution alone, 3·64·(7² − 3²).
    size = sum(p.numel() for p in network.parameters())
    assert size == 11_173_962 + (3 * 64 * (49 - 9) if stem == "imagenet" else 0)
    sides = {"cifar": 4, "imagenet": 1}
    features = torch.nn.Sequential(*list(network.children())[:-1])(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 512, sides[stem], sides[stem])


def test_resnet18_can_enlarge_the_images_first():
    plain, enlarging = (
        MODELS.make("resnet18", stem="imagenet", image_size=size).build((1, 32, 32), 10, seed=0).eval()
        for size in (None, 96)
    )
    assert list(enlarging.state_dict()) == list(plain.state_dict())
    images = torch.randn(2, 1, 32, 32)
    by_hand = torch.nn.functional.interpolate(images, scale_factor=3, mode="bilinear")
    torch.testing.assert_close(enlarging(images), plain(by_hand))
    assert not torch.allclose(enlarging(images), plain(images))


def test_the_paper_s_resnet18_has_its_size():
    """The paper times aggregation on 11.2 million parameters."""
    network = MODELS.make("resnet18", stem="imagenet").build((3, 224, 224), 10, seed=0)
    assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == 11.2
    assert "layer2.0.downsample.0.weight" in network.state_dict()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_seed_and_nothing_else_decides_the_weights(name):
    before = torch.random.get_rng_state()
    first, again, other = (MODELS.make(name).build((3, 32, 32), 10, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
