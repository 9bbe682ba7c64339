"""Large changes, merges and bases hold no lookup up."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.loop_watch import LoopWatch

pytestmark = [pytest.mark.slow, pytest.mark.slow_machine]

ROWS, CHANGED, DIM = 600_000, 200_000, 16
MOST_S = 0.02


async def test_no_lookup_waits_long_for_what_comes(tmp_path: Path, serve: Any) -> None:
    numbers = np.random.default_rng(2)
    ids = np.unique(numbers.integers(0, 1 << 62, ROWS))
    writer = StreamWriter(tmp_path / "stream", clock=SystemClock())

    def rows(count: int) -> Any:
        return numbers.normal(size=(count, DIM)).astype(np.float32)

    def write(number: int) -> None:
        moment = datetime.now(UTC).timestamp()
        if number == 0:
            pieces = [("words", ids, rows(len(ids)))]
            writer.begin([StreamTable(name="words", dim=DIM)], pieces, {}, moment=moment)
            return
        some = np.sort(numbers.choice(ids, CHANGED, replace=False))
        part = TableChange(some, rows(CHANGED), np.empty(0, np.int64))
        writer.publish(Change(moment, {"words": part}, {}))
        if number == 3:
            writer.compact()

    await asyncio.to_thread(write, 0)
    served = await serve(tmp_path / "stream", memory=20 << 20)
    await served.reach(0)
    watch = LoopWatch()
    watching = asyncio.get_running_loop().create_task(watch.run())
    pauses = []

    for number in range(1, 6):
        await asyncio.to_thread(write, number)
        await served.reach(number)
        pauses.append(watch.longest_s)
    watching.cancel()

    assert served.server.follower.served.base_number > 0
    assert watch.longest_s < MOST_S, pauses
