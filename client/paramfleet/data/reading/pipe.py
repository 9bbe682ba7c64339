"""A pipe command: a file goes in, MultiSlot text comes out.

A command must succeed, each program of a pipeline too. One that SIGPIPE ended because a later
one needed no more, as in ``reader | head``, has succeeded; so it is in Paddle.

The command waits when its output isn't read: the pipe between them is all that is
buffered. It has a process group of its own, which is killed if its output isn't read to the
end, also when this process ends, however it ends: a keeper of this process watches that.
"""

import atexit
import contextlib
import fcntl
import io
import logging
import os
import selectors
import signal
import subprocess
import threading
import weakref
from collections.abc import Sequence
from typing import IO

from paramfleet.data.generator import SLOTS_VARIABLE
from paramfleet.data.reading.files import CHUNK_BYTES, read_some
from paramfleet.data.reading.paddlerec import PADDLE_NAMES
from paramfleet.data.reading.shell import STOPPED_BY_READER, is_pipeline, shell_command
from paramfleet_shared.errors import ContractError, FleetError
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import Clock
from paramfleet_shared.system.processes.keeping import Keeper, behind_gate

__all__ = ["Pipe", "PipeCutOffError", "PipeFailedError", "PipeTimeoutError"]

log = logging.getLogger(__name__)

_KEPT_BYTES = 4096
"""Of what a command says on its standard error."""

_KEPT_LINES = 10

_SHOWN_WORDS = 1500
"""Characters of them in an error: the end, where Python names the exception."""

_END_POLL_S = 0.02
"""Between two looks whether a command has ended that has closed its output."""


_keepers: dict[int, Keeper] = {}
"""By process id: a fork has one of its own."""

_starting = threading.Lock()


class PipeFailedError(ContractError):
    """A pipe command ended with an error."""

    code = "contract.pipe_failed"
    command: str
    file: str
    status: int
    words: str
    sentence = "pipe_command {command!r} ended with {status} at {file}; it said:\n{words}"


class PipeCutOffError(ContractError):
    """The output of a pipe command ends inside a line, though the command succeeded."""

    code = "contract.pipe_cut_off"
    command: str
    file: str
    line: int
    tail: bytes
    sentence = (
        "pipe_command {command!r} succeeded at {file}, but its output ends inside line {line}, "
        "without a newline, with {tail!r}: it may have stopped early. If the line is complete, "
        "append  | sed '$a\\'  to the command, which adds the newline"
    )


class PipeTimeoutError(ContractError):
    """A pipe command wrote nothing for too long."""

    code = "contract.pipe_timeout"
    command: str
    file: str
    waited_s: float
    words: str
    sentence = (
        "pipe_command {command!r} wrote nothing for {waited_s:g} s at {file} "
        "(pipe_timeout_s); it said:\n{words}"
    )


