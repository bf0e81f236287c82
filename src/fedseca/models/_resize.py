"""Images of another size, made inside of the network."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import interpolate


class Resize(nn.Module):
    """Enlarges or reduces a batch of images to squares. Batch by batch: 50,000 images of 224×224 would be 30 GB."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        return interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)

    def extra_repr(self) -> str:
        return str(self.size)
