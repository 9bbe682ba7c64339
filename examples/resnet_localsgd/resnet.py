"""Residual networks for images: a small one for 28x28 and 32x32, and ResNet50.

He et al., "Deep Residual Learning for Image Recognition", 2015. ResNet50 has the stride in
the 3x3 convolution, as torchvision's has.
"""

import torch
from typing_extensions import override

__all__ = ["ResNet50", "SmallResNet"]


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        torch.nn.BatchNorm2d(outputs),
    )


class _Block(torch.nn.Module):
    """Convolutions beside a shortcut."""

    def __init__(
        self, path: list[torch.nn.Module], inputs: int, outputs: int, stride: int
    ) -> None:
        super().__init__()
        self.path = torch.nn.Sequential(*path)
        is_same = stride == 1 and inputs == outputs
        self.shortcut = (
            torch.nn.Identity() if is_same else _convolution(inputs, outputs, 1, stride)
        )

    @override
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self.path(images) + self.shortcut(images)
        return summed.relu_()


def _basic(inputs: int, outputs: int, stride: int) -> _Block:
    path = [
        _convolution(inputs, outputs, 3, stride),
        torch.nn.ReLU(inplace=True),
        _convolution(outputs, outputs, 3),
    ]
    return _Block(path, inputs, outputs, stride)


def _bottleneck(inputs: int, outputs: int, stride: int) -> _Block:
    path = [
        _convolution(inputs, outputs // 4, 1),
        torch.nn.ReLU(inplace=True),
        _convolution(outputs // 4, outputs // 4, 3, stride),
        torch.nn.ReLU(inplace=True),
        _convolution(outputs // 4, outputs, 1),
    ]
    return _Block(path, inputs, outputs, stride)


class SmallResNet(torch.nn.Sequential):
    """A basic block a stage; each halves the image, from the second on.

    Args:
        channels: Of the images.
        classes: To tell apart.
        widths: Channels of the stages.
    """

    def __init__(
        self, channels: int, classes: int = 10, *, widths: tuple[int, ...] = (16, 32, 64)
    ) -> None:
        stem = torch.nn.Sequential(
            _convolution(channels, widths[0], 3, 2), torch.nn.ReLU(inplace=True)
        )
        inputs = (widths[0], *widths)
        stages = [
            _basic(before, after, 1 if number == 0 else 2)
            for number, (before, after) in enumerate(zip(inputs, widths, strict=False))
        ]
        super().__init__(
            stem,
            *stages,
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(widths[-1], classes),
        )


class ResNet50(torch.nn.Sequential):
    """For images of about 224x224."""

    def __init__(self, classes: int = 1000) -> None:
        stages: list[torch.nn.Module] = []
        inputs = 64
        for number, (outputs, count) in enumerate(((256, 3), (512, 4), (1024, 6), (2048, 3))):
            for block in range(count):
                stride = 2 if block == 0 and number else 1
                stages.append(_bottleneck(inputs, outputs, stride))
                inputs = outputs
        super().__init__(
            _convolution(3, 64, 7, 2),
            torch.nn.ReLU(inplace=True),
            torch.nn.MaxPool2d(3, 2, padding=1),
            *stages,
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(inputs, classes),
        )
