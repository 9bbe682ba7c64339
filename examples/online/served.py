"""A server that follows the running job, and a thread that asks it all along."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flights_by_day import Days
from paramfleet.serving import Client, ServedVersion
from paramfleet_shared.errors import FleetError, UnavailableError
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

__all__ = ["COMMAND", "Asked", "Asker", "Served", "serving"]

COMMAND = (sys.executable, "-m", "paramfleet_worker")
"""The ``paramfleet`` of this environment."""

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 30.0
EVERY_S = 0.05
FLIGHTS_ASKED = 32


class Served(NamedTuple):
    """A server that has a version."""

    client: Client
    pid: int


@contextmanager
def serving(job: str, folder: Path) -> Iterator[Served]:
    """Serve a running job until the block ends, to who has a token.

    Args:
        job: Its name; it must run already.
        folder: Gets the token, and the server's log.

    Yields:
        The server, and a client of it.
    """
    token, hashes, log = folder / "online.token", folder / "tokens", folder / "serve.log"
    new_token = ["tokens", "new", "--role", "read", "--name", "online"]
    new_token += ["--file", str(hashes), "--output", str(token)]
    subprocess.run([*COMMAND, *new_token], check=True, stdout=subprocess.DEVNULL)
    environment = read_environment() | {"PARAMFLEET_TOKENS_FILE": str(hashes)}
    serve = [*COMMAND, "serve", "--from", f"job:{job}", "--port", "0", "--log-format", "json"]
    with log.open("wb") as errors:
        process = subprocess.Popen(tied(serve), stderr=errors, env=environment)
    try:
        url = _url_of(process, log)
        with Client(url, token=token.read_text("ascii").strip(), timeout_s=5.0) as client:
            _await_version(process, log, client)
            yield Served(client, process.pid)
    finally:
        process.send_signal(signal.SIGCONT)  # whoever has stopped it
        process.terminate()
        process.wait(STOP_WITHIN_S)


@dataclass(slots=True)
class Asked:
    """What the answers said."""

    ages: list[float] = field(default_factory=list)
    """How old each answer was, in seconds."""
    versions: set[ServedVersion] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    @property
    def age_p99(self) -> float:
        """Return the age that 99 of 100 answers were below."""
        return float(np.percentile(self.ages, 99)) if self.ages else float("nan")


class Asker(threading.Thread):
    """Looks up rows of some flights and asks for the version, again and again.

    Args:
        client: Whom it asks.
        days: Whose ids it looks up.
    """

    def __init__(self, client: Client, days: Days) -> None:
        super().__init__(name="asker", daemon=True)
        self.asked = Asked()
        self._client = client
        self._examples = days.examples
        self._ended = threading.Event()
        self.turn = threading.Lock()
        """Held while it asks: nobody is asked while somebody else has it."""
        self._random = np.random.default_rng(0)

    def run(self) -> None:
        """Ask until ``end``."""
        while not self._ended.wait(EVERY_S):
            rows = self._random.integers(0, len(self._examples), FLIGHTS_ASKED)
            try:
                with self.turn:
                    self._ask(rows)
            except FleetError as error:
                self.asked.errors.append(str(error))

    def end(self) -> Asked:
        """Ask no more, and return what was said."""
        self._ended.set()
        self.join()
        return self.asked

    def _ask(self, rows: NDArray[np.int64]) -> None:
        examples = self._examples
        found = self._client.lookup(
            {"wide": examples.wide_ids[rows], "deep": examples.deep_ids[rows]}
        )
        self.asked.ages.append(found.age_s)
        self.asked.versions |= {found.version, self._client.version()}


def _url_of(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return where the server listens, as its log says.

    Raises:
        RuntimeError: It ended, or said nothing in time.
    """
    pause, deadline = threading.Event(), time.perf_counter() + READY_WITHIN_S
    while process.poll() is None and time.perf_counter() < deadline:
        for line in log.read_text(encoding="utf-8").splitlines():
            if '"serving.started"' in line:
                return str(json.loads(line)["fields"]["url"])
        pause.wait(0.05)
    raise RuntimeError(_not_ready(log))


def _await_version(process: "subprocess.Popen[bytes]", log: Path, client: Client) -> None:
    """Wait until the server has a version.

    Raises:
        RuntimeError: It ended, or has none in time.
    """
    pause, deadline = threading.Event(), time.perf_counter() + READY_WITHIN_S
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            client.version()
        except UnavailableError:
            pause.wait(0.05)
        else:
            return
    raise RuntimeError(_not_ready(log))


def _not_ready(log: Path) -> str:
    last = log.read_text(encoding="utf-8").splitlines()[-20:]
    return "\n".join(["the server isn't ready; its log ends with:", *last])
