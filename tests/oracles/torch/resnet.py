"""A residual network of the usual shape: He et al.'s ResNet-18 with its widths to choose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["ResNet"]


class Residual(nn.Module):
    """Two 3×3 convolutions, and the input added to what they give."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """Two residual blocks a stage; (64, 128, 256, 512) is ResNet-18.

    `stem` is the first layer's (kernel, stride): (3, 1) for images of 32 × 32, (7, 2) followed by
    pooling for those of ImageNet's size.
    """

    def __init__(
        self,
        classes: int,
        widths: Sequence[int] = (64, 128, 256, 512),
        stem: tuple[int, int] = (3, 1),
    ) -> None:
        super().__init__()
        kernel, stride = stem
        first: list[nn.Module] = [
            nn.Conv2d(3, widths[0], kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        ]
        if stride > 1:
            first.append(nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*first)
        stages: list[nn.Module] = []
        before = widths[0]
        for i, width in enumerate(widths):
            stages += [Residual(before, width, 1 if i == 0 else 2), Residual(width, width, 1)]
            before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))
