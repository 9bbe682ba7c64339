"""What a Ray actor does for a launcher: it has one process of a job on its node.

The process is started as a launcher starts its own: behind a gate, in a session of its own,
and watched by a keeper, so that it ends with the actor, however that ends.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import Keeper
from paramfleet_worker.core.events import ProcessName
from paramfleet_worker.core.topology import Host
from paramfleet_worker.process.children.child import Child
from paramfleet_worker.process.ports import PortReservations

__all__ = ["Hand", "News"]

LOOK_S = 0.05
"""Seconds between two looks at the process."""

LAST_OUTPUT_WITHIN_S = 0.3
"""How long the output of a process that ended may take to come through its pipe."""

News = tuple[Literal["out", "line", "exit"], bytes | int]
"""What came on worker 0's standard output, a line, or the exit code."""


class Hand:
    """One process on the node of an actor. Used from the actor's event loop."""

    def __init__(self) -> None:
        self._keeper = Keeper()
        self._ports = PortReservations()
        self._news: list[News] = []
        self._child: Child | None = None

    async def place(self) -> tuple[str, int]:
        """Return the node's address, and a free port there, held for the process."""
        util: Any = importlib.import_module("ray.util")  # an extra
        host: str = util.get_node_ip_address()
        return host, self._ports.reserve(Host(host)).port

    async def start(
        self, name: tuple[str, int], words: Sequence[str], given: Mapping[str, str], folder: str
    ) -> int:
        """Start the process; return its id.

        Args:
            name: Its role and index.
            words: What Python is given.
            given: Variables that go before those of the node.
            folder: Where it works, if this node has such a folder.

        Raises:
            OSError: if it can't be started.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.chdir(folder)
        self._child = Child(
            ProcessName(*name),
            [sys.executable, *words],
            environment={**read_environment(), **given},
            log=Path(os.devnull),
            console=self,
            keeper=self._keeper,
        )
        return self._child.pid

    async def news(self) -> list[News]:
        """Return the next reports as soon as there are some; an exit comes last."""
        assert self._child is not None, "started"
        while not self._news:
            await asyncio.sleep(LOOK_S)
            code = self._child.poll()
            if code is not None:
                await self._child.drained(LAST_OUTPUT_WITHIN_S)
                self._news.append(("exit", code))
        news, self._news = self._news, []
        return news

    async def send(self, number: int) -> None:
        """Send a signal to the process and all that it has started."""
        if self._child is not None:
            self._child.send(signal.Signals(number))

    def say(self, text: str) -> None:
        """Take a line about the process."""
        self._news.append(("line", text.encode()))

    def line(self, name: ProcessName, line: bytes, *, is_ending: bool = False) -> None:
        """Take a line of the process."""
        del name, is_ending
        self._news.append(("line", line))

    @property
    def takes_results(self) -> bool:
        """Whether more results may come: who follows the process takes all."""
        return True

    def result(self, data: bytes) -> None:
        """Take what worker 0 wrote to its standard output."""
        self._news.append(("out", data))

    def end_result(self) -> None:
        """Do nothing: who follows the process learns of its end."""
