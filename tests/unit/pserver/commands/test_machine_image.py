"""An image has the state between two commands, while the later ones are executed."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import (
    EXAMPLES,
    MODES,
    RULE_NAMES,
    Deed,
    History,
    Replica,
    announce,
    deeds,
    specs_of,
)

from paramfleet_pserver.commands.codec import from_bytes, to_bytes
from paramfleet_pserver.commands.geo import GeoExchange
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Load, Make, Origin
from paramfleet_pserver.commands.snapshot.writing import MachineImage, take_image
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables import owners
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import TablesDamagedError
from paramfleet_shared.errors.tables import TableMemoryError
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.values.amounts import Memory

PIECE_BYTES = 256
PLENTY = Memory(total=1 << 40, free=1 << 40)
NONE = Memory(total=1 << 40, free=0)


def execute(one: Replica, maker: History, history: Iterable[Deed]) -> list[bytes]:
    """Execute what isn't refused, wait for nothing, and return it."""
    executed: list[bytes] = []
    for deed in history:
        command = maker.command(deed)
        body = to_bytes(command)
        try:
            one.machine.execute(command)
        except FleetError:
            continue
        executed += [body, *announce(one.machine, command)]
    return executed


async def repeat(one: Replica, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        await one.execute([from_bytes(bytearray(body), one.store)])


async def read_while(image: MachineImage, act: Any) -> list[bytes]:
    """Return the messages of an image, and act after each; what they hold must not change."""
    found: list[Message] = []
    async for message in image.messages():
        found.append(message)
        act()
    return [b"".join(encode(message)) for message in found]


async def image_in_the_middle(
    mode: Mode, storage: str, rule: str, history: list[Deed], cut: int, seed: int, **of: Any
) -> None:
    dice, make = random.Random(seed), Make(specs_of(mode, storage, rule))
    one, twin = Replica(mode, 2, **of), Replica(mode, 2, **of)
    replicas = [one, twin]
    maker = History(mode, one.store)
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    for each in replicas:
        await each.execute([make])
    try:
        before = execute(one, maker, history[:cut])
        image = await take_image(one.machine, piece_bytes=PIECE_BYTES)
        rest, after = list(history[cut:]), list[bytes]()
        chance = dice.choice([0.02, 0.1, 0.5])

        def go_on() -> None:
            while rest and dice.random() < chance:
                after.extend(execute(one, maker, [rest.pop(0)]))

        go_on()
        saved = await read_while(image, go_on)
        image.end()
        after.extend(execute(one, maker, rest))

        await repeat(twin, before)
        assert saved == await twin.snapshot()
        replicas.append(await Replica.restored(saved))
        digest = await twin.digest(same_owners=True)
        assert await replicas[-1].digest(same_owners=True) == digest
        await repeat(replicas[-1], after)
        end = await one.digest(same_owners=True)
        assert await replicas[-1].digest(same_owners=True) == end
    finally:
        for each in replicas:
            await each.owners.close()


@given(
    mode=st.sampled_from(MODES),
    storage=st.sampled_from(["float32", "float16", "bfloat16"]),
    rule=st.sampled_from(RULE_NAMES),
    rate=st.sampled_from(["full", "guarded"]),
    elastic=st.booleans(),
    history=deeds(),
    cut=st.integers(0, 25),
    seed=st.integers(0, 1000),
)
@settings(max_examples=EXAMPLES)
def test_an_image_is_of_its_position_whatever_is_executed_meanwhile(
    *,
    mode: Mode,
    storage: str,
    rule: str,
    rate: str,
    elastic: bool,
    history: list[Deed],
    cut: int,
    seed: int,
) -> None:
    of = {"rate": rate, "elastic": elastic and mode not in {"sync", "gpubox"}}
    if of["elastic"]:
        history = [*(replace(each, kind="join") for each in history[:3]), *history]
    with pytest.MonkeyPatch.context() as patch:
        if seed % 4:  # owners work on their threads, so that there is work under way
            patch.setattr(owners, "INLINE_ROWS", -1)
        run_to_end(image_in_the_middle(mode, storage, rule, history, cut, seed, **of))


def plain(kind: str = "change", **of: Any) -> Deed:
    ids, tables = [*range(40)], ["rows", "flat"]
    deed = Deed(kind, 0, 0, ids, 1, "float32", tables, 1, False, 0.0, True)
    return replace(deed, **of)


async def trained(mode: Mode = "async", **of: Any) -> tuple[Replica, History]:
    """Return a training with rows in it, and memory that tests may take away."""
    one = Replica(mode, 2, rate="full", elastic=False)
    maker = History(mode, one.store)
    one.store._memory = lambda: PLENTY
    await one.execute([Make(specs_of(mode, "float32", "adam"))])
    for step in range(3):
        for rank in range(3):
            execute(one, maker, [plain(rank=rank, step=step, **of)])
    await one.settle()
    return one, maker


async def test_sync_steps_that_are_whole_are_in_the_image_though_they_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "INLINE_ROWS", -1)
    one, maker = await trained("sync")
    for step in range(3, 6):
        execute(one, maker, [plain(rank=rank, step=step, seed=step) for rank in range(3)])
    assert one.machine.mode.is_applying

    image = await take_image(one.machine)

    assert one.machine.mode.applied == 6
    saved = await read_while(image, lambda: None)
    image.end()
    again = await Replica.restored(saved)
    assert again.machine.mode.applied == 6
    assert await again.digest(same_owners=True) == await one.digest(same_owners=True)
    await one.owners.close()
    await again.owners.close()


