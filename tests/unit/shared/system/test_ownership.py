"""Whether another user could change what lies at a path, or put something else there."""

import os
from pathlib import Path

import pytest

from paramfleet_shared.system.ownership import reason_against

BY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def test_what_only_this_user_may_change_is_safe_also_below_the_temporary_folder(
    deep: Path,
) -> None:
    assert not reason_against(deep)
    assert not reason_against(deep / "not" / "made" / "yet")


def test_each_level_that_others_may_write_to_is_named(deep: Path) -> None:
    for level in (deep, deep.parent, deep.parents[1]):
        level.chmod(0o777)
        assert reason_against(deep) == f"others may write to {level} (mode 0777)"
        level.chmod(0o755)


def test_a_sticky_level_is_safe_above_and_not_as_the_place_itself(deep: Path) -> None:
    deep.parent.chmod(0o1777)
    assert not reason_against(deep)
    assert reason_against(deep.parent) == f"others may write to {deep.parent} (mode 1777)"


@BY_ROOT
def test_a_level_that_is_another_users_is_named_sticky_or_not(deep: Path) -> None:
    for mode in (0o755, 0o1777):
        deep.parent.chmod(mode)
        os.chown(deep.parent, 12345, -1)
        assert reason_against(deep) == f"{deep.parent} is another user's (user 12345)"


@BY_ROOT
def test_a_group_of_others_counts_as_they_do(deep: Path) -> None:
    deep.parent.chmod(0o775)
    assert not reason_against(deep), "root's group"
    os.chown(deep.parent, -1, 12345)
    assert reason_against(deep) == f"others may write to {deep.parent} (mode 0775)"


def test_where_a_link_lies_and_where_it_leads_are_both_looked_at(
    deep: Path, tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link"
    link.symlink_to(Path("..", "a", "b"))
    assert not reason_against(link / "c")

    link.parent.chmod(0o777)
    assert reason_against(link / "c").startswith(f"others may write to {link.parent} ")
    link.parent.chmod(0o755)
    deep.parents[1].chmod(0o777)
    assert reason_against(link / "c").startswith(f"others may write to {deep.parents[1]} ")


@BY_ROOT
def test_a_link_of_another_user_is_named(deep: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(deep)
    os.chown(link, 12345, -1, follow_symlinks=False)

    assert reason_against(link) == f"{link} is another user's (user 12345)"


def test_links_that_lead_in_a_circle_are_no_safe_place(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    assert "more than 40 links" in reason_against(tmp_path / "a")
