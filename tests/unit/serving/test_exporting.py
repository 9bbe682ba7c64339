"""What is published of a job stays whole, whatever the folder or a pserver refuses."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_serving.following.job import JobSource
from paramfleet_serving.following.source import Changed
from paramfleet_serving.jobs import exporting
from paramfleet_serving.jobs.exporting import Exporter, ExportPlan, FolderRefusesError
from paramfleet_serving.jobs.feed import JobFeed, Rows
from paramfleet_serving.jobs.locating import JobState, Locator
from paramfleet_shared.deltas.errors import StreamBusyError
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, TableChange
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.discovery.errors import NoRedisError
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import TableSpec

CLOCK = SystemClock()
ROWS = TableSpec(name="rows", kind="sparse", dim=2)
PLACE = Placement(endpoints=("127.0.0.1:1",), num_shards=1)
PLAN = ExportPlan(every_s=0.01, base_changes=0)


class Job(JobFeed):
    """A job of one row that changes at each question, so often."""

    def __init__(self, changes: int) -> None:
        super().__init__(
            PLACE, reader="tests", settings=JobSettings(insecure=True), clock=CLOCK
        )
        self.left = changes
        self.num = 0
        self.kept = 0

    @property
    def has_ended(self) -> bool:
        return not self.left

    async def begin(self) -> Any:
        return (ROWS,)

    async def rows(self) -> AsyncIterator[Rows]:
        yield Rows("rows", np.array([0], np.int64), np.zeros((1, 2), np.float32))

    async def keep(self) -> None:
        self.kept += 1

    async def changes(self, *, dense: bool) -> Change:
        del dense
        self.num += 1
        self.left -= 1
        rows = np.full((1, 2), float(self.num), np.float32)
        ids, none = np.array([self.num], np.int64), np.empty(0, np.int64)
        tables = {"rows": TableChange(ids, rows, none)}
        return Change(moment=1000.0 + self.num, tables=tables, dense={})

    async def close(self) -> None:
        pass


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what follows a job into a folder to its end."""

    async def run(job: Job, writer: StreamWriter, plan: ExportPlan = PLAN) -> Exporter:
        state = JobState("first", PLACE, has_ended=False)

        async def look(_: Locator) -> JobState:
            return state

        monkeypatch.setattr(Locator, "look", look)
        monkeypatch.setattr(exporting, "JobFeed", lambda *_, **__: job)
        settings = JobSettings(insecure=True)
        exporter = Exporter(lambda: settings, writer, plan, clock=CLOCK)
        async with asyncio.timeout(30):
            await exporter.run()
        return exporter

    return run


def ids_in(folder: Path) -> set[int]:
    reader = StreamReader(folder)
    last = reader.look().last
    found = [each.change.tables["rows"].ids.tolist() for each in reader.changes(0, last)]
    return {each for ids in found for each in ids}


async def test_a_stream_that_goes_with_its_server_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, job = list[int](), Job(10)

    async def look(_: Locator) -> JobState:
        return JobState("first", PLACE, has_ended=False)

    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(Locator, "look", look)
    monkeypatch.setattr(exporting, "JobFeed", lambda *_, **__: job)
    settings, plan = JobSettings(insecure=True), ExportPlan(every_s=0.01, base_changes=3)
    source = JobSource(settings, tmp_path, plan, clock=CLOCK, poll_s=0.01)

    last = 0
    found = source.events(None, accept=accept_all)
    async with (
        asyncio.timeout(30),
        aclosing(found) as events,  # type: ignore[type-var]  # a generator
    ):
        async for event in events:
            if isinstance(event, Changed):
                last = event.numbered.number
            if last == 9:
                break
    await source.close()

    assert synced == []


def accept_all(*_: Any) -> None:
    """Want every base."""


async def test_a_change_that_the_folder_refuses_is_published_again(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "RETRY_S", 0.01)
    writer, job = StreamWriter(tmp_path, clock=CLOCK), Job(10)
    real, refusals = (
        writer.publish,
        iter([StreamBusyError(path="f", waited_s=1.0), OSError("full")] * 2),
    )

    def publish(change: Change) -> int:
        if change.moment > 1003 and (error := next(refusals, None)) is not None:
            raise error
        return real(change)

    monkeypatch.setattr(writer, "publish", publish)

    exporter = await follow(job, writer)

    assert exporter.is_whole
    assert ids_in(tmp_path) == set(range(2, 11)), "the first is of before the base"


async def test_a_folder_that_refuses_for_long_ends_it_by_name(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "RETRY_S", 0.01)
    monkeypatch.setattr(exporting, "REFUSED_S", 0.05)
    writer = StreamWriter(tmp_path, clock=CLOCK)

    def publish(_: Change) -> int:
        raise OSError("no room")

    monkeypatch.setattr(writer, "publish", publish)

    with pytest.raises(FolderRefusesError, match="no room"):
        await follow(Job(10), writer)


