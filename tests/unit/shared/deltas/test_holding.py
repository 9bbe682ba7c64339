"""A folder has one process that follows a job into it; a second one is told which."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.shared.deltas.streams import Model, begin, leftovers, writer_at

from paramfleet_shared.deltas.errors import OtherWriterError, StreamError, StreamHeldError
from paramfleet_shared.deltas.stored import holding
from paramfleet_shared.deltas.stored.holding import WRITER_LOCK, held_for_writing
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied

CLOCK = SystemClock()
OWN = f"process {os.getpid()} on {socket.gethostname()}"

HOLD = """
import sys
from pathlib import Path
from paramfleet_shared.deltas.stored.holding import held_for_writing
from paramfleet_shared.system.clock import SystemClock
with held_for_writing(Path(sys.argv[1]), SystemClock()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StreamHeldError) as refused, held_for_writing(tmp_path, CLOCK):
            pass
        process.kill()

    said = (tmp_path / WRITER_LOCK).read_text().strip()
    assert refused.value.facts == {"path": str(tmp_path), "holder": said}
    assert f"is in use by the writer process {said}: end that process" in str(refused.value)
    with held_for_writing(tmp_path, CLOCK):  # it is free, however its process has ended
        assert (tmp_path / WRITER_LOCK).stat().st_mode & 0o777 == 0o600
    assert leftovers(tmp_path) == []


def test_who_takes_over_has_the_folder_and_the_former_one_can_not_come_back(
    tmp_path: Path,
) -> None:
    with held_for_writing(tmp_path, CLOCK):
        former = writer_at(tmp_path)
        begin(former, Model())
        with held_for_writing(tmp_path, CLOCK, takes_over=True):
            begin(writer_at(tmp_path), Model())
            with pytest.raises(OtherWriterError):
                former.touch(2.0)
            with pytest.raises(StreamHeldError, match=OWN), held_for_writing(tmp_path, CLOCK):
                pass
    with held_for_writing(tmp_path, CLOCK):
        pass
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("takes_over", [False, True])
def test_at_an_address_a_writer_is_seen_by_what_it_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_over: bool
) -> None:
    monkeypatch.setattr(holding, "_WATCH_S", 0.5)
    folder = place_of(f"memory://held{tmp_path}")
    with held_for_writing(folder, CLOCK):  # nobody publishes as yet
        begin(writer := writer_at(folder), Model())
    with held_for_writing(folder, CLOCK):  # nor any more
        pass

    with publishing(writer):
        if takes_over:
            with held_for_writing(folder, CLOCK, takes_over=True):
                pass
            return
        with pytest.raises(StreamHeldError, match=OWN), held_for_writing(folder, CLOCK):
            pass


@contextmanager
def publishing(writer: StreamWriter) -> Iterator[None]:
    """Say again and again that a writer lives."""
    ended = threading.Event()

    def touch() -> None:
        moment = 2.0
        while not ended.wait(0.02):
            moment += 1
            writer.touch(moment)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_something_else_of_the_locks_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / WRITER_LOCK).symlink_to(tmp_path / "elsewhere")

    with (
        pytest.raises(StreamError, match="isn't a lock file of a writer"),
        held_for_writing(tmp_path, CLOCK),
    ):
        pass

    with held_for_writing(tmp_path, CLOCK, takes_over=True):
        assert not (tmp_path / WRITER_LOCK).is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "kept"