async def test_commands_wait_for_values_that_there_is_no_memory_to_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "INLINE_ROWS", -1)
    one, maker = await trained()
    expected = await one.snapshot()
    one.store._memory = lambda: NONE
    image = await take_image(one.machine, piece_bytes=PIECE_BYTES)
    steps: list[str] = []

    async def push_when_it_may() -> None:
        await image.apart()
        steps.append("push")
        assert execute(one, maker, [plain(step=3, tables=["flat"])])

    async with asyncio.TaskGroup() as group:
        group.create_task(push_when_it_may())
        saved: list[bytes] = []
        async for message in image.messages():
            saved.append(b"".join(encode(message)))
            steps.append(message.fields["kind"])
    image.end()

    assert steps.index("push") > max(
        place for place, step in enumerate(steps) if step == "values"
    )
    assert steps.index("push") < steps.index("rows")
    assert saved == expected
    await one.owners.close()


async def test_an_image_that_ends_unread_holds_nobody_back() -> None:
    one, _ = await trained()
    one.store._memory = lambda: NONE
    image = await take_image(one.machine)

    image.end()
    image.end()

    await image.apart()
    await one.owners.settle()
    assert not images_of(one)
    await one.owners.close()


def images_of(one: Replica) -> list[Any]:
    """Return what rows, and what waits, are put aside for."""
    tables = [table for table in one.store if isinstance(table, SparseTable)]
    found: list[Any] = []
    for table in tables:
        for block in table.blocks:
            found += block.rows._images
        if isinstance(one.machine.mode, GeoExchange):
            for recorded in one.machine.mode.recorded(table):
                found += [*recorded.recorder._images, *recorded.sharers._images]
    return found


async def test_an_image_without_memory_fails_by_name_and_is_taken_again_later() -> None:
    one, maker = await trained()
    twin, of_twin = await trained()
    image = await take_image(one.machine, piece_bytes=PIECE_BYTES)
    one.store._memory = lambda: NONE

    def push(step: int) -> None:
        for replica, by in ((one, maker), (twin, of_twin)):
            assert execute(replica, by, [plain(step=step, tables=["rows"])])

    push(3)
    with pytest.raises(TableMemoryError, match="rows"):
        await read_while(image, lambda: None)
    image.end()
    push(4)

    assert await one.digest(same_owners=True) == await twin.digest(same_owners=True)
    assert not images_of(one)
    one.store._memory = lambda: PLENTY
    again = await take_image(one.machine, piece_bytes=PIECE_BYTES)
    assert await read_while(again, lambda: None) == await twin.snapshot()
    again.end()
    await one.owners.close()
    await twin.owners.close()


async def test_what_waits_and_cannot_be_put_aside_fails_by_name() -> None:
    one, maker = await trained("geo", damping=0.5)
    image = await take_image(one.machine)
    one.store._memory = lambda: NONE

    assert execute(one, maker, [plain(step=3, tables=["rows"], ids=[1])])
    geo = one.machine.mode
    assert isinstance(geo, GeoExchange)
    rows = one.store.find("rows")
    assert isinstance(rows, SparseTable)
    for recorded in geo.recorded(rows):
        for aside in recorded.block.rows._images:
            aside.error = None  # as if no row had changed, but what waits
    with pytest.raises(TableMemoryError, match="to put aside"):
        await read_while(image, lambda: None)
    image.end()
    await one.owners.settle()
    assert not images_of(one)
    await one.owners.close()


@pytest.mark.parametrize("mode", ["async", "geo"])
async def test_tables_that_are_loaded_meanwhile_are_not_in_the_image(mode: Mode) -> None:
    one, maker = await trained(mode)
    expected = await one.snapshot()
    image = await take_image(one.machine, piece_bytes=PIECE_BYTES)
    others = tuple(one.store.build(table.spec) for table in one.store)

    def load() -> None:
        if others[0].is_loaded:
            return
        for table in others:
            table.is_loaded = True
        one.machine.execute(Load(others, Origin("/ckpt", "ab" * 32)))
        execute(one, maker, [plain(step=step, rank=1) for step in range(3, 5)])

    assert await read_while(image, load) == expected
    image.end()
    await one.owners.settle()
    assert not images_of(one)
    await one.owners.close()


async def test_rows_are_put_aside_no_longer_than_until_their_block_is_read() -> None:
    one, _ = await trained()
    image = await take_image(one.machine)
    num_images: list[int] = []

    await read_while(image, lambda: num_images.append(len(images_of(one))))

    assert max(num_images) == 4
    assert not images_of(one)
    image.end()
    await one.owners.close()


async def test_tables_with_a_part_of_a_change_have_no_image() -> None:
    one, _ = await trained()
    table = one.store.find("flat")
    assert isinstance(table, DenseTable)
    one.machine.mode.note_damage(plain().step, RuntimeError("broken"))  # type: ignore[arg-type]

    with pytest.raises(TablesDamagedError):
        await take_image(one.machine)

    await one.owners.close()
