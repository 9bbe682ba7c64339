"""Takes a snapshot: all that decides what becomes of later commands, as messages.

The machine stands still meanwhile: its owners have nothing to do, and no command is executed
between two messages. What isn't state isn't taken: ids of pulls that workers name by number,
requests that wait, numbers that came ahead of their change, losses.

The first message says what the training is, the last one how many there were. Rows come by
block in their places, since commands that announce rows name these, and new rows are given
free places in their order.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.commands.applying import StepApplier
from paramfleet_pserver.commands.codec import message_of
from paramfleet_pserver.commands.geo import GeoExchange, Recorded
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Contribute, Prepare
from paramfleet_pserver.commands.snapshot.arrays import table_of
from paramfleet_pserver.requests.checked import PushRequest
from paramfleet_pserver.requests.pass_requests import PrepareRequest
from paramfleet_pserver.tables.blocks import Block
from paramfleet_pserver.tables.parts import Update
from paramfleet_pserver.tables.table import DenseTable, SparseTable, Table
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import has_defect

__all__ = ["PIECE_BYTES", "VERSION", "snapshot_of"]

VERSION = 1
"""Of the messages' layout."""

PIECE_BYTES = 4 << 20
"""About how much of rows or values one message has."""

_Tensors = dict[str, NDArray[Any]]


def snapshot_of(machine: Machine, *, piece_bytes: int = PIECE_BYTES) -> Iterator[Message]:
    """Yield the state of a machine that stands still.

    Tensors are copies: a message stays as it is.

    Args:
        machine: It; no change was applied in part.
        piece_bytes: About how much of rows or values one message has.

    Raises:
        TablesDamagedError: if a change was applied in part.
    """
    machine.check_whole()
    number = 0
    for number, message in enumerate(_messages(machine, piece_bytes), start=1):  # noqa: B007
        yield message
    yield Message(fields={"kind": "end", "messages": number})


def _messages(machine: Machine, piece_bytes: int) -> Iterator[Message]:
    yield _head(machine)
    for table in machine.store:
        if isinstance(table, DenseTable):
            yield from _dense(table, piece_bytes)
        elif isinstance(table, SparseTable):
            yield from _sparse(table, piece_bytes)
    mode = machine.mode
    if isinstance(mode, StepApplier):
        yield from _steps(mode)
    if isinstance(mode, PassMode):
        yield from _passes(mode)
    if isinstance(mode, GeoExchange):
        yield from _exchanges(mode, machine)


def _head(machine: Machine) -> Message:
    """Return what the training is, and who has taken part how far."""
    store, identities = machine.store, machine.identities
    taken = [] if has_defect("windows_left_out") else identities.taken()
    fields = {
        "kind": "machine",
        "version": VERSION,
        "terms": asdict(machine.terms),
        "elastic": machine.is_elastic,
        "max_staleness": machine.max_staleness,
        "shards": [store.shards.start, store.shards.stop],
        "num_shards": store.num_shards,
        "num_owners": store.num_owners,
    }
    sequences = [each.later + each.voided for each in taken]
    tensors = {
        "incarnations": table_of(identities.incarnations().items(), 2),
        "windows": table_of(
            ((*each[:3], len(each.later), len(each.voided)) for each in taken), 5
        ),
        "sequences": table_of(((one,) for each in sequences for one in each), 1),
        "committed": table_of(machine.gate.committed().items(), 2),
        "ahead": table_of(machine.gate.ahead(), 3),
        "lives": table_of(machine.lives.items(), 2),
        "removals": table_of(
            ((*each.identity, each.num_rows) for each in machine.removals.values()), 4
        ),
    }
    return Message(fields=fields, tensors=tensors)


def _about(table: Table, tensors: _Tensors) -> Message:
    """Return what is known of a table beside its rows or values."""
    fields = {
        "kind": "table",
        "spec": table.spec.to_wire(),
        "table_version": table.version,
        "updates": table.num_updates,
        "pushes": table.num_pushes,
        "writes": table.writes,
        "last_write": table.last_write,
        "loaded": table.is_loaded,
        "assigned": table.is_assigned,
    }
    guards = np.array([guard.numbers() for guard in table.guards], np.float64)
    return Message(fields=fields, tensors={"guards": guards, **tensors})


