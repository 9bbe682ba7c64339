"""Our half of the calls that are compared with Paddle's."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from peer.jobs import Processes
from peer.work import Work

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.forked]


async def test_rows_are_pulled_and_pushed_in_every_kind_of_call(tmp_path: Path) -> None:
    work = Work(rows=1, dim=4, table_rows=2_000)
    async with AsyncExitStack() as stack:
        processes = Processes(stack, tmp_path)
        job = await processes.start_job("rows")
        environment = processes.environments.ours
        caller = await processes.drive("rowcalls", work, job.address, environment)
        await caller.ask("fill")

        rates = [
            (await caller.ask("calls", kind=kind, rows=100, seconds=0.05))["rows_per_s"]
            for kind in ("pull", "push", "pull then push")
        ]
        await caller.end()

    assert all(rate > 0 for rate in rates)
