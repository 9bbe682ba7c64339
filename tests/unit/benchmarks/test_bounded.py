"""A bound on the memory of a benchmark: where its group is made, and why there is none."""

import os
from pathlib import Path

import pytest

from bounded import NoBoundError, with_memory_max

MOUNT = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def system(root: Path, *, own: str = "/a/b", mount: str = MOUNT) -> Path:
    """Make the files of a system; return the folder of the process's group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mount)
    (root / "proc/self/cgroup").write_text(f"4:memory:/x\n0::{own}\n")
    group = root / "sys/fs/cgroup" / own.lstrip("/")
    group.mkdir(parents=True)
    return group


def bounded(root: Path, num_bytes: int = 1000) -> Path:
    """Return the group that the process was put in."""
    with with_memory_max(num_bytes, root) as group:
        assert (group / "memory.max").read_text() == f"{num_bytes}\n"
        assert (group / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    return group


def test_the_group_is_below_its_own_and_is_left_at_the_end(tmp_path: Path) -> None:
    own = system(tmp_path)
    (own / "cgroup.subtree_control").write_text("cpu memory\n")

    assert bounded(tmp_path).parent == own

    assert (own / "cgroup.procs").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("bound", ["max\n", "1000\n"])
def test_the_group_is_beside_its_own_if_that_allows_as_much(tmp_path: Path, bound: str) -> None:
    own = system(tmp_path)
    (own / "memory.max").write_text(bound)
    (own.parent / "cgroup.subtree_control").write_text("memory\n")

    assert bounded(tmp_path).parent == own.parent


def test_a_smaller_bound_that_there_is_isnt_left(tmp_path: Path) -> None:
    own = system(tmp_path)
    (own / "memory.max").write_text("999\n")
    (own.parent / "cgroup.subtree_control").write_text("memory\n")

    with pytest.raises(NoBoundError, match="allows 999 bytes"):
        bounded(tmp_path)


def test_without_the_controller_it_says_so(tmp_path: Path) -> None:
    own = system(tmp_path, own="/")
    (own.parent / "cgroup.subtree_control").write_text("memory\n")  # of nobody: above the mount

    with pytest.raises(NoBoundError, match="the controller of memory isn't given"):
        bounded(tmp_path)


def test_without_groups_it_says_so(tmp_path: Path) -> None:
    system(tmp_path, mount="")

    with pytest.raises(NoBoundError, match="no cgroup of version 2 is mounted"):
        bounded(tmp_path)
