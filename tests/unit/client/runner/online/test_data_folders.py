"""What there is of a pass: its files, the folder that is missing, or what is waited for."""

from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typing_extensions import override

from paramfleet.data.reading.files import CannotReadFileError
from paramfleet.runner import HyperParameters
from paramfleet.runner.config.configuration import Config
from paramfleet.runner.config.settings import RunnerSettings
from paramfleet.runner.online.calendar import Pass, Place
from paramfleet.runner.online.data.data_folders import DataFolders, Look


class Paged(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """One whose listing is made over a while: files that come meanwhile may be left out."""

    protocol = "paged"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    @override
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("paged://")))

    @override
    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        found = super().ls(path, detail=detail, **kwargs)
        folder = path.rstrip("/")
        if not self.exists(f"{folder}/done"):
            self.pipe({f"{folder}/b": b"", f"{folder}/done": b""})
            done = self.info(f"{folder}/done")
            found = [*found, done if detail else done["name"]]
        return found


COMING = Pass(Place("20260101", 1), ("0000", "0005"))


def folders_of(path: Path, data: str, donefile: str = "") -> DataFolders:
    runner = RunnerSettings(
        train_data_dir=data,
        days=("20260101",),
        reader_type="InMemoryDataset",
        model_save_path="saved",
        data_donefile=donefile,
    )
    config: Config[Any] = Config(
        path=path / "config.yaml",
        folder=path,
        modules=path,
        runner=runner,
        hyper_parameters=HyperParameters(),
        own={},
        given=(),
    )
    return DataFolders(config)


@pytest.fixture(params=["local", "remote"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the name of ``tmp_path/data``, of this machine or as that of a file system."""
    (tmp_path / "data/20260101").mkdir(parents=True)
    local: bool = request.param == "local"
    return "data" if local else f"file://{tmp_path}/data/"


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")


def test_files_of_all_folders_come_in_turn(tmp_path: Path, data: str) -> None:
    day = tmp_path / "data/20260101"
    write(day / "0005", "a", ".hidden")
    write(day / "0000", "c", "b")
    (day / "0000" / "inner").mkdir()

    found = folders_of(tmp_path, data).look(COMING)

    assert found.is_there
    names = [name.removeprefix("file://").removeprefix(str(day)) for name in found.files]
    assert names == ["/0000/b", "/0000/c", "/0005/a"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, data: str) -> None:
    write(tmp_path / "data/20260101/0000", "a")

    found = folders_of(tmp_path, data).look(COMING)

    assert not found.is_there
    assert found.missing.endswith("data/20260101/0005")


@pytest.mark.parametrize("donefile", ["done", ".done"])
def test_a_folder_is_complete_with_its_file(tmp_path: Path, data: str, donefile: str) -> None:
    day, folders = tmp_path / "data/20260101", folders_of(tmp_path, data, donefile)
    assert folders.look(COMING).waits_for.endswith(f"data/20260101/0000/{donefile}")

    write(day / "0000", "a", donefile)
    write(day / "0005", "b")
    assert folders.look(COMING).waits_for.endswith(f"data/20260101/0005/{donefile}")

    write(day / "0005", donefile)
    found = folders.look(COMING)
    assert [name.rpartition("/")[2] for name in found.files] == ["a", "b"]


def test_files_that_came_while_their_folder_was_listed_are_in_the_pass(tmp_path: Path) -> None:
    fsspec.register_implementation("paged", Paged, clobber=True)
    system = Paged()
    for name in COMING.folders:
        system.pipe(f"/data/20260101/{name}/a", b"")

    found = folders_of(tmp_path, "paged:///data", "done").look(COMING)

    names = [name.partition("20260101")[2] for name in found.files]
    assert names == ["/0000/a", "/0000/b", "/0005/a", "/0005/b"]


def test_an_empty_folder_is_there(tmp_path: Path, data: str) -> None:
    write(tmp_path / "data/20260101/0000")
    write(tmp_path / "data/20260101/0005")

    assert folders_of(tmp_path, data).look(COMING) == Look()


def test_a_file_system_that_is_not_reached_is_waited_for_with_its_reason(
    tmp_path: Path,
) -> None:
    address = "nosuch://host/data"

    found = folders_of(tmp_path, address, "done").look(COMING)
    assert found.waits_for == f"{address}/20260101/0000/done"
    assert "nosuch" in found.reason

    with pytest.raises(CannotReadFileError):
        folders_of(tmp_path, address).look(COMING)
