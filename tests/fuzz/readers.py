"""What reads bytes of a disk or a peer: commands, snapshots, logs, manifests, streams.

Checksums would refuse most damages: so half of the cases of what has checksums are made with
right ones.
"""

import asyncio
import json
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.fuzz.running import Reader
from tests.fuzz.streams import streams
from tests.security.mutations import mutated, mutated_bytes, mutated_tensors
from tests.unit.pserver.commands.histories import (
    MODES,
    NUM_WORKERS,
    Deed,
    History,
    Replica,
    announce,
    specs_of,
    store_for,
)
from tests.unit.pserver.durability.log.segments import read as read_segment
from tests.unit.pserver.durability.log.segments import segment

from paramfleet_pserver.commands.codec import from_bytes, message_of, to_bytes
from paramfleet_pserver.commands.passes import PassMode
from paramfleet_pserver.commands.records import BeginTerm, Command, Load, Make, Origin
from paramfleet_pserver.commands.snapshot.reading import restore
from paramfleet_pserver.durability.log.core.layout import HeaderError, SegmentHeader
from paramfleet_pserver.durability.log.core.reading import end_of
from paramfleet_pserver.durability.snapshot_files import (
    SnapshotFile,
    read_snapshot,
    write_snapshot,
)
from paramfleet_pserver.requests.checked import Mode
from paramfleet_pserver.tables.owners import Owners
from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.gathered import GatheredStates
from paramfleet_shared.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    ManifestError,
    SavedFile,
    SavedTable,
    read_manifest,
    write_manifest,
)
from paramfleet_shared.checkpoint.saved_module import SavedBuffer, SavedModule
from paramfleet_shared.checkpoint.saved_parameters import SavedParameter
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.logs import SnapshotDamagedError, SnapshotOfOtherJobError
from paramfleet_shared.net.wire.message import (
    Message,
    decode,
    encode,
)
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank

__all__ = ["readers"]

JOB = "job, run 1"
DEED = Deed("change", 0, 0, [*range(12)], 1, "float32", ["rows", "flat"], 1, False, 0.5, True)


@contextmanager
def readers() -> Iterator[dict[str, Reader]]:
    """Have all readers, by name, with their files, threads and loop."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_memory())))
        runner = stack.enter_context(asyncio.Runner())
        found = [
            _commands(runner),
            _log(),
            _manifests(folder / "checkpoint"),
            _snapshot_files(folder / "snapshots", runner),
            _snapshots(runner, stack),
            streams(folder / "stream"),
        ]
        yield {reader.name: reader for reader in found}


def _memory() -> str | None:
    """Return a folder that is in memory, if the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# -- commands


