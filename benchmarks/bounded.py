"""A cgroup of version 2 with a bound on memory, for a process of a benchmark.

Only where the group can be made below the process's own or beside it without a change to
either: the system's groups stay as they are, and a bound that there is already still holds.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NoBoundError", "own_group", "with_memory_max"]

_ROOT = Path("/")


class NoBoundError(Exception):
    """No group with a bound can be made here; it says why."""


def own_group(root: Path = _ROOT) -> tuple[Path, Path]:
    """Return the folder of this process's group, and where all groups are mounted.

    Args:
        root: Of the system's files, for tests.

    Raises:
        NoBoundError: if there are no groups of version 2.
    """
    mounts = _text(root / "proc/self/mountinfo").splitlines()
    points = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    groups = _text(root / "proc/self/cgroup").splitlines()
    own = [line[3:] for line in groups if line.startswith("0::")]
    if not points or not own:
        reason = "no cgroup of version 2 is mounted"
        raise NoBoundError(reason)
    mount = root / points[0].lstrip("/")
    return mount / own[0].lstrip("/"), mount


@contextlib.contextmanager
def with_memory_max(num_bytes: int, root: Path = _ROOT) -> Iterator[Path]:
    """Put this process into a group of its own that has so much memory, and take it out again.

    Args:
        num_bytes: ``memory.max``.
        root: Of the system's files, for tests.

    Yields:
        The group's folder.

    Raises:
        NoBoundError: if that can't be done.
    """
    own, mount = own_group(root)
    group = _parent(own, mount, num_bytes) / f"paramfleet-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        try:
            group.mkdir()
            stack.callback(_remove, group)
            (group / "memory.max").write_text(f"{num_bytes}\n", encoding="ascii")
            (group / "cgroup.procs").write_text(f"{os.getpid()}\n", encoding="ascii")
        except OSError as error:
            reason = f"{group}: {error.strerror}"
            raise NoBoundError(reason) from error
        stack.callback((own / "cgroup.procs").write_text, f"{os.getpid()}\n", encoding="ascii")
        yield group


def _parent(own: Path, mount: Path, num_bytes: int) -> Path:
    """Return the group in which one can be made whose memory can be bounded.

    Raises:
        NoBoundError: if there is none.
    """
    if "memory" in _text(own / "cgroup.subtree_control").split():
        return own
    bound = _text(own / "memory.max").strip()
    if bound.isdigit() and int(bound) < num_bytes:
        reason = f"{own} allows {bound} bytes, which is less"
        raise NoBoundError(reason)
    if own != mount and "memory" in _text(own.parent / "cgroup.subtree_control").split():
        return own.parent
    reason = f"the controller of memory isn't given to groups below or beside {own}"
    raise NoBoundError(reason)


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # files of it are the system's, and go with it
        group.rmdir()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
