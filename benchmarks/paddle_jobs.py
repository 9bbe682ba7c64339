"""Jobs of Paddle 3.0.0's parameter server: one server, some workers, driven like ours.

Paddle's own launcher neither waits until a server listens nor notices that one has died,
so the processes are started here, in the order that works, with what that launcher sets.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from typing_extensions import override

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied
from peer.children import Child
from ports import free_port

__all__ = ["PaddleJob", "PaddleMissingError", "interpreter"]

START_TIMEOUT_S = 180.0
"""Longest wait for a worker: Paddle's GEO sends whole tables around first."""

_SCRIPTS = Path(__file__).parent / "paddle_side"
_ROOT = Path(__file__).parents[1]
_HOST = "127.0.0.1"
_ONE_THREAD = dict.fromkeys(("CPU_NUM", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class PaddleMissingError(Exception):
    """There is no environment that has Paddle."""

    def __init__(self, python: Path) -> None:
        super().__init__(f"no {python}: sh scripts/paddle_env.sh makes it")


def interpreter() -> Path:
    """Return the Python that has Paddle.

    Raises:
        PaddleMissingError: if there is none.
    """
    folder = _ROOT / read_environment().get("PADDLE_VENV", ".venv-paddle")
    python = folder / "bin" / "python"
    if not python.exists():
        raise PaddleMissingError(python)
    return python


class PaddleJob:
    """One server and its workers. Use ``start``, then the commands of the script.

    Args:
        script: A module of ``paddle_side``.
        options: Of the script.
        workers: How many.
        stack: Kills what is left of it, at the latest.
        folder: Gets the logs.
    """

    def __init__(
        self,
        script: str,
        options: Mapping[str, Any],
        *,
        workers: int,
        stack: AsyncExitStack,
        folder: Path,
    ) -> None:
        self._command = [str(_SCRIPTS / f"{script}.py"), json.dumps(options)]
        self._num_workers = workers
        self._stack = stack
        self._folder = folder
        self._ports = [free_port() for _ in range(workers + 2)]
        self._workers: list[_Process] = []

    async def start(self) -> None:
        """Start every process, and wait until the workers obey.

        Raises:
            ChildFailedError: if one doesn't start.
        """
        server = await self._start("server", TRAINING_ROLE="PSERVER")
        # The server's process holds the workers' common store before it serves tables.
        await server.until_listening(self._ports[1])
        self._workers = [
            await self._start(
                f"worker{rank}", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID=str(rank)
            )
            for rank in range(self._num_workers)
        ]
        await asyncio.gather(*(worker.until_ready() for worker in self._workers))

    async def ask(self, do: str, **arguments: Any) -> list[Any]:
        """Give all workers the same command at once; return their answers.

        Raises:
            ChildFailedError: if a worker fails, or doesn't answer in time.
        """
        return await asyncio.gather(*(worker.ask(do, **arguments) for worker in self._workers))

    async def end(self) -> None:
        """Let the workers finish. The server does not end by itself: it is killed."""
        await asyncio.gather(*(worker.end() for worker in self._workers))

    async def _start(self, name: str, **role: str) -> "_Process":
        log = self._folder / f"paddle-{name}-{self._ports[0]}.log"
        with log.open("wb") as words:
            process = await asyncio.create_subprocess_exec(
                *tied([str(interpreter()), *self._command]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env={**self._environment(), **role},
                cwd=self._folder,  # Paddle leaves files where it runs
                process_group=0,  # not a session: a scheduler may weigh those apart
            )
        started = _Process(f"Paddle's {name}", process, log)
        self._stack.push_async_callback(started.kill)
        return started

    def _environment(self) -> dict[str, str]:
        server, store, *workers = (f"{_HOST}:{port}" for port in self._ports)
        inherited = {
            name: value
            for name, value in read_environment().items()
            if name.lower() not in {"http_proxy", "https_proxy"}
        }
        return {
            **inherited,
            **_ONE_THREAD,
            "FLAGS_enable_pir_api": "0",
            "PADDLE_PSERVERS_IP_PORT_LIST": server,
            "PADDLE_TRAINER_ENDPOINTS": ",".join(workers),
            "PADDLE_TRAINERS_NUM": str(self._num_workers),
            "POD_IP": _HOST,
            "PADDLE_PORT": str(self._ports[0]),
            "PADDLE_WITH_GLOO": "1",
            "PADDLE_GLOO_RENDEZVOUS": "3",
            "PADDLE_GLOO_HTTP_ENDPOINT": store,
        }


class _Process(Child):
    """A process of Paddle with those that it starts."""

    @override
    async def kill(self) -> None:
        """End its group at once, its own children too when it has ended itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await super().kill()

    async def until_ready(self) -> None:
        """Wait for a worker's word that it obeys.

        Raises:
            ChildFailedError: if it ends or says nothing in time.
        """
        stdout = self._process.stdout
        assert stdout is not None, "opened as a pipe"
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await stdout.readline()
        except TimeoutError:
            raise self._failure("start", f"not ready in {START_TIMEOUT_S:g} s") from None
        if not line:
            raise self._failure("start", "it ended")

    async def until_listening(self, port: int) -> None:
        """Wait until somebody listens on a port.

        Raises:
            ChildFailedError: if the process ends first or nobody does in time.
        """
        end = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while not _listens(port):
            if self._process.returncode is not None:
                raise self._failure("start", f"it ended with {self._process.returncode}")
            if asyncio.get_running_loop().time() > end:
                raise self._failure("start", f"not ready in {START_TIMEOUT_S:g} s")
            await asyncio.sleep(0.1)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0