async def _training(mode: Mode) -> tuple[list[Command], list[bytes]]:
    """Return the commands of a training with something of everything, and its snapshot."""
    one = Replica(mode, 2, rate="guarded", elastic=mode in {"async", "geo"})
    made: list[Command] = [Make(specs_of(mode, "bfloat16", "adam"))]
    await one.execute(made)
    maker = History(mode, one.store)
    if isinstance(one.machine.mode, PassMode):
        maker.book = one.machine.mode.book
    deeds = [
        *(replace(DEED, kind="join", rank=rank) for rank in range(NUM_WORKERS)),
        *(replace(DEED, rank=rank, seed=rank, step=rank // 2) for rank in (0, 1, 0)),
        replace(DEED, rank=1, wire="int8", tables=["half"], step=1),
        *(replace(DEED, kind=kind, step=1) for kind in ("create", "assign", "limit")),
        *(replace(DEED, kind=kind, step=1) for kind in ("remove", "discount", "write")),
        *(replace(DEED, kind=kind, rank=1) for kind in ("void", "commit", "abort")),
        *(replace(DEED, kind=kind, rank=2, step=1) for kind in ("leave", "fence", "lose")),
    ]
    for deed in deeds:
        command = maker.command(deed)
        made.append(command)
        try:
            one.machine.execute(command)
        except FleetError:
            continue
        announce(one.machine, command)
    if mode == "geo":
        made += [from_bytes(bytearray(body), one.store) for body in _announced(one)]
    await one.settle()
    made += [BeginTerm(3), Load(tuple(one.store), Origin("/ckpt", "ab" * 32))]
    saved = await one.snapshot()
    await one.owners.close()
    return made, saved


def _announced(one: Replica) -> list[bytes]:
    return [to_bytes(each) for each in one.machine.mode.news_of_all(Rank(0))]


def _commands(runner: asyncio.Runner) -> Reader:
    good = [message_of(command) for mode in MODES for command in runner.run(_training(mode))[0]]
    bodies = [b"".join(encode(message)) for message in good]
    store = store_for(2)
    store.put([store.build(spec) for spec in specs_of("async", "bfloat16", "adam")])

    def make(dice: Random) -> bytearray:
        number = dice.randrange(len(good))
        if dice.random() < 0.3:
            return bytearray(mutated_bytes(bodies[number], dice))
        return bytearray(_encoded(_odd(good[number], dice)))

    def read(body: bytearray) -> None:
        from_bytes(body, store)

    return Reader("commands", make, read, (FleetError,), share=0.6)


def _odd(message: Message, dice: Random) -> Message:
    fields, tensors = dict(message.fields), dict(message.tensors)
    if tensors and dice.random() < 0.5:
        return Message(fields=fields, tensors=mutated_tensors(tensors, dice))
    kind = fields.get("kind")
    changed = mutated(fields, dice)
    fields = changed if isinstance(changed, dict) else {"rank": changed}
    if dice.random() < 0.9:
        fields["kind"] = kind  # else little of it is read
    return Message(fields=fields, tensors=tensors)


def _encoded(message: Message) -> bytes:
    """Return a message's bytes; of one that can't be encoded, an empty one's."""
    try:
        return b"".join(encode(message))
    except (FleetError, TypeError, ValueError, OverflowError):
        return b"".join(encode(Message()))


# -- logs


GROUPS = [[b"one", b"two"], [b"", b"four" * 9], [b"five"], [b"six" * 5, b"7"]]
WHOLE = segment(GROUPS, synced=[0, 2, 2, 5], published=2)
HEADER = SegmentHeader.of(WHOLE)


def _log() -> Reader:
    commands = [command for group in GROUPS for command in group]
    heads = [WHOLE.index(group[0] or group[1]) for group in GROUPS]

    def make(dice: Random) -> bytes:
        if dice.random() < 0.5:
            return mutated_bytes(WHOLE, dice)
        content = bytearray(WHOLE)  # numbers of the headers, which say sizes
        where = max(0, dice.choice(heads) - dice.randrange(64))
        size = dice.choice([2, 4, 8])
        number = dice.choice([0, 1, 1 << 15, (1 << 31) - 1, 1 << 40, (1 << 63) - 1])
        content[where : where + size] = (number & ((1 << 8 * size) - 1)).to_bytes(
            size, "little"
        )
        return bytes(content)

    def read(content: bytes) -> None:
        header = SegmentHeader.of(content)
        found, end = read_segment(content), end_of(content, header)
        assert end.stop == found.stop
        if end.stop.position > end.synced:  # else it is damaged
            assert found.commands == commands[: len(found.commands)], "another command"

    return Reader("log", make, read, (HeaderError,), share=0.15)


# -- manifests


def _manifests(folder: Path) -> Reader:
    rows = TableSpec(name="rows", kind="sparse", dim=2, optimizer=OptimizerSpec(rule="adagrad"))
    flat = TableSpec(name="flat", kind="dense", size=9)
    about: dict[str, Any] = {"sha256": "0" * 64, "bytes": 100}
    module = SavedModule(
        file="m.safetensors",
        sha256="1" * 64,
        bytes=64,
        buffers=(SavedBuffer(name="mean", dtype="float32", shape=(3,)),),
        extra={"count": 3, "names": ["a", {"b": 1.5}]},
        not_saved={"x": "why"},
    )
    written = Manifest(
        tables=(SavedTable(spec=rows, version=7), SavedTable(spec=flat, version=7)),
        files=(
            SavedFile(name="a.safetensors", rows=5, table="rows", kind="sparse", **about),
            SavedFile(name="b.safetensors", rows=9, table="flat", kind="dense", **about),
        ),
        cut=Cut(consistent=False, reason="slow", paused_s=0.5),
        module=module,
        progress=replace(module, file="p.safetensors"),
        gathered=GatheredStates(workers=(0, 1), left_out={2: "it left"}),
        parameters={"flat": (SavedParameter("w", (2, 4)), SavedParameter("b", ()))},
    )
    write_manifest(folder, written)
    path = folder / MANIFEST
    good = json.loads(path.read_bytes())
    text = path.read_bytes()
    read_manifest(folder)

    def make(dice: Random) -> bytes:
        if dice.random() < 0.4:
            return mutated_bytes(text, dice)
        odd = mutated(good, dice)
        if isinstance(odd, dict) and dice.random() < 0.9:
            odd |= {"format": good["format"], "version": good["version"]}
        return json.dumps(odd, default=repr).encode(errors="surrogatepass")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_manifest(folder)

    return Reader("manifests", make, read, (ManifestError,), share=0.13)


# -- snapshots


@dataclass
class _Frames:
    """The pieces of a snapshot's file."""

    header: bytes
    bodies: list[bytes]

    def file(self, lengths: dict[int, int]) -> bytes:
        """Return the file; some frames say another length."""
        parts = [self.header + struct.pack("<I", zlib.crc32(self.header))]
        for number, body in enumerate(self.bodies):
            length = lengths.get(number, len(body))
            parts += [struct.pack("<QI4x", length, zlib.crc32(body)), body]
        return b"".join(parts)


def _snapshot_files(folder: Path, runner: asyncio.Runner) -> Reader:
    messages = [decode(bytearray(body)) for body in runner.run(_training("async"))[1]]
    snapshot = write_snapshot(folder, 12, messages, job=JOB)
    whole = snapshot.path.read_bytes()
    header = whole[: 20 + len(JOB)]
    good = _Frames(header, [b"".join(encode(message)) for message in messages])
    assert good.file({}) == whole

    def make(dice: Random) -> bytes:
        match dice.randrange(4):
            case 0:
                return mutated_bytes(whole, dice)
            case 1:
                head = mutated_bytes(header, dice)
                return _Frames(head, good.bodies).file({})
            case 2:
                lengths = {
                    dice.randrange(len(good.bodies)): dice.choice(
                        [0, 1, 1 << 40, (1 << 64) - 1]
                    )
                }
                return good.file(lengths)
            case _:
                bodies = [*good.bodies]
                number = dice.randrange(len(bodies))
                bodies[number] = mutated_bytes(bodies[number], dice)
                return _Frames(header, bodies).file({})

    def read(content: bytes) -> None:
        snapshot.path.write_bytes(content)
        for _ in read_snapshot(SnapshotFile(12, snapshot.path), job=JOB):
            pass

    refusals = (SnapshotDamagedError, SnapshotOfOtherJobError)
    return Reader("snapshot_files", make, read, refusals, share=0.08)


def _snapshots(runner: asyncio.Runner, stack: ExitStack) -> Reader:
    saved = [runner.run(_training(mode))[1] for mode in MODES]
    owners = runner.run(_owners())
    stack.callback(lambda: runner.run(owners.close()))

    def make(dice: Random) -> Sequence[bytes]:
        bodies = list(dice.choice(saved))
        number = dice.randrange(len(bodies))
        match dice.randrange(6):
            case 0:
                bodies[number] = mutated_bytes(bodies[number], dice)
            case 1:
                bodies.insert(number, dice.choice(dice.choice(saved)))
            case _:
                message = decode(bytearray(bodies[number]))
                bodies[number] = _encoded(_odd(message, dice))
        return bodies

    async def restored(bodies: Sequence[bytes]) -> None:
        try:
            with np.errstate(all="ignore"):
                messages = (decode(bytearray(body)) for body in bodies)
                await restore(messages, store_for(2), owners)
        finally:
            await owners.settle()

    def read(bodies: Sequence[bytes]) -> None:
        runner.run(restored(bodies))

    return Reader("snapshots", make, read, (FleetError,), share=0.02)


async def _owners() -> Owners:
    return Owners(2)
