"""What a process has of a group outlives a request to own it whose answer is lost."""

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.pserver.following import Worker, until
from tests.integration.pserver.planned import PlannedJob, planned_job

from paramfleet_pserver.durability.data_folder import DataFolder
from paramfleet_pserver.hosting import part
from paramfleet_pserver.hosting.folders import held
from paramfleet_pserver.hosting.held import HeldCopies
from paramfleet_shared.errors.logs import DataFolderError
from paramfleet_shared.files.regular_files import write_regular
from paramfleet_shared.settings import failpoints
from paramfleet_shared.tables.warm import warm_all
from paramfleet_shared.testing.patience import LATE_S

pytestmark = pytest.mark.slow

IDS = list(range(40))
STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    """Load the kernels once, before anybody waits for them."""
    warm_all()


def named(caplog: pytest.LogCaptureFixture, event: str) -> Callable[[], int]:
    """Return how often an event was logged, when it is asked for."""
    caplog.set_level(logging.INFO)
    return lambda: sum(record.getMessage() == event for record in caplog.records)


async def trained(job: PlannedJob, mode: str = "async") -> Worker:
    """Return a worker that has pushed to both groups, when both have a copy."""
    worker = await job.worker(mode)
    for _ in range(STEPS):
        await worker.push(IDS)
    await until(lambda: all(job.plan(group).eligible for group in range(2)))
    await worker.pservers.settle()
    return worker


async def trained_alone(job: PlannedJob) -> Worker:
    """Return a worker that has pushed to both groups, when that is on the disk."""
    await until(lambda: job.job.failure or all(job.plan(group).term for group in range(2)))
    worker = await job.worker()
    for _ in range(STEPS):
        await worker.push(IDS)
    await worker.pservers.settle()
    return worker


async def test_a_group_that_moves_isnt_lost_with_the_answer_of_its_new_owner(
    redis_url: str, job_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0) as job:
        worker = await trained(job)
        receiver, _ = job.processes
        job.answers.of = "join"
        job.move(1, receiver.id)
        await until(named(caplog, "group.again"))
        assert job.plan(1).term == 2  # it was given, and the process doesn't know
        job.answers.of = ""

        async with asyncio.timeout(LATE_S):
            rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).owner == receiver.id
        assert job.plan(1).term == 2
        assert job.job.failure is None


async def test_a_group_of_a_dead_owner_isnt_lost_with_the_answer_of_its_heir(
    redis_url: str, job_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with planned_job(redis_url, job_name, lease_ttl_s=1.0) as job:
        worker = await trained(job)
        heir, owner = job.processes
        job.answers.of = "join"
        owner.fall_silent()
        again = named(caplog, "group.again")
        await until(lambda: again() > 1)  # for longer than a lease
        assert job.plan(1).term == 2
        job.answers.of = ""

        async with asyncio.timeout(LATE_S):
            rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).owner == heir.id
        assert job.job.failure is None


@pytest.mark.parametrize("owner_threads", [(1, 3), (3, 1)])
@pytest.mark.parametrize("dies", [False, True])
async def test_a_group_goes_on_where_there_are_more_threads_or_fewer(
    redis_url: str, job_name: str, owner_threads: tuple[int, int], dies: bool
) -> None:
    async with planned_job(
        redis_url, job_name, lease_ttl_s=1.0 if dies else 10.0, owner_threads=owner_threads
    ) as job:
        worker = await trained(job)
        heir, owner = job.processes
        if dies:
            owner.fall_silent()
        else:
            job.move(1, heir.id)
        await until(lambda: job.plan(1).owner == heir.id or job.job.failure)

        async with asyncio.timeout(LATE_S):
            await worker.push(IDS)
            rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS + 1)}
        assert flat == STEPS + 1
        assert job.job.failure is None


async def test_an_owner_that_goes_on_isnt_lost_with_the_answer(
    redis_url: str,
    job_name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, "OUTCOME_S", 0.5)
    fenced = named(caplog, "group.fenced")
    async with planned_job(redis_url, job_name, lease_ttl_s=3.0) as job:
        worker = await trained(job)
        receiver, giver = job.processes
        failpoints.call_at("handover_fenced", 1, receiver.fall_silent)
        job.move(1, receiver.id)
        await until(fenced)
        job.answers.of = "join"
        await until(named(caplog, "group.again"))
        assert job.plan(1).term == 2
        job.answers.of = ""
        await until(named(caplog, "group.goes_on"))

        async with asyncio.timeout(LATE_S):
            rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).owner == giver.id
        assert job.job.failure is None


