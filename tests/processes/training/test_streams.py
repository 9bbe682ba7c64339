"""A stream of a job that trains: what is in the folder at the end is what the job had."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramfleet as fleet
from paramfleet_serving.jobs.exporting import Exporter, ExportPlan
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.errors import FleetError
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.testing.secrets import SECRET

pytestmark = [pytest.mark.processes, pytest.mark.slow]

Table = tuple[np.ndarray, np.ndarray]


class Seen:
    """Has an empty file of the base and of each change, which the job's script waits for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def begun(self, *, num_rows: int) -> None:
        (self.folder / "0").touch()

    def published(self, number: int, moment: float) -> None:
        (self.folder / str(number)).touch()


@contextmanager
def exported(
    running: Any, folder: Path, seen: Seen | None = None, **plan: Any
) -> Iterator[None]:
    """Publish what a job changes until it ends; an error of that is the block's."""
    clock = SystemClock()
    settings = JobSettings(job=running.job, redis=running.redis, secret=SECRET)
    errors: list[Exception] = []

    async def follow() -> None:
        writer = StreamWriter(folder, clock=clock)
        plans = ExportPlan(**plan)
        await Exporter(lambda: settings, writer, plans, clock=clock, progress=seen).run()

    def run() -> None:
        try:
            asyncio.run(follow())
        except Exception as error:  # noqa: BLE001 - it is raised where the job is waited for
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def state_of(folder: Path) -> tuple[dict[str, Table], dict[str, np.ndarray], int]:
    """Return the newest state of a stream, by the base it begins with and all changes."""
    reader = StreamReader(folder)
    head = reader.look()
    base = reader.base(0)
    tables: dict[str, dict[int, np.ndarray]] = {
        name: dict(zip(each.ids.tolist(), each.rows, strict=True))
        for name, each in base.tables.items()
    }
    dense = dict(base.dense)
    for numbered in reader.changes(0, head.last):
        for name, change in numbered.change.tables.items():
            tables[name] |= dict(zip(change.ids.tolist(), change.rows, strict=True))
            for gone in change.removed.tolist():  # it may have come since the last change
                tables[name].pop(gone, None)
        dense |= numbered.change.dense
    found = {}
    for name, rows in tables.items():
        ids = sorted(rows)
        found[name] = (np.array(ids), np.array([rows[each] for each in ids]))
    return found, dense, head.last


def assert_is(folder: Path, export: Path) -> int:
    """Compare a stream with what ``fleet.save_inference_model`` wrote; return its length."""
    tables, dense, last = state_of(folder)
    served = fleet.serving.tables(export)
    assert tables.keys() == served.keys()
    for name, (ids, rows) in tables.items():
        np.testing.assert_array_equal(ids, served[name].ids.numpy())
        np.testing.assert_array_equal(rows, served[name].rows.numpy())
    saved = torch.load(export / "model.pt", weights_only=True)  # noqa: TID251 - the test's own
    assert dense.keys() == saved.keys()
    for name, value in dense.items():
        np.testing.assert_array_equal(value, saved[name].numpy())
    return last


@pytest.mark.parametrize("mode", ["async", "sync", "geo"])
def test_a_stream_ends_with_what_the_job_exports(jobs: Any, tmp_path: Path, mode: str) -> None:
    export, stream = tmp_path / "export", tmp_path / "stream"
    args = ["--mode", mode, "--steps", "60", "--inference", str(export), "--optimizer", "adam"]
    seen = Seen(tmp_path / "seen")
    running = jobs.start("train_tiny.py", *args, "--reader", str(seen.folder))

    with exported(running, stream, seen, every_s=0.05, dense_s=0.1):
        assert set(running.end().codes.values()) == {0}

    assert assert_is(stream, export) > 1


def test_rows_that_go_are_gone_in_the_stream(jobs: Any, tmp_path: Path) -> None:
    export, stream = tmp_path / "export", tmp_path / "stream"
    args = ["--mode", "sync", "--steps", "40", "--inference", str(export), "--days", "10"]
    seen = Seen(tmp_path / "seen")
    args += ["--reader", str(seen.folder), "--accessor", "SparseAdaGradSGDRule"]
    running = jobs.start("train_tiny.py", *args)

    with exported(running, stream, seen, every_s=0.05):
        assert set(running.end().codes.values()) == {0}

    assert_is(stream, export)


def test_who_has_another_secret_reads_nothing(jobs: Any, tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    refused.mkdir()
    running = jobs.start("train_tiny.py", "--steps", "21", "--reader", str(refused))
    settings = JobSettings(job=running.job, redis=running.redis, secret="x" * 40)
    writer = StreamWriter(tmp_path / "stream", clock=SystemClock())

    with pytest.raises(FleetError, match="secret"):
        asyncio.run(Exporter(lambda: settings, writer, ExportPlan(), clock=SystemClock()).run())

    assert not (tmp_path / "stream" / "stream.json").exists()
    (refused / "0").touch()  # the job has waited for it: one that has ended refuses nobody
    assert set(running.end().codes.values()) == {0}
