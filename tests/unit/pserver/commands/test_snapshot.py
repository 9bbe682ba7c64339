"""A machine that is restored from a snapshot is the one that was saved."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import (
    EXAMPLES,
    MODES,
    RULE_NAMES,
    SHARDS,
    Deed,
    History,
    Replica,
    announce,
    deeds,
    specs_of,
    store_for,
)

from paramfleet_pserver.commands.codec import from_bytes, to_bytes
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Load, Make, Origin
from paramfleet_pserver.commands.snapshot.reading import restore
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.owners import Owners
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.logs import SnapshotDamagedError, SnapshotPlaceError
from paramfleet_shared.errors.tables import TableLimitError, TableMemoryError
from paramfleet_shared.net.wire.message import Message, decode, encode

NAMED = (SnapshotDamagedError, SnapshotPlaceError, TableLimitError, TableMemoryError)
"""What a snapshot is refused by that can't be restored here."""


async def execute(
    one: Replica, maker: History, history: list[Deed], other: Replica | None = None
) -> None:
    """Let a machine execute what is not refused, and another one the same."""
    for deed in history:
        command = maker.command(deed)
        bodies = [to_bytes(command)]
        try:
            one.machine.execute(command)
        except FleetError:
            continue
        bodies += announce(one.machine, command)
        if other is not None:
            await other.execute([from_bytes(bytearray(body), other.store) for body in bodies])


async def restore_in_the_middle(
    mode: Mode,
    storage: str,
    rule: str,
    history: list[Deed],
    cut: int,
    num_threads: int,
    **of: Any,
) -> None:
    one = Replica(mode, 2, **of)
    maker = History(mode, one.store)
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    await one.execute([Make(specs_of(mode, storage, rule))])
    await execute(one, maker, history[:cut])
    saved = await one.snapshot()
    other = await Replica.restored(saved, num_threads)
    try:
        assert other.store.num_owners == one.store.num_owners
        assert await other.digest(same_owners=True) == await one.digest(same_owners=True)
        assert await other.snapshot() == saved
        await execute(one, maker, history[cut:], other)
        assert await other.digest(same_owners=True) == await one.digest(same_owners=True)
    finally:
        await one.owners.close()
        await other.owners.close()


@given(
    mode=st.sampled_from(MODES),
    storage=st.sampled_from(["float32", "float16", "bfloat16"]),
    rule=st.sampled_from(RULE_NAMES),
    rate=st.sampled_from(["full", "guarded"]),
    elastic=st.booleans(),
    returning=st.booleans(),
    history=deeds(),
    cut=st.integers(0, 25),
    num_threads=st.sampled_from([1, 2, 3, 8]),
)
@settings(max_examples=EXAMPLES)
def test_a_restored_machine_goes_on_as_the_one_that_was_saved(
    *,
    mode: Mode,
    storage: str,
    rule: str,
    rate: str,
    elastic: bool,
    returning: bool,
    history: list[Deed],
    cut: int,
    num_threads: int,
) -> None:
    """Also on a server with fewer or more threads: the blocks are those that it had."""
    of = {"rate": rate, "elastic": elastic and mode not in {"sync", "gpubox"}}
    of["returning"] = returning and not of["elastic"]
    if of["elastic"]:
        history = [*(replace(each, kind="join") for each in history[:3]), *history]

    run_to_end(restore_in_the_middle(mode, storage, rule, history, cut, num_threads, **of))


async def test_a_restored_machine_knows_what_its_rows_were_loaded_from() -> None:
    one = Replica("async", 2, rate="full", elastic=False)
    await one.execute([Make(specs_of("async", "float32", "sgd"))])
    origin = Origin("/checkpoints/7", "ab" * 32)
    await one.execute([Load(tuple(one.store.build(table.spec) for table in one.store), origin)])

    other = await Replica.restored(await one.snapshot())

    assert other.machine.origin == origin
    await one.owners.close()
    await other.owners.close()


@pytest.mark.parametrize(
    ("said", "known"), [(None, Origin()), (["/checkpoints/7", "ab" * 32, "more"], None)]
)
async def test_what_a_snapshot_says_of_a_load_is_a_folder_and_a_digest(
    said: list[str] | None, known: Origin | None
) -> None:
    one = Replica("async", 2, rate="full", elastic=False)
    head, *rest = [decode(bytearray(body)) for body in await one.snapshot()]
    fields = {name: value for name, value in head.fields.items() if name != "origin"}
    if said is not None:
        fields["origin"] = said
    bodies = [b"".join(encode(each)) for each in (replace(head, fields=fields), *rest)]

    if known is None:
        with pytest.raises(SnapshotDamagedError, match="origin"):
            await Replica.restored(bodies)
    else:
        other = await Replica.restored(bodies)
        assert other.machine.origin == known
        await other.owners.close()
    await one.owners.close()


