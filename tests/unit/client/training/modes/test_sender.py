"""async's way out: what is merged, what waits, what is refreshed."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from paramfleet.config.strategy import TrainingMode
from paramfleet.training.modes.asynchronous.sender import Sender, merge
from paramfleet.training.modes.gradients import StepGradients, TableGradient
from paramfleet.transport.communicator import Communicator
from paramfleet_shared.errors import UnavailableError
from paramfleet_shared.system.clock import Clock, SystemClock
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.testing.clock import FakeClock
from paramfleet_shared.testing.patience import LATE_S


def step(number: int, ids: list[int] | None = None, lr: float = 0.1) -> StepGradients:
    unique, _, offsets = partition(np.array(ids or [number], np.int64), 4)
    grads = np.ones((len(unique), 1), np.float32)
    return StepGradients(
        step=number,
        examples=2,
        parts=(
            TableGradient(name="t", rows=RowIds(unique, offsets), grads=grads, lr=lr),
            TableGradient(name="d", rows=None, grads=np.full(3, number, np.float32), lr=lr),
        ),
    )


def test_merging_sums_rows_and_dense_values() -> None:
    merged = merge([step(1, [5, 7]), step(2, [7, 9])])

    sparse, dense = merged.parts
    assert sparse.rows is not None
    again = partition(sparse.rows.ids, 4)
    np.testing.assert_array_equal(sparse.rows.ids, again.ids, "still sorted by shard")
    np.testing.assert_array_equal(sparse.rows.offsets, again.offsets)
    found = dict(zip(sparse.rows.ids.tolist(), sparse.grads[:, 0].tolist(), strict=True))
    assert found == {5: 1.0, 7: 2.0, 9: 1.0}
    assert dense.grads.tolist() == [3, 3, 3]
    assert (merged.step, merged.examples) == (2, 4)


def test_one_step_is_passed_on_as_it_is() -> None:
    only = step(4)

    assert merge([only]) is only


class Wire:
    """Stands where the pservers are: holds pushes until they are let go."""

    def __init__(self) -> None:
        self.pushed: list[StepGradients] = []
        self.refreshed = 0
        self.free = asyncio.Event()
        self.free.set()

    async def push(self, gradients: StepGradients) -> None:
        await self.free.wait()
        self.pushed.append(gradients)

    async def refresh(self) -> list[NDArray[np.float32]]:
        self.refreshed += 1
        return [np.full(3, self.refreshed, np.float32)]


@pytest.fixture
def communicator() -> Iterator[Communicator]:
    made = Communicator()
    made.start()
    yield made
    made.close()


def started(
    communicator: Communicator, wire: Wire, *, clock: Clock | None = None, **settings: Any
) -> tuple[Sender, Callable[[StepGradients], None]]:
    settings = {"send_queue_size": 16} | settings
    sender = Sender(
        mode=TrainingMode(name="async", **settings),
        clock=clock or SystemClock(),
        push=wire.push,
        refresh=wire.refresh,
    )
    communicator.wait(sender.start(communicator))
    return sender, lambda gradients: communicator.wait(sender.put(gradients))


def test_each_step_is_pushed_and_dense_values_come_back(communicator: Communicator) -> None:
    wire = Wire()
    sender, put = started(communicator, wire)

    for number in range(5):
        put(step(number))
    communicator.wait(sender.drain())

    assert [gradients.step for gradients in wire.pushed] == [0, 1, 2, 3, 4]
    fresh = sender.take_fresh()
    assert fresh is not None
    assert sender.take_fresh() is None or wire.refreshed >= 4


def test_waiting_steps_are_merged_up_to_the_width(communicator: Communicator) -> None:
    wire = Wire()
    wire.free.clear()
    sender, put = started(communicator, wire, max_merge_var_num=3, send_wait_times=0)

    for number in range(8):
        put(step(number))
    communicator.submit(_set(wire.free))
    communicator.wait(sender.drain())

    sizes = [gradients.examples // 2 for gradients in wire.pushed]
    assert sum(sizes) == 8
    assert max(sizes) == 3


def test_steps_of_different_rates_are_never_merged(communicator: Communicator) -> None:
    wire = Wire()
    wire.free.clear()
    sender, put = started(communicator, wire, max_merge_var_num=10, send_wait_times=0)

    for number, lr in enumerate([0.1, 0.1, 0.1, 0.05, 0.05]):
        put(step(number, lr=lr))
    communicator.submit(_set(wire.free))
    communicator.wait(sender.drain())

    assert all(g.examples // 2 <= (3 if g.step < 3 else 2) for g in wire.pushed)
    assert sum(gradients.examples for gradients in wire.pushed) == 10
    assert [g.parts[0].lr for g in wire.pushed] == sorted(
        (g.parts[0].lr for g in wire.pushed), reverse=True
    )


def test_a_full_queue_holds_the_training_thread(communicator: Communicator) -> None:
    wire = Wire()
    wire.free.clear()
    sender, put = started(communicator, wire, send_queue_size=2)

    for number in range(3):  # one is with the wire, two wait
        put(step(number))
    fourth = communicator.submit(sender.put(step(3)))
    for _ in range(5):  # turns of the loop in which it could have gone through
        communicator.wait(asyncio.sleep(0))
    assert not fourth.done()

    communicator.submit(_set(wire.free))
    fourth.result(timeout=LATE_S)
    communicator.wait(sender.drain())
    assert len(wire.pushed) == 4


@pytest.mark.parametrize("independent", [False, True])
def test_dense_values_are_refreshed_at_the_stated_cadence(
    communicator: Communicator, independent: bool
) -> None:
    wire = Wire()
    sender, put = started(
        communicator,
        wire,
        min_send_grad_num_before_recv=3,
        independent_recv_thread=independent,
    )

    for number in range(6):
        put(step(number))
        communicator.wait(sender.drain())
        communicator.wait(asyncio.sleep(0))

    assert wire.refreshed in {1, 2} if independent else wire.refreshed == 2


def test_a_failed_push_fails_every_later_wait(communicator: Communicator) -> None:
    async def broken(_: StepGradients) -> None:
        raise UnavailableError("pserver 1 is gone")

    mode = TrainingMode(name="async")
    sender = Sender(mode=mode, clock=SystemClock(), push=broken, refresh=Wire().refresh)
    communicator.wait(sender.start(communicator))
    communicator.wait(sender.put(step(0)))

    with pytest.raises(UnavailableError, match="pserver 1 is gone"):
        communicator.wait(sender.drain())
    with pytest.raises(UnavailableError, match="pserver 1 is gone"):
        communicator.wait(sender.put(step(1)))


class Slow(Wire):
    """A wire whose answers come one by one, in the order that the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[StepGradients] = []
        self.answers: dict[int, asyncio.Future[None]] = {}

    async def push(self, gradients: StepGradients) -> None:
        answer = self.answers[gradients.step] = asyncio.get_running_loop().create_future()
        self.begun.append(gradients)
        await answer
        self.pushed.append(gradients)

    @property
    def steps(self) -> list[int]:
        return [gradients.step for gradients in self.begun]

    async def answer(self, *steps: int) -> None:
        for step in steps:
            self.answers[step].set_result(None)
            await settle()

    async def fail(self, step: int, error: Exception) -> None:
        self.answers[step].set_exception(error)
        await settle()


