"""Who writes to a stream's folder for long, so that a second one is told so at its start.

On a disk that is a lock, which ends with its process, however it ends. At an address, and on a
file system without locks, a writer that lives is seen by what it publishes.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

from paramfleet_shared.deltas.errors import StreamHeldError
from paramfleet_shared.deltas.stored.disk import StreamDisk, opened_lock
from paramfleet_shared.deltas.stored.head import read_head
from paramfleet_shared.files.addresses import Address
from paramfleet_shared.files.documents import read_content
from paramfleet_shared.files.held import MOST_BYTES, holder_in, is_at, own_name, take_lock
from paramfleet_shared.files.regular_files import replaced
from paramfleet_shared.system.clock import Clock

__all__ = ["WRITER_LOCK", "held_for_writing"]

WRITER_LOCK = "writer.lock"
"""It says which process has the folder, and stays."""

_WATCH_S = 5.0
"""How long a folder without locks is looked at; a writer publishes each half second."""

_LOOK_S = 0.1
_TRIES = 100
_OWN_MODE = 0o600

log = logging.getLogger(__name__)


@contextmanager
def held_for_writing(folder: Path, clock: Clock, *, takes_over: bool = False) -> Iterator[None]:
    """Hold a stream's folder as its writer, until the block or this process ends.

    Args:
        folder: Where the stream is, or will be: a path of this machine, or an address.
        clock: The time by which looks are bounded.
        takes_over: Whether to take it from another process, which sees that at its next
            publication (``OtherWriterError``), and is refused here when it comes back.

    Raises:
        StreamHeldError: if another process has it.
        StreamError: if something else than a writer's lock has its name, or ``stream.json``
            can't be read.
        OSError: if the system refuses.
    """
    path, lock = folder / WRITER_LOCK, None
    if not isinstance(folder, Address):
        StreamDisk().make_folder(folder)
        lock = _replaced(path) if takes_over else _locked(path)
    try:
        if lock is None:
            if not takes_over:
                _refuse_living(folder, clock)
            with StreamDisk().creating(path) as file:
                file.write(own_name())
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _locked(path: Path) -> int | None:
    """Return the lock; None where there are none.

    Raises:
        StreamHeldError: if another process has it.
        StreamError: if something else has its name.
        OSError: if the system refuses.
    """
    for _ in range(_TRIES):
        lock = opened_lock(path)
        with ExitStack() as stack:
            stack.callback(os.close, lock)
            try:
                take_lock(lock, path.parent, StreamHeldError)
            except OSError as error:
                log.warning("deltas.no_locks", extra={"path": str(path), "reason": str(error)})
                return None
            if is_at(lock, path):  # else another process has just taken it over
                stack.pop_all()
                return lock
    raise StreamHeldError(path=str(path.parent), holder="")


def _replaced(path: Path) -> int | None:
    """Return a new lock in the place of the one that another process may have.

    Raises:
        OSError: if the system refuses.
    """
    with replaced(path) as file:
        lock = os.dup(file.fileno())
        try:
            os.fchmod(lock, _OWN_MODE)
            file.write(own_name())
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            log.warning("deltas.no_locks", extra={"path": str(path), "reason": str(error)})
            return None
    return lock


def _refuse_living(folder: Path, clock: Clock) -> None:
    """Pass if nothing is published to a folder for a while.

    Raises:
        StreamHeldError: if something is.
        StreamError: if ``stream.json`` can't be read.
        OSError: if the system refuses.
    """
    before, began, never = read_head(folder), clock.monotonic(), Event()
    while before is not None and clock.monotonic() - began < _WATCH_S:
        never.wait(_LOOK_S)
        now = read_head(folder)
        if now is not None and now != before and now.moment != before.moment:
            holder = ""
            with suppress(OSError):
                holder = holder_in(read_content(folder / WRITER_LOCK, most_bytes=MOST_BYTES))
            raise StreamHeldError(path=str(folder), holder=holder)