def _dense(table: DenseTable, piece_bytes: int) -> Iterator[Message]:
    updates = table.pieced_updates()
    numbers = [_numbers_of(each) for each in updates.values()]
    tensors: _Tensors = {
        "workers": table_of(
            ((worker, *each.source, each.number) for worker, each in updates.items()), 4
        ),
        "numbers": np.array(numbers, np.float64).reshape(-1, 4),
    }
    yield _about(table, tensors)
    values, states = table.range.values, table.range.states
    size = max(1, piece_bytes // (4 * (1 + len(states))))
    name = table.spec.name
    for start in range(0, len(values), size):
        where = slice(start, start + size)
        yield Message(
            fields={"kind": "values", "table": name, "start": start},
            tensors={"values": values[where].copy(), "states": states[:, where].copy()},
        )
    fields = {"kind": "range", "table": name, "untouched": table.range.is_untouched}
    yield Message(fields=fields)


def _numbers_of(update: Update) -> tuple[float, float, float, float]:
    """Return the other numbers of an update in pieces; NaN stands for None."""
    first = np.nan if update.first is None else float(update.first)
    scale, power = (np.nan, np.nan) if update.stride is None else update.stride
    return update.square, first, scale, power


def _sparse(table: SparseTable, piece_bytes: int) -> Iterator[Message]:
    yield _about(table, {})
    for index, block in enumerate(table.blocks):
        yield from _block(table.spec.name, index, block, piece_bytes)


def _block(name: str, index: int, block: Block, piece_bytes: int) -> Iterator[Message]:
    """Yield the places of a block's rows, and then the rows."""
    at = {"table": name, "block": index}
    places = block.rows.places()
    size = max(1, piece_bytes // 9)
    for start in range(0, len(places.ids), size):
        ids, is_live = (part[start : start + size] for part in places[:2])
        yield Message(
            fields={"kind": "places", **at, "start": start},
            tensors={"ids": ids, "live": is_live},
        )
    fields = {"kind": "index", **at, "turns": places.num_turns, "pushes": places.num_pushes}
    yield Message(fields=fields, tensors={"free": places.free})
    size = max(1, piece_bytes // block.rows.layout.row_bytes)
    for start in range(0, len(places.ids), size):
        ids, values, states = block.rows.export(start, size)
        if len(ids):
            yield Message(
                fields={"kind": "rows", **at, "start": start},
                tensors={"ids": ids, "values": values, "states": states},
            )


def _steps(mode: StepApplier) -> Iterator[Message]:
    """Yield how far sync has come, and the pushes of steps that aren't whole."""
    reservoir = mode.reservoir
    yield Message(
        fields={"kind": "steps", "applied": mode.version, "next": reservoir.next_step},
        tensors={"left": table_of(reservoir.left().items(), 2)},
    )
    for rank, step, weight, kept in reservoir.pushed():
        push = PushRequest(
            identity=ChangeIdentity(rank, 0, FIRST_SEQUENCE),  # its window has the real one
            step=step,
            weight=weight,
            continues=False,
            first=None,
            parts=kept.parts,
        )
        yield _command("push", message_of(Contribute(push)))


def _passes(mode: PassMode) -> Iterator[Message]:
    """Yield how far passes have come, and what is prepared of the next one."""
    yield Message(fields={"kind": "passes", "committed": mode.book.committed})
    for piece, kept in mode.book.pieces():
        prepare = PrepareRequest(piece=piece, parts=kept.parts)
        yield _command("prepared", message_of(Prepare(prepare)))


def _command(kind: str, command: Message) -> Message:
    fields = {"kind": kind, "command": dict(command.fields)}
    tensors = {name: tensor.copy() for name, tensor in command.tensors.items()}
    return Message(fields=fields, tensors=tensors)


def _exchanges(mode: GeoExchange, machine: Machine) -> Iterator[Message]:
    """Yield who exchanges, and what waits for each."""
    yield Message(
        fields={"kind": "exchanges", "announced": mode.announced_tables()},
        tensors={
            "ranks": table_of(((rank,) for rank in sorted(mode.ranks)), 1),
            "unannounced": table_of(((rank,) for rank in sorted(mode.unannounced)), 1),
        },
    )
    for table in machine.store:
        if isinstance(table, SparseTable) and mode.has_recorders(table):
            for index, recorded in enumerate(mode.recorded(table)):
                yield from _recorded(table.spec.name, index, recorded)


def _recorded(name: str, index: int, recorded: Recorded) -> Iterator[Message]:
    at = {"table": name, "block": index}
    last, is_used = recorded.recorder.last_batch, recorded.sharers.is_used
    yield Message(fields={"kind": "recorder", **at, "last": last, "shares": is_used})
    counted = {each.rank: each for each in recorded.sharers.counted()}
    for waiting in recorded.recorder.waiting():
        periods = counted[waiting.rank]
        yield Message(
            fields={"kind": "waiting", **at, "rank": waiting.rank, "batch": waiting.batch},
            tensors={
                "queue": waiting.queue.astype(np.int64),
                "marks": waiting.marks.astype(np.int64),
                "sent": table_of(waiting.sent, 2),
                "counts": table_of([periods[1:4]], 3),
                "periods": periods.periods.astype(np.int64),
                "changes": periods.changes,
            },
        )
