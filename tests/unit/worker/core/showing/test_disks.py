"""When a launch tells of a pserver's disk."""

from typing import Any

from paramfleet_worker.core.showing.disks import AGAIN_AFTER_S, DiskFaults

FULL = "[Errno 28] No space left on device"


def status(*faults: str | None) -> dict[str, Any]:
    return {"servers": [{"index": i, "disk_fault": fault} for i, fault in enumerate(faults)]}


def test_a_full_disk_is_told_once_with_its_pserver_and_its_folder() -> None:
    disks = DiskFaults("/data")

    assert disks.see(status(None, None), now=0.0) == []
    (line,) = disks.see(status(None, FULL), now=1.0)
    assert line == (
        f"warning: pserver 1 can't write to its data folder /data: {FULL}; training waits "
        "until there is room"
    )
    assert disks.see(status(None, FULL), now=AGAIN_AFTER_S + 2) == []
    assert disks.see(status(None, None), now=AGAIN_AFTER_S + 3) == [
        "pserver 1 writes to its data folder /data again"
    ]


def test_a_disk_that_is_full_again_and_again_is_told_of_seldom() -> None:
    disks = DiskFaults("")

    lines = [disks.see(status(FULL if at % 2 else None), now=float(at)) for at in range(120)]

    assert sum(len(each) for each in lines) <= 4
    assert lines[1][0].startswith("warning: pserver 0 can't write to its data folder: ")


def test_a_disk_that_fails_otherwise_is_not_said_to_need_room() -> None:
    (line,) = DiskFaults("").see(status("[Errno 5] Input\x1b/output error"), now=0.0)

    assert "Input\\x1b/output error; " in line
    assert line.endswith("training waits until the disk takes changes again")


def test_a_status_without_servers_has_no_faults() -> None:
    assert DiskFaults("").see({}, now=0.0) == []
