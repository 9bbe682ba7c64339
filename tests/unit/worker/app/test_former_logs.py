"""Logs of a former launch."""

from pathlib import Path

from paramfleet_worker.app.launch.former_logs import set_aside

LOGS = (
    "coordinatorlog.0",
    "launcherlog.0",
    "launcherlog.worker-1",
    "redislog.0",
    "serverlog.1",
    "workerlog.12",
)
FOREIGN = ("notes.txt", "workerlog.0.gz", "workerlog", "workerlog.1.old", "my-workerlog.0")


def written(folder: Path, *names: str, text: str = "") -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(text or name)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_logs_of_the_launch_before_are_moved_and_older_ones_removed(tmp_path: Path) -> None:
    written(tmp_path, *LOGS, *FOREIGN, text="new")
    written(tmp_path / "previous", "workerlog.0", "serverlog.1", "mine", text="old")

    set_aside(tmp_path)

    assert names_in(tmp_path) == sorted([*FOREIGN, "previous"])
    assert names_in(tmp_path / "previous") == sorted([*LOGS, "mine"])
    assert (tmp_path / "previous" / "serverlog.1").read_text() == "new"


def test_the_logs_of_the_launch_before_stay_where_there_are_no_new_ones(tmp_path: Path) -> None:
    written(tmp_path / "previous", "workerlog.0")

    set_aside(tmp_path)

    assert names_in(tmp_path / "previous") == ["workerlog.0"]


def test_links_and_folders_are_not_touched(tmp_path: Path) -> None:
    log, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    written(elsewhere, "workerlog.7")
    written(log, "workerlog.0")
    (log / "workerlog.1").symlink_to(elsewhere / "workerlog.7")
    (log / "workerlog.2").mkdir()
    (log / "previous").symlink_to(elsewhere)

    set_aside(log)

    assert names_in(log) == ["previous", "workerlog.0", "workerlog.1", "workerlog.2"]
    assert names_in(elsewhere) == ["workerlog.7"]
