"""How much memory this process may take: the machine's, or less in a container.

A control group's limit counts as the machine's memory: whoever passes it is killed by the
kernel just so. Groups of both versions are read, and every group above them.
"""

import os
from pathlib import Path

from paramfleet_shared.values.amounts import Memory

__all__ = ["killed_for_memory", "machine_memory"]

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


def machine_memory(*, proc: Path = PROC, groups: Path = GROUPS) -> Memory:
    """Return the memory that this process can count on; some 100 microseconds.

    Args:
        proc: Where the system says what there is and which groups this process is in.
        groups: Where it says what a group may take.
    """
    total, free = _of_system(proc)
    for limit, used in _of_groups(proc, groups):
        total, free = min(total, limit), min(free, max(0, limit - used))
    return Memory(total, free)


def killed_for_memory(*, proc: Path = PROC, groups: Path = GROUPS) -> int | None:
    """Return how many processes the kernel has killed in this control group for its memory.

    Args:
        proc: Where the system says which groups this process is in.
        groups: Where it says what has become of a group.

    Returns:
        None where the system doesn't say it.
    """
    for root, path, is_second in _groups_of(proc, groups):
        file = "memory.events" if is_second else "memory.oom_control"
        for folder in (path, root):  # a container may see its own as the root
            count = _value_of(folder / file, "oom_kill")
            if count is not None:
                return count
    return None


def _of_system(proc: Path) -> tuple[int, int]:
    lines = _read(proc / "meminfo").splitlines()
    facts = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    if "MemTotal" in facts and "MemAvailable" in facts:
        return int(facts["MemTotal"][0]) << 10, int(facts["MemAvailable"][0]) << 10
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return physical, physical  # a system that doesn't say what is free


def _of_groups(proc: Path, groups: Path) -> list[tuple[int, int]]:
    """Return limit and use of each group, as far as one is set, of this process."""
    found = []
    for root, path, is_second in _groups_of(proc, groups):
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if is_second:
            files = ("memory.max", "memory.current", "inactive_file")
        # A container may see its own group as the root of all, under another name.
        for folder in (path, *path.parents):
            if folder != root and root not in folder.parents:
                break
            limit, used = (_read(folder / file).strip() for file in files[:2])
            if limit.isdigit() and used.isdigit():
                found.append((int(limit), int(used) - _cached(folder, files[2])))
    return found


def _groups_of(proc: Path, groups: Path) -> list[tuple[Path, Path, bool]]:
    """Return root and own folder of each hierarchy that counts memory; whether version 2."""
    found = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / "memory" if controllers else groups
        found.append((root, root / name.strip("/"), not controllers))
    return found


def _cached(folder: Path, name: str) -> int:
    """Return what the kernel would give back of a group before it kills anybody."""
    return _value_of(folder / "memory.stat", name) or 0


def _value_of(file: Path, name: str) -> int | None:
    """Return a number of a file of names and numbers; None if it isn't there."""
    for line in _read(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