async def settle() -> None:
    for _ in range(5):  # turns of the loop, in which everything that may go on does
        await asyncio.sleep(0)


def test_a_push_does_not_wait_for_the_answer_to_the_one_before(
    communicator: Communicator,
) -> None:
    wire = Slow()
    sender, put = started(communicator, wire)

    for number in range(5):
        put(step(number))
    communicator.wait(settle())

    assert wire.steps == [0, 1, 2, 3, 4], "in their order, and none is answered"
    assert (sender.num_pushes, sender.num_steps) == (5, 5)
    assert [gradients.first for gradients in wire.begun] == [None, 1, 2, 3, 4]

    communicator.wait(wire.answer(1, 4, 3, 0, 2))
    communicator.wait(sender.drain())
    assert (sender.num_pushes, sender.num_steps) == (0, 0)


def test_steps_on_their_way_count_as_waiting_ones(communicator: Communicator) -> None:
    wire = Slow()
    sender, put = started(communicator, wire, send_queue_size=2)
    for number in range(3):
        put(step(number))

    fourth = communicator.submit(sender.put(step(3)))
    communicator.wait(settle())
    assert not fourth.done(), "gradients become no older than with one push at a time"
    assert wire.steps == [0, 1, 2]

    communicator.wait(wire.answer(1))
    assert not fourth.done(), "the oldest has no answer yet"
    communicator.wait(wire.answer(0))
    fourth.result(timeout=LATE_S)
    communicator.wait(wire.answer(2, 3))
    communicator.wait(sender.drain())
    assert wire.steps == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "at_once"),
    [({"thread_pool_size": 3}, 3), ({"max_staleness": 1}, 2), ({"max_staleness": 0}, 1)],
)
def test_no_more_pushes_go_than_the_strategy_allows(
    communicator: Communicator, settings: dict[str, Any], at_once: int
) -> None:
    wire = Slow()
    sender, put = started(communicator, wire, **settings)

    for number in range(6):
        put(step(number))
    communicator.wait(settle())
    assert wire.steps == list(range(at_once))

    for number in range(6):
        communicator.wait(wire.answer(number))
        assert len(wire.begun) == min(6, number + 1 + at_once)
    communicator.wait(sender.drain())


