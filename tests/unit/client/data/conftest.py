"""Data to read: generated, and the samples beside the checkout."""

from pathlib import Path

import pytest

from paramfleet_shared.settings.config import read_environment

CHECKOUT = Path(__file__).parents[4]


@pytest.fixture
def data_dir() -> Path:
    """The folder with real data that is not part of the checkout."""
    named = read_environment().get("PARAMFLEET_DATA")
    folder = Path(named) if named else CHECKOUT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; set PARAMFLEET_DATA")
    return folder
