"""The side of the nursery that a benchmark holds: starts forks, asks them, ends them."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from cores import Cores, pin_process
from paramfleet_shared.net.secret import new_secret
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.core.environment import runtime_environment
from peer.children import ChildFailedError
from trees import HERE, Tree

__all__ = ["Fork", "Nursery"]

ANSWER_TIMEOUT_S = 180.0
"""Longest wait for an answer, on however busy a machine."""

END_TIMEOUT_S = 15.0
"""Longest wait for a process to end by itself."""


class Fork:
    """One process that talks JSON lines.

    Args:
        name: For errors.
        pid: Its process id.
        talk: From it, and to it.
        log: Where its standard error goes.
    """

    def __init__(
        self,
        name: str,
        pid: int,
        talk: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: Path,
    ) -> None:
        self.pid = pid
        self._name = name
        self._reader, self._writer = talk
        self.log = log

    async def ask(self, do: str, **arguments: Any) -> Any:
        """Send a command, and return its answer.

        Raises:
            ChildFailedError: if the process ends or doesn't answer in time.
        """
        self._writer.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await self._reader.readline()
        except TimeoutError:
            raise self._failure(do, f"no answer in {ANSWER_TIMEOUT_S:g} s") from None
        except ConnectionError:
            line = b""
        if not line:
            raise self._failure(do, "it ended")
        return json.loads(line)

    async def end(self) -> None:
        """Close its input, which ends it; use force when it stays."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._reader.read()
            except TimeoutError:
                os.kill(self.pid, number)
            except ConnectionError:  # it ended with an answer unread
                break
        self._writer.close()

    def _failure(self, command: str, reason: str) -> ChildFailedError:
        words = self.log.read_text(errors="replace")[-2000:]
        return ChildFailedError(f"{self._name}, {command}: {reason}; its last words:\n{words}")


class Nursery:
    """Forks processes. Use it as an async context manager: at its end, all of them end.

    Its forks run with what the launcher sets, and one thread in each of torch's pools.

    Args:
        folder: Gets logs and sockets.
        tree: Whose code they run.
    """

    def __init__(self, folder: Path, tree: Tree = HERE) -> None:
        self._folder = folder
        self._tree = tree
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        inherited = {
            name: value
            for name, value in read_environment().items()
            if name not in {"TRAINING_ROLE", "PADDLE_TRAINER_ID"}
        }
        added = runtime_environment(inherited, num_cores=1, num_local_roles=1)
        secret = {"PARAMFLEET_SECRET": new_secret()}
        with (self._folder / "nursery.log").open("wb") as words:
            self._process = await asyncio.create_subprocess_exec(
                *tied([sys.executable, "-m", "nursery.process"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                cwd=self._tree.benchmarks,
                env={
                    **secret,
                    **inherited,
                    **added,
                    **self._tree.environment(),
                    "OMP_NUM_THREADS": "1",
                },
                start_new_session=True,  # a signal to our group must not orphan its forks
            )
        await self._answer()
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None, "entered"
        assert process.stdin is not None, "opened as a pipe"
        process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()

    async def start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cores: Cores = (),
    ) -> Fork:
        """Start ``python ARGUMENTS``; its name must be new.

        Args:
            name: Of its log.
            arguments: A script's absolute path or ``-m module``, then its own arguments.
            environment: What it finds beside the nursery's own.
            cores: Where it runs; without any wherever the kernel puts it.

        Raises:
            ChildFailedError: if it doesn't begin to talk.
        """
        log, talk = self._folder / f"{name}.log", self._folder / f"{name}.sock"
        calls: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        calls = asyncio.Queue()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await calls.put((reader, writer))

        server = await asyncio.start_unix_server(accept, talk)
        async with self._asking:
            assert self._process is not None, "enter the nursery first"
            assert self._process.stdin is not None, "opened as a pipe"
            order = {
                "arguments": list(arguments),
                "environment": dict(environment),
                "talk": str(talk),
                "log": str(log),
            }
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            pid = await self._answer()
            pin_process(pid, cores)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                fork = Fork(name, pid, await calls.get(), log)
        except TimeoutError:
            msg = f"{name} doesn't talk"
            raise ChildFailedError(msg) from None
        server.close()
        return fork

    async def _answer(self) -> int:
        """Return what the nursery says next: a process id.

        Raises:
            ChildFailedError: if it ended.
        """
        assert self._process is not None, "entered"
        assert self._process.stdout is not None, "opened as a pipe"
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            line = await self._process.stdout.readline()
        if not line:
            words = (self._folder / "nursery.log").read_text(errors="replace")[-2000:]
            msg = f"the nursery ended; its last words:\n{words}"
            raise ChildFailedError(msg)
        pid: int = json.loads(line)
        return pid
