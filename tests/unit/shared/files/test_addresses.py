"""Addresses of other file systems are joined, taken apart, read and written as paths are."""

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from paramfleet_shared.files.addresses import Address, place_of, split_places
from paramfleet_shared.files.folders import (
    CheckpointDirs,
    FolderNameError,
    FolderNotAllowedError,
    check_folder_name,
)
from paramfleet_shared.files.regular_files import read_regular, write_regular
from paramfleet_shared.files.tensorfile import map_proven, read_tensors, write_tensors


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def test_names_are_paths_or_addresses() -> None:
    assert place_of("kept/a") == Path("kept/a")
    assert place_of("file:///data/a") == Path("/data/a")
    found = place_of("s3://bucket/kept/")
    assert isinstance(found, Address)
    assert (str(found), str(found / "a"), found.name) == (
        "s3://bucket/kept", "s3://bucket/kept/a", "kept",
    )  # fmt: skip
    assert str((found / "a").parent) == str(found.resolve().absolute())
    assert f"{found / 'b'}" == "s3://bucket/kept/b"
    assert place_of(found / "a") == place_of("s3://bucket/kept/a")
    assert place_of("s3://bucket/kept") != Path("s3:/bucket/kept") or str(found) != "s3:/bucket"


def test_nothing_of_the_system_takes_one() -> None:
    found = place_of("s3://bucket/kept")
    with pytest.raises(TypeError, match="no path of this machine"):
        os.fspath(found)
    with pytest.raises(TypeError):
        found.read_bytes()


def test_files_come_back(tmp_path: Path) -> None:
    folder = Address("memory://kept/one")
    assert not (folder / "a").exists()
    write_regular(folder / "a", b"abc")
    assert read_regular(folder / "a", most_bytes=2) == b"ab"
    arrays = {"x": np.arange(9, dtype=np.float32)}
    written = write_tensors(folder / "b", arrays, {"k": "v"})
    for read in (read_tensors, map_proven):
        found = read(folder / "b", num_bytes=written.num_bytes, sha256=written.sha256)
        np.testing.assert_array_equal(found.tensors["x"], arrays["x"])
        with pytest.raises(ValueError, match="SHA-256"):
            read(folder / "b", num_bytes=written.num_bytes, sha256="0" * 64)
        with pytest.raises(ValueError, match="length"):
            read(folder / "b", num_bytes=3, sha256=written.sha256)
    local = write_tensors(tmp_path / "b", arrays, {"k": "v"})
    assert local == written
    assert [each.name for each in folder.iterdir()] == ["a", "b"]
    assert folder.is_dir()
    assert [each.name for each in folder.glob("b*")] == ["b"]

    assert not (folder / "a").create(b"another"), "it is there"
    assert read_regular(folder / "a", most_bytes=9) == b"abc"
    assert (folder / "c").create(b"new")
    for name in "abc":
        (folder / name).unlink()
    folder.remove_if_empty()
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        read_regular(folder / "a", most_bytes=2)


def test_whatever_a_file_system_raises_is_an_error_of_the_system() -> None:
    for name in ("nosuch://bucket/a", "memory://", "simplecache::memory://a/b", "s3://b/../c"):
        with pytest.raises(OSError, match=":"):
            read_regular(Address(name), most_bytes=1)


def test_checkpoints_may_be_below_the_addresses_of_the_setting(tmp_path: Path) -> None:
    assert split_places(f"{tmp_path}:s3://bucket/kept:other") == [
        str(tmp_path), "s3://bucket/kept", "other",
    ]  # fmt: skip
    dirs = CheckpointDirs.of(f"{tmp_path}:s3://bucket/kept")
    assert str(dirs.require("s3://bucket/kept/one")) == "s3://bucket/kept/one"
    assert dirs.require(str(tmp_path / "a")) == tmp_path / "a"
    for other in ("s3://bucket/other", "s3://bucket/keptt", "memory://bucket/kept", "/etc"):
        with pytest.raises(FolderNotAllowedError):
            dirs.require(other)
    for wrong in ("s3://bucket/kept/../other", "s3://", "filecache::s3://bucket/kept/a"):
        with pytest.raises((FolderNameError, FolderNotAllowedError)):
            dirs.require(wrong)


def test_a_port_is_part_of_an_address() -> None:
    names = ["hdfs://namenode:8020/kept", "/data/a", "ftp://anna@host:21/kept", "b"]
    assert split_places(":".join(names)) == names
    assert split_places("memory:///shop/kept::a") == ["memory:///shop/kept", "a"]
    dirs = CheckpointDirs.of("hdfs://namenode:8020/kept")
    assert dirs.require("hdfs://namenode:8020/kept/one").name == "one"
    for other in ("hdfs://namenode/secret", "hdfs://namenode:8020/secret", "8020/kept"):
        with pytest.raises(FolderNotAllowedError):
            dirs.require(other)


@pytest.mark.parametrize(
    "setting",
    [
        "hdfs://namenode:8020", "s3://bucket", "s3://bucket:/data/a:hdfs://n:8020/",
        "s3://bucket:other", "s3://bucket:/data/a", "s3://bucket:s3://other/kept",
        "s3://bucket/", "/data/a:s3://bucket",
    ],
)  # fmt: skip
def test_no_setting_opens_a_whole_server(setting: str) -> None:
    with pytest.raises(FolderNameError, match="whole server"):
        CheckpointDirs.of(setting)


def test_no_password_is_shown_or_taken() -> None:
    named = "ftp://anna:s3@cret:x@host:21/kept"
    address = place_of(named)
    for text in (str(address), f"{address / 'a'}", repr(address)):
        assert "cret" not in text
        assert "ftp://anna:***@host:21/kept" in text
    assert str(place_of("sftp://anna@host/kept@home")) == "sftp://anna@host/kept@home"
    for refusing in (CheckpointDirs.of, CheckpointDirs.of("/data").require, check_folder_name):
        with pytest.raises(FolderNameError, match="without a password") as caught:
            refusing(named)
        assert "cret" not in str(caught.value)
    with pytest.raises(OSError, match="without a password") as refused:
        read_regular(address, most_bytes=1)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "http://host/kept/%2e%2e/secret", "smb://host/share/kept/..\\..\\x",
        "webhdfs://host/kept/a?op=DELETE", "http://host/kept/a#b",
    ],
)  # fmt: skip
def test_no_address_has_a_way_around(name: str) -> None:
    with pytest.raises(FolderNameError, match="must have none of"):
        CheckpointDirs.of(name.partition("/kept")[0] + "/kept").require(name)
    with pytest.raises(OSError, match="must have none of"):
        read_regular(Address(name), most_bytes=1)
