"""Odd bytes and odd messages: every server refuses them by name and goes on.

FUZZ_RUNS sets how many of each kind are tried, FUZZ_SEED which.
"""

import asyncio
import os
import pathlib
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.security.conftest import PREFACE, Target, exchange_bytes
from tests.security.mutations import mutated, mutated_bytes, mutated_tensors

from paramfleet.api.all_to_all import _Running
from paramfleet.config.settings import WorkerSettings
from paramfleet.transport.communicator import Communicator
from paramfleet_shared.errors import FleetError
from paramfleet_shared.net.http2.client import ClientConnection
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.connection.proof import ClientProof, proof_key
from paramfleet_shared.net.wire.limits import DEFAULT_LIMITS
from paramfleet_shared.net.wire.message import Message, encode
from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import InitializerSpec, OptimizerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.testing.secrets import SECRET, secret_for

pytestmark = pytest.mark.forked

RUNS = int(read_environment().get("FUZZ_RUNS", "80"))
SEED = int(read_environment().get("FUZZ_SEED", "1"))

AT_ONCE = 180
"""Connections to both servers that may wait together to be cut off: fewer than they refuse."""

NUM_SHARDS = 8
ABOUT = {"rank": 0, "incarnation": 1}
IDS = np.arange(8, dtype=np.int64)
OFFSETS = np.full(NUM_SHARDS + 1, len(IDS), np.int64)
OFFSETS[0] = 0
Tensors = dict[str, NDArray[Any]]
PART = {"table": "flat", "lr": 0.1, "unique": True, "wire": "float32"}
EXCHANGED = {**PART, "ack": 0, "max_rows": 100, "answer_wire": "float32"}


def declaration(mode: str) -> Message:
    rule = OptimizerSpec(rule="sum" if mode == "geo" else "adam")
    common: Any = {"num_shards": NUM_SHARDS, "optimizer": rule}
    normal = InitializerSpec(kind="normal")
    rows = TableSpec(name="rows", kind="sparse", dim=3, initializer=normal, **common)
    tables = [rows.to_wire(), TableSpec(name="flat", kind="dense", size=40, **common).to_wire()]
    terms = {"mode": mode, "worker_num": 1, "max_staleness": None}
    return Message(fields={**ABOUT, **terms, "tables": tables})


def messages(mode: str, folder: str) -> dict[str, list[Message]]:
    """Return good messages, or nearly, by their operation."""
    flat: Tensors = {"0.grads": np.ones(40, np.float32)}
    rows: Tensors = {"0.ids": IDS, "0.offsets": OFFSETS, "0.grads": np.ones((8, 3), np.float32)}
    pulled: Tensors = {"0.ids": IDS, "0.offsets": OFFSETS}
    of_rows = {**PART, "table": "rows"}
    deltas: Tensors = {
        "0.ids": IDS,
        "0.offsets": OFFSETS,
        "0.deltas": np.ones((8, 3), np.float32),
    }
    step = {**ABOUT, "sequence": 1, "step": 0, "weight": 1.0}
    told = {**ABOUT, "sequence": 1, "step": 0, "loss": 0.5}
    reads = [{"table": "rows", "create": True}]
    return {
        "declare": [declaration(mode)],
        "pull": [
            Message(fields={"rank": 0, "min_version": 0, "parts": reads}, tensors=pulled),
            Message(fields={"rank": 0, "min_version": 0, "parts": [{"table": "flat"}]}),
        ],
        "push": [
            Message(fields={**step, "parts": [PART]}, tensors=flat),
            Message(fields={**step, "parts": [of_rows]}, tensors=rows),
        ],
        "exchange": [
            Message(
                fields={**told, "parts": [EXCHANGED]},
                tensors={"0.deltas": np.ones(40, np.float32)},
            ),
            Message(fields={**told, "parts": [{**EXCHANGED, **of_rows}]}, tensors=deltas),
        ],
        "remove": [
            Message(fields={**ABOUT, "table": "rows", "sequence": 1, "step": 0}, tensors=pulled)
        ],
        "discount": [
            Message(
                fields={**ABOUT, "table": "rows", "sequence": 1, "step": 0},
                tensors={**pulled, "0.amounts": np.ones(8, np.float32)},
            )
        ],
        "write": [
            Message(
                fields={**ABOUT, "table": "rows", "sequence": 1, "step": 0},
                tensors={**pulled, "0.values": np.ones((8, 3), np.float32)},
            )
        ],
        "assign": [
            Message(
                fields={**ABOUT, "table": "flat", "only_if_new": True},
                tensors={"rows": np.ones(40, np.float32)},
            )
        ],
        "void": [Message(fields={**ABOUT, "sequence": 2})],
        "wait_turn": [Message(fields={**ABOUT, "step": 0})],
        "await_step": [Message(fields={**ABOUT, "step": 0})],
        "answer": [
            Message(
                fields={**ABOUT, "to": 1, "ends": False, "own": 1, "before": 0},
                tensors={"counts": np.ones(4, np.int64), "states": np.ones((4, 3), np.float32)},
            )
        ],
        "states": [
            Message(fields={"rank": 0}),
            Message(fields={"rank": 0, "file": 0, "row": 0}),
        ],
        "save": [
            Message(fields={"dirname": folder}),
            Message(fields={"dirname": folder, "positions": {"step": 1}}),
        ],
        "total": [
            Message(fields={**ABOUT, "step": 0, "name": "x"}, tensors={"part": np.ones(3)})
        ],
        "load": [Message(fields={"dirname": folder})],
        "status": [Message()],
    }


