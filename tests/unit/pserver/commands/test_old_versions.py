"""A worker that is started again reads the values of its step, however far others have come."""

import asyncio
from typing import Any

import numpy as np
import pytest
from tests.unit.pserver.commands.histories import DIM, SHARDS, SIZE, Replica, specs_of

from paramfleet_pserver.api.reading import reading
from paramfleet_pserver.commands.codec import command_of
from paramfleet_pserver.commands.records import Contribute, Fence, Join, Leave, Make
from paramfleet_pserver.commands.worker_states import OLD_VERSIONS, WorkerStates
from paramfleet_pserver.requests.checked import PullPart, PullRequest, PushRequest
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_shared.errors.served import PushRepeatedError, VersionGoneError
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.encoding import WireDtype, buffer_for
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.values.ids import Rank, Step

IDS = np.arange(50, dtype=np.int64)


class Training:
    """Three workers of sync on one machine."""

    def __init__(self, *, returning: bool = True) -> None:
        self.replica = Replica("sync", 2, rate="full", elastic=False, returning=returning)
        self.machine = self.replica.machine
        self.machine.execute(Make(specs_of("sync", "float32", "adam")))
        self.sequences = dict.fromkeys(range(3), 0)
        self.lives = dict.fromkeys(range(3), 1)

    def push(self, rank: int, step: int, *, seed: int | None = None) -> bool:
        """Push a worker's part of a step; return whether it was taken for the first time."""
        self.sequences[rank] += 1
        random = np.random.default_rng(step * 10 + rank if seed is None else seed)
        routed = route(np.unique(random.integers(0, 50, 12)), SHARDS)
        rows = random.normal(size=(len(routed.ids), DIM)).astype(np.float32)
        identity = ChangeIdentity(rank, self.lives[rank], self.sequences[rank])
        parts = [{"table": "rows", "lr": 0.1, "unique": True}, {"table": "flat", "lr": 0.1}]
        tensors: dict[str, Any] = {
            "0.ids": routed.ids,
            "0.offsets": routed.offsets,
            "0.grads": rows,
        }
        tensors["1.grads"] = random.normal(size=SIZE).astype(np.float32)
        tensors["progress"] = np.frombuffer(b"%d after %d" % (rank, step), np.uint8)
        fields = {"kind": "contribute", **identity.fields(), "step": step, "weight": 1.0}
        command = command_of(
            Message(fields={**fields, "parts": parts, "continues": False}, tensors=tensors),
            self.replica.store,
        )
        assert isinstance(command, Contribute)
        before = len(list(self._mode().reservoir.pushed()))
        self.machine.execute(command)
        return len(list(self._mode().reservoir.pushed())) != before

    def steps(self, *steps: int) -> None:
        for step in steps:
            for rank in range(3):
                self.push(rank, step)

    def _mode(self) -> Any:
        return self.machine.mode

    async def read(
        self, version: int | None, wire: WireDtype = "float32"
    ) -> tuple[bytes, bytes]:
        """Return the values of rows and of the dense table as a pull reads them."""
        store = self.replica.store
        routed = route(IDS, SHARDS)
        rows = SparsePart(routed.ids, routed.offsets, buffer_for((50, DIM), wire), wire)
        parts = (
            PullPart(table=store.find("rows"), rows=rows, create=False, wire=wire),
            PullPart(table=store.find("flat"), rows=None, create=False, where=slice(1, SIZE)),
        )
        pull = PullRequest(Rank(0), None, 0, parts, version)
        before = self.machine.mode.before(version)
        jobs, tensors = reading(pull, keeps=False, before=before)
        await self.replica.owners.run(jobs)
        return tensors["0.rows"].tobytes(), tensors["1.rows"].tobytes()

    def life(self, rank: int) -> int:
        """Let another process of a worker join; return the step that it begins with."""
        self.lives[rank] += 1
        self.sequences[rank] = 0
        return self.machine.execute(Join(Rank(rank), self.lives[rank])).step


def run(test: Any, **more: Any) -> None:
    async def whole() -> None:
        training = Training(**more)
        try:
            await test(training)
        finally:
            await training.replica.owners.close()

    asyncio.run(whole())


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
def test_the_last_versions_are_read_as_they_were(wire: WireDtype) -> None:
    async def test(training: Training) -> None:
        seen = [await training.read(None, wire)]
        for step in range(6):
            training.steps(step)
            await training.replica.settle()
            seen.append(await training.read(None, wire))
        assert len(set(seen)) == 7
        for version in range(6 - OLD_VERSIONS, 7):
            assert await training.read(version, wire) == seen[version]

    run(test)


