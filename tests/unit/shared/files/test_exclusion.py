"""One process at a time, and who waits knows for whom."""

import os
import threading
from pathlib import Path

import pytest

from paramfleet_shared.files.exclusion import Exclusion, HeldTooLongError


def exclusion(lock: Path, *, stuck_after_s: float = 0.3) -> Exclusion:
    return Exclusion(
        lock=lock,
        doing="counting",
        progress=lambda: 0,
        told_after_s=0.1,
        stuck_after_s=stuck_after_s,
    )


def test_who_gives_up_names_the_holder_and_what_to_do(tmp_path: Path) -> None:
    lock, said = tmp_path / "lock", list[str]()
    holder = lock.with_name("other")

    with exclusion(lock).held(said.append):
        holder.write_bytes(lock.read_bytes())
        with (
            pytest.raises(HeldTooLongError, match=f"process {os.getpid()} on .* is counting"),
            exclusion(lock).held(said.append),
        ):
            pass

    text = holder.read_text().strip()
    assert said == [f"waiting for process {text}, which is counting: end it if it hangs"]


def test_a_lock_that_is_removed_while_it_is_waited_for_is_that_of_the_next(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "lock"
    waits, ends = threading.Event(), threading.Event()

    def wait() -> None:
        with exclusion(lock, stuck_after_s=60.0).held(lambda _: waits.set()):
            assert lock.read_text().startswith(f"{os.getpid()} on "), "it is there again"
            ends.set()

    with exclusion(lock).held(print):
        thread = threading.Thread(target=wait)
        thread.start()
        waits.wait()
        lock.unlink()  # as who cleans up a folder for files of no use does

        ends.wait()
    thread.join()