async def saved_training(mode: Mode) -> list[Message]:
    """Return the snapshot of a training with something of everything in it."""
    elastic = mode in {"async", "geo"}
    one = Replica(mode, 2, rate="guarded", elastic=elastic, returning=mode == "sync")
    await one.execute([Make(specs_of(mode, "bfloat16", "adam"))])
    plain = Deed(
        "change", 0, 0, [*range(40)], 1, "float32", ["half", "flat"], 1, False, 0.5, True
    )
    deeds_of_all = [
        *(replace(plain, kind="join", rank=rank) for rank in range(3)),
        *(replace(plain, rank=rank, seed=rank, step=rank // 2) for rank in (0, 1, 0)),
        replace(plain, kind="remove", ids=[3, 5, 7], step=1, tables=["half"]),
        replace(plain, kind="void", rank=1),
        replace(plain, kind="leave", rank=2, step=1),
    ]
    maker = History(mode, one.store)
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    await execute(one, maker, deeds_of_all)
    saved = [decode(bytearray(body)) for body in await one.snapshot()]
    await one.owners.close()
    return saved


async def outcome_of(messages: Sequence[Message], num_owners: int = 2) -> FleetError | None:
    """Return why a snapshot can't be restored."""
    owners = Owners(num_owners)
    try:
        await restore(messages, store_for(num_owners), owners)
    except FleetError as error:
        return error
    finally:
        await owners.close()
    return None


@pytest.mark.parametrize("mode", MODES)
async def test_a_snapshot_that_lacks_a_message_is_damaged(mode: Mode) -> None:
    saved = await saved_training(mode)
    assert await outcome_of(saved) is None

    for missing in range(len(saved)):
        error = await outcome_of(saved[:missing] + saved[missing + 1 :])
        assert isinstance(error, SnapshotDamagedError), saved[missing].fields
    for stop in range(len(saved)):
        assert isinstance(await outcome_of(saved[:stop]), SnapshotDamagedError)
    assert isinstance(await outcome_of([*saved, saved[1]]), SnapshotDamagedError)


@pytest.mark.parametrize("num", [0, SHARDS + 1])
async def test_a_snapshot_of_more_owners_than_shards_is_damaged(num: int) -> None:
    head, *rest = await saved_training("async")
    head = Message(fields={**head.fields, "num_owners": num}, tensors=head.tensors)

    error = await outcome_of([head, *rest])

    assert isinstance(error, SnapshotDamagedError)
    assert f"'num_owners' must be a whole number >= 1, at most {SHARDS}" in str(error)


async def test_a_snapshot_of_more_workers_than_a_job_can_have_is_refused_at_once() -> None:
    head, *rest = await saved_training("async")
    terms = {**head.fields["terms"], "worker_num": 65_537}
    head = Message(fields={**head.fields, "terms": terms}, tensors=head.tensors)

    error = await outcome_of([head, *rest])

    assert isinstance(error, SnapshotDamagedError)
    assert "'worker_num' must be a whole number >= 1, at most 65,536" in str(error)


def changed(message: Message, dice: random.Random) -> Message:
    """Return a message with a field or a tensor that is another."""
    fields, tensors = dict(message.fields), dict(message.tensors)
    wrong: list[Any] = [None, -1, 2**63 - 1, 2**31, 0, 3, "x", [], {}, True, 0.5, float("nan")]
    if tensors and dice.random() < 0.6:
        name = dice.choice([*tensors])
        array = tensors[name]
        tensors[name] = dice.choice(
            [
                array[: len(array) // 2],
                np.concatenate([array, array]),
                array.astype(dice.choice(["int64", "float32", "uint8", "bool"])),
                array.reshape(-1),
                np.full_like(array, dice.choice([0, 1, 3, 99])),
                array[::-1].copy(),
                flipped(array, dice),
            ]
        )
        if dice.random() < 0.1:
            del tensors[name]
    else:
        name = dice.choice([*fields])
        fields[name] = dice.choice(wrong)
    return Message(fields=fields, tensors=tensors)


def flipped(array: Any, dice: random.Random) -> Any:
    """Return an array with some bits changed."""
    found = array.copy()
    body = found.reshape(-1).view(np.uint8)
    for _ in range(min(len(body), 3)):
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    return found.view(np.uint8).astype(np.bool_) if array.dtype == bool else found


@pytest.mark.parametrize("mode", MODES)
async def test_a_changed_snapshot_is_restored_or_refused_by_name(mode: Mode) -> None:
    """Checksums of files come before; what gets here nevertheless must not break a server."""
    saved = await saved_training(mode)
    dice = random.Random(len(saved))
    refused = 0
    with np.errstate(all="ignore"):
        for _ in range(EXAMPLES):
            number = dice.randrange(len(saved))
            messages = [*saved]
            messages[number] = changed(saved[number], dice)
            error = await outcome_of(messages)
            kinds = (
                SnapshotDamagedError,
                SnapshotPlaceError,
                TableLimitError,
                TableMemoryError,
            )
            assert error is None or isinstance(error, kinds), repr(error)
            refused += error is not None
    assert refused > EXAMPLES // 4