async def test_a_copy_is_kept_as_long_as_the_registry_names_it(
    redis_url: str, job_name: str
) -> None:
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0) as job:
        await trained(job)
        process, _ = job.processes
        name = process.id.text
        plan = job.plan(1)
        copies = HeldCopies(process.parts, process.host.session, 1)
        await copies.follow(plan)
        first = copies.following
        assert first is not None

        await copies.follow(replace(plan, follower=None, target=process.id))
        assert copies.following is first  # for another purpose later: it is named for this
        over = replace(plan, term=2, since_term=2, eligible=())
        next_ = replace(over, inherited=(name,), inherited_term=1)
        await copies.follow(next_)
        await copies.let_go(next_)
        assert copies.named(next_) is first
        assert copies.named(replace(next_, term=3, since_term=3, inherited_term=2)) is None
        await copies.let_go(over)
        assert copies.named(next_) is None
        await copies.close()


async def test_a_group_that_has_begun_never_begins_empty(redis_url: str, job_name: str) -> None:
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0) as job:
        await trained(job)
        other, _ = job.processes
        job.give(1, other.id)  # as nothing plans it: what it has is elsewhere

        await until(lambda: job.job.failure)

        assert job.job.failure is not None
        assert "group 1" in job.job.failure.reason
        assert "since term 1" in job.job.failure.reason
        assert len(other.host.groups) == 1  # that of the other group alone


async def test_a_group_whose_owner_dies_before_it_knows_of_it_is_begun_by_another(
    redis_url: str, job_name: str, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    async with planned_job(redis_url, job_name, lease_ttl_s=1.0, data_dir=folder) as job:
        other, owner = job.processes
        job.answers.of = "join"
        await until(lambda: job.plan(1).term)  # it was given, and the process doesn't know
        assert job.plan(1).owner == owner.id
        owner.fall_silent()
        await until(lambda: job.plan(1).owner == other.id or job.job.failure)
        job.answers.of = ""
        worker = await trained_alone(job)

        rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).owner == other.id
        assert job.plan(1).disk_term == job.plan(1).since_term > 1
        assert job.job.failure is None


async def test_an_owner_that_was_only_silent_leaves_a_new_group_to_who_begins_it_anew(
    redis_url: str, job_name: str, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0, data_dir=folder) as job:
        other, owner = job.processes
        await until(lambda: owner.host.groups and owner.host.groups[0].routes)
        job.begin_anew(1, other.id)
        await until(lambda: job.plan(1).term > 1)
        worker = await trained_alone(job)

        rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.job.failure is None


async def test_who_asks_for_a_group_that_another_is_to_begin_leaves_it_its_folder(
    redis_url: str, job_name: str, tmp_path: Path
) -> None:
    """It asks by a plan that a coordinator made that is dead; the new one plans otherwise."""
    folder = str(tmp_path)
    async with planned_job(
        redis_url, job_name, lease_ttl_s=10.0, data_dir=folder, join_timeout_s=100 * LATE_S
    ) as job:
        other, owner = job.processes
        job.answers.unheard = "join"
        await until(lambda: job.answers.num_unheard > 1)
        job.begin_anew(1, other.id)
        job.answers.unheard = ""
        worker = await trained_alone(job)

        rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).owner == other.id
        assert owner.failure is None


