"""A model folder is one training's at a time, and nobody's once its process is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.client.runner.online.streams import run

from paramfleet.runner.online.errors import ModelFolderInUseError
from paramfleet.runner.online.hold import LOCK, held_for_training
from paramfleet_shared.checkpoint.manifest import CheckpointWriteError
from paramfleet_shared.system.processes.keeping import tied


def test_a_second_training_is_told_who_has_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with held_for_training(folder):
        with pytest.raises(ModelFolderInUseError) as caught, held_for_training(folder):
            pass
        assert str(os.getpid()) in caught.value.holder
        assert f"{folder} (runner.model_save_path) is in use by process" in str(caught.value)
        assert "name another folder" in str(caught.value)

    with held_for_training(folder):
        pass


def test_a_training_does_not_begin_in_a_folder_of_another(folder: Path) -> None:
    with held_for_training(folder / "saved"):
        done = run(folder)

    assert done.exit_code == 1
    assert f"is in use by process {os.getpid()}" in done.output
    assert [path.name for path in (folder / "saved").iterdir()] == [LOCK]


def test_a_process_that_died_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    held = (
        "import sys; from pathlib import Path\n"
        "from paramfleet.runner.online.hold import held_for_training\n"
        "with held_for_training(Path(sys.argv[1])):\n"
        "    print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", held, str(folder)]
    with subprocess.Popen(tied(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ModelFolderInUseError), held_for_training(folder):
            pass
        other.kill()

    with held_for_training(folder):
        pass


def test_a_folder_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(CheckpointWriteError, match="file"),
        held_for_training(tmp_path / "file"),
    ):
        pass


@pytest.mark.parametrize("said", [b"", b"\xff\x00"])
def test_a_holder_that_says_nothing_plain_is_another_process(
    tmp_path: Path, said: bytes
) -> None:
    with held_for_training(tmp_path):
        (tmp_path / LOCK).write_bytes(said)

        with (
            pytest.raises(ModelFolderInUseError, match="in use by another process"),
            held_for_training(tmp_path),
        ):
            pass
