"""``paramfleet serve`` as a process: killed and started again, it serves the same bits."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.serving.streams import UNIVERSE, Stream

from paramfleet.serving import Client
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.net.tokens import entry_of
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TOKEN = "pf-read-" + "t" * 43
WITHIN_S = 60.0


@contextmanager
def serving(folder: Path, tokens: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server, and say where it listens."""
    command = [sys.executable, "-m", "paramfleet_worker", "serve", "--from", str(folder)]
    command += ["--log-format", "json", "--poll-s", "0.01"]
    environment = read_environment() | {"PARAMFLEET_TOKENS_FILE": str(tokens)}
    with subprocess.Popen(
        tied(command), stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said = json.loads(line)
            if said["event"] == "serving.started":
                break
        else:
            pytest.fail("it ended")
        try:
            yield process, said["fields"]["url"]
        finally:
            if process.poll() is None:
                process.kill()


def rows_at(client: Client, number: int) -> dict[str, NDArray[np.float32]]:
    """Wait for a number; return all rows."""
    clock = SystemClock()
    deadline = clock.monotonic() + WITHIN_S
    while clock.monotonic() < deadline:
        try:
            found = client.lookup({"words": UNIVERSE, "users": UNIVERSE})
        except UnavailableError:
            found = None
        if found is not None and found.version.number == number:
            return dict(found.rows)
        asyncio.run(clock.sleep(0.01))
    pytest.fail(f"number {number} isn't served in {WITHIN_S} s")


def test_it_serves_the_same_bits_after_it_was_killed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(entry_of(TOKEN, "read", "tests").to_line(), encoding="ascii")
    stream = Stream(tmp_path / "stream")
    stream.begin()
    stream.publish()

    with serving(stream.folder, tokens) as (process, url), Client(url, token=TOKEN) as client:
        before = rows_at(client, 1)
        for name, rows in before.items():
            assert np.array_equal(rows, stream.reference.lookup(name, UNIVERSE))
        last = [stream.publish() for _ in range(3)][-1]
        expected = rows_at(client, last)
        process.kill()

    with serving(stream.folder, tokens) as (process, url), Client(url, token=TOKEN) as client:
        again = rows_at(client, last)
        for name, rows in again.items():
            assert rows.tobytes() == expected[name].tobytes()
        process.terminate()
        process.wait(WITHIN_S)
    assert process.returncode == 0
