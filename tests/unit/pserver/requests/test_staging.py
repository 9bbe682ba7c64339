"""Pieces that come before the request that names them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from paramfleet_pserver.requests.dense_requests import StageRequest
from paramfleet_pserver.requests.staging import Staging
from paramfleet_pserver.tables.table import DenseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.errors.tables import StagedGoneError
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec
from paramfleet_shared.values.ids import Rank

SPEC = TableSpec(
    name="w", kind="dense", dim=1, size=4, num_shards=1, optimizer=OptimizerSpec(rule="sum")
)


def test_one_tensors_pieces_are_named_once() -> None:
    staging = Staging(lambda *_: None)
    named = [{"tensor": name, "table": "w", "number": 1} for name in ("0.grads", "1.grads")]

    with pytest.raises(MalformedMessageError, match=r"'1\.grads' has another's pieces"):
        staging.fill(Message(fields={"rank": 0, "staged": named}))


async def test_what_is_still_written_to_is_not_handed_out() -> None:
    store = TableStore(shards=range(1), num_shards=1, num_owners=1)
    table = store.build(SPEC)
    assert isinstance(table, DenseTable)
    staging = Staging(lambda *_: None)
    message = Message(
        fields={"rank": 0, "staged": [{"tensor": "0.grads", "table": "w", "number": 1}]}
    )

    def piece(value: float) -> StageRequest:
        values = np.full(4, value, np.float32)
        return StageRequest(
            rank=Rank(0), incarnation=1, table=table, number=1, start=0, values=values
        )

    first_may_be_copied, second_may_be_copied = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as copying:
        asyncio.get_running_loop().set_default_executor(copying)
        async with asyncio.TaskGroup() as tasks:
            copying.submit(first_may_be_copied.wait)
            first = tasks.create_task(staging.put(piece(1.0)))
            await asyncio.sleep(0)  # it waits for the thread now
            copying.submit(second_may_be_copied.wait)
            tasks.create_task(staging.put(piece(np.nan)))
            await asyncio.sleep(0)
            try:
                first_may_be_copied.set()
                await first
                with pytest.raises(StagedGoneError):
                    staging.fill(message)
            finally:
                second_may_be_copied.set()
        assert np.isnan(staging.fill(message).tensors["0.grads"]).all()


async def test_a_piece_that_is_there_is_not_copied_again() -> None:
    store = TableStore(shards=range(1), num_shards=1, num_owners=1)
    table = store.build(SPEC)
    assert isinstance(table, DenseTable)
    staging = Staging(lambda *_: None)
    for value in (1.0, np.nan):
        values = np.full(4, value, np.float32)
        await staging.put(
            StageRequest(
                rank=Rank(0), incarnation=1, table=table, number=1, start=0, values=values
            )
        )
    named = [{"tensor": "0.grads", "table": "w", "number": 1}]
    filled = staging.fill(Message(fields={"rank": 0, "staged": named}))
    assert filled.tensors["0.grads"].tolist() == [1.0] * 4
