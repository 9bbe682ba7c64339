"""Rows asked for before the forward that needs them: one request a pserver and batch.

The training thread asks for the rows of batches to come, and begins each batch; a lookup
takes what was asked for its ids, or finds nothing and pulls. What a mode promises stays:

* ``now``: they are asked for at once; whatever the pservers hold will do, until the step
  that the batch began with is over.
* ``next``: only those of the next batch are on their way, since a worker waits for one
  turn at a time; of another step than theirs they would be too old.
* ``step``: those that will be trained are asked for with the step before, or behind it; in
  sync they name the version that they need. Those of another step are never taken.

What a forward will look up may also be asked for as it begins, if its input says so.

Everything here runs in the training thread; the calls run on the communicator's loop.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paramfleet.tables.sparse import SparseTable
from paramfleet.transport.requests import Read, ReadPlan
from paramfleet_shared.discovery.placement import Placement
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.batch import RowIds

__all__ = ["Ahead", "AskedRows", "Expecting", "Found", "Loop", "Wanted", "When"]

When = Literal["now", "next", "step"]


Found = tuple[list[NDArray[np.float32]], list[Message]]
"""The rows of each lookup, float32 [U, D], and the answers that they came in."""


class Wanted(NamedTuple):
    """What one lookup of a batch to come will ask for."""

    table: SparseTable
    rows: RowIds
    create: bool


class _Arrived:
    """Answers that needn't be waited for, in the place of a future."""

    def __init__(self, answers: list[Message]) -> None:
        self._answers = answers

    def result(self) -> list[Message]:
        """Return them."""
        return self._answers

    def cancel(self) -> bool:
        """Do nothing: it is too late."""
        return False


class AskedRows:
    """The rows of one batch.

    Args:
        wanted: What its lookups will ask for.
        plan: Makes the request for all of them; called when it is needed first.
        step: Steps that will have been taken when the batch begins.
    """

    def __init__(
        self,
        wanted: Sequence[Wanted],
        plan: Callable[[Sequence[Wanted]], ReadPlan],
        *,
        step: int,
    ) -> None:
        self.step = step
        self._make_plan = plan
        self._plan: ReadPlan | None = None
        self._all = wanted
        self._left: list[Wanted | None] = list(wanted)
        self._answers: Future[list[Message]] | _Arrived | None = None
        self._found: list[NDArray[np.float32]] | None = None

    @property
    def plan(self) -> ReadPlan:
        """Return the request for all of them."""
        if self._plan is None:
            self._plan = self._make_plan(self._all)
        return self._plan

    @property
    def is_sent(self) -> bool:
        """Whether the request is on its way, or needn't be."""
        return self._answers is not None or not self._left

    @property
    def creates(self) -> bool:
        """Whether any of the rows will be trained."""
        return any(each is not None and each.create for each in self._left)

    def sent(self, answers: "Future[list[Message]]") -> None:
        """Note that the request is on its way."""
        self._answers = answers

    def arrived(self, found: Sequence[NDArray[np.float32]], answers: list[Message]) -> None:
        """Note that the rows are here, those of each lookup [U, D], and their answers."""
        self._found = list(found)
        self._answers = _Arrived(answers)

    @property
    def wanted(self) -> list[Wanted]:
        """What lookups haven't taken yet."""
        return [each for each in self._left if each is not None]

    @property
    def left(self) -> list[int]:
        """Which lookups, by their places, haven't taken their rows."""
        return [place for place, each in enumerate(self._left) if each is not None]

    def take(
        self, table: SparseTable, ids_U: NDArray[np.int64], *, create: bool
    ) -> tuple[NDArray[np.float32], list[Message]] | None:
        """Return the rows [U, D] of ids, once, and the answers they came in.

        None if they weren't asked for, or are taken.

        Raises:
            FleetError: why the request failed.
        """
        for place, each in enumerate(self._left):
            if each is None or each.table is not table or each.create != create:
                continue
            asked_U = each.rows.ids
            if asked_U is not ids_U and not np.array_equal(asked_U, ids_U):
                continue
            assert self._answers is not None, "a batch is sent when it begins"
            answers = self._answers.result()
            if self._found is None:
                self._found = self.plan.join(answers)
            self._left[place] = None
            return self._found[place], answers
        return None

    def wait(self) -> None:
        """Wait until the request isn't on its way, if it is, however it ends."""
        if isinstance(self._answers, Future):
            with suppress(CancelledError):  # an error is for who takes the rows
                self._answers.exception()

    def drop(self) -> None:
        """Take no rows any more; a request on its way is called back."""
        self._left = []
        self._found = None
        if self._answers is not None:
            self._answers.cancel()


