"""Which values of a dense table have a gradient, as a push says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

if TYPE_CHECKING:
    from tests.integration.pserver.conftest import Worker

PARAMETERS = 3
SIZE = 4 * PARAMETERS
FLAT = TableSpec(
    name="flat",
    kind="dense",
    size=SIZE,
    optimizer=OptimizerSpec(rule="sgd"),
    parameters=tuple((f"part{each}", (4,)) for each in range(PARAMETERS)),
)


async def push(worker: Worker, spans: list[Any]) -> None:
    """Push ones for some values of the table."""
    (message,) = worker.push_messages({"flat": np.ones(SIZE, np.float32)}, step=0)
    given = np.array(spans, np.int64).reshape(-1, 2)
    tensors = {**message.tensors, "0.spans": given}
    await worker.send("push", [Message(fields=message.fields, tensors=tensors)])


async def test_values_step_that_a_push_has_a_gradient_for(start_servers: Any) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(FLAT)
    before = await worker.pull("flat")

    await push(worker, [[0, 4], [8, 12]])

    steps = before - await worker.pull("flat")
    np.testing.assert_allclose(steps, np.repeat([1.0, 0.0, 1.0], 4), atol=1e-6)


@pytest.mark.parametrize(
    ("spans", "rule"),
    [
        ([[at, at + 1] for at in range(0, SIZE, 2)], "has 6 spans, and may have 3"),
        ([[0, 5], [3, 8]], "in order"),
        ([[4, 8], [0, 4]], "in order"),
        ([[3, 3]], "in order"),
        ([[5, 0]], "in order"),
        ([[-1, 3]], "in order"),
        ([[0, SIZE + 1]], "in order"),
    ],
)
async def test_spans_that_no_parameters_have_change_nothing(
    start_servers: Any, spans: list[Any], rule: str
) -> None:
    worker = (await start_servers(1)).worker()
    await worker.declare(FLAT)
    before = await worker.pull("flat")

    with pytest.raises(MalformedMessageError, match=rule):
        await push(worker, spans)

    np.testing.assert_array_equal(await worker.pull("flat"), before)
