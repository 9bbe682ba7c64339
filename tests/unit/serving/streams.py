"""A stream in a folder, a reference of what it holds, and a server that tests ask."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from paramfleet_serving.app import StreamServer
from paramfleet_shared.deltas.reader import StreamReader
from paramfleet_shared.deltas.records import Change, StreamTable, TableChange
from paramfleet_shared.deltas.writer import StreamWriter
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.tables.rowstore import initial_rows
from paramfleet_shared.tables.spec import InitializerSpec, TableSpec
from paramfleet_shared.testing.patience import LATE_S

NORMAL = InitializerSpec(kind="normal", std=0.1)
WORDS = StreamTable(name="words", dim=4, seed=3, initializer=NORMAL, storage="bfloat16")
USERS = StreamTable(name="users", dim=2, zero_unknown=True)
UNIVERSE = np.arange(-50, 350, dtype=np.int64) * 7_000_000_007
"""Ids that tests look at."""


def now() -> float:
    return datetime.now(UTC).timestamp()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(LATE_S):
        while not holds():  # noqa: ASYNC110 (what is looked at tells nobody)
            await asyncio.sleep(0.005)


class Reference:
    """The rows that there are, as a dictionary by table has them."""

    def __init__(self, tables: Mapping[str, StreamTable]) -> None:
        self.tables = dict(tables)
        self.rows: dict[str, dict[int, NDArray[np.float32]]] = {name: {} for name in tables}
        self.dense: dict[str, NDArray[np.float32]] = {}

    def apply(self, change: Change) -> None:
        for name, part in change.tables.items():
            for row_id, row in zip(part.ids.tolist(), part.rows, strict=True):
                self.rows[name][row_id] = row
            for row_id in part.removed.tolist():
                self.rows[name].pop(row_id, None)
        self.dense.update(change.dense)

    def lookup(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        table = self.tables[name]
        spec = TableSpec(
            name=name,
            kind="sparse",
            dim=table.dim,
            seed=table.seed,
            initializer=table.initializer,
            storage=table.storage,
        )
        found = initial_rows(spec, ids)
        if table.zero_unknown:
            found[:] = 0.0
        for place, row_id in enumerate(ids.tolist()):
            if row_id in self.rows[name]:
                found[place] = self.rows[name][row_id]
        return found

    def copy(self) -> "Reference":
        other = Reference(self.tables)
        other.rows = {name: dict(rows) for name, rows in self.rows.items()}
        other.dense = dict(self.dense)
        return other


class Stream:
    """A stream that a test writes, and what each number of it holds."""

    def __init__(self, folder: Path, seed: int = 0, **options: Any) -> None:
        self.folder = folder
        self.writer = StreamWriter(folder, clock=SystemClock(), **options)
        self.numbers = np.random.default_rng(seed)
        self.reference = Reference({"words": WORDS, "users": USERS})
        self.history: list[Reference] = []

    def begin(self, num_rows: int = 100, *, tables: Any = (WORDS, USERS)) -> None:
        self.reference = Reference({table.name: table for table in tables})
        pieces = []
        for table in tables:
            ids = self.numbers.choice(UNIVERSE, num_rows, replace=False)
            pieces.append((table.name, ids, self._rows(num_rows, table.dim)))
        dense = {"bias": np.zeros(3, np.float32), "tower.0.weight": self._rows(2, 3)}
        self.writer.begin(tables, pieces, dense, moment=now())
        for name, ids, rows in pieces:
            change = TableChange(ids, rows, np.empty(0, np.int64))
            self.reference.apply(Change(0.0, {name: change}, {}))
        self.reference.dense.update(dense)
        self.history = [self.reference.copy()]

    @property
    def identity(self) -> str:
        return StreamReader(self.folder).look().stream

    def change(self, most: int = 60) -> Change:
        """Return a random change."""
        parts = {}
        for name, table in self.reference.tables.items():
            count = int(self.numbers.integers(1, most))
            ids = self.numbers.choice(UNIVERSE, count, replace=False)
            cut = int(self.numbers.integers(0, count + 1))
            rows = self._rows(cut, table.dim)
            parts[name] = TableChange(np.sort(ids[:cut]), rows, np.sort(ids[cut:]))
        dense = {"bias": self._rows(1, 3)[0]} if self.numbers.random() < 0.5 else {}
        return Change(now(), parts, dense)

    def publish(self, change: Change | None = None) -> int:
        change = change or self.change()
        number = self.writer.publish(change)
        self.reference.apply(change)
        self.history.append(self.reference.copy())
        assert len(self.history) == number + 1
        return number

    def _rows(self, count: int, dim: int) -> NDArray[np.float32]:
        return self.numbers.normal(size=(count, dim)).astype(np.float32)


class Served:
    """A server of a folder, and a session of HTTP."""

    def __init__(
        self,
        server: StreamServer,
        port: int,
        http: aiohttp.ClientSession,
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.close = close
        self.server = server
        self.url = f"http://127.0.0.1:{port}"
        self.http = http

    async def reach(self, number: int, stream: str | None = None) -> None:
        """Wait until a number is served."""
        await until(lambda: self._has(number, stream))

    def _has(self, number: int, stream: str | None) -> bool:
        if not self.server.ready()[0]:
            return False
        version = self.server.follower.served.version
        return version.number == number and stream in {None, version.stream}

    async def ask(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        async with self.http.request(method, self.url + path, json=body, **options) as got:
            return got.status, await got.json()

    async def rows(self, table: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        status, answer = await self.ask("/v1/lookup", {"tables": {table: ids.tolist()}})
        assert status == 200, answer
        return np.array(answer["tables"][table], np.float32)

    async def agrees(self, reference: Reference) -> None:
        for name in reference.tables:
            found = await self.rows(name, UNIVERSE)
            assert np.array_equal(found, reference.lookup(name, UNIVERSE)), name
        model = self.server.follower.served
        assert model.dense.keys() == reference.dense.keys()
        assert all(np.array_equal(model.dense[n], d) for n, d in reference.dense.items())