class Pipe:
    """A running command; read by one thread, closed by any.

    Args:
        command: For the shell.
        opened: Its input; closed with the pipe.
        file: The input's name.
        silence_s: Seconds a read waits at most.
        clock: Time.
        slots: Names of the slots of its output, for our generators.
    """

    def __init__(
        self,
        command: str,
        opened: IO[bytes],
        *,
        file: str,
        silence_s: float,
        clock: Clock,
        slots: Sequence[str] = (),
    ) -> None:
        self._command = command
        self._file = file
        self._silence_s = silence_s
        self._clock = clock
        self._input = opened
        self._words = b""
        self._is_open = True
        self._has_output = False
        self._feed_error: FleetError | None = None
        is_plain = isinstance(opened, io.BufferedReader) and _has_descriptor(opened)
        self._has_input = is_plain and os.fstat(opened.fileno()).st_size > 0
        keeper = _keeper()
        self._process = _start(
            command, opened if is_plain else subprocess.PIPE, keeper=keeper, slots=slots
        )
        self._kill = weakref.finalize(self, _kill, self._process, keeper)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):  # the user's limit of pipe memory is reached
            fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._selector.register(self._process.stderr, selectors.EVENT_READ)
        self._feeder = None if is_plain else threading.Thread(target=self._feed, daemon=True)
        if self._feeder is not None:
            self._feeder.start()

    def read(self) -> bytes:
        """Return the next piece of the output; nothing once the command has ended well.

        Raises:
            PipeTimeoutError: if it wrote nothing for ``silence_s``.
            PipeFailedError: if it ended with an error.
            FleetError: if its input can't be read.
        """
        out, error = self._process.stdout, self._process.stderr
        deadline = self._clock.monotonic() + self._silence_s
        while self._is_open or self._process.poll() is None:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                raise self._too_silent()
            for key, _ in self._selector.select(left_s if self._is_open else _END_POLL_S):
                data = os.read(key.fd, CHUNK_BYTES)
                if data and key.fileobj is out:
                    self._has_output = True
                    return data
                if not data:
                    self._selector.unregister(key.fileobj)
                    self._is_open = self._is_open and key.fileobj is error
                self._words = (self._words + data)[-_KEPT_BYTES:]
        self._require_good_end()
        if self._has_input and not self._has_output:
            self._note_no_output()
        return b""

    def close(self) -> None:
        """Kill what still runs; a read that waits ends. May be called twice."""
        self._kill()
        if self._feeder is not None:
            self._feeder.join()
        self._input.close()

    def release(self) -> None:
        """Give the descriptors back; called by the reading thread behind ``close``."""
        self._selector.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _require_good_end(self) -> None:
        """See that the command did well and read all that there was.

        Raises:
            PipeFailedError: if it ended with an error.
            FleetError: if its input can't be read.
        """
        if self._feeder is not None:
            self._feeder.join()
        if self._feed_error is not None:
            raise self._feed_error
        status = self._process.returncode
        if status == STOPPED_BY_READER and is_pipeline(self._command):
            return
        if status:
            raise PipeFailedError(
                command=self._command, file=self._file, status=status, words=self._last_words()
            )

    def _note_no_output(self) -> None:
        """Say that the file has no example: that may be meant, or the command did nothing."""
        facts = {
            "command": self._command,
            "file": self._file,
            "words": self._last_words(),
            "remedy": "none if no line of the file is an example; else see what it printed",
        }
        log.warning("worker.pipe_wrote_nothing", extra=facts)

    def _too_silent(self) -> PipeTimeoutError:
        return PipeTimeoutError(
            command=self._command,
            file=self._file,
            waited_s=self._silence_s,
            words=self._last_words(),
        )

    def _last_words(self) -> str:
        lines = self._words.decode(errors="replace").splitlines()
        return "\n".join(lines[-_KEPT_LINES:])[-_SHOWN_WORDS:]

    def _feed(self) -> None:
        """Write the input to the command, as fast as that takes it."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            while data := read_some(self._input, self._file):
                self._has_input = True
                stdin.write(data)
        except BrokenPipeError:
            pass  # it needs no more of it
        except FleetError as error:
            self._feed_error = error
        finally:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()


def _environment(slots: Sequence[str]) -> dict[str, str]:
    """Return this process's environment, with Paddle's names last on Python's path."""
    environment = read_environment()
    path = filter(None, [environment.get("PYTHONPATH"), str(PADDLE_NAMES)])
    names = " ".join(slots) if all(name.split() == [name] for name in slots) else ""
    return {**environment, "PYTHONPATH": os.pathsep.join(path), SLOTS_VARIABLE: names}


def _keeper() -> Keeper:
    """Return the keeper of this process's commands."""
    with _starting:
        keeper = _keepers.get(os.getpid())
        if keeper is None:
            keeper = _keepers[os.getpid()] = Keeper()
            atexit.register(keeper.close)
        return keeper


def _start(
    command: str, stdin: IO[bytes] | int, *, keeper: Keeper, slots: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start a command for the shell, which runs once the keeper knows its group."""
    waiting, gate = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's own command line
            behind_gate(shell_command(command), gate=waiting),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(slots),
            start_new_session=True,
            pass_fds=(waiting,),
        )
        keeper.add(process.pid)
        os.write(gate, b"\n")
    finally:
        os.close(waiting)
        os.close(gate)
    return process


def _kill(process: subprocess.Popen[bytes], keeper: Keeper) -> None:
    """Kill a command that still runs, and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    keeper.discard(process.pid)


def _has_descriptor(opened: IO[bytes]) -> bool:
    try:
        opened.fileno()
    except OSError:
        return False
    return True
