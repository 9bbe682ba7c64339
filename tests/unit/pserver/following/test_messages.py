"""What follower and owner send each other is read strictly, whatever it is."""

import asyncio
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.unit.pserver.commands.histories import EXAMPLES

from paramfleet_pserver.api.routes import Routes
from paramfleet_pserver.following.messages import (
    commands_message,
    follow_request,
    read_commands,
    read_piece,
)
from paramfleet_pserver.following.serving import FOLLOWING, MAX_FOLLOWERS
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.following import TooManyFollowersError
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import MalformedMessageError, Message, decode, encode
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

CLOCK = SystemClock()
FLAT = TableSpec(name="flat", kind="dense", size=8, optimizer=OptimizerSpec(rule="sum"))

NAMES = ["follower", "session", "part", "have", "attempt", "purpose", "for_server", "start"]
NAMES += ["position", "last", "piece"]
ANY: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.sampled_from(["a", "b", "", "x" * 65, "\n", "replica", "move"]),
    st.binary(max_size=3),
    st.just([0, 1]),
    st.lists(st.integers(0, 2), max_size=3),
    st.dictionaries(st.sampled_from(["kind", "a"]), st.integers(0, 1), max_size=2),
)
FIELDS = st.dictionaries(st.sampled_from(NAMES), ANY, max_size=len(NAMES))
TENSORS = st.dictionaries(
    st.sampled_from(["0", "1", "x"]),
    st.sampled_from([np.zeros(3, np.uint8), np.zeros((2, 2), np.uint8), np.zeros(2)]),
    max_size=3,
)


@given(fields=FIELDS, tensors=TENSORS, number=st.integers(0, 3))
@settings(max_examples=EXAMPLES)
def test_answers_are_read_or_refused_by_name(
    *, fields: dict[str, Any], tensors: dict[str, Any], number: int
) -> None:
    message = Message(fields=fields, tensors=tensors)
    for read in (
        lambda: read_piece(message, number),
        lambda: read_commands(message, number),
        lambda: follow_request(message, "follow"),
    ):
        try:
            read()
        except MalformedMessageError:
            continue


def test_commands_travel_as_they_are() -> None:
    bodies = [b"", b"a", bytes(range(256)) * 20]
    message = commands_message(7, bodies, position=12)

    found = read_commands(decode(bytearray(b"".join(encode(message)))), 7)

    assert [bytes(each) for each in found.bodies] == bodies
    assert (found.start, found.position) == (7, 12)


def test_commands_of_another_place_are_refused() -> None:
    message = commands_message(7, [b"a", b"b"], position=8)

    with pytest.raises(MalformedMessageError, match="must be 6"):
        read_commands(message, 6)
    with pytest.raises(MalformedMessageError):
        read_commands(commands_message(7, [b"a", b"b"], position=7), 7)


class Owner:
    """A group in memory, that may be followed."""

    def __init__(self) -> None:
        self.owners = Owners(1)
        store = TableStore(shards=range(8), num_shards=8, num_owners=1)
        self.routes = Routes(
            store, owners=self.owners, server=0, clock=CLOCK, term=1, replicas=1
        )

    async def ask(self, operation: str, **fields: Any) -> Message:
        deadline = CLOCK.monotonic() + 0.02
        request = Request(operation, Message(fields=fields), "a test", deadline)
        reply = self.routes.handle(operation, request)
        return reply if isinstance(reply, Message) else await reply

    async def declare(self) -> None:
        about = {"rank": 0, "incarnation": 1, "mode": "async", "worker_num": 1}
        about |= {"max_staleness": None, "async_rate": "full", "tables": [FLAT.to_wire()]}
        await self.ask("declare", **about)

    async def close(self) -> None:
        await self.routes.close()
        await self.owners.close()


async def refuse(requests: list[tuple[str, dict[str, Any]]]) -> None:
    owner = Owner()
    await owner.declare()
    for operation, fields in requests:
        about = {"follower": "a", "session": 1, **fields}
        try:
            async with asyncio.timeout(5):
                await owner.ask(operation, **about)
        except FleetError:
            continue
    assert len(owner.routes.followers.facts()) <= MAX_FOLLOWERS
    await owner.close()


@given(requests=st.lists(st.tuples(st.sampled_from(FOLLOWING), FIELDS), max_size=12))
@settings(max_examples=min(100, EXAMPLES))
def test_requests_are_served_or_refused_by_name(
    *, requests: list[tuple[str, dict[str, Any]]]
) -> None:
    asyncio.run(refuse(requests))


async def test_no_more_follow_than_may() -> None:
    owner = Owner()
    await owner.declare()
    for number in range(MAX_FOLLOWERS):
        await owner.ask("follow", follower=str(number), session=1)

    with pytest.raises(TooManyFollowersError):
        await owner.ask("follow", follower="another", session=1)
    await owner.ask("unfollow", follower="0", session=1)
    await owner.ask("follow", follower="another", session=1)
    await owner.close()
