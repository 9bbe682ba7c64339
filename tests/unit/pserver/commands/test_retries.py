"""A worker sends each change to every pserver until it is taken: there it counts once."""

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import DIM, SHARDS, SIZE, Replica, specs_of

from paramfleet_pserver.commands.codec import command_of, from_bytes, to_bytes
from paramfleet_pserver.commands.records import Command, Make
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.rows.routing import route

NUM_IDS, NUM_PSERVERS = 12, 2
KINDS: dict[Mode, str] = {"async": "update", "geo": "exchange", "localsgd": "exchange"}

Event = tuple[int, bool]
"""A change's number from 0, and whether it is voided: else it is sent, perhaps again."""


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[list[int]], list[list[Event]]]:
    """Draw changes, by their ids, and what comes to each pserver, in its order.

    To each all come at least once, or are voided, whatever came before.
    """
    ids = st.lists(st.integers(0, NUM_IDS - 1), max_size=5)
    changes = draw(st.lists(ids, min_size=1, max_size=8))
    given_up = [draw(st.sampled_from([False, False, True])) for _ in changes]
    arrivals = []
    for _ in range(NUM_PSERVERS):
        events: list[Event] = []
        for number, is_given_up in enumerate(given_up):
            least = 0 if is_given_up else 1
            events += [(number, False)] * draw(st.integers(least, 3))
            events += [(number, True)] * is_given_up
        arrivals.append(draw(st.permutations(events)))
    return changes, arrivals


def numbers_of(change: int, count: int) -> NDArray[np.float32]:
    """Return whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(change).integers(-9, 10, (count, DIM)).astype(np.float32)


def held_by(pserver: int, ids: Sequence[int]) -> NDArray[np.int64]:
    """Return those of some ids, each once, that a pserver holds; there may be none."""
    found: NDArray[np.int64] = np.unique(np.array(ids, np.int64))
    mine: NDArray[np.int64] = found[found % NUM_PSERVERS == pserver]
    return mine


def command(mode: Mode, pserver: int, ids: Sequence[int], event: Event) -> Message:
    number, is_voided = event
    name = ChangeIdentity(worker=0, incarnation=1, sequence=number + 1).fields()
    if is_voided:
        return Message(fields={"kind": "void", **name})
    what = "grads" if mode == "async" else "deltas"
    mine = held_by(pserver, ids)
    routed = route(mine, SHARDS)
    about: dict[str, Any] = {"lr": 1.0, "unique": True, "ack": 0, "max_rows": 99}
    parts = [{"table": "rows", **about}, {"table": "flat", **about}]
    tensors: dict[str, NDArray[Any]] = {"0.ids": routed.ids, "0.offsets": routed.offsets}
    tensors[f"0.{what}"] = numbers_of(number, len(mine))[routed.positions]
    tensors[f"1.{what}"] = np.full(SIZE, number + 1, np.float32)
    fields = {"kind": KINDS[mode], **name, "step": number, "weight": 1.0, "parts": parts}
    return Message(fields=fields, tensors=tensors)


async def take_all(
    mode: Mode, pserver: int, changes: list[list[int]], events: list[Event]
) -> tuple[Any, list[int]]:
    """Execute what comes to a pserver; return what it has taken, and with effect."""
    replica = Replica(mode, 2, rate="full", elastic=False)
    first: dict[int, bool] = {}
    try:
        replica.machine.execute(Make(specs_of(mode, "float32", "sum")))
        for event in events:
            message = command(mode, pserver, changes[event[0]], event)
            arrived: Command = command_of(message, replica.store)
            arrived = from_bytes(bytearray(to_bytes(arrived)), replica.store)
            outcome = replica.machine.execute(arrived)
            assert outcome.is_fresh == (event[0] not in first)
            first.setdefault(event[0], event[1])
        await replica.settle()
        effective = sorted(number for number, is_voided in first.items() if not is_voided)
        check_sums(replica, pserver, changes, effective)
        return replica.machine.identities.taken(), effective
    finally:
        await replica.owners.close()


def check_sums(
    replica: Replica, pserver: int, changes: list[list[int]], effective: list[int]
) -> None:
    rows = np.zeros((NUM_IDS, DIM), np.float32)
    share = 1 / 3 if replica.machine.terms.mode == "localsgd" else 1.0
    flat = np.zeros(SIZE, np.float32)
    for number in effective:
        mine = held_by(pserver, changes[number])
        rows[mine] += numbers_of(number, len(mine))
        flat += np.float32(share) * np.float32(number + 1)
    table, dense = replica.store.find("rows"), replica.store.find("flat")
    assert isinstance(table, SparseTable)
    assert isinstance(dense, DenseTable)
    for block in table.blocks:
        ids, values, _ = block.rows.export(0, block.rows.num_slots)
        np.testing.assert_array_equal(values, rows[ids])
    np.testing.assert_allclose(dense.range.values, flat, rtol=1e-6)


@pytest.mark.slow
@given(mode=st.sampled_from(sorted(KINDS)), schedule=schedules())
def test_what_is_retried_on_some_pservers_counts_once_on_each(
    mode: Mode, schedule: tuple[list[list[int]], list[list[Event]]]
) -> None:
    changes, arrivals = schedule

    for pserver, events in enumerate(arrivals):
        (taken,), effective = run_to_end(take_all(mode, pserver, changes, events))

        assert (taken.next, taken.later) == (len(changes) + 1, ()), "no gap is left"
        assert taken.voided == tuple(
            number + 1 for number in range(len(changes)) if number not in effective
        )
