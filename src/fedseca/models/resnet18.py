"""ResNet18 (He et al. 2016), with the stem for ImageNet's images or the one for CIFAR's."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedseca.declare import param
from fedseca.models._resize import Resize
from fedseca.models.base import Model
from fedseca.parts import register


@register("resnet18")
@dataclass(frozen=True, kw_only=True)
class ResNet18(Model):
    """Eight residual blocks in four stages of 64 to 512 channels: 11.2 million parameters for ten classes.

    The arrays have the names that ImageNet weights are published under (`layer1.0.conv1.weight`).
    """

    only_images: ClassVar[bool] = True

    stem: str = param(
        "cifar", choices=("cifar", "imagenet"), help="3×3, for small images; or 7×7 with stride 2 and pooling"
    )

    image_size: int | None = param(
        None, ge=8, help="pixels that each side of an image is enlarged or reduced to first; none: as it is"
    )

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return _ResNet(shape[0], outputs, small=self.stem == "cifar", image_size=self.image_size)


class _Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.downsample(images))


class _ResNet(nn.Module):
    def __init__(self, channels: int, outputs: int, *, small: bool, image_size: int | None) -> None:
        super().__init__()
        self.resize = nn.Identity() if image_size is None else Resize(image_size)
        self.conv1 = _conv(channels, 64, 3, 1) if small else _conv(channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(_Block(64, 64, 1), _Block(64, 64, 1))
        self.layer2 = nn.Sequential(_Block(64, 128, 2), _Block(128, 128, 1))
        self.layer3 = nn.Sequential(_Block(128, 256, 2), _Block(256, 256, 1))
        self.layer4 = nn.Sequential(_Block(256, 512, 2), _Block(512, 512, 1))
        self.fc = nn.Linear(512, outputs)

    def forward(self, images: Tensor) -> Tensor:
        features = self.maxpool(torch.relu(self.bn1(self.conv1(self.resize(images)))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        return self.fc(features.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
