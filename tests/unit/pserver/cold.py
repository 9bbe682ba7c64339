"""Shards that have few rows in memory, and the others on disk."""

import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from paramfleet_pserver.tables.blocks import NewShard
from paramfleet_shared.tables.disk.shards.moving import TieredOptions
from paramfleet_shared.tables.disk.shards.shard import TieredShard, check_row_width
from paramfleet_shared.tables.memory.budget import MemoryBudget
from paramfleet_shared.tables.sparse import SparseShard
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["ColdShards"]


class ColdShards:
    """Makes shards of one budget, below a folder that goes with the context.

    Args:
        budget_bytes: For the rows in memory.
    """

    def __init__(self, budget_bytes: int = 300) -> None:
        self._budget_bytes = budget_bytes

    def __enter__(self) -> NewShard:
        self._folder = Path(tempfile.mkdtemp())
        numbers = count()

        def new_shard(
            spec: TableSpec, check: Callable[[str, int], None], owner: int
        ) -> SparseShard:
            options = TieredOptions(
                MemoryBudget(self._budget_bytes), lambda: self._folder / str(next(numbers))
            )
            return TieredShard(spec, options=options, max_rows=10_000, check_memory=check)

        return NewShard(new_shard, check_row_width)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