def test_steps_that_owners_have_not_done_yet_are_taken_back_too() -> None:
    async def test(training: Training) -> None:
        training.steps(0)
        await training.replica.settle()
        before = await training.read(None)
        training.steps(1, 2)  # given to owners, and not counted yet

        assert await training.read(1) == before

    run(test)


def test_an_older_version_is_gone_and_the_error_says_so() -> None:
    async def test(training: Training) -> None:
        training.steps(0, 1, 2, 3)
        with pytest.raises(VersionGoneError, match="after 1 steps are gone: 4 are applied"):
            await training.read(1)

    run(test)


def test_where_no_worker_returns_nothing_is_kept() -> None:
    async def test(training: Training) -> None:
        training.steps(0)
        with pytest.raises(VersionGoneError):
            await training.read(0)
        training.push(0, 1)
        with pytest.raises(PushRepeatedError):
            training.push(0, 1)

    run(test, returning=False)


def test_a_worker_begins_with_the_first_step_that_it_has_not_pushed() -> None:
    async def test(training: Training) -> None:
        assert training.life(0) == 0
        training.steps(0, 1)
        assert training.life(0) == 2
        training.push(0, 2)
        training.push(0, 3)
        assert training.life(0) == 4
        assert training.life(1) == 2
        training.machine.execute(Leave(Rank(1), training.lives[1], Step(2)))
        assert training.life(1) == 2
        assert training.machine.has_left(Rank(1))

    run(test)


def test_a_part_of_a_step_is_taken_once_whichever_process_pushes_it() -> None:
    async def test(training: Training) -> None:
        other = Training()
        for each in (training, other):
            each.steps(0)
            each.push(0, 1)
        training.life(0)
        assert not training.push(0, 1, seed=99), "what is there first stays"
        assert not training.push(0, 0, seed=98)
        for each in (training, other):
            each.push(1, 1)
            each.push(2, 1)
            await each.replica.settle()
        assert await training.read(None) == await other.read(None)
        assert training.machine.identities.next_of(0) == 3, "their names are taken, too"
        await other.replica.owners.close()

    run(test)


def test_where_a_worker_was_is_kept_for_its_last_steps() -> None:
    async def test(training: Training) -> None:
        training.steps(0, 1, 2, 3)
        states = training.machine.states
        assert states.before(Rank(1), Step(1)) is None
        for step in (2, 3, 4):
            found = states.before(Rank(1), Step(step))
            assert found is not None
            assert found.state == b"1 after %d" % (step - 1)
        newest = states.before(Rank(1), None)
        assert newest is not None
        assert newest.step == 4

    run(test)


def test_what_is_kept_first_of_a_step_stays() -> None:
    states = WorkerStates()
    states.note(Rank(0), Step(3), b"first")
    states.note(Rank(0), Step(3), b"second")
    found = states.before(Rank(0), Step(3))
    assert found is not None
    assert found.state == b"first"
    assert states.before(Rank(1), None) is None


def test_steps_that_are_far_too_high_keep_no_later_ones_out() -> None:
    states = WorkerStates()
    for more in range(3):
        states.note(Rank(0), Step(2**62 + more), b"wrong")
    for step in (6, 5, 7):  # requests may overtake each other
        states.note(Rank(0), Step(step), b"%d" % step)
    newest = states.before(Rank(0), None)
    assert newest is not None
    assert newest.state == b"7"
    copied = WorkerStates()
    for rank, (step, state) in states.all():
        copied.note(rank, step, state)
    for each in (states, copied):
        each.note(Rank(0), Step(8), b"8")
        assert each.before(Rank(0), Step(6)) is None, "it came first"
    assert states.all() == copied.all()


def test_rows_that_are_removed_end_what_is_kept() -> None:
    async def test(training: Training) -> None:
        training.steps(0)
        await training.replica.settle()
        table = training.replica.store.find("rows")
        assert isinstance(table, SparseTable)
        training.machine.mode.note_write(table, "a removal")
        with pytest.raises(VersionGoneError):
            await training.read(0)
        training.steps(1)
        await training.read(1)

    run(test)


def test_a_fenced_process_is_refused_as_ever() -> None:
    async def test(training: Training) -> None:
        training.push(0, 0)
        training.machine.execute(Fence(Rank(0), 2))
        with pytest.raises(Exception, match="incarnation"):
            training.push(0, 1)

    run(test)


def test_a_push_without_progress_keeps_none() -> None:
    push = PushRequest(ChangeIdentity(0, 1, 1), Step(0), 1.0, False, None, ())
    assert push.progress is None