def odd(message: Message, rng: random.Random) -> Message:
    """Return a message of which fields, tensors or both are odd."""
    fields, tensors = dict(message.fields), dict(message.tensors)
    if rng.random() < 0.7:
        changed = mutated(fields, rng)
        fields = changed if isinstance(changed, dict) else {"rank": changed}
    if rng.random() < 0.5:
        tensors = mutated_tensors(tensors, rng)
    return Message(fields=fields, tensors=tensors)


async def ask(channel: Channel, operation: str, message: Message) -> FleetError | None:
    """Make a call that may be refused, and return how."""
    try:
        await channel.call(operation, message, timeout_s=0.4)
    except FleetError as refusal:
        return refusal
    except (TypeError, ValueError, OverflowError):  # what can't even be sent
        return None
    return None


async def try_all(
    channel: Channel, kinds: dict[str, list[Message]], rng: random.Random
) -> list[FleetError]:
    """Make odd calls of all kinds, a few at a time; return the refusals."""
    found: list[FleetError] = []
    for _ in range(RUNS):
        batch = [
            ask(channel, operation, odd(rng.choice(kinds[operation]), rng))
            for operation in rng.sample(list(kinds), k=min(3, len(kinds)))
        ]
        found += [refusal for refusal in await asyncio.gather(*batch) if refusal is not None]
    return found


@pytest.mark.parametrize("mode", ["async", "sync", "geo"])
async def test_a_pserver_refuses_odd_messages_by_name_and_goes_on(
    target: Target, mode: str
) -> None:
    rng = random.Random(f"{SEED} {mode}")
    async with target.worker() as session:
        about = {"rank": 0, "incarnation": session.member.incarnation}
        assert about == ABOUT
        channel = target.channel(target.pserver, "pserver 0")
        await channel.call("declare", declaration(mode), timeout_s=60.0)
        kinds = messages(mode, str(target.folder / "saved"))
        refusals = await try_all(channel, kinds, rng)

        assert target.is_running("pserver")
        answer = await channel.call("status", Message(), timeout_s=LATE_S)
        assert answer.fields["tables"]
    assert len(refusals) > RUNS / 4, "most of them are wrong"
    assert max(len(str(refusal)) for refusal in refusals) < 4000, "none echoes what it was sent"
    assert target.complaints() == []


async def test_a_coordinator_refuses_odd_messages_by_name_and_goes_on(target: Target) -> None:
    rng = random.Random(f"{SEED} coordinator")
    job = target.settings.job
    join = {
        "job": job, "role": "worker", "index": 0, "endpoint": "", "admin": "", "host": "h",
        "pid": 1, "nonce": "n",
    }  # fmt: skip
    barrier = {"job": job, "name": "b", "generation": 1, **ABOUT, "park_s": 0.0}
    kinds = {"join": [Message(fields=join)], "barrier": [Message(fields=barrier)]}
    async with target.worker():
        channel = target.channel(target.coordinator, "coordinator")
        refusals = await try_all(channel, kinds, rng)
        assert target.is_running("coordinator")
    assert len(refusals) > RUNS / 4
    assert target.complaints() == []