async def test_a_base_that_is_not_made_stops_nothing(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, tries = StreamWriter(tmp_path, clock=CLOCK), iter([OSError("no room")])
    real = writer.compact

    def compact() -> int | None:
        if (error := next(tries, None)) is not None:
            raise error
        return real()

    monkeypatch.setattr(writer, "compact", compact)

    await follow(Job(30), writer, ExportPlan(every_s=0.01, base_changes=5))

    assert ids_in_all(tmp_path) >= {29, 30}
    assert StreamReader(tmp_path).look().base > 0, "a later one is made"


def ids_in_all(folder: Path) -> set[int]:
    reader = StreamReader(folder)
    base = reader.base()
    return {*base.tables["rows"].ids.tolist()} | {
        each
        for numbered in reader.changes(base.number, reader.look().last)
        for each in numbered.change.tables["rows"].ids.tolist()
    }


async def test_a_stream_that_can_not_begin_does_not_hang(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, job = StreamWriter(tmp_path, clock=CLOCK), Job(10)

    def begin(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    async def rows() -> AsyncIterator[Rows]:
        for index in range(100):
            yield Rows("rows", np.array([index], np.int64), np.zeros((1, 2), np.float32))

    monkeypatch.setattr(writer, "begin", begin)
    monkeypatch.setattr(job, "rows", rows)

    with pytest.raises(OSError, match="no room"):
        await follow(job, writer)


async def test_what_changes_is_kept_while_a_stream_begins(
    follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "KEEP_S", 0.01)
    writer, job = StreamWriter(tmp_path, clock=CLOCK), Job(3)

    async def rows() -> AsyncIterator[Rows]:
        while job.kept < 3:  # noqa: ASYNC110 -- nothing announces it
            await asyncio.sleep(0.01)
        yield Rows("rows", np.array([0], np.int64), np.zeros((1, 2), np.float32))

    monkeypatch.setattr(job, "rows", rows)

    await follow(job, writer)

    assert job.kept >= 3


async def test_another_run_of_the_same_number_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch of a job may have a registry of its own, which counts from one."""
    monkeypatch.setattr(exporting, "RETRY_S", 0.01)
    runs = [JobState(name, PLACE, has_ended=False) for name in "ab"]
    feeds = [Job(3), Job(3)]
    made = iter(feeds)

    async def look(_: Locator) -> JobState:
        return runs[0] if feeds[0].left else runs[1]

    monkeypatch.setattr(Locator, "look", look)
    monkeypatch.setattr(exporting, "JobFeed", lambda *_, **__: next(made))
    plan = ExportPlan(every_s=0.01, base_changes=0, stays=True)
    writer, settings = StreamWriter(tmp_path, clock=CLOCK), JobSettings(insecure=True)
    following = asyncio.get_running_loop().create_task(
        Exporter(lambda: settings, writer, plan, clock=CLOCK).run()
    )

    async with asyncio.timeout(30):
        while feeds[1].left or ids_in(tmp_path) != {2, 3}:  # noqa: ASYNC110 -- the same
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.wait((following,))


async def test_a_run_with_another_secret_at_the_same_registry_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that was killed leaves its registry's address to the next one of its name."""
    monkeypatch.setattr(exporting, "RETRY_S", 0.01)
    runs = [JobState(name, PLACE, has_ended=False) for name in "ab"]
    feeds, secrets = [Job(3), Job(3)], ["a" * 40, "b" * 40]
    made, used = iter(feeds), list[str]()

    async def look(_: Locator) -> JobState:
        return runs[0] if feeds[0].left else runs[1]

    def find() -> JobSettings:
        return JobSettings(secret=secrets[0] if feeds[0].left else secrets[1])

    def make(*_: Any, settings: JobSettings, **__: Any) -> Job:
        used.append(settings.secret)
        return next(made)

    monkeypatch.setattr(Locator, "look", look)
    monkeypatch.setattr(exporting, "JobFeed", make)
    plan = ExportPlan(every_s=0.01, base_changes=0, stays=True)
    writer = StreamWriter(tmp_path, clock=CLOCK)
    following = asyncio.get_running_loop().create_task(
        Exporter(find, writer, plan, clock=CLOCK).run()
    )

    async with asyncio.timeout(30):
        while feeds[1].left:  # noqa: ASYNC110 -- nothing announces it
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.wait((following,))

    assert used == secrets


@pytest.mark.parametrize(
    ("stays", "silent_s", "is_said"), [(True, 30, False), (True, -1, True), (False, 30, True)]
)
async def test_a_job_that_is_waited_for_may_begin_before_its_silence_is_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    stays: bool,
    silent_s: float,
    is_said: bool,
) -> None:
    monkeypatch.setattr(exporting, "RETRY_S", 0.01)
    monkeypatch.setattr(exporting, "SILENT_S", silent_s)
    job, looks = Job(3), iter([True, True])

    async def look(_: Locator) -> JobState:
        if next(looks, False):
            raise NoRedisError(url="none", waited_s=1.0, reason="none", remedy="wait")
        return JobState("first", PLACE, has_ended=False)

    monkeypatch.setattr(Locator, "look", look)
    monkeypatch.setattr(exporting, "JobFeed", lambda *_, **__: job)
    plan = ExportPlan(every_s=0.01, base_changes=0, stays=stays)
    writer, settings = StreamWriter(tmp_path, clock=CLOCK), JobSettings(insecure=True)
    following = asyncio.get_running_loop().create_task(
        Exporter(lambda: settings, writer, plan, clock=CLOCK).run()
    )

    async with asyncio.timeout(30):
        while job.left:  # noqa: ASYNC110 -- nothing announces it
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.wait((following,))

    assert any(each.msg == "serving.job_silent" for each in caplog.records) is is_said
