"""Two machines that execute the same commands come to the same state, however far apart."""

from dataclasses import replace
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import (
    DIM,
    EXAMPLES,
    MODES,
    RULE_NAMES,
    SHARDS,
    WIRES,
    Deed,
    History,
    Replica,
    announce,
    deeds,
    specs_of,
)

from paramfleet_pserver.commands.codec import command_of, from_bytes, to_bytes
from paramfleet_pserver.commands.geo import ANNOUNCED_ROWS, GeoExchange
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import (
    Announce,
    Announced,
    Contribute,
    Exchange,
    Load,
    Make,
    Origin,
    Update,
)
from paramfleet_pserver.core.limits import TableLimits
from paramfleet_pserver.requests.checked import ExchangeRequest, Mode, push_request
from paramfleet_pserver.tables import owners
from paramfleet_pserver.tables.parts import SparsePart
from paramfleet_pserver.tables.table import SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import OperationModeError
from paramfleet_shared.errors.tables import TableLimitError, TableMemoryError
from paramfleet_shared.net.wire.identity import ChangeIdentity
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import TableMismatchError
from paramfleet_shared.values.ids import Rank, Step


async def replay(
    mode: Mode,
    storage: str,
    rule: str,
    history: list[Deed],
    cut: int,
    num_owners: int,
    **of: Any,
) -> list[bytes]:
    """Return the commands that took effect, after a second machine has executed them."""
    specs = Make(specs_of(mode, storage, rule))
    one, other = Replica(mode, 2, **of), Replica(mode, num_owners, **of)
    maker, sent = History(mode, one.store), [to_bytes(specs)]
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    one.machine.execute(specs)
    same_owners = num_owners == 2
    try:
        digests = []
        for number, deed in enumerate(history):
            if number == cut:
                digests.append((len(sent), await one.digest(same_owners=same_owners)))
            command = maker.command(deed)
            body = to_bytes(command)
            before = None if number % 5 else await one.digest(same_owners=True)
            try:
                one.machine.execute(command)
            except FleetError:
                if before is not None:
                    assert await one.digest(same_owners=True) == before, "it was refused"
            else:
                sent.append(body)
                sent += announce(one.machine, command)
        digests.append((len(sent), await one.digest(same_owners=same_owners)))
        done = 0
        for stop, digest in digests:
            for body in sent[done:stop]:
                other.machine.execute(from_bytes(bytearray(body), other.store))
            done = stop
            assert await other.digest(same_owners=same_owners) == digest
    finally:
        await one.owners.close()
        await other.owners.close()
    return sent


@given(
    mode=st.sampled_from(MODES),
    storage=st.sampled_from(["float32", "float16", "bfloat16"]),
    rule=st.sampled_from(RULE_NAMES),
    rate=st.sampled_from(["full", "guarded"]),
    elastic=st.booleans(),
    returning=st.booleans(),
    history=deeds(),
    cut=st.integers(0, 25),
)
@settings(max_examples=EXAMPLES)
def test_a_second_machine_comes_to_the_same_state(
    *,
    mode: Mode,
    storage: str,
    rule: str,
    rate: str,
    elastic: bool,
    returning: bool,
    history: list[Deed],
    cut: int,
) -> None:
    of = {"rate": rate, "elastic": elastic and mode not in {"sync", "gpubox"}}
    of["returning"] = returning and not of["elastic"]
    if elastic:
        joins = [replace(each, kind="join") for each in history[:3]]
        history = [*joins, *history]

    assert run_to_end(replay(mode, storage, rule, history, cut, 2, **of))


@given(
    mode=st.sampled_from(MODES),
    rule=st.sampled_from(RULE_NAMES),
    history=deeds(),
    cut=st.integers(0, 25),
    num_owners=st.sampled_from([1, 3, 8]),
)
@settings(max_examples=EXAMPLES)
def test_the_number_of_owners_makes_no_difference(
    mode: Mode, rule: str, history: list[Deed], cut: int, num_owners: int
) -> None:
    """But for what is kept by block: rounding by chance, and guards of rates."""
    for deed in history:
        deed.guarded = False
    of = {"rate": "full", "elastic": False}

    assert run_to_end(replay(mode, "float32", rule, history, cut, num_owners, **of))


@pytest.mark.parametrize("rule", RULE_NAMES)
async def test_what_is_loaded_is_the_same_on_a_second_machine(rule: str) -> None:
    specs = specs_of("async", "bfloat16", rule)
    deed = Deed(
        "change", 0, 0, [*range(40)], 1, "float32", ["half", "flat"], 1, False, 0.0, True
    )
    one, two, other = (Replica("async", num, rate="full", elastic=False) for num in (2, 2, 3))
    for each in (one, two):
        await each.execute([Make(specs)])
    await one.execute([History("async", one.store).command(deed)])
    load = to_bytes(Load(tuple(one.store), Origin("/ckpt", "ab" * 32)))

    for each, num in ((two, 2), (other, 3)):
        command = from_bytes(load, each.store)
        assert to_bytes(command) == load or num != 2
        await each.execute([command])

    for each in (two, other):
        again = Replica("async", 2, rate="full", elastic=False)
        await again.execute([from_bytes(load, again.store)])
        assert await again.digest(same_owners=False) == await each.digest(same_owners=False)
        await again.owners.close()
    for each in (one, two, other):
        await each.owners.close()


