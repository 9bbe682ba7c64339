"""Files on S3, served by a process of its own over HTTP."""

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.s3_server import serving_s3

from paramfleet.data.parsing.slots import Slot
from paramfleet.data.queue_dataset import QueueDataset
from paramfleet.data.reading.files import CannotReadFileError
from paramfleet.runner.batches import list_files
from paramfleet.runner.config.configuration import read_config
from paramfleet.runner.config.settings import HyperParameters

pytest.importorskip("moto.server", reason="no S3 server is installed: dependency group test")
s3fs = pytest.importorskip("s3fs", reason="no client of S3 is installed: dependency group test")

pytestmark = [pytest.mark.slow]

LOGIN = "anna,secret"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start an S3 server; return its URL."""
    with serving_s3() as url:
        yield url


@pytest.fixture
def bucket(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fill a bucket with two files, one of them packed; return its name."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    system = s3fs.S3FileSystem(key="anna", secret="secret")
    if not system.exists("shop"):
        system.mkdir("shop")
        system.pipe("shop/days/part-0", b"".join(b"1 %d\n" % n for n in range(3000)))
        packed = gzip.compress(b"".join(b"1 %d\n" % n for n in range(3000, 4000)))
        system.pipe("shop/days/part-1.gz", packed)
    yield "shop"
    s3fs.S3FileSystem.clear_instance_cache()


def numbers_of(files: list[str], **settings: Any) -> list[int]:
    dataset = QueueDataset()
    slots = [Slot("number", dense=True)]
    dataset.init(use_var=slots, batch_size=64, fs_ugi=LOGIN, **settings)
    dataset.set_filelist(files)
    return [number for batch in dataset for number in batch["number"].values.tolist()]


@pytest.mark.parametrize("command", ["cat", "cat | cat"])
def test_files_on_s3_are_read(bucket: str, command: str) -> None:
    whole = [f"s3://{bucket}/days/part-0", f"s3://{bucket}/days/part-1.gz"]
    named = ["days/part-0", "days/part-1.gz"]

    found = numbers_of(whole, pipe_command=command)
    there = numbers_of(named, pipe_command=command, fs_name=f"s3://{bucket}")

    assert found == there == list(range(4000))


def test_a_folder_on_s3_is_the_runners_training_data(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    read = read_config(tmp_path / "config.yaml").read_as(HyperParameters)
    keys: Any = {"train_data_dir": "days", "fs_name": f"s3://{bucket}", "fs_ugi": LOGIN}

    files = list_files(replace(read, runner=replace(read.runner, **keys)), "train_data_dir")

    assert files == [f"s3://{bucket}/days/part-0", f"s3://{bucket}/days/part-1.gz"]
    assert len(numbers_of(files)) == 4000


@pytest.mark.parametrize("file", ["s3://shop/days/none", "s3://nowhere/part-0"])
def test_what_s3_lacks_is_named(bucket: str, file: str) -> None:
    assert bucket == "shop"
    with pytest.raises(CannotReadFileError, match=file):
        numbers_of([file])