def test_a_bound_that_an_operator_changed_holds_for_pushes_to_come(
    communicator: Communicator,
) -> None:
    wire = Slow()
    sender, put = started(communicator, wire, max_staleness=0)
    for number in range(4):
        put(step(number))

    sender.adjust(TrainingMode(name="async", max_staleness=1))
    communicator.wait(settle())
    communicator.wait(wire.answer(0))

    assert wire.steps == [0, 1, 2]
    communicator.wait(wire.answer(1, 2, 3))
    communicator.wait(sender.drain())


def test_behind_a_push_on_its_way_goes_what_can_grow_no_more(
    communicator: Communicator,
) -> None:
    wire = Slow()
    sender, put = started(communicator, wire, max_merge_var_num=2, send_wait_times=0)

    for number in range(4):
        put(step(number))
        communicator.wait(settle())
    assert wire.steps == [0, 2], "the last waits for another to be merged with"

    communicator.wait(wire.answer(0))
    assert wire.steps == [0, 2]
    communicator.wait(wire.answer(2))
    assert wire.steps == [0, 2, 3], "no push is on its way any more"
    assert [gradients.first for gradients in wire.begun] == [None, 1, None]
    communicator.wait(wire.answer(3))
    communicator.wait(sender.drain())


def test_older_dense_values_never_replace_newer_ones(communicator: Communicator) -> None:
    wire = Slow()
    pulls: list[asyncio.Future[list[NDArray[np.float32]]]] = []

    async def refresh() -> list[NDArray[np.float32]]:
        pulls.append(asyncio.get_running_loop().create_future())
        return await pulls[-1]

    async def arrive(number: int) -> None:
        pulls[number].set_result([np.full(3, number, np.float32)])
        await settle()

    wire.refresh = refresh  # type: ignore[method-assign]  # of this test
    sender, put = started(communicator, wire)
    for number in range(3):
        put(step(number))
    communicator.wait(settle())
    communicator.wait(wire.answer(0, 1, 2))
    assert len(pulls) == 3, "each answer asks for them, and none waits for another"

    communicator.wait(arrive(1))
    first = sender.take_fresh()
    communicator.wait(arrive(0))
    assert sender.take_fresh() is None, "they are older"
    communicator.wait(arrive(2))
    last = sender.take_fresh()

    assert first is not None
    assert last is not None
    assert (first[0][0], last[0][0]) == (1, 2)


def test_dense_values_asked_for_before_they_were_forgotten_are_not_taken(
    communicator: Communicator,
) -> None:
    wire = Slow()
    arrives = communicator.wait(_future())

    async def refresh() -> list[NDArray[np.float32]]:
        await arrives
        return [np.zeros(3, np.float32)]

    wire.refresh = refresh  # type: ignore[method-assign]  # of this test
    sender, put = started(communicator, wire)
    put(step(0))
    communicator.wait(settle())
    communicator.wait(wire.answer(0))

    sender.forget_fresh()
    communicator.wait(_end(arrives))

    assert sender.take_fresh() is None


def test_after_a_failed_push_no_further_one_goes(communicator: Communicator) -> None:
    wire = Slow()
    _, put = started(communicator, wire, thread_pool_size=2)
    for number in range(4):
        put(step(number))
    communicator.wait(settle())

    communicator.submit(wire.fail(1, UnavailableError("pserver 1 is gone")))
    with pytest.raises(UnavailableError, match="pserver 1 is gone"):
        communicator.wait(asyncio.Event().wait())
    communicator.say_last(wire.answer(0))

    assert wire.steps == [0, 1]


async def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def _end(future: asyncio.Future[None]) -> None:
    future.set_result(None)
    await settle()


async def _set(event: asyncio.Event) -> None:
    event.set()


class FarWire(Wire):
    """Pservers at a distance, by a clock of the test."""

    def __init__(self, clock: FakeClock, round_trip_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._round_trip_s = round_trip_s

    @override
    async def push(self, gradients: StepGradients) -> None:
        if self.free.is_set():
            self._clock.jump(self._round_trip_s)
        await super().push(gradients)


@pytest.mark.parametrize(("round_trip_s", "waiting"), [(0.001, 1), (0.01, 6), (5.0, 16)])
def test_no_more_steps_wait_than_a_round_trip_needs(
    communicator: Communicator, round_trip_s: float, waiting: int
) -> None:
    clock = FakeClock()
    wire = FarWire(clock, round_trip_s)
    sender, put = started(communicator, wire, clock=clock, send_queue_size=None)
    communicator.wait(sender.push_last(step(0)))
    for number in range(1, 40):
        put(step(number))
        communicator.wait(sender.drain())
        clock.jump(0.002 - round_trip_s)  # as if the round trip took none of a step's time

    wire.free.clear()
    for number in range(waiting + 1):
        put(step(number))
        clock.jump(0.002)
    full = communicator.submit(sender.put(step(99)))
    for _ in range(5):  # turns of the loop in which it could have gone through
        communicator.wait(asyncio.sleep(0))

    assert not full.done()
    communicator.submit(_set(wire.free))
    full.result(timeout=LATE_S)
    communicator.wait(sender.drain())