def test_ids_that_a_request_names_are_written_out() -> None:
    """Another machine has kept no ids of a pull."""
    stores = [
        TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2) for _ in range(2)
    ]
    for store in stores:
        store.put(store.build(spec) for spec in specs_of("async", "float32", "sgd"))
    table, routed = stores[0].find("rows"), route(np.arange(9), SHARDS)
    assert isinstance(table, SparseTable)
    table.pulled.keep(1, 4, routed.ids, routed.offsets)
    grads = np.ones((9, DIM), np.float32)
    parts = [
        {"table": "rows", "lr": 1.0, "ids": "pulled", "pulled": 4},
        {"table": "half", "lr": 1.0, "ids": "same", "as": 0},
    ]
    name = ChangeIdentity(1, 1, 1).fields()
    fields = {**name, "step": 0, "weight": 1.0, "parts": parts}
    message = Message(fields=fields, tensors={"0.grads": grads, "1.grads": grads})

    body = to_bytes(Update(push_request(message, stores[0])))
    read = from_bytes(body, stores[1])

    assert isinstance(read, Update)
    for part in read.push.parts:
        assert isinstance(part.content, SparsePart)
        np.testing.assert_array_equal(part.content.ids, routed.ids)
        np.testing.assert_array_equal(part.content.offsets, routed.offsets)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, "must be one of create"),
        ({"kind": "melt"}, "must be one of create"),
        ({"kind": "create", "parts": [{"table": "flat"}]}, "must name a sparse table"),
        (
            {"kind": "announce", "table": "rows", "block": 2, "start": 0, "stop": 1},
            "must be below 2: as many owners are here",
        ),
        ({"kind": "load", "tables": [{"spec": 1}]}, "must be a map"),
    ],
)
def test_what_is_no_command_is_refused(fields: dict[str, Any], rule: str) -> None:
    store = TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2)
    store.put(store.build(spec) for spec in specs_of("async", "float32", "sgd"))

    with pytest.raises(MalformedMessageError, match=rule):
        command_of(Message(fields=fields), store)


@pytest.mark.parametrize(
    ("change", "error", "rule"),
    [
        ({"dim": 2**62}, TableLimitError, "dim"),
        ({"dim": 1 << 40}, TableLimitError, "dim"),
        ({"kind": "dense", "dim": 1, "size": 2**53, "entry": {}}, TableMemoryError, "bytes"),
        ({"num_shards": SHARDS + 1}, TableMismatchError, "num_shards"),
    ],
)
def test_a_load_that_this_server_can_not_hold_is_refused(
    change: dict[str, Any], error: type[FleetError], rule: str
) -> None:
    store = TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2)
    (spec, *_) = specs_of("async", "float32", "sgd")
    about = {"spec": spec.to_wire() | change, "updates": 0}
    tensors = {"0.ids": np.empty(0, np.int64)}
    tensors |= {f"0.{name}": np.empty((0, 1), np.float32) for name in ("values", "states")}

    with pytest.raises(error, match=rule):
        command_of(Message(fields={"kind": "load", "tables": [about]}, tensors=tensors), store)

    assert not list(store)


def test_as_many_tables_as_this_server_takes_are_loaded_at_most() -> None:
    store = TableStore(
        shards=range(SHARDS), num_shards=SHARDS, num_owners=2, limits=TableLimits(max_tables=2)
    )
    tables = [store.build(spec) for spec in specs_of("async", "float32", "sgd")]

    with pytest.raises(TableLimitError, match="number of tables"):
        from_bytes(to_bytes(Load(tuple(tables), Origin())), store)


@pytest.mark.parametrize(
    ("start", "stop"), [(3, 2), (0, 2**62), (2**62, 2**62 + 2**20), (0, ANNOUNCED_ROWS + 1)]
)
def test_an_announcement_of_too_many_rows_is_no_command(start: int, stop: int) -> None:
    store = TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2)
    store.put(store.build(spec) for spec in specs_of("geo", "float32", "sgd"))
    fields = {"kind": "announce", "table": "rows", "block": 0, "start": start, "stop": stop}

    with pytest.raises(MalformedMessageError, match="'stop'"):
        command_of(Message(fields=fields), store)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2**62, 2**62 + 1)])
@pytest.mark.parametrize("rank", [None, Rank(0)])
async def test_rows_that_are_not_there_do_not_wait_for_anybody(
    rank: Rank | None, start: int, stop: int
) -> None:
    replica = Replica("geo", 2, rate="full", elastic=False)
    replica.machine.execute(Make(specs_of("geo", "float32", "sgd")))
    table, geo = replica.store.find("rows"), replica.machine.mode
    assert isinstance(table, SparseTable)
    assert isinstance(geo, GeoExchange)
    try:
        outcome = replica.machine.execute(Announce(table, 0, start, stop, rank))
        with pytest.raises(MalformedMessageError, match="as many rows are there"):
            await outcome.applied
        recorders = [each.recorder for each in geo.recorded(table)]
        assert [each.num_waiting(Rank(0)) for each in recorders] == [0, 0]
    finally:
        await replica.owners.close()


