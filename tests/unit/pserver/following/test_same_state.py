"""A follower that executes what the journal has kept comes to the owner's state."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings
from tests.unit.pserver.commands.ending import run_to_end
from tests.unit.pserver.commands.histories import (
    EXAMPLES,
    MODES,
    RULE_NAMES,
    Deed,
    History,
    Replica,
    deeds,
    specs_of,
    store_for,
)

from paramfleet_pserver.commands.codec import from_bytes
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Command, Join, Make
from paramfleet_pserver.commands.snapshot.reading import Restoring
from paramfleet_pserver.commands.snapshot.writing import take_image
from paramfleet_pserver.durability.copies.registered import Copies
from paramfleet_pserver.durability.journal import Journal
from paramfleet_pserver.following.messages import (
    commands_message,
    piece_message,
    read_commands,
    read_piece,
)
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables import owners
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.waiting.training import Training
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.wire.message import Message, decode, encode
from paramfleet_shared.testing.clock import FakeClock


def travelled(message: Message) -> Message:
    """Return a message as the other end of a connection reads it."""
    return decode(bytearray(b"".join(encode(message))))


class Owner:
    """A training whose journal keeps what followers lack."""

    def __init__(self, mode: Mode, **of: Any) -> None:
        self.replica = Replica(mode, 2, **of)
        machine = self.replica.machine
        copies = Copies(replicated=True, has_disk=False)
        self.journal = Journal(machine.identities, copies=copies, clock=FakeClock())
        self.training = Training(machine, clock=FakeClock(), journal=self.journal)
        self.history = History(mode, self.replica.store)
        if isinstance(machine.mode, PassMode):
            self.history.book = machine.mode.book

    def execute(self, command: Command) -> None:
        try:
            self.training.execute(command)
        except FleetError:
            return
        if isinstance(command, Join):
            for news in self.replica.machine.mode.news_of_all(command.rank):
                self.training.execute(news)

    def do(self, history: Sequence[Deed]) -> None:
        for deed in history:
            self.execute(self.history.command(deed))


class Copy(Replica):
    """A follower's part of the state."""

    def __init__(self) -> None:
        self.owners, self.store = Owners(2), store_for(2)
        self.position = 0

    async def receive(self, owner: Owner) -> None:
        """Restore a snapshot."""
        image = await take_image(owner.replica.machine, piece_bytes=256)
        self.position = owner.journal.position
        restoring, part = Restoring(self.store, self.owners), 0
        async for message in image.messages():
            part += 1
            is_last = message.fields["kind"] == "end"
            answer = travelled(piece_message(part, message, is_last=is_last))
            piece, ended = read_piece(answer, part)
            assert ended == is_last
            await restoring.take(piece)
        image.end()
        self.machine = restoring.machine()

    def advance(self, journal: Journal, chance: random.Random) -> None:
        """Execute what was executed behind the position, some of it at a time."""
        while self.position < journal.position:
            most = chance.choice([1, 3, 256])
            bodies = journal.stream.after(self.position, most_bytes=1 << 20, most=most)
            start = self.position + 1
            answer = commands_message(start, bodies, position=journal.position)
            for body in read_commands(travelled(answer), start).bodies:
                self.machine.execute(from_bytes(body, self.store))
                self.position += 1


async def follow(
    mode: Mode, storage: str, rule: str, history: list[Deed], cut: int, seed: int, **of: Any
) -> None:
    chance = random.Random(seed)
    owner, copy = Owner(mode, **of), Copy()
    try:
        owner.execute(Make(specs_of(mode, storage, rule)))
        owner.do(history[:cut])
        owner.journal.stream.begin()
        await copy.receive(owner)
        owner.do(history[cut : cut + 5])
        copy.advance(owner.journal, chance)
        owner.do(history[cut + 5 :])
        copy.advance(owner.journal, chance)
        digest = await owner.replica.digest(same_owners=True)
        assert await copy.digest(same_owners=True) == digest
        assert await copy.snapshot() == await owner.replica.snapshot()
    finally:
        await owner.replica.owners.close()
        await copy.owners.close()


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
@settings(max_examples=EXAMPLES, phases=(Phase.reuse, Phase.generate))
def test_a_follower_comes_to_the_state_of_its_owner(
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
        run_to_end(follow(mode, storage, rule, history, cut, seed, **of))
