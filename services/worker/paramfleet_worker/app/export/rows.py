"""The rows of a checkpoint's table in the order of their ids, in bounded memory.

Shape legend: n = rows, W = width of a row, with its states if they are wanted.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet.session.checkpoint.exports.reading import file_pieces
from paramfleet_shared.checkpoint.layers import Layer, Layers
from paramfleet_shared.checkpoint.manifest import CheckpointDamagedError, read_removed
from paramfleet_shared.deltas.merging.row_spool import RowSpool
from paramfleet_shared.deltas.merging.runs import NO_IDS, MergedRows, Run, merged, merged_ids
from paramfleet_shared.files.tensorfile import release_pages
from paramfleet_shared.tables.rows.layout import RowLayout
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["SortedRows"]

SPOOL_BYTES = 8 << 20
"""Of rows that are sorted in memory; each time they become a run on the disk."""

PIECE_BYTES = 4 << 20
"""Of rows that are read at a time, or merged, all runs together."""


_IDS = 1 << 20
"""Of removed rows that are read at a time."""


class _SpooledLayer(NamedTuple):
    """One checkpoint of a chain: how many runs older ones have, and its own rows."""

    folder: Path | None
    rows_from: int | None
    removed_from: int | None
    num_rows: int


class SortedRows:
    """All rows of a sparse table, in the order of a key of their ids.

    They are sorted in files without names, which need as much of the disk as the rows do.

    Args:
        layers: The checkpoint, and those that it builds on.
        spec: The table.
        temporary: Opens a file without a name.
        key_of: Maps ids int64 [n] to keys int64 [n], no two ids to one key.
        with_states: Whether the states of a row follow its values.

    Raises:
        CheckpointDamagedError: if a file isn't what was saved, or an id is there twice.
        OSError: if the system refuses a file.
    """

    def __init__(
        self,
        layers: Layers,
        spec: TableSpec,
        temporary: Callable[[], IO[bytes]],
        *,
        key_of: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda ids: ids,
        with_states: bool = False,
    ) -> None:
        self.width = spec.dim + (RowLayout.of(spec).states.pitch if with_states else 0)
        """W."""
        self._spec, self._key_of, self._with_states = spec, key_of, with_states
        rows, removed = (
            RowSpool(width, temporary, most_bytes=SPOOL_BYTES) for width in (self.width, 0)
        )
        spooled = [self._spool(layer, rows, removed) for layer in reversed(layers.layers)]
        self._runs = list(self._in_order(spooled, rows.runs(), removed.runs()))
        self.count, self.bounds = 0, (0, -1)
        for keys in self.keys():
            first = self.bounds[0] if self.count else int(keys[0])
            self.count, self.bounds = self.count + len(keys), (first, int(keys[-1]))

    count: int
    """n."""
    bounds: tuple[int, int]
    """The least key, and the greatest; 0 and -1 if there are no rows."""

    def keys(self) -> Iterator[NDArray[np.int64]]:
        """Yield the keys of all rows, in their order; each call reads them again."""
        return merged_ids(self._runs, piece_bytes=PIECE_BYTES)

    def pieces(self) -> Iterator[MergedRows]:
        """Yield all rows, with their keys for ids; each call reads them again."""
        return merged(self._runs, self.width, piece_bytes=PIECE_BYTES)

    def _spool(self, layer: Layer, rows: RowSpool, removed: RowSpool) -> _SpooledLayer:
        """Take the rows of a layer, and the ids that it removes; older layers came before."""
        folder, manifest = layer
        begun = _SpooledLayer(folder, rows.cut(), removed.cut(), 0)
        increment = manifest.increment
        for gone in () if increment is None else increment.removed:
            if gone.table == self._spec.name:
                ids = read_removed(folder, gone)
                for start in range(0, len(ids), _IDS):
                    keys = self._key_of(ids[start : start + _IDS])
                    removed.add(keys, np.empty((len(keys), 0), np.float32))
                    release_pages(ids)
        count = 0
        for file in manifest.files:
            if file.table != self._spec.name:
                continue
            for part in file_pieces(folder, file, self._spec, piece_bytes=PIECE_BYTES):
                assert part.ids is not None, "rows have ids"
                found = part.values
                if self._with_states:
                    found = np.concatenate([part.values, part.states], axis=1)
                rows.add(self._key_of(part.ids), found)
                count += part.num_rows
        return begun._replace(num_rows=count)

    def _in_order(
        self, layers: list[_SpooledLayer], rows: list[Run], removed: list[Run]
    ) -> Iterator[Run]:
        """Yield all runs, those of a newer layer later, and before its rows what it removes.

        Raises:
            CheckpointDamagedError: if a layer has rows of one id twice.
        """
        for layer, newer in pairwise([*layers, _SpooledLayer(None, None, None, 0)]):
            own = rows[layer.rows_from : newer.rows_from]
            found = sum(len(keys) for keys in merged_ids(own, piece_bytes=PIECE_BYTES))
            if found != layer.num_rows:
                reason = (
                    f"{layer.num_rows - found} ids of table {self._spec.name!r} are there twice"
                )
                raise CheckpointDamagedError(path=str(layer.folder), reason=reason)
            none = np.empty((0, self.width), np.float32)
            for run in removed[layer.removed_from : newer.removed_from]:
                yield Run(NO_IDS, none, run.ids)
            yield from own
