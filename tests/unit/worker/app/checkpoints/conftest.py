"""Checkpoints as jobs and single processes write them, made without either."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paramfleet_shared.checkpoint.cuts import Cut
from paramfleet_shared.checkpoint.manifest import (
    FilePart,
    Manifest,
    SavedFile,
    SavedTable,
    write_arrays,
    write_manifest,
    write_part,
)
from paramfleet_shared.checkpoint.saved_module import SavedBuffer, SavedModule
from paramfleet_shared.tables.rows.routing import route
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

SHARDS = 8
ADAGRAD = OptimizerSpec(rule="adagrad")


def sparse_files(
    folder: Path, spec: TableSpec, ids: Sequence[int], *, servers: int
) -> list[SavedFile]:
    """Write rows of which each number follows from its id, each shard at one server."""
    routed = route(np.array(ids, np.int64), SHARDS)
    bounds = [routed.offsets[SHARDS * server // servers] for server in range(servers + 1)]
    files = []
    for server in range(servers):
        own = routed.ids[bounds[server] : bounds[server + 1]]
        rows = np.repeat(own[:, None].astype(np.float32), spec.dim, axis=1)
        part = FilePart(ids=own.copy(), values=rows, states=np.abs(rows))
        name = f"{spec.name}.server{server}.00000.safetensors"
        files.append(write_part(folder, name, spec, part))
    return files


def dense_files(folder: Path, spec: TableSpec, *, servers: int) -> list[SavedFile]:
    """Write a dense table of which each value is its place."""
    files = []
    for server in range(servers):
        start, stop = (spec.size * each // servers for each in (server, server + 1))
        values = np.arange(start, stop, dtype=np.float32)
        part = FilePart(values=values, states=values[None, :].copy(), start=start)
        files.append(write_part(folder, f"{spec.name}.server{server}.safetensors", spec, part))
    return files


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return what writes a checkpoint of a sparse and a dense table, with a buffer."""

    def written(
        name: str = "one",
        *,
        ids: Sequence[int] = range(40),
        servers: int = 2,
        steps: int = 7,
        consistent: bool = True,
        optimizer: OptimizerSpec = ADAGRAD,
        **more: Any,
    ) -> Path:
        folder = tmp_path / "saved" / name
        folder.mkdir(parents=True)
        common: dict[str, Any] = {"num_shards": SHARDS, "optimizer": optimizer}
        ads = TableSpec(name="ads", kind="sparse", dim=2, **common, **more)
        dense = TableSpec(name="dense_0", kind="dense", size=11, **common)
        files = sparse_files(folder, ads, ids, servers=servers)
        files += dense_files(folder, dense, servers=servers)
        arrays = {"buffers/norm.mean": np.ones(3, np.float32)}
        made = write_arrays(folder, "module.safetensors", arrays, {"kind": "module"})
        module = SavedModule(
            file="module.safetensors",
            sha256=made.sha256,
            bytes=made.num_bytes,
            buffers=(SavedBuffer(name="norm.mean", dtype="float32", shape=(3,)),),
        )
        manifest = Manifest(
            tables=(SavedTable(spec=ads, version=1), SavedTable(spec=dense, version=1)),
            files=tuple(files),
            cut=Cut(consistent=consistent, reason="" if consistent else "worker 1 is missing"),
            module=module,
            progress=SavedModule(extra={"steps": steps, "workers": 2, "pending": []}),
        )
        write_manifest(folder, manifest)
        return folder

    return written
