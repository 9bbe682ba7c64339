"""What a script gave to its server, for the server's next process."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.files.kept_arguments import MAX_BYTES, keep_arguments, kept_arguments

GIVEN = {"host": "127.0.0.1", "port": 6000, "index": 1, "checkpoint_dirs": "/a:/b"}


def test_what_was_kept_is_given_back_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "pserver-1.json"

    assert keep_arguments(path, GIVEN)

    assert kept_arguments(path) == {name: str(value) for name, value in GIVEN.items()}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "given",
    [{"secret": "x"}, {"host": None}, {"port": True}, {"load": "x" * MAX_BYTES}],
    ids=["another name", "no value", "another type", "too long"],
)
def test_what_a_command_line_cannot_say_is_not_kept(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    path = tmp_path / "pserver-0.json"

    assert not keep_arguments(path, given)

    assert not path.exists()
    assert kept_arguments(path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"folder": 1, "arguments": {}}',
        b'{"arguments": {}}',
        b'{"folder": "/", "arguments": {"secret": "x"}}',
        b'{"folder": "/", "arguments": {"port": 1.5}}',
        b'{"folder": "/", "arguments": {}, "more": 1}',
        b'{"folder": "/", "arguments": {}}' + b" " * MAX_BYTES,
        b"\xff\xfe",
    ],
)
def test_a_file_of_other_content_gives_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pserver-0.json"
    path.write_bytes(content)

    assert kept_arguments(path) is None


def test_a_pipe_or_a_link_gives_none_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text(json.dumps({"folder": str(Path.cwd()), "arguments": {}}))
    (tmp_path / "link").symlink_to(tmp_path / "file")

    assert kept_arguments(tmp_path / "file") == {}
    assert kept_arguments(tmp_path / "link") is None
    assert kept_arguments(tmp_path / "pipe") is None


def test_what_was_kept_in_another_working_folder_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pserver-0.json"
    keep_arguments(path, GIVEN)

    monkeypatch.chdir(tmp_path)

    assert kept_arguments(path) is None
