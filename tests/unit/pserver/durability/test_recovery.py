"""What a server had on its disk when it ended is what the next one begins with."""

import asyncio
import struct
import zlib
from pathlib import Path
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
    store_for,
)

from paramfleet_pserver.commands.codec import to_bytes
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import Command, Limit, Make
from paramfleet_pserver.commands.snapshot.writing import snapshot_of
from paramfleet_pserver.durability.log.recovery import open_log
from paramfleet_pserver.durability.log.settings import LogSettings
from paramfleet_pserver.durability.recovery import (
    LOG_FOLDER,
    SETTLED_COMMANDS,
    RestoreProgress,
    recover,
)
from paramfleet_pserver.durability.snapshot_files import newest_snapshot, write_snapshot
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.owners import Owners
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.logs import (
    LogInUseError,
    LogOfOtherJobError,
    ReplayError,
    SnapshotDamagedError,
    SnapshotOfOtherJobError,
)
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.testing.clock import FakeClock

JOB = "a job, epoch 1"
SMALL = LogSettings(segment_bytes=4096, batch_bytes=512)


class Server:
    """A machine whose commands go to a log; nothing is written but by ``sync``."""

    def __init__(self, one: Replica, folder: Path, *, held: int) -> None:
        self.one = one
        self.folder = folder
        self.log = open_log(folder / LOG_FOLDER, job=JOB, held=held)
        self.writer = self.log.continue_with(
            term=self.log.term + 1, clock=FakeClock(), settings=SMALL
        )
        self.digests: dict[int, str] = {}
        """After each command, by its position."""

    async def note(self) -> None:
        self.digests[self.writer.position] = await self.one.digest(same_owners=True)

    async def execute(self, command: Command) -> None:
        """Execute a command, and let the log have it if it is taken."""
        bodies = [to_bytes(command)]
        try:
            self.one.machine.execute(command)
        except FleetError:
            return
        for body in [*bodies, *announce(self.one.machine, command)]:
            self.writer.append(body)
        await self.note()

    def sync(self) -> None:
        self.writer.turn()
        assert self.writer.durable_position == self.writer.position

    async def snapshot(self) -> None:
        """Take a snapshot of all that there is, and remove the log before it."""
        await self.one.settle()
        self.sync()
        messages = snapshot_of(self.one.machine, piece_bytes=256)
        write_snapshot(self.folder, self.writer.position, messages, job=JOB)
        self.writer.truncate(self.writer.position + 1)
        self.writer.turn()

    async def end(self) -> None:
        """End as a process that is killed: what isn't synced is lost."""
        await self.writer.close()
        await self.one.owners.close()


async def recovered(
    folder: Path, *, progress: RestoreProgress | None = None
) -> tuple[Replica, int]:
    replica = Replica.__new__(Replica)
    replica.owners, replica.store = Owners(2), store_for(2)
    found = await recover(
        folder, job=JOB, store=replica.store, owners=replica.owners, progress=progress
    )
    assert found is not None
    replica.machine = found.machine
    found.log.close()
    return replica, found.position


async def train_and_recover(
    folder: Path, mode: Mode, rule: str, histories: list[tuple[list[Deed], bool, bool]]
) -> None:
    one = Replica(mode, 2, rate="guarded", elastic=False)
    server = Server(one, folder, held=0)
    await server.snapshot()
    maker = History(mode, one.store)
    await server.execute(Make(specs_of(mode, "bfloat16", rule)))
    server.sync()
    try:
        for history, takes_snapshot, syncs in histories:
            if isinstance(server.one.machine.mode, PassMode):
                maker.book = server.one.machine.mode.book
            maker._store = server.one.store
            for deed in history:
                await server.execute(maker.command(deed))
            if takes_snapshot:
                await server.snapshot()
            elif syncs:
                server.sync()
            server = await successor_of(server)
    finally:
        await server.end()


async def successor_of(server: Server) -> Server:
    """End a server, and return one that has recovered what was on its disk."""
    durable, last = server.writer.durable_position, server.writer.position
    await server.note()
    await server.end()
    again, position = await recovered(server.folder)
    # What the writer knew to be on the disk is there; what one before it had written may be.
    assert durable <= position <= last
    assert await again.digest(same_owners=True) == server.digests[position]
    newest = newest_snapshot(server.folder)
    assert newest is not None
    new = Server(again, server.folder, held=newest.position)
    await new.note()
    return new


