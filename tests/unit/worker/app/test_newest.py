"""The hint after a failure names the newest checkpoint that is on the disk."""

from pathlib import Path

import pytest

from paramfleet_worker.app.launch.reporting.newest import newest_beside
from paramfleet_worker.core.showing.saved import Saved


def written(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").touch()


def test_a_checkpoint_that_was_not_published_yet_is_the_newest(tmp_path: Path) -> None:
    written(tmp_path, "000015-step-150", "000016-step-160", ".000018-step-180.01234567.partial")
    written(tmp_path, "000013-step-900", "other")
    (tmp_path / "000017-step-170").mkdir()
    (tmp_path / "latest").symlink_to("000016-step-160")
    published = Saved(str(tmp_path / "000014-step-140"), 140)

    assert newest_beside(published) == (str(tmp_path / "000016-step-160"), 160)


@pytest.mark.parametrize(
    "name", ["000019-step-1", "saved", "none/000001-step-1", "s3://b/000001-step-1"]
)
def test_what_was_published_stays_where_nothing_newer_is_known(
    tmp_path: Path, name: str
) -> None:
    written(tmp_path, "000018-step-180")
    published = Saved(name if "://" in name else str(tmp_path / name), 1)

    assert newest_beside(published) == published
