"""Whatever is finite on its way in stays finite in the tables, and the rest is refused."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from paramfleet_shared.checkpoint.manifest import CheckpointDamagedError, ManifestError
from paramfleet_shared.errors import ContractError
from paramfleet_shared.errors.served import (
    BadWeightError,
    LearningRateRefusedError,
    NonFiniteGradientError,
    NonFiniteValuesError,
)
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec, TableSpecError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.integration.pserver.conftest import Cluster, Worker

    Start = Callable[..., Awaitable[Cluster]]

ADAM = OptimizerSpec(rule="adam")
ROWS = TableSpec(name="rows", kind="sparse", dim=4, optimizer=ADAM)
FLAT = TableSpec(name="flat", kind="dense", size=21, optimizer=ADAM)
GRADIENT = {"rows": (np.array([5], np.int64), np.ones((1, 4), np.float32))}


async def started(start: Start, *specs: TableSpec, mode: str = "async") -> Worker:
    cluster = await start(1)
    worker = cluster.worker()
    await worker.declare(*specs, mode=mode)
    return worker


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("rate", [math.inf, -math.inf, math.nan, 1e39, -0.1, 1.1e6])
async def test_a_push_with_a_wrong_learning_rate_is_refused_and_changes_nothing(
    start_servers: Start, mode: str, rate: float
) -> None:
    worker = await started(start_servers, ROWS, FLAT, mode=mode)
    with pytest.raises(ContractError):
        await worker.push(GRADIENT, lr=rate)
    worker.sequence = 0
    await worker.push(GRADIENT, lr=0.5)
    after = await worker.pull("rows", [5], min_version=1)
    np.testing.assert_allclose(after, np.full((1, 4), -0.5), rtol=1e-5)


async def test_the_error_of_a_learning_rate_names_table_worker_and_range(
    start_servers: Start,
) -> None:
    worker = await started(start_servers, ROWS)
    with pytest.raises(LearningRateRefusedError) as caught:
        await worker.push(GRADIENT, lr=1e39)
    assert "'rows'" in str(caught.value)
    assert "1e+06" in str(caught.value)


async def test_an_exchange_with_a_wrong_learning_rate_is_refused(start_servers: Start) -> None:
    flat = TableSpec(name="flat", kind="dense", size=21, optimizer=OptimizerSpec(rule="sgd"))
    worker = await started(start_servers, flat, mode="localsgd")
    part = {"table": "flat", "ack": 0, "max_rows": 1, "lr": 1e39}
    fields = {"rank": 0, "incarnation": 1, "sequence": 1, "step": 0, "parts": [part]}
    deltas = {"0.deltas": np.ones(21, np.float32)}
    with pytest.raises(LearningRateRefusedError):
        await worker.call(0, "exchange", Message(fields=fields, tensors=deltas))
    np.testing.assert_array_equal(await worker.pull("flat"), np.zeros(21, np.float32))


@pytest.mark.parametrize("spec", [ROWS, FLAT], ids=["sparse", "dense"])
@pytest.mark.parametrize("size", [1e30, 2.0**51, -(2.0**51)])
async def test_a_gradient_whose_square_no_float_holds_is_refused_by_name(
    start_servers: Start, spec: TableSpec, size: float
) -> None:
    worker = await started(start_servers, ROWS, FLAT)
    rows = np.full((1, 4), size, np.float32)
    flat = np.full(21, size, np.float32)
    part: Any = flat if spec is FLAT else (np.array([5], np.int64), rows)

    with pytest.raises(NonFiniteGradientError) as caught:
        await worker.push({spec.name: part}, step=2)

    assert (caught.value.table, caught.value.step) == (spec.name, 2)
    assert caught.value.count == part.size if spec is FLAT else 4
    assert "2.25e+15" in str(caught.value)
    np.testing.assert_array_equal(await worker.pull("flat"), np.zeros(21, np.float32))
    np.testing.assert_array_equal(await worker.pull("rows", [5]), np.zeros((1, 4), np.float32))


async def test_gradients_of_one_id_may_not_add_up_to_more(start_servers: Start) -> None:
    worker = await started(start_servers, ROWS)
    ids = np.full(4, 5, np.int64)
    rows = np.full((4, 4), 2.0**50, np.float32)
    with pytest.raises(NonFiniteGradientError):
        await worker.push({"rows": (ids, rows)})
    await worker.push({"rows": (ids, rows / 8)})
    assert np.isfinite(await worker.pull("rows", [5])).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("weight", [-1.0, 1e300])
async def test_a_weight_that_no_mean_can_use_is_refused_in_every_mode(
    start_servers: Start, mode: str, weight: float
) -> None:
    worker = await started(start_servers, ROWS, mode=mode)
    with pytest.raises(BadWeightError):
        await worker.push(GRADIENT, weight=weight)


@pytest.mark.parametrize("poison", [math.inf, math.nan])
async def test_first_values_that_are_not_finite_are_refused(
    start_servers: Start, poison: float
) -> None:
    worker = await started(start_servers, FLAT)
    values = np.zeros(21, np.float32)
    values[[3, 8]] = poison
    fields = {"rank": 0, "incarnation": 1, "table": "flat", "only_if_new": True}
    with pytest.raises(NonFiniteValuesError) as caught:
        await worker.call(0, "assign", Message(fields=fields, tensors={"rows": values}))
    assert caught.value.count == 2
    values[[3, 8]] = 1.0  # the table is as new
    (reply,) = await worker.send("assign", [Message(fields=fields, tensors={"rows": values})])
    assert reply.fields["assigned"]


@pytest.mark.parametrize(
    "option", [{"eps": math.inf}, {"weight_decay": math.nan}, {"momentum": -1.0}]
)
async def test_a_table_whose_rule_has_a_wrong_number_is_refused(
    start_servers: Start, option: dict[str, float]
) -> None:
    worker = (await start_servers(1)).worker()
    wire = FLAT.to_wire()
    wire["optimizer"] |= option
    with pytest.raises(TableSpecError):
        await worker.ask(
            "declare", tables=[wire], mode="async", worker_num=1, max_staleness=None
        )


def spoil(folder: Path, column: str, number: float) -> None:
    """Put a number into a checkpoint's dense file, and make its manifest say so."""
    path = next(folder.glob("flat-*.safetensors"))
    head = path.read_bytes()
    length = int.from_bytes(head[:8], "little")
    metadata = json.loads(head[8 : 8 + length])["__metadata__"]
    tensors = {name: array.copy() for name, array in load(head).items()}
    tensors[column].reshape(-1)[-1] = number
    content = save(tensors, metadata=metadata)
    path.write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in manifest["files"]:
        if file["name"] == path.name:
            file |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("column", "number"),
    [("values", math.inf), ("values", math.nan), ("states", math.inf), ("states", -1.0)],
)
async def test_a_checkpoint_with_numbers_that_no_training_makes_is_refused(
    start_servers: Start, tmp_path: Path, column: str, number: float
) -> None:
    worker = await started(start_servers, FLAT)
    await worker.push({"flat": np.ones(21, np.float32)})
    before = await worker.pull("flat")
    (saved,) = await worker.ask("save", dirname=str(tmp_path))
    document = {"format": "paramfleet-checkpoint", "version": 1, **saved.fields}
    assert not document.pop("increment")
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    spoil(tmp_path, column, number)

    with pytest.raises((CheckpointDamagedError, ManifestError)) as caught:
        await worker.ask("load", dirname=str(tmp_path))

    assert "flat" in str(caught.value)
    np.testing.assert_array_equal(await worker.pull("flat"), before)
