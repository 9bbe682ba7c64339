"""gpubox: mistakes in passes, and what others do to them; each ends in time, by its name."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import secret_for

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPT = "train_passes_bad.py"


def run(jobs: Any, *args: str, **env: str) -> Any:
    ended = jobs.run(SCRIPT, *args, workers=1, servers=2, **env)
    assert set(ended.codes.values()) == {0}, ended.story()
    return ended


def lines_of(ended: Any, start: str) -> list[str]:
    lines = ended.logs["worker0"].splitlines()
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("outside", [r"NoPassError: a lookup of table 'items' in training outside of a pass"]),
        (
            "inside",
            [
                r"PassOpenError: .*save_persistables",
                r"PassOpenError: .*load_model",
                r"PassOpenError: .*remove_rows",
                r"PassOpenError: .*device_pass",
            ],
        ),
        ("stranger", [r"IdOutsidePassError: table 'items': id 12345 of batch 1 is not"]),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    jobs: Any, mistake: str, told: list[str]
) -> None:
    (expected,) = jobs.run_once(SCRIPT, workers=1)

    ended = run(jobs, f"--mistake={mistake}")

    said = lines_of(ended, "told ")
    assert len(said) == len(told), said
    for line, pattern in zip(said, told, strict=True):
        assert re.match(pattern, line), line
    assert ended.results == [expected]


@pytest.mark.parametrize("block", ["with", "half"])
def test_a_pass_whose_block_or_step_fails_is_not_written(jobs: Any, block: str) -> None:
    (expected,) = jobs.run_once(SCRIPT, workers=1)

    ended = run(jobs, f"--mistake={block}")

    assert lines_of(ended, "failed in ") == [f"{block}, dense as before: True"]
    assert ended.results == [expected]


async def remove(running: Any, id_: int) -> None:
    """Remove a row, as somebody who isn't the worker's process."""
    secret, clock = secret_for(running.job), SystemClock()
    ids, _, offsets = partition(np.array([id_], np.int64), 8)
    half = len(offsets) // 2
    author = ChangeIdentity(0, 1, FIRST_SEQUENCE).fields()
    for server, port in enumerate(running.ports):
        bounds = offsets[half * server : half * server + half + 1]
        tensors = {"0.ids": ids[bounds[0] : bounds[-1]], "0.offsets": bounds - bounds[0]}
        message = Message(fields={**author, "table": "items", "step": 0}, tensors=tensors)
        peer = f"pserver {server}"
        channel = Channel(f"127.0.0.1:{port}", peer=peer, clock=clock, secret=secret)
        await channel.call("remove", message, timeout_s=10)
        await channel.close()


def test_a_pass_beside_which_somebody_wrote_is_refused_and_trained_anew(
    jobs: Any, tmp_path: Path
) -> None:
    (expected,) = jobs.run_once(SCRIPT, workers=1)
    go = tmp_path / "go"
    running = jobs.start(SCRIPT, f"--wait={go}", workers=1, servers=2)
    running.wait_for("worker0", "waits")

    asyncio.run(remove(running, 54321))
    go.touch()

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()
    (refused,) = lines_of(ended, "refused ")
    assert re.match(
        r"ForeignWriteError: table 'items' was written by a removal by worker 0 since the pass "
        r"began: nothing of pass 2 was written",
        refused,
    )
    assert ended.results == [expected], "the row was no batch's, and the pass came again"


def test_a_pserver_without_room_refuses_a_pass_that_none_has_then(
    jobs: Any, tmp_path: Path
) -> None:
    (expected,) = jobs.run_once(SCRIPT, workers=1)
    go, full = tmp_path / "go", tmp_path / "full"
    running = jobs.start(SCRIPT, f"--wait={go}", f"--full={full}", workers=1, servers=2)
    running.wait_for("worker0", "waits")

    full.touch()
    go.touch()

    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()
    (refused,) = lines_of(ended, "refused ")
    assert re.match(r"TableMemoryError: .* bytes of a pass that is written back", refused)
    assert ended.results == [expected]


def test_a_pserver_that_stands_still_as_a_pass_ends_is_named(jobs: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    patience = {"PARAMFLEET_CALL_TIMEOUT_S": "3", "PARAMFLEET_LEASE_TTL_S": "60"}
    running = jobs.start(SCRIPT, f"--wait={go}", workers=1, servers=2, **patience)
    running.wait_for("worker0", "waits")

    running.send("pserver1", signal.SIGSTOP)
    go.touch()
    code = running.code("worker0", within_s=4 * 3 + LATE_S)
    running.send("pserver1", signal.SIGKILL)

    assert code == 1
    told = r"refused DeadlineExceededError: pserver 1 did not answer 'prepare_pass' within [23]"
    assert re.search(told, running.log("worker0")), running.log("worker0")