def test_workers_refuse_odd_samples_of_each_other_by_name(target: Target) -> None:
    rng = random.Random(f"{SEED} exchange")
    kept: list[tuple[int, int]] = []
    settings = WorkerSettings(
        redis=target.settings.redis, job=target.settings.job, secret=SECRET, lease_ttl_s=30.0
    )
    worker = Communicator()
    worker.start()
    worker.join(settings, index=0)
    running = _Running(
        "fuzz", worker, settings, lambda s, n, _: kept.append((s, n)), gather=lambda *_: []
    )
    endpoint = worker.wait(running._listen())
    worker.wait(running._begin([0, 1]))

    async def attack() -> list[FleetError]:
        secret = secret_for(settings.job)
        channel = Channel(endpoint, peer="worker 0", clock=SystemClock(), secret=secret)
        good = Message(fields={"source": 1, "number": 0}, tensors={"x": np.ones(3)})
        refusals = await try_all(channel, {"exchange": [good]}, rng)
        await channel.call("exchange", good, timeout_s=LATE_S)
        await channel.close()
        return refusals

    try:
        refusals = asyncio.run(attack())
    finally:
        running.close()
        worker.say_last(worker.session.leave())
        worker.close()
    assert refusals
    assert (1, 0) in kept
    assert all(source == 1 for source, _ in kept), "nobody else takes part"


def hello() -> bytes:
    return ClientProof(proof_key(bytes(32)), server="pserver 0", nonce=bytes(32)).hello


@pytest.mark.forked(False)  # a fork's memory grows by what its starter has loaded
async def test_odd_first_bytes_are_cut_off_and_cost_no_memory(target: Target) -> None:
    rng = random.Random(f"{SEED} first")
    async with target.worker():
        before = resident_bytes(target.pid("pserver"))
        kinds = (PREFACE, hello(), b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(300), b"")
        endpoints = (target.pserver, target.coordinator)
        num = 10 * (RUNS // 10 + 1)
        texts = [mutated_bytes(rng.choice(kinds), rng) for _ in range(len(endpoints) * num)]
        sent = [(endpoints[index % 2], text) for index, text in enumerate(texts)]
        for begin in range(0, len(sent), AT_ONCE):
            await asyncio.gather(
                *(exchange_bytes(*each) for each in sent[begin : begin + AT_ONCE])
            )
        assert target.is_running("pserver")
        assert target.is_running("coordinator")
        assert resident_bytes(target.pid("pserver")) - before < 32 << 20
    assert target.complaints() == []


async def test_odd_frames_of_a_member_end_its_connection_alone(target: Target) -> None:
    rng = random.Random(f"{SEED} frames")
    async with target.worker():
        body = encode(Message(fields={"rank": 0}))
        connection = ClientConnection(DEFAULT_LIMITS, 0.0)
        headers = [
            (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"),
            (b":path", b"/v1/status"), (b"content-length", b"%d" % sum(map(len, body))),
        ]  # fmt: skip
        connection.request(headers, body, 0.0)
        good = b"".join(bytes(each) for each in connection.take_buffers(0.0))
        for _ in range(RUNS // 10 + 1):
            await asyncio.gather(
                *(send_proven(target, mutated_bytes(good, rng)) for _ in range(10))
            )
        channel = target.channel(target.pserver, "pserver 0")
        assert (await channel.call("status", Message(), timeout_s=LATE_S)).fields
    assert target.complaints() == []


async def send_proven(target: Target, text: bytes) -> None:
    """Prove to be a member, then send odd bytes, and wait for an answer or the end."""
    key = proof_key(secret_for(target.settings.job).key("connections"))
    proof = ClientProof(key, server="pserver 0", nonce=os.urandom(32))
    host, _, port = target.pserver.rpartition(":")
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(proof.hello)
            answer = b""
            while not answer:
                answer = proof.receive(await reader.read(4096))
            writer.write(answer + text)
            writer.write_eof()
            await reader.read(64)
        except ConnectionError:
            pass
        finally:
            writer.close()


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has in use."""
    with pathlib.Path(f"/proc/{pid}/statm").open(encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
