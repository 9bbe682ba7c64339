"""What tests of training by days share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.unit.client.runner.online.streams import write_stream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with data of two days, two passes each."""
    return write_stream(tmp_path)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