class Loop:
    """What one loop over a loader asked for and hasn't used up; made by ``Ahead.open``.

    Args:
        plan: Makes the request of what lookups will ask for.
        pull: Starts a request for the rows of a step.
        step: Returns the steps taken.
        when: Returns when rows are asked for now.
        expect: Is told what lookups will ask for whose rows don't come as yet.
    """

    def __init__(
        self,
        *,
        plan: Callable[[Sequence[Wanted]], ReadPlan],
        pull: "Callable[[ReadPlan, int], Future[list[Message]]]",
        step: Callable[[], int],
        when: Callable[[], When],
        expect: Callable[[Sequence[Wanted]], None],
    ) -> None:
        self._expect = expect
        self._plan = plan
        self._pull = pull
        self._step = step
        self._when = when
        self._coming: deque[AskedRows] = deque()
        self.current: AskedRows | None = None
        """The batch that began."""

    def ask(self, wanted: Sequence[Wanted]) -> None:
        """Ask for the rows of the batch after those asked for already."""
        before = len(self._coming) + (self.current is not None)
        asked = AskedRows(wanted, self._plan, step=self._step() + before)
        self._coming.append(asked)
        when = self._when()
        if not asked.creates:  # no step is to come before
            asked.step = self._step()
            self._send(asked)
        elif when == "now":
            for each in self._coming:  # those before may have been asked for under another rule
                self._send(each)
        elif when == "next" and len(self._coming) == 1:
            self._send(asked)
        else:
            self._expect(wanted)

    def begin(self) -> None:
        """Let lookups take the rows of the next batch asked for; those of the last go."""
        if self.current is not None:
            self.current.drop()
        self.current = self._coming.popleft()
        when = self._when()
        if not self.current.is_sent or when == "now":
            self.current.step = self._step()
        self._send(self.current)
        if when == "next":
            self.send_next(step=self._step() + 1)

    def send_next(self, *, step: int) -> None:
        """Send the next batch's request, if it waits yet, for this step."""
        due = self.due(step=step)
        if due is not None:
            self._send(due)

    def due(self, *, step: int) -> AskedRows | None:
        """Return the next batch's request, if it waits yet, to be sent for this step."""
        if not self._coming or self._coming[0].is_sent:
            return None
        self._coming[0].step = step
        return self._coming[0]

    def drop(self) -> None:
        """Drop the rows, but not the places of their batches: those pull when they come."""
        for asked in self._coming:
            asked.drop()
        if self.current is not None:
            self.current.drop()

    def wait(self) -> None:
        """Wait until no request is on its way."""
        for asked in (*self._coming, self.current):
            if asked is not None:
                asked.wait()

    def _send(self, asked: AskedRows) -> None:
        if not asked.is_sent:
            asked.sent(self._pull(asked.plan, asked.step))


class Ahead:
    """The loops that ask ahead. There may be several: one inside another, or side by side.

    Args:
        placement: Who hosts what.
        read: Describes one table's part of a request.
        pull: Starts a request for the rows of a step.
        step: Returns the steps taken.
        when: Returns when rows are asked for now; that may change between two steps.
        expect: Is told what lookups of batches to come will ask for, where their rows are to
            be of a later step: pservers may have them on disk.
    """

    def __init__(
        self,
        *,
        placement: Placement,
        read: Callable[[Wanted], Read],
        pull: "Callable[[ReadPlan, int], Future[list[Message]]]",
        step: Callable[[], int],
        when: Callable[[], When],
        expect: Callable[[Sequence[Wanted]], None] = lambda _: None,
    ) -> None:
        self._expect = expect
        self._placement = placement
        self._read = read
        self._pull = pull
        self._step = step
        self._when = when
        self._loops: list[Loop] = []
        self._together: AskedRows | None = None
        """The rows of the forward that goes on, if they were asked for at its beginning."""
        self.num_misses = 0
        """Lookups of begun batches whose rows were not at hand."""

    def open(self) -> Loop:
        """Begin a loop, to be closed."""
        loop = Loop(
            plan=self._plan,
            pull=self._pull,
            step=self._step,
            when=self._when,
            expect=self._expect,
        )
        self._loops.append(loop)
        return loop

    def close(self, loop: Loop) -> None:
        """Drop what a loop asked for: nobody comes for it."""
        self._loops.remove(loop)
        loop.drop()

    def due(self, *, step: int) -> list[AskedRows]:
        """Return what waits for this step, and goes with the request that takes it."""
        due = [loop.due(step=step) for loop in self._loops]
        return [asked for asked in due if asked is not None]

    @property
    def has_begun(self) -> bool:
        """Whether the rows of a batch that began were asked for ahead."""
        step = self._step()
        return any(loop.current and loop.current.step == step for loop in self._loops)

    def begin_forward(self, wanted: Sequence[Wanted], found: Found) -> None:
        """Let each lookup of the forward that begins take its rows."""
        self._together = AskedRows(wanted, self._plan, step=self._step())
        self._together.arrived(*found)

    def end_forward(self) -> list[int]:
        """Forget the forward's rows; return which lookups, by their places, took none."""
        asked, self._together = self._together, None
        return [] if asked is None else asked.left

    def send_next(self, *, step: int) -> None:
        """Send what waited for this step, which is on its way to the pservers."""
        for loop in tuple(self._loops):
            loop.send_next(step=step)

    def take(
        self, table: SparseTable, ids_U: NDArray[np.int64], *, create: bool
    ) -> tuple[NDArray[np.float32], list[Message]] | None:
        """Return what ``AskedRows.take`` does for a batch that began; None without one.

        A batch that began at another step hands out nothing: its rows are too old.
        """
        begun = [loop.current for loop in reversed(self._loops) if loop.current is not None]
        together = [] if self._together is None else [self._together]
        for asked in (*together, *begun):
            if asked.step == self._step():
                found = asked.take(table, ids_U, create=create)
                if found is not None:
                    return found
        self.num_misses += bool(begun)
        return None

    def wait(self) -> None:
        """Wait until no request is on its way."""
        for loop in self._loops:
            loop.wait()

    def forget(self) -> None:
        """Drop everything that was asked for: it is of before."""
        self._together = None
        for loop in tuple(self._loops):
            loop.drop()

    def _plan(self, wanted: Sequence[Wanted]) -> ReadPlan:
        return ReadPlan([self._read(each) for each in wanted], self._placement)


class Expecting(Protocol):
    """A mode whose lookups pull rows."""

    ahead: Ahead

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Pull what the lookups of the forward that begins will take."""
        ...
