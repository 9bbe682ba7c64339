"""Images as the example of LocalSGD reads and deals them out."""

import gzip
import importlib.util
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

FILE = Path(__file__).parents[3] / "examples" / "resnet_localsgd" / "images.py"


@pytest.fixture(scope="module")
def images() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resnet_localsgd_images", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def numbered(images: ModuleType, count: int) -> Any:
    return images.Images(torch.zeros(count, 1, 2, 2, dtype=torch.uint8), torch.arange(count))


def test_an_epoch_is_dealt_out_and_the_next_is_shuffled_anew(images: ModuleType) -> None:
    dealt = [
        images.batches(numbered(images, 25), size=4, seed=3, rank=rank, num_workers=3)
        for rank in range(3)
    ]

    epochs = [
        torch.cat([labels for worker in dealt for _, labels in islice(worker, 2)])
        for _ in range(2)
    ]

    assert all(len(set(epoch.tolist())) == 24 for epoch in epochs)
    assert not torch.equal(*epochs)


def test_idx_files_are_read(images: ModuleType, tmp_path: Path) -> None:
    pixels = np.arange(2 * 784, dtype=np.uint8)
    for name, header, values in (
        ("images-idx3", 16, pixels),
        ("labels-idx1", 8, np.array([7, 1], dtype=np.uint8)),
    ):
        with gzip.open(tmp_path / f"mnist_t10k-{name}-ubyte.gz", "wb") as file:
            file.write(bytes(header) + values.tobytes())

    read = images.read_mnist(tmp_path, "t10k")
    batch, labels = read.take(torch.tensor([1]))

    assert labels.tolist() == [1]
    assert batch.shape == (1, 1, 28, 28)
    assert batch[0, 0, 0, 0] == (784 % 256 - 128) / 64


def test_a_folder_has_a_class_for_each_of_its_folders(
    images: ModuleType, tmp_path: Path
) -> None:
    for name, shade in (("cat", 0), ("dog", 128)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 30), (shade,) * 3).save(tmp_path / name / "one.png")

    folder = images.Folder(tmp_path)
    batch, labels = folder.take(torch.tensor([1, 0]))

    assert (folder.num_classes, labels.tolist()) == (2, [1, 0])
    assert batch.shape == (2, 3, 224, 224)
    assert batch[:, 0, 0, 0].tolist() == [0, -2]
