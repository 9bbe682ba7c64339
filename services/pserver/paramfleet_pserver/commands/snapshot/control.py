"""Messages of what a snapshot has beside tables and recorders: what the event loop keeps.

They are made at once, while nothing is under way. Kept pushes and pieces of passes aren't
copied: nobody writes to them.
"""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from paramfleet_pserver.commands.applying import StepApplier
from paramfleet_pserver.commands.codec import message_of
from paramfleet_pserver.commands.geo import GeoExchange
from paramfleet_pserver.commands.machine import Machine
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Contribute, Prepare
from paramfleet_pserver.commands.snapshot.arrays import table_of
from paramfleet_pserver.commands.snapshot.old import old_messages
from paramfleet_pserver.requests.checked import PushRequest
from paramfleet_pserver.requests.pass_requests import PrepareRequest
from paramfleet_shared.net.wire.identity import FIRST_SEQUENCE, ChangeIdentity
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.failpoints import has_defect

__all__ = ["VERSION", "head_of", "kept_by"]

VERSION = 2
"""Of the messages' layout."""


def head_of(machine: Machine) -> Message:
    """Return what the training is, and who has taken part how far."""
    store, identities = machine.store, machine.identities
    taken = [] if has_defect("windows_left_out") else identities.taken()
    fields = {
        "kind": "machine",
        "version": VERSION,
        "terms": asdict(machine.terms),
        "elastic": machine.is_elastic,
        "returning": machine.is_returning,
        "max_staleness": machine.max_staleness,
        "origin": list(machine.origin),
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
        "former": table_of(machine.former.items(), 2),
        "left": table_of(machine.left.items(), 2),
        "removals": table_of(
            ((*each.identity, each.num_rows) for each in machine.removals.values()), 4
        ),
    }
    return Message(fields=fields, tensors=tensors)


def kept_by(machine: Machine) -> Iterator[Message]:
    """Yield what the mode keeps beside the tables and its recorders."""
    mode = machine.mode
    for rank, (step, state) in machine.states.all():
        yield Message(
            fields={"kind": "progress", "rank": rank, "step": step},
            tensors={"progress": np.frombuffer(state, np.uint8)},
        )
    if isinstance(mode, StepApplier):
        yield from _steps(mode)
        if mode.old is not None:
            yield from old_messages(mode.old)
    if isinstance(mode, PassMode):
        yield from _passes(mode)
    if isinstance(mode, GeoExchange):
        yield Message(
            fields={
                "kind": "exchanges",
                "announced": mode.announced_tables(),
                "term": mode.term,
            },
            tensors={
                "ranks": table_of(((rank,) for rank in sorted(mode.ranks)), 1),
                "unannounced": table_of(((rank,) for rank in sorted(mode.unannounced)), 1),
            },
        )


def _steps(mode: StepApplier) -> Iterator[Message]:
    """Yield how far sync has come, and the pushes of steps that aren't whole."""
    reservoir = mode.reservoir
    yield Message(
        fields={"kind": "steps", "applied": mode.version, "next": reservoir.next_step},
        tensors={
            "left": table_of(reservoir.left().items(), 2),
            "confirmed": table_of(sorted((mode.confirmed or {}).items()), 2),
        },
    )
    for rank, step, weight, kept in reservoir.pushed():
        push = PushRequest(
            identity=ChangeIdentity(rank, 0, FIRST_SEQUENCE),  # its window has the real one
            step=step,
            weight=weight,
            continues=False,
            first=None,
            parts=kept.parts,
            norms=kept.norms,
        )
        yield _command("push", message_of(Contribute(push)))


def _passes(mode: PassMode) -> Iterator[Message]:
    """Yield how far passes have come, and what is prepared of the next one."""
    yield Message(fields={"kind": "passes", "committed": mode.book.committed})
    for piece, kept in mode.book.pieces():
        prepare = PrepareRequest(piece=piece, parts=kept.parts)
        yield _command("prepared", message_of(Prepare(prepare)))


def _command(kind: str, command: Message) -> Message:
    return Message(
        fields={"kind": kind, "command": dict(command.fields)}, tensors=command.tensors
    )