@given(
    mode=st.sampled_from(MODES),
    rule=st.sampled_from(RULE_NAMES),
    histories=st.lists(
        st.tuples(deeds(), st.booleans(), st.booleans()), min_size=1, max_size=3
    ),
)
@settings(max_examples=EXAMPLES // 8)
def test_a_recovered_machine_has_what_was_on_the_disk(
    tmp_path_factory: pytest.TempPathFactory,
    mode: Mode,
    rule: str,
    histories: list[tuple[list[Deed], bool, bool]],
) -> None:
    folder = tmp_path_factory.mktemp("pserver")
    run_to_end(train_and_recover(folder, mode, rule, histories))


async def trained(folder: Path) -> Server:
    """Return a server with a snapshot, and commands behind it."""
    server = Server(Replica("async", 2, rate="full", elastic=False), folder, held=0)
    await server.snapshot()
    await server.execute(Make(specs_of("async", "float32", "adam")))
    maker = History("async", server.one.store)
    for step in range(3):
        ids, tables = [*range(20)], ["rows", "flat"]
        deed = Deed("change", 0, step, ids, step, "float32", tables, 1, False, 0.0, True)
        await server.execute(maker.command(deed))
    server.sync()
    return server


async def outcome(folder: Path, job: str = JOB) -> Any:
    owners = Owners(2)
    try:
        found = await recover(folder, job=job, store=store_for(2), owners=owners)
    except FleetError as error:
        return error
    finally:
        await owners.close()
    if found is not None:
        found.log.close()
    return found


async def test_an_empty_folder_holds_no_training(tmp_path: Path) -> None:
    assert await outcome(tmp_path / "none") is None
    assert await outcome(tmp_path) is None


async def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    server = await trained(tmp_path)
    assert isinstance(await outcome(tmp_path), LogInUseError)

    await server.end()

    assert (await outcome(tmp_path)).position == 4


async def test_another_job_is_refused(tmp_path: Path) -> None:
    await (await trained(tmp_path)).end()

    assert isinstance(await outcome(tmp_path, "another"), LogOfOtherJobError)
    for segment in (tmp_path / LOG_FOLDER).glob("segment-*"):
        segment.unlink()
    (tmp_path / LOG_FOLDER / "log.begun").unlink()
    assert isinstance(await outcome(tmp_path, "another"), SnapshotOfOtherJobError)


async def test_a_command_that_no_server_accepted_is_named(tmp_path: Path) -> None:
    server = await trained(tmp_path)
    body = b"".join(encode(Message(fields={"kind": "melt"})))
    server.writer.append(body)
    server.sync()
    await server.end()

    error = await outcome(tmp_path)

    assert isinstance(error, ReplayError)
    assert error.position == 5
    assert "must be one of create" in str(error)


async def test_every_byte_of_a_snapshot_counts(tmp_path: Path) -> None:
    server = await trained(tmp_path)
    await server.snapshot()
    await server.end()
    newest = newest_snapshot(tmp_path)
    assert newest is not None
    assert newest.position == 4
    content = newest.path.read_bytes()

    for place in range(0, len(content), 19):
        changed = bytearray(content)
        changed[place] ^= 1
        newest.path.write_bytes(changed)
        error = await outcome(tmp_path)
        is_padding = error is not None and not isinstance(error, FleetError)
        assert is_padding or isinstance(error, SnapshotDamagedError), (place, error)
    for length in range(0, len(content), 97):
        newest.path.write_bytes(content[:length])
        assert isinstance(await outcome(tmp_path), SnapshotDamagedError), length


async def test_a_message_of_another_version_of_the_wire_is_damage_of_the_snapshot(
    tmp_path: Path,
) -> None:
    body = bytearray(b"".join(encode(Message(fields={"kind": "machine"}))))
    body[len(b"PFMS")] += 1
    newest = write_snapshot(tmp_path, 0, [], job=JOB)
    frame = struct.pack("<QI4x", len(body), zlib.crc32(body))
    newest.path.write_bytes(newest.path.read_bytes() + frame + body)

    assert isinstance(await outcome(tmp_path), SnapshotDamagedError)


async def test_a_frame_that_says_it_is_huge_takes_no_memory(tmp_path: Path) -> None:
    newest = write_snapshot(tmp_path, 0, [], job=JOB)
    content = newest.path.read_bytes() + struct.pack("<QI4x", 900 << 30, 0)
    with newest.path.open("wb") as file:
        file.write(content)
        file.truncate(1 << 40)

    error = await outcome(tmp_path)

    assert isinstance(error, SnapshotDamagedError)
    assert "more than any message" in str(error)


async def test_others_have_the_loop_while_a_log_is_replayed(tmp_path: Path) -> None:
    server = await trained(tmp_path)
    for _ in range(4 * SETTLED_COMMANDS):
        await server.execute(Limit(None))
    server.sync()
    await server.end()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(take_turns())
        replica, _ = await recovered(tmp_path)
        others.cancel()
    await replica.owners.close()

    assert turns > 4


async def test_others_see_how_far_a_recovery_is(tmp_path: Path) -> None:
    server = await trained(tmp_path)
    await server.snapshot()
    for _ in range(4 * SETTLED_COMMANDS):
        await server.execute(Limit(None))
    server.sync()
    await server.end()
    newest = newest_snapshot(tmp_path)
    assert newest is not None
    progress = RestoreProgress()
    seen = []

    async def look() -> None:
        while True:
            seen.append(progress.facts())
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        replica, _ = await recovered(tmp_path, progress=progress)
        looking.cancel()
    await replica.owners.close()

    commands = [each["commands"] for each in seen]
    assert commands == sorted(commands)
    assert len({each for each in commands if 0 < each < 4 * SETTLED_COMMANDS}) >= 2
    size = newest.path.stat().st_size
    assert progress.facts() == {
        "snapshot_bytes": size,
        "of_snapshot_bytes": size,
        "commands": 4 * SETTLED_COMMANDS,
        "of_commands": 4 * SETTLED_COMMANDS,
    }


def list_drafts(folder: Path) -> list[Path]:
    return [*folder.glob("*.draft")]


async def test_a_snapshot_that_fails_leaves_the_former_one(tmp_path: Path) -> None:
    server = await trained(tmp_path)

    def breaks() -> Any:
        yield from list(snapshot_of(server.one.machine))[:2]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        write_snapshot(tmp_path, server.writer.position, breaks(), job=JOB)
    await server.end()

    newest = newest_snapshot(tmp_path)
    assert newest is not None
    assert newest.position == 0
    assert not list_drafts(tmp_path)
    assert (await outcome(tmp_path)).position == 4