async def test_rows_of_blocks_that_a_load_replaced_are_not_announced() -> None:
    replica = Replica("geo", 2, rate="full", elastic=False)
    replica.machine.execute(Make(specs_of("geo", "float32", "sgd")))
    table, geo = replica.store.find("rows"), replica.machine.mode
    assert isinstance(table, SparseTable)
    assert isinstance(geo, GeoExchange)
    table.is_loaded = True
    for block in table.blocks:
        block.rows.assign(
            np.arange(5), np.zeros((5, DIM), np.float32), np.zeros((5, 0), np.float32)
        )
    news = geo.news_of_load()
    try:
        assert next(news) == Announce(table, 0, 0, 5, None)
        table.adopt(replica.store.build(table.spec))
        assert list(news) == []
    finally:
        await replica.owners.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_what_only_exchanges_need_is_refused_in_other_modes(mode: Mode) -> None:
    replica = Replica(mode, 2, rate="full", elastic=False)
    replica.machine.execute(Make(specs_of(mode, "float32", "sgd")))
    table = replica.store.find("rows")
    assert isinstance(table, SparseTable)
    exchange = ExchangeRequest(
        identity=ChangeIdentity(0, 1, 1), step=Step(0), loss=None, parts=(), continues=False
    )
    commands = (Announce(table, 0, 0, 0, None), Announced(Rank(0), table), Exchange(exchange))
    try:
        for command in commands:
            with pytest.raises(OperationModeError, match=f"not an operation of mode '{mode}'"):
                replica.machine.execute(command)
    finally:
        await replica.owners.close()


@pytest.mark.parametrize("mode", MODES)
async def test_what_only_one_mode_has_is_refused_in_the_others(mode: Mode) -> None:
    replica = Replica(mode, 2, rate="full", elastic=False)
    replica.machine.execute(Make(specs_of(mode, "float32", "sgd")))
    deed = Deed("change", 0, 0, [5], 1, "float32", ["rows"], False, False, 0.0, True)
    kinds: tuple[Mode, ...] = ("async", "sync", "geo")
    has = "geo" if mode == "localsgd" else mode
    foreign = [
        cast("Contribute | Exchange | Update", History(of, replica.store).command(deed))
        for of in kinds
        if of != has
    ]
    before = await replica.digest(same_owners=True)
    try:
        for command in foreign:
            for act in (replica.machine.judge, replica.machine.execute):
                with pytest.raises(
                    OperationModeError, match=f"not an operation of mode '{mode}'"
                ):
                    act(command)
        assert await replica.digest(same_owners=True) == before
    finally:
        await replica.owners.close()


def test_a_command_is_the_same_bytes_when_it_is_read_again() -> None:
    history = [
        Deed(kind, 1, 2, [5, 3, 9], 7, wire, ["rows", "flat"], 1, False, 0.5, True)
        for kind in (
            "change",
            "create",
            "remove",
            "discount",
            "write",
            "void",
            "assign",
            "leave",
            "fence",
            "limit",
            "join",
            "lose",
            "commit",
            "abort",
        )
        for wire in WIRES
    ]
    for mode in MODES:
        store = TableStore(shards=range(SHARDS), num_shards=SHARDS, num_owners=2)
        rule = "ctr" if mode in {"sync", "async"} else "sgd"
        store.put(store.build(spec) for spec in specs_of(mode, "float32", rule))
        maker = History(mode, store)
        for deed in history:
            body = to_bytes(maker.command(deed))
            assert to_bytes(from_bytes(body, store)) == body


async def test_whole_steps_of_sync_come_before_later_commands_however_slow_owners_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def push(rank: int, step: int) -> Deed:
        ids, tables = [*range(step, step + 30)], ["rows", "flat"]
        return Deed("change", rank, step, ids, step, "float32", tables, 1, False, 0.0, True)

    ahead = [push(rank, step) for step in range(4) for rank in range(3)]
    between = replace(push(0, 9), kind="assign", continues=False)
    created = replace(push(0, 9), kind="create", ids=[*range(50, 60)])
    one = Replica("sync", 2, rate="full", elastic=False)
    other = Replica("sync", 2, rate="full", elastic=False)
    maker, make = History("sync", one.store), Make(specs_of("sync", "float32", "adam"))
    await one.execute([make])
    await other.execute([make])
    monkeypatch.setattr(owners, "INLINE_ROWS", -1)
    history = [*ahead, between, created, *(push(rank, 4) for rank in range(3))]
    bodies = [bytearray(to_bytes(maker.command(deed))) for deed in history]

    for body in bodies:
        one.machine.execute(from_bytes(body, one.store))
    assert one.machine.mode.is_applying
    for body in bodies:
        await other.execute([from_bytes(body, other.store)])

    assert await one.digest(same_owners=True) == await other.digest(same_owners=True)
    assert one.machine.mode.applied == 5
    await one.owners.close()
    await other.owners.close()
