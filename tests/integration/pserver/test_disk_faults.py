"""A data folder without room: who operates the job learns of it, and the training goes on."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.integration.pserver.following import until
from tests.integration.pserver.planned import planned_job

from paramfleet_coordinator.core.view import disk_fault_of
from paramfleet_shared.settings import failpoints
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.warm import warm_all
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

IDS = list(range(40))


async def test_a_group_is_gone_on_with_when_its_disk_has_room_again(
    redis_url: str, job_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warm_all()
    caplog.set_level(logging.WARNING)
    folder = str(tmp_path)
    async with planned_job(
        redis_url, job_name, lease_ttl_s=LATE_S, data_dir=folder, replicas=0
    ) as job:  # a follower would take the group over from memory
        worker = await job.worker()
        await worker.push(IDS)
        await worker.pservers.settle()
        other, owner = sorted(job.processes, key=lambda each: job.plan(1).owner == each.id)
        job.processes.remove(owner)
        await owner.close()
        await job.note_incarnation("worker", 0, 9)  # which the group is to fence
        failpoints.be_full("before_write", first=1, until=SystemClock().monotonic() + LATE_S)
        job.begin_anew(1, other.id)
        await until(
            lambda: [
                each
                for each in caplog.records
                if each.getMessage() == "pserver.disk_refuses" and vars(each)["group"] == 1
            ]
        )
        assert other.failure is None

        failpoints.disarm()

        def recovered() -> bool:
            groups = [each for each in other.host.groups if each.index == 1]
            return any(each.routes is not None for each in groups)

        await until(recovered)
        assert job.job.failure is None


async def test_a_full_disk_is_logged_when_it_begins_and_when_it_ends(
    redis_url: str, job_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warm_all()
    caplog.set_level(logging.WARNING)

    def said(event: str) -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.getMessage() == event]

    folder = str(tmp_path)
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0, data_dir=folder) as job:
        worker = await job.worker()
        await worker.push(IDS)
        await worker.pservers.settle()
        failpoints.be_full("before_write", first=1, until=SystemClock().monotonic() + LATE_S)
        pushing = asyncio.get_running_loop().create_task(worker.push(IDS))
        await until(lambda: said("pserver.disk_refuses"))
        hosted = [group for process in job.processes for group in process.host.groups]
        assert any("No space left" in (disk_fault_of(each.facts()) or "") for each in hosted)

        failpoints.disarm()

        async with asyncio.timeout(LATE_S):
            await pushing
            rows, flat = await worker.pull(IDS)
        assert set(rows) == {2.0}
        assert flat == 2
        await until(
            lambda: len(said("pserver.disk_takes")) == len(said("pserver.disk_refuses"))
        )
        assert not any(disk_fault_of(each.facts()) for each in hosted)
