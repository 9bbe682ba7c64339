"""The background thread: what becomes of work, and of its mistakes."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event

import pytest

from paramfleet.transport.communicator import (
    BackgroundError,
    Communicator,
    CommunicatorClosedError,
)
from paramfleet_shared.errors import FleetError, JobFailedError
from paramfleet_shared.testing.patience import LATE_S


@pytest.fixture
def communicator() -> Iterator[Communicator]:
    made = Communicator()
    made.start()
    yield made
    made.close()


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def forever() -> None:
    await asyncio.Event().wait()


async def fail_with(error: Exception) -> None:
    raise error


def wait_after_start(communicator: Communicator, started: Event) -> None:
    async def work() -> None:
        started.set()
        await forever()

    communicator.wait(work())


def spawn(communicator: Communicator, error: Exception) -> None:
    async def start() -> None:
        communicator.spawn(fail_with(error))

    communicator.wait(start())


def test_work_runs_on_the_thread_and_its_result_comes_back(communicator: Communicator) -> None:
    assert communicator.wait(answer(4)) == 4
    assert communicator.submit(answer(5)).result(timeout=LATE_S) == 5


def test_an_error_of_work_is_raised_where_it_is_waited_for(communicator: Communicator) -> None:
    with pytest.raises(FleetError, match="wrong"):
        communicator.wait(fail_with(FleetError("wrong")))
    assert communicator.wait(answer(4)) == 4, "and harms nobody else"


@pytest.mark.parametrize(
    ("error", "raised", "sentence"),
    [
        (
            JobFailedError(role="worker", index=1, reason="dead"),
            JobFailedError,
            "the job failed: worker 1: dead",
        ),
        (KeyError("no such table"), BackgroundError, "KeyError: 'no such table'"),
    ],
)
def test_a_background_task_that_fails_ends_every_wait_now_and_later(
    communicator: Communicator, error: Exception, raised: type[FleetError], sentence: str
) -> None:
    waiting = communicator.submit(forever())

    spawn(communicator, error)

    for _ in range(2):
        with pytest.raises(raised, match=sentence):
            communicator.wait(answer(4))
    with pytest.raises(raised, match=sentence):
        waiting.result(timeout=LATE_S)
    with pytest.raises(raised, match=sentence):
        communicator.raise_failure()


def test_a_thread_that_waits_already_hears_of_the_failure(communicator: Communicator) -> None:
    error = JobFailedError(role="pserver", index=0, reason="dead")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait_after_start, communicator, started := Event())
        assert started.wait(LATE_S)

        spawn(communicator, error)

        with pytest.raises(JobFailedError, match="the job failed: pserver 0: dead"):
            waiting.result(timeout=LATE_S)


def test_a_thread_that_waits_at_the_end_goes_on(communicator: Communicator) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait_after_start, communicator, started := Event())
        assert started.wait(LATE_S)

        communicator.close()

        with pytest.raises(CancelledError):
            waiting.result(timeout=LATE_S)


def test_after_the_end_nothing_is_taken_and_the_remedy_is_said(
    communicator: Communicator,
) -> None:
    communicator.close()

    with pytest.raises(CommunicatorClosedError, match=r"before fleet\.stop_worker"):
        communicator.wait(answer(4))
    with pytest.raises(CommunicatorClosedError):
        _ = communicator.session
    communicator.close()
