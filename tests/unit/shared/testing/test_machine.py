from pathlib import Path

import pytest

from paramfleet_shared.testing.machine import MachineRecord


def write(proc: Path, ticks: str, processes: dict[int, tuple[str, int]]) -> None:
    (proc / "stat").write_text(f"cpu  {ticks} 0 0\ncpu0 {ticks} 0 0\n")
    for pid, (name, used) in processes.items():
        (proc / str(pid)).mkdir(exist_ok=True)
        (proc / str(pid) / "stat").write_text(
            f"{pid} ({name}) S 1 2 3 0 0 0 0 0 0 0 {used} 0 9 9"
        )


def test_a_report_names_busy_cores_steal_and_who_used_them_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    write(tmp_path, "100 0 0 900 0 0 0 50", {4: ("old", 7_000), 5: ("idle", 30)})
    record = MachineRecord(tmp_path)
    write(tmp_path, "140 10 0 940 0 0 0 60", {4: ("old", 7_150), 6: ("a (b) c", 250)})

    said = record.report()

    assert "busy for 60% of the time, and the hypervisor took 10.0%" in said
    assert said.endswith("most processor time: a (b) c 6 (2.5 s), old 4 (1.5 s)")


def test_where_the_kernel_counts_nothing_the_load_is_told(tmp_path: Path) -> None:
    assert MachineRecord(tmp_path).report().startswith("load average ")
