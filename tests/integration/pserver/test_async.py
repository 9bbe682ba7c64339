"""Async training: a push is applied when it arrives, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paramfleet_shared.tables.spec import TableSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.pserver.conftest import Cluster

    Start = Callable[..., Awaitable[Cluster]]

ROWS = TableSpec(name="rows", kind="sparse", dim=4)
FLAT = TableSpec(name="flat", kind="dense", size=21)


async def test_a_push_moves_the_rows_on_every_server_at_once(start_servers: Start) -> None:
    cluster = await start_servers(3)
    worker = cluster.worker()
    await worker.declare(ROWS, FLAT)
    ids = np.arange(0, 900, 3, dtype=np.int64)
    grads = np.arange(len(ids) * 4, dtype=np.float32).reshape(-1, 4)

    replies = await worker.push({"rows": (ids, grads), "flat": np.ones(21, np.float32)}, lr=0.5)

    np.testing.assert_array_equal(await worker.pull("rows", ids.tolist()), -0.5 * grads)
    np.testing.assert_array_equal(await worker.pull("flat"), np.full(21, -0.5, np.float32))
    assert all(reply.fields["versions"] == [1, 1] for reply in replies)
    assert all(reply.fields["duplicate"] == [False, False] for reply in replies)