async def test_who_waits_for_an_owner_stops_when_the_plan_asks_for_something_else(
    redis_url: str, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "HANDOVER_S", 100 * LATE_S)
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0) as job:
        worker = await trained(job)
        receiver, giver = job.processes
        given = giver.host._all[1].hosted
        assert given is not None
        assert given.routes is not None
        asked = asyncio.Event()

        async def stand_still(_request: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as still:
            still.setattr(given.routes.followers, "fence", stand_still)
            job.move(1, receiver.id)
            await asked.wait()
            job.stay(1)
            await until(lambda: receiver.host._all[1]._planned.target is None)
        job.move(1, receiver.id)
        await until(lambda: job.plan(1).owner == receiver.id)
        rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.job.failure is None


async def test_who_waits_at_an_owner_that_learns_by_a_heartbeat_that_it_is_replaced_goes_on(
    redis_url: str, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0) as job:
        worker = await trained(job, "sync")
        receiver, giver = job.processes

        part_of_giver = giver.host._all[1]
        failpoints.call_at(  # it reads no more plans
            "handover_fenced",
            1,
            lambda: monkeypatch.setattr(part_of_giver, "note_plan", lambda _plan: None),
        )
        waiting = asyncio.get_running_loop().create_task(worker.pull(IDS, min_step=STEPS + 1))
        job.move(1, receiver.id)
        await until(lambda: job.plan(1).owner == receiver.id)
        await until(lambda: part_of_giver.hosted is None)

        assert part_of_giver._planned.owner == giver.id  # it knows no newer plan
        await part_of_giver._act(part_of_giver._planned)
        assert part_of_giver.hosted is None
        await worker.push(IDS)
        async with asyncio.timeout(LATE_S):
            rows, flat = await waiting

        assert set(rows) == {float(STEPS + 1)}
        assert flat == STEPS + 1
        assert job.job.failure is None


async def test_a_group_that_is_being_given_up_is_let_go_whole_when_its_process_ends(
    redis_url: str, job_name: str, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    async with planned_job(redis_url, job_name, lease_ttl_s=10.0, data_dir=folder) as job:
        await trained(job)  # its worker stays connected, so that the owner waits for it
        other, owner = job.processes
        job.move(1, other.id)
        await until(lambda: other.host._all[1].hosted)
        await until(lambda: owner.host._all[1].hosted is None)

        await owner.close()

        received = other.host._all[1].hosted
        assert received is not None
        await until(lambda: received.folder)  # the former owner has it no more
        assert job.job.failure is None


class Disk:
    """What the disk says of a group's folder, until it is well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, group: int) -> None:
        self.says: OSError | None = OSError(errno.ENOSPC, "No space left on device")
        self._monkeypatch = monkeypatch
        self._of = f"pserver-{group}"

    def refuse(self, name: str) -> None:
        """Refuse to make a file or folder of a name there."""
        mkdir, write = Path.mkdir, write_regular

        def make(path: Path, *args: Any, **kwargs: Any) -> None:
            self._look_at(path, name)
            mkdir(path, *args, **kwargs)

        def written(path: Path, content: bytes) -> None:
            self._look_at(path, name)
            write(path, content)

        self._monkeypatch.setattr(Path, "mkdir", make)
        self._monkeypatch.setattr(f"{held.__module__}.write_regular", written)

    def _look_at(self, path: Path, name: str) -> None:
        if self.says is not None and path.name == name and self._of in path.parts:
            raise self.says


@pytest.mark.parametrize("refused", ["pserver-1", "run-7"])
async def test_a_group_begins_when_its_disk_has_room(
    redis_url: str,
    job_name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    refused: str,
) -> None:
    disk = Disk(monkeypatch, 1)
    disk.refuse(refused)
    again = named(caplog, "group.again")
    async with planned_job(
        redis_url, job_name, lease_ttl_s=10.0, data_dir=str(tmp_path)
    ) as job:
        _, owner = job.processes
        await until(again)
        await asyncio.sleep(3 * part.RETRY_S)
        assert again() == 1  # it is tried again each moment, and said seldom
        assert job.plan(1).term == 0  # what can't be begun isn't asked for
        assert owner.failure is None
        disk.says = None
        DataFolder(tmp_path, job_name, 1).close()  # nor is it held meanwhile
        worker = await trained_alone(job)

        rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).term == 1
        assert job.job.failure is None
    (said,) = (each for each in caplog.records if each.getMessage() == "group.again")
    assert "pserver-1" in vars(said)["reason"]
    assert "No space left" in vars(said)["reason"]


async def test_a_disk_without_room_for_the_note_of_its_owner_isnt_named_before_it_has_it(
    redis_url: str,
    job_name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(monkeypatch, 1)
    disk.refuse("owned.draft")
    async with planned_job(
        redis_url, job_name, lease_ttl_s=10.0, data_dir=str(tmp_path)
    ) as job:
        await until(named(caplog, "group.not_noted"))
        training = asyncio.get_running_loop().create_task(trained_alone(job))
        await until(lambda: job.plan(0).disk_term)
        await asyncio.sleep(3 * part.RETRY_S)
        assert job.processes[1].failure is None
        assert job.plan(1).number == 0  # it would not be found on that disk
        disk.says = None
        worker = await training

        rows, flat = await worker.pull(IDS)

        assert set(rows) == {float(STEPS)}
        assert flat == STEPS
        assert job.plan(1).disk_term == 1
        assert held(job.processes[1].parts.settings, 7)[1] == job.plan(1).disk_term
        assert job.job.failure is None


@pytest.mark.parametrize("begun", [False, True])
async def test_a_folder_that_cant_be_used_ends_a_process_unless_the_group_has_begun(
    redis_url: str,
    job_name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
) -> None:
    disk = Disk(monkeypatch, 1)
    disk.says = None if begun else PermissionError(errno.EACCES, "Permission denied")
    disk.refuse("run-7")
    async with planned_job(
        redis_url, job_name, lease_ttl_s=10.0, data_dir=str(tmp_path)
    ) as job:
        other, owner = job.processes
        if not begun:
            await until(lambda: owner.failure)
            assert isinstance(owner.failure, DataFolderError)
            assert "Permission denied" in str(owner.failure)
            return
        await until(lambda: owner.host.groups and owner.host.groups[0].routes)
        disk.says = PermissionError(errno.EACCES, "Permission denied")
        job.begin_anew(1, other.id)
        await until(named(caplog, "group.again"))
        assert other.failure is None
        assert len(other.host.groups) == 1  # it goes on with its own
        disk.says = None
        worker = await trained_alone(job)
        rows, _ = await worker.pull(IDS)
        assert set(rows) == {float(STEPS)}
        assert job.plan(1).owner == other.id
        assert job.job.failure is None
