"""A save that another one replaces ends, also where its tables couldn't be copied."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from paramfleet_pserver.checkpoint import storage
from paramfleet_pserver.checkpoint.routes import Checkpointing
from paramfleet_pserver.checkpoint.writing import AT_ONCE
from paramfleet_pserver.core.limits import TableLimits
from paramfleet_pserver.tables.owners import Owners
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.checkpoint.cuts import SaveGoneError
from paramfleet_shared.files import tensorfile
from paramfleet_shared.files.folders import CheckpointDirs
from paramfleet_shared.net.rpc.server import Request
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.spec import TableSpec
from paramfleet_shared.testing.patience import LATE_S
from paramfleet_shared.values.amounts import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHO = {"rank": 0, "incarnation": 1}


async def test_a_save_that_pushes_wait_for_is_ended_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, goes_on = threading.Event(), threading.Event()
    real = tensorfile._pieces

    def pieces(arrays: Any, names: Any) -> Iterator[Any]:
        writes.set()
        assert goes_on.wait(LATE_S)
        yield from real(arrays, names)

    monkeypatch.setattr(tensorfile, "_pieces", pieces)
    monkeypatch.setattr(storage, "CHUNK_BYTES", 80)  # fifty files
    free = iter([1 << 30])
    owners = Owners(1)
    store = TableStore(
        shards=range(8),
        num_shards=8,
        num_owners=1,
        limits=TableLimits(),
        memory=lambda: Memory(total=1 << 30, free=next(free, 1 << 30)),
    )
    store.put([store.build(TableSpec(name="flat", kind="dense", size=1000))])
    free = iter([0])  # no copy for the first save
    clock = SystemClock()
    dirs = CheckpointDirs([tmp_path])
    checkpoints = Checkpointing(store, owners, server=0, clock=clock, dirs=dirs)

    def save(name: str) -> asyncio.Task[Message]:
        fields = {**WHO, "dirname": str(tmp_path / name), "apart": name, "cut": name}
        deadline = clock.monotonic() + LATE_S
        request = Request("save", Message(fields=fields), "worker", deadline)
        return asyncio.get_running_loop().create_task(checkpoints.save(request, None))

    checkpoints.holding.hold("one", for_s=LATE_S, targets={})
    first = save("one")
    assert await asyncio.to_thread(writes.wait, LATE_S)
    assert not first.done()
    second = save("two")
    await asyncio.sleep(0)
    goes_on.set()

    with pytest.raises(SaveGoneError):
        await first
    assert (await second).fields["paused_s"] == 0
    assert not checkpoints.holding.end("one")
    asked = Message(fields={**WHO, "apart": "two", "wait_s": 20})
    written = await checkpoints.saved(Request("saved", asked, "worker", None), None)
    assert written.fields["done"]
    assert len(written.fields["files"]) == 50
    begun = await asyncio.to_thread(os.listdir, tmp_path / "one")
    assert len(begun) <= AT_ONCE
    await owners.close()
