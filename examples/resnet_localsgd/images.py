"""Images for the example: MNIST's idx files, CIFAR10 as JPEGs, or a folder of folders.

Shape legend: n = images, B = images of a batch, C = channels, H, W = height and width.
"""

import gzip
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image

__all__ = ["Folder", "Images", "Labelled", "batches", "read_cifar", "read_mnist"]

_FOLDER_SIZE = 224
"""Pixels of the square that is cut out of a folder's image."""


class Labelled(Protocol):
    """Images and their classes, by number."""

    channels: int
    num_classes: int

    def __len__(self) -> int: ...

    def take(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images float32 [B, C, H, W] and classes int64 [B]."""
        ...


class Images(NamedTuple):
    """Images in memory."""

    pixels: torch.Tensor
    """uint8 [n, C, H, W]."""
    labels: torch.Tensor
    """int64 [n]."""

    @property
    def channels(self) -> int:
        """Return C."""
        return int(self.pixels.shape[1])

    @property
    def num_classes(self) -> int:
        """Return how many classes there are."""
        return int(self.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images float32 [B, C, H, W] and classes int64 [B]."""
        return (self.pixels[numbers].float() - 128) / 64, self.labels[numbers]


class Folder:
    """Images of a folder with a folder for each class, read when they are needed.

    Args:
        path: ImageNet's ``train`` or ``val``, or what looks like it.
    """

    channels = 3

    def __init__(self, path: Path) -> None:
        names = sorted(each.name for each in path.iterdir() if each.is_dir())
        self.num_classes = len(names)
        self._files = [
            (file, number)
            for number, name in enumerate(names)
            for file in sorted((path / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self._files)

    def take(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images float32 [B, C, H, W] and classes int64 [B]."""
        chosen = [self._files[number] for number in numbers.tolist()]
        pixels = torch.stack([_square(file) for file, _ in chosen])
        return (pixels.float() - 128) / 64, torch.tensor([label for _, label in chosen])


def _square(file: Path) -> torch.Tensor:
    with Image.open(file) as image:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        resized = image.convert("RGB").resize((_FOLDER_SIZE, _FOLDER_SIZE), box=box)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def read_mnist(folder: Path, part: str) -> Images:
    """Return MNIST's images, [n, 1, 28, 28].

    Args:
        folder: Where ``mnist_*-ubyte.gz`` are.
        part: ``train`` or ``t10k``.
    """
    pixels = _read_idx(folder / f"mnist_{part}-images-idx3-ubyte.gz", header=16)
    labels = _read_idx(folder / f"mnist_{part}-labels-idx1-ubyte.gz", header=8)
    return Images(pixels.view(-1, 1, 28, 28), labels.long())


def _read_idx(path: Path, *, header: int) -> torch.Tensor:
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8, offset=header)


def read_cifar(folder: Path, part: str) -> Images:
    """Return CIFAR10's images, [n, 3, 32, 32].

    Args:
        folder: Where ``cifar10_jpeg_*.npz`` are.
        part: ``train10k`` or ``test2k``.
    """
    with np.load(folder / f"cifar10_jpeg_{part}.npz") as stored:
        data, offsets, labels = (stored[name] for name in ("jpeg", "offset", "label"))
    pixels = []
    for begin, end in itertools.pairwise(offsets):
        with Image.open(io.BytesIO(data[begin:end].tobytes())) as image:
            pixels.append(torch.from_numpy(np.array(image)))
    return Images(torch.stack(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels).long())


def batches(
    images: Labelled, *, size: int, seed: int, rank: int, num_workers: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one worker's batches without end; an epoch is shuffled alike by all and dealt out.

    Args:
        images: Of all workers.
        size: Images B of a worker's batch; what is left of an epoch is left out.
        seed: Of the order.
        rank: Of this worker.
        num_workers: Who share an epoch.
    """
    random = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(images), generator=random)
        whole = order[: len(order) // (size * num_workers) * size * num_workers]
        for numbers in whole.view(-1, num_workers, size)[:, rank]:
            yield images.take(numbers)
