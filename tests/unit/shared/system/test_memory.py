"""What memory a process can count on: the machine's, or its control groups'."""

from pathlib import Path

import pytest

from paramfleet_shared.system.memory import killed_for_memory, machine_memory
from paramfleet_shared.values.amounts import Memory

GIB = 1 << 30


class Machine:
    """Files as Linux has them, in folders of a test."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.write(
            self.proc / "meminfo", f"MemTotal: {24 << 20} kB\nMemAvailable: {8 << 20} kB"
        )

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def memory(self) -> Memory:
        return machine_memory(proc=self.proc, groups=self.groups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_groups_it_is_the_machines(machine: Machine) -> None:
    assert machine.memory() == Memory(24 * GIB, 8 * GIB)


@pytest.mark.parametrize("where", ["", "job/pod"])
def test_the_limit_of_a_group_of_version_2_counts(machine: Machine, where: str) -> None:
    """Also where the container sees its own group as the root of all."""
    machine.write(machine.proc / "self" / "cgroup", "0::/job/pod")
    machine.write(machine.groups / where / "memory.max", str(4 * GIB))
    machine.write(machine.groups / where / "memory.current", str(3 * GIB))
    machine.write(machine.groups / where / "memory.stat", f"anon 5\ninactive_file {GIB}")

    assert machine.memory() == Memory(4 * GIB, 2 * GIB)


def test_the_least_of_all_groups_above_counts(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "0::/job/pod")
    for where, limit in (("job", 6 * GIB), ("job/pod", 9 * GIB)):
        machine.write(machine.groups / where / "memory.max", str(limit))
        machine.write(machine.groups / where / "memory.current", str(GIB))

    assert machine.memory() == Memory(6 * GIB, 5 * GIB)


def test_a_group_of_version_1_counts_and_one_without_a_limit_does_not(machine: Machine) -> None:
    machine.write(machine.proc / "self" / "cgroup", "5:cpu:/\n4:memory:/pod\n0::/")
    root, pod = machine.groups / "memory", machine.groups / "memory" / "pod"
    for folder, limit in ((root, 9223372036854771712), (pod, 2 * GIB)):
        machine.write(folder / "memory.limit_in_bytes", str(limit))
        machine.write(folder / "memory.usage_in_bytes", str(GIB))
    machine.write(machine.groups / "memory.max", "max")

    assert machine.memory() == Memory(2 * GIB, GIB)


def test_this_machine_has_memory() -> None:
    memory = machine_memory()

    assert 0 < memory.free <= memory.total


def test_how_many_the_kernel_has_killed_is_unknown_without_groups(machine: Machine) -> None:
    assert killed_for_memory(proc=machine.proc, groups=machine.groups) is None


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/job/pod", "job/pod/memory.events"),
        ("0::/job/pod", "memory.events"),
        ("7:cpu:/x\n5:memory:/pod", "memory/pod/memory.oom_control"),
    ],
)
def test_how_many_the_kernel_has_killed_is_counted_in_the_own_group(
    machine: Machine, group: str, file: str
) -> None:
    machine.write(machine.proc / "self" / "cgroup", group)
    machine.write(machine.groups / file, "low 1\nmax 2\noom_kill 3\noom_group_kill 4")

    assert killed_for_memory(proc=machine.proc, groups=machine.groups) == 3
