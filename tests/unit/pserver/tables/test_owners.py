"""One thread at a time works on what it owns, in the order asked."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from paramfleet_pserver.tables.owners import INLINE_ROWS, LONE_ROWS, Job, Owners, when_done
from paramfleet_shared.errors import ContractError, UnavailableError

LONG = INLINE_ROWS + 1


@pytest.fixture
async def owners() -> AsyncIterator[Owners]:
    owners = Owners(2)
    yield owners
    await owners.close()


async def test_a_long_job_runs_on_its_owners_thread_and_a_short_one_on_the_loop(
    owners: Owners,
) -> None:
    ran: list[str] = []

    def act() -> None:
        ran.append(threading.current_thread().name)

    await owners.run([Job(1, LONG, act)])
    await owners.run([Job(1, 1, act)])

    assert ran[0].startswith("owner-1")
    assert ran[1] == threading.current_thread().name
    assert len(owners) == 2


async def test_a_short_job_does_not_overtake_a_long_one_of_its_owner(owners: Owners) -> None:
    gate, ran = threading.Event(), []

    def long() -> None:
        gate.wait(5)
        ran.append("long")

    first = owners.start([Job(0, LONG, long)])
    second = owners.start([Job(0, 1, partial(ran.append, "short"))])
    await owners.run([Job(1, 1, partial(ran.append, "other owner"))])
    gate.set()
    await asyncio.wait([first, second])

    assert ran == ["other owner", "long", "short"]


async def test_owners_beyond_the_threads_have_one_thread_each(owners: Owners) -> None:
    ran: list[tuple[int, str]] = []

    def act(owner: int) -> None:
        ran.append((owner, threading.current_thread().name))

    await owners.run(Job(owner, LONG, partial(act, owner)) for owner in (3, 5, 1, 3))

    assert [owner for owner, _ in ran] == [3, 5, 1, 3]
    assert {name for _, name in ran} == {"owner-1_0"}


async def test_jobs_of_one_owner_run_in_the_order_given(owners: Owners) -> None:
    ran: list[int] = []

    await owners.run(Job(0, LONG, partial(ran.append, n)) for n in range(5))

    assert ran == list(range(5))


async def test_no_jobs_are_done_at_once(owners: Owners) -> None:
    assert owners.start([]).done()


async def test_a_cancelled_waiter_does_not_stop_the_job(owners: Owners) -> None:
    gate, ran = threading.Event(), threading.Event()

    def act() -> None:
        gate.wait(5)
        ran.set()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(owners.run([Job(0, LONG, act)]))
        await asyncio.sleep(0)
        waiting.cancel()
    gate.set()
    await owners.run([Job(0, LONG, lambda: None)])

    assert waiting.cancelled()
    assert ran.is_set()


def broken(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("rows", [1, LONG])
async def test_a_failure_reaches_the_one_who_waits(owners: Owners, rows: int) -> None:
    with pytest.raises(ContractError):
        await owners.run([Job(0, rows, partial(broken, ContractError("full")))])


async def test_of_several_failures_one_is_told_when_all_jobs_are_over(owners: Owners) -> None:
    ran = threading.Event()

    def slow() -> None:
        ran.set()
        raise UnavailableError("later")

    with pytest.raises((ContractError, UnavailableError)):
        await owners.run([Job(0, LONG, slow), Job(1, 1, partial(broken, ContractError("now")))])

    assert ran.is_set()


async def test_reactions_come_before_those_who_wait_go_on(owners: Owners) -> None:
    order: list[str] = []

    for rows in (1, LONG):
        end = owners.start([Job(0, rows, lambda: None), Job(1, rows, lambda: None)])
        when_done(end, lambda _: order.append("reaction"))
        await asyncio.shield(end)
        order.append("waiter")

    assert order == ["reaction", "waiter"] * 2


async def test_a_posted_job_runs(owners: Owners) -> None:
    ran: list[int] = []

    owners.post(Job(0, LONG, partial(ran.append, 1)))
    await owners.run([Job(0, LONG, lambda: None)])

    assert ran == [1]


async def test_while_nobody_else_waits_longer_jobs_run_on_the_loop(owners: Owners) -> None:
    ran: list[str] = []

    def act() -> None:
        ran.append(threading.current_thread().name)

    await owners.run([Job(0, LONG, act)], alone=True)
    await owners.run([Job(0, LONE_ROWS // 2, act), Job(1, LONE_ROWS // 2, act)], alone=True)
    await owners.run([Job(0, LONE_ROWS + 1, act)], alone=True)

    here = threading.current_thread().name
    assert ran[:3] == [here] * 3
    assert ran[3].startswith("owner-0")


@pytest.mark.parametrize("rows", [1, LONG])
async def test_who_reacts_to_the_end_of_a_job_does_so_after_any_error(
    owners: Owners, rows: int
) -> None:
    ended: list[BaseException | None] = []

    def act() -> None:
        raise OverflowError("a defect, no error of ours")

    end = owners.start([Job(0, rows, act)])
    when_done(end, lambda done: ended.append(done.exception()))

    with pytest.raises(OverflowError, match="a defect"):
        await end
    assert [type(each) for each in ended] == [OverflowError]


async def test_the_next_job_reads_ahead_once_while_the_one_before_it_goes_on(
    owners: Owners,
) -> None:
    ran, gate = list[str](), threading.Event()

    def act(name: str) -> None:
        ran.append(name)
        if name == "first":
            assert gate.wait(5)
            owners.read_next(0)  # it has read what it needs
            owners.read_next(0)

    def begin(name: str) -> bool:
        ran.append(name)
        return name != "nothing ahead"

    def job(name: str, *, ahead: bool = True) -> Job:
        read = partial(begin, f"{name} ahead") if ahead else None
        return Job(0, LONG, partial(act, name), read)

    ends = [owners.start([job("first")])]
    ends += [owners.start([job("second"), job("third")])]
    ends += [owners.start([job("push", ahead=False)])]
    ends += [owners.start([job("nothing")]), owners.start([job("fourth")])]
    gate.set()
    await asyncio.wait(ends)

    begun = ["first", "second ahead", "second", "third"]
    rest = ["nothing ahead", "fourth ahead", "push", "nothing", "fourth"]
    assert ran == begun + rest


async def test_a_job_whose_batch_failed_does_not_keep_others_from_reading_ahead(
    owners: Owners,
) -> None:
    ran, gate = list[str](), threading.Event()

    def fail() -> None:
        assert gate.wait(5)
        raise ContractError

    def begin(name: str) -> bool:
        ran.append(name)
        return True

    def job(name: str) -> Job:
        return Job(0, LONG, partial(ran.append, name), partial(begin, f"{name} ahead"))

    failing = owners.start([Job(0, LONG, fail), job("never")])
    ends = [
        owners.start([Job(0, LONG, partial(ran.append, "push"))]),
        owners.start([job("last")]),
    ]
    gate.set()
    await asyncio.wait([failing, *ends])

    assert isinstance(failing.exception(), ContractError)
    assert ran == ["never ahead", "last ahead", "push", "last"]
