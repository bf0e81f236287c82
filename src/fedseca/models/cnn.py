"""A small convolutional network, for images from 8×8 on."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from fedseca.declare import param
from fedseca.models.base import Model
from fedseca.parts import register


@register("cnn")
@dataclass(frozen=True, kw_only=True)
class CNN(Model):
    """Blocks of 3×3 convolution, pooling and ReLU, each twice as wide as the one before, then a hidden layer.

    Two blocks for 8×8 images (14 thousand parameters at the default width), three for 28×28 and 32×32.
    """

    only_images: ClassVar[bool] = True

    width: int = param(16, ge=1, help="channels of the first block")
    hidden: int = param(64, ge=1, help="units of the hidden layer")
    batch_norm: bool = param(False, help="normalise after each convolution")

    def layers(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        blocks: list[nn.Module] = []
        channels, height, width = shape
        wider = self.width
        for _ in range(2 if min(height, width) < 16 else 3):
            blocks.append(nn.Conv2d(channels, wider, kernel_size=3, padding=1, bias=not self.batch_norm))
            if self.batch_norm:
                blocks.append(nn.BatchNorm2d(wider))
            # The larger of two, then ReLU, is ReLU, then the larger: the same numbers for a quarter of the work.
            blocks += [_Halved(), nn.ReLU()]
            channels, wider = wider, 2 * wider
            height, width = -(-height // 2), -(-width // 2)
        features = channels * height * width
        head = [nn.Flatten(), nn.Linear(features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs)]
        return nn.Sequential(*blocks, *head)


class _Halved(nn.Module):
    """The largest of every 2×2 pixels: torch's `MaxPool2d`, bit for bit, in the forms that a CPU is quick with."""

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return max_pool2d(images, 2, ceil_mode=True)
        if torch.is_grad_enabled() or any(side % 2 for side in images.shape[2:]):
            last = images.contiguous(memory_format=torch.channels_last)
            return max_pool2d(last, 2, ceil_mode=True).contiguous()
        rows = torch.maximum(images[..., ::2, :], images[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])
