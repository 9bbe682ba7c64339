"""A shard of a sparse table: rows addressed by 64-bit ids, made at first touch.

A row is its value and, beside it, its optimizer's state (``RowLayout``). Rows stand in order of
creation, but that new ones take the places of those that were removed; the index says where
each id's row lies. Values may be kept in 16 bits, but all computing is in float32: what is
read is exactly what is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.firsts import firsts_of
from paramfleet_shared.tables.kernels.index import DONE
from paramfleet_shared.tables.kernels.reads import Table, fill_new_rows, pull_rows
from paramfleet_shared.tables.kernels.rows import Layout, gather, scatter
from paramfleet_shared.tables.kernels.stepping.ctr import (
    CtrLayout,
    CtrStep,
    CtrTable,
    add_ctr_rows,
    ctr_step_of,
    step_ctr_rows,
)
from paramfleet_shared.tables.kernels.stepping.rules import Step, step_of
from paramfleet_shared.tables.kernels.stepping.steps import (
    Chains,
    chain,
    step_chains,
    step_rows,
)
from paramfleet_shared.tables.memory.changes import (
    NO_MARKS,
    Changed,
    ChangeMarks,
)
from paramfleet_shared.tables.memory.image import (
    ImageRows,
    IndexCounts,
    RowSpace,
    ShardImage,
)
from paramfleet_shared.tables.memory.prefault import Lookahead
from paramfleet_shared.tables.memory.reservation import default_max_rows, reserve
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.admission import Admission
from paramfleet_shared.tables.rows.choosing import discounted
from paramfleet_shared.tables.rows.cold import ColdRows, Fetch
from paramfleet_shared.tables.rows.ctr import ctr_layout_of, scores_of
from paramfleet_shared.tables.rows.evicting import (
    AsOf,
    Valued,
    Worths,
    eviction_keys,
    is_valued,
    seen_after,
)
from paramfleet_shared.tables.rows.layout import VALUE, RowLayout
from paramfleet_shared.tables.rows.routing import merge_by_inverse
from paramfleet_shared.tables.rows.scanning import PlaceScan, RowScan
from paramfleet_shared.tables.rows.touched import TouchedIds
from paramfleet_shared.tables.rowstore import Mark, SlotIndex, as_floats, check_array
from paramfleet_shared.tables.spec import SEEN, OptimizerSpec, TableSpec

__all__ = ["Places", "SparseShard"]

_NOT_FOUND = np.empty(0, np.int64)

_UNMARKED = (NO_MARKS, np.uint8(0))
"""What kernels get where no changes are marked."""

INDEX_BYTES = 36
"""What the index takes of a row at most: its id, and its part of a line, 64 bytes for 2.3 rows
or more."""


class Places(NamedTuple):
    """Where the rows of a shard are: what decides which places later ones get.

    P = places that were used ever.
    """

    ids: NDArray[np.int64]
    """int64 [P]; that of a place without a row is one that was removed."""
    is_live: NDArray[np.bool_]
    """bool [P]: which places have a row."""
    free: NDArray[np.int64]
    """Those that new rows take, the last one first."""
    num_turns: int
    num_pushes: int
    """By which values are rounded by chance."""


class SparseShard:
    """The rows of one shard. One thread owns it; its calls release the GIL.

    Args:
        spec: The table, of kind ``sparse``.
        shard: Which shard, for errors.
        max_rows: Most rows it may hold; None for as many as ``reservation`` allows.
        check_memory: Refuses bytes that there is no memory for, given how they are computed;
            asked before the shard grows. None lets it grow.
        layout: The columns of a row; None for those of the table.
    """

    # n = ids of a call, D = width of a row, W = floats beside its value

    has_places = True
    """Whether each row keeps its place as long as it is there."""

    def __init__(
        self,
        spec: TableSpec,
        *,
        shard: int = 0,
        max_rows: int | None = None,
        check_memory: Callable[[str, int], None] | None = None,
        layout: RowLayout | None = None,
    ) -> None:
        assert spec.kind == "sparse", spec
        self.spec = spec
        self.layout = RowLayout.of(spec) if layout is None else layout
        self._rule = spec.optimizer
        self._dim = spec.dim
        row_bytes, pitch = self.layout.row_bytes, self.layout.pitch
        limit = default_max_rows(row_bytes) if max_rows is None else max_rows
        self._growth = None if check_memory is None else _Growth(row_bytes, check_memory)
        self._index = SlotIndex(
            max_rows=limit, table=spec.name, shard=shard, growth=self._growth
        )
        floats = reserve(limit * pitch, np.float32)
        values = floats.view(self.layout.columns[0].dtype)
        value_pitch = row_bytes // values.itemsize
        self._rows = Table(
            self._index.arrays,
            firsts_of(spec),
            values,
            floats,
            Layout(spec.dim, value_pitch, pitch, self.layout.spans[VALUE].stop),
            self.layout.states.first,
            np.empty(spec.dim, values.dtype),
            np.empty(spec.dim, np.float32),
        )
        self._ctr = (
            ctr_layout_of(spec.optimizer, self.layout) if spec.optimizer.num_counts else None
        )
        """Of rows with an accessor."""
        self.admission = None if spec.entry.admits_all else Admission(spec)
        """Decides which unknown ids get a row; None where all do."""
        self._lookahead = Lookahead(floats)
        self._num_pushes = 0
        self.cold = ColdRows()
        self.num_removed = 0
        """Rows that were, in this process's life."""
        self._latest = 0
        """The greatest day, hour or step of a push, as the rows keep it."""
        self._images: list[ShardImage] = []
        self._readers: tuple[TouchedIds, ...] = ()
        """What those have yet to read that follow the shard."""
        self._changes: ChangeMarks | None = None
        """What changed since a save, if that was asked for."""
        self._marks = _UNMARKED
        self._found: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        """The ids of the call that is under way, and their places, if those were found before:
        of all, else none."""
        self._slots = np.empty(0, np.int64)
        self._chains = _chains_for(0)

    def count_beside(self, num_bytes: int) -> None:
        """Let each row that comes from now on count for so many bytes more.

        Others keep them for every row, outside this shard; there must be memory for both.
        """
        if self._growth is not None:
            self._growth.bytes_beside = num_bytes

    @property
    def num_rows(self) -> int:
        """Return how many rows exist."""
        return self._index.num_rows

    @property
    def num_slots(self) -> int:
        """Return how many places of rows were used ever; ``export`` counts by them."""
        return self._index.num_slots

    @property
    def num_places(self) -> int:
        """Return how many places ``valued`` and ``export`` go through."""
        return self.num_slots

    def place_after(self, start: int, count: int) -> int:
        """Return the place behind a part of some ``count`` rows.

        Who goes through all rows, part by part, finds each row that stays in one of them,
        though others use the shard meanwhile.

        Args:
            start: Where the part begins: 0, or what this returned before.
            count: How many rows, or places; with 0 it ends where it begins.
        """
        return start + count

    @property
    def work_factor(self) -> int:
        """Return how much longer a call may take than one that finds its rows in memory."""
        return 1

    @property
    def image_work(self) -> int:
        """Return how many rows to find cost about as much as an image or a scan to begin."""
        return self.num_slots - self.num_taken  # free places are copied

    @property
    def num_taken(self) -> int:
        """Return how many places new rows can't have: a row's, or removed and not released."""
        return self._index.num_taken

    @property
    def num_turns(self) -> int:
        """Return how often a row was removed, or took the place of one that had been."""
        return self._index.num_turns

    @property
    def num_bytes(self) -> int:
        """Return the memory in use by rows and index."""
        marks = 0 if self._changes is None else self.num_slots
        sketches = 0 if self.admission is None else self.admission.num_bytes
        return self.layout.row_bytes * self.num_slots + self._index.num_bytes + marks + sketches

    def prefault(self, num_rows: int) -> None:
        """Make the pages now that so many rows need; inserts then wait for none.

        Without it, pages are made a little ahead of the rows, by another thread.
        """
        self._index.prefault(num_rows)
        self._lookahead.make_now(self.layout.row_bytes * num_rows)

    def pull(self, ids: NDArray[np.int64], out: NDArray[Any], *, create: bool) -> None:
        """Copy the values of ids to ``out``.

        Args:
            ids: int64 [n]; an id may occur many times.
            out: float32 [n, D], contiguous, or uint16, the bits of bfloat16 rounded to
                nearest; filled.
            create: Whether unknown ids get rows, where a pull makes any; either way their
                first value is given.

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
        """
        shape = (len(ids), self._dim)
        check_array(out, _type_of(out), shape, table=self.spec.name, in_place=True)
        create = create and not self.spec.creates_at_push
        keys = self._keys(ids, create=create)
        before = self._index.mark()
        outcome = pull_rows(self._rows, keys, out.reshape(-1), create, self._known(ids))
        if create:
            self._made_since(before)
        if outcome != DONE:
            raise self._index.full()

    def read(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return all columns of ids' rows, and create none: values [n, D] and states [n, W].

        Those of an id without a row are what they would be if it were created.

        Args:
            ids: int64 [n]; an id may occur many times.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        slots = self.find(ids)
        values = np.empty((len(ids), self._dim), np.float32)
        self.pull(ids, values, create=False)
        _, _, pitch, first_state = self._rows.layout
        states = np.empty((len(ids), pitch - first_state), np.float32)
        if states.size:
            beside = self._rows.floats[first_state:]
            missing = gather(beside, pitch, slots, states.reshape(-1), states.shape[1])
            if missing:
                states[slots < 0] = self.layout.states.first
        return values, states

    def train_by(self, rule: OptimizerSpec | None) -> None:
        """Step rows from now on with the numbers of a rule: the table's own for None.

        Args:
            rule: The table's rule, perhaps with other constants.
        """
        self._rule = self.spec.optimizer if rule is None else rule

    def push(
        self,
        ids: NDArray[np.int64],
        grads: NDArray[Any],
        *,
        lr: float,
        step: int,
        unique: bool = False,
        now: int = 0,
    ) -> None:
        """Let the optimizer step the rows of ids, creating those that are unknown.

        Gradients of one id are summed in the order they stand here, then the row steps
        once: the same calls make the same bits. Where the table has an entry, unknown ids
        that it doesn't admit get no row, and what is pushed for them is dropped.

        Args:
            ids: int64 [n].
            grads: float32 [n, D]; of unique ids also uint16, the bits of bfloat16.
            lr: Learning rate of this step.
            step: From 1; what Adam's bias correction and Adagrad's decay count by.
            unique: Whether no id comes twice, which saves looking for those that do. If
                one does nevertheless, its row steps once for each of its gradients.
            now: When it is, as the rows keep it: a day, an hour or a step; 0 for none.

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
        """
        kind = _type_of(grads) if unique else np.float32
        check_array(grads, kind, (len(ids), self._dim), table=self.spec.name)
        if self.admission is not None:
            ids, grads = self._admitted(self.admission, ids, grads)
        self._latest = max(self._latest, now)
        if self._ctr is not None:
            step_now = ctr_step_of(self.spec.optimizer, lr=lr, day=now)
            self._push_ctr(self._ctr, ids, grads, step_now, unique=unique)
            return
        numbers = _LATEST.step_of(self._rule, lr, step)
        salt = self._next_salt()
        if salt:
            numbers = numbers._replace(salt=salt)
        flat_grads = as_input(grads, kind).reshape(-1)
        keys = self._keys(ids, create=True)
        self._put_aside(ids)
        if unique:
            before = self._index.mark()
            known = self._known(ids)
            outcome = step_rows(numbers, self._rows, keys, flat_grads, self._marks, known)
            self._made_since(before)
            if outcome != DONE:
                raise self._index.full()
            self._note_seen(ids, now)
            return
        slots = self._find(ids)
        if self._chains.nexts.size < slots.size:
            self._chains = _chains_for(slots.size)
        # A small batch must not pay for clearing the places of the largest one so far.
        places = self._chains.places[: 2 * _power_of_2(slots.size)]
        chains = Chains(places, *self._chains[1:])
        counts = chain(chains, slots)
        step_chains(numbers, self._rows, chains, counts, keys, flat_grads)
        self._note_changed(slots)
        self._note_seen(ids, now)

    def _admitted(
        self, admission: Admission, ids: NDArray[np.int64], grads: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return what is pushed for ids that have a row, or get one now.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        unknown = self.unknown(ids)
        if not unknown.size:
            return ids, grads
        refused = unknown[~admission.decide(unknown)]
        if not refused.size:
            return ids, grads
        keys = as_input(ids, np.int64).view(np.uint64)
        stays = ~np.isin(keys, refused)
        return ids[stays], grads[stays]

    def _push_ctr(
        self,
        layout: CtrLayout,
        ids: NDArray[np.int64],
        grads: NDArray[Any],
        step: CtrStep,
        *,
        unique: bool,
    ) -> None:
        """As ``push``, of rows with an accessor: of an id that comes twice the sum steps it."""
        numbers = as_floats(grads) if grads.dtype == np.uint16 else grads
        if not unique:
            ids, inverse, _ = partition(ids, 1)
            numbers = merge_by_inverse(numbers, inverse, len(ids))
        self._put_aside(ids)
        self._num_pushes += 1
        slots = self._find(ids)
        keys = as_input(ids, np.int64).view(np.uint64)
        flat = as_input(numbers, np.float32).reshape(-1)
        rows = CtrTable(self._rows.firsts, self._rows.floats, layout)
        step_ctr_rows(step, rows, slots, keys, flat)
        self._note_changed(slots)

    def add(
        self,
        ids: NDArray[np.int64],
        deltas: NDArray[np.float32],
        has_grown: NDArray[np.bool_],
        *,
        unique: bool = False,
        now: int = 0,
    ) -> None:
        """Add what a worker has counted and learned itself to rows with an accessor.

        Unknown ids get rows, whatever the table's entry says. What is added of one id that
        comes several times is summed before.

        Args:
            ids: int64 [n].
            deltas: float32 [n, D]: shows, clicks and differences.
            has_grown: bool [n]: whether the worker's copy of the row has its embedx.
            unique: Whether no id comes twice.
            now: The day, from 1970; 0 for none.

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
        """
        assert self._ctr is not None, "rows have an accessor"
        check_array(deltas, np.float32, (len(ids), self._dim), table=self.spec.name)
        if not unique:
            ids, inverse, _ = partition(ids, 1)
            deltas = merge_by_inverse(deltas, inverse, len(ids))
            has_grown = np.bincount(inverse, has_grown, len(ids)) > 0
        self._latest = max(self._latest, now)
        self._put_aside(ids)
        self._num_pushes += 1
        slots = self._find(ids)
        keys = as_input(ids, np.int64).view(np.uint64)
        flat = as_input(deltas, np.float32).reshape(-1)
        rows = CtrTable(self._rows.firsts, self._rows.floats, self._ctr)
        step = ctr_step_of(self.spec.optimizer, lr=0.0, day=now)
        add_ctr_rows(step, rows, slots, keys, flat, has_grown)
        self._note_changed(slots)

    def read_counted(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return what a copy of rows with an accessor needs, and create none.

        Args:
            ids: int64 [n].

        Returns:
            float32 [n, D + 2]: the value, the day on which the row was seen last, and whether
            it has its embedx.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        assert self._ctr is not None, "rows have an accessor"
        values, states = self.read(ids)
        first = self._rows.layout.first_state
        beside = [self._ctr.seen_day - first, self._ctr.is_extended - first]
        return np.concatenate([values, states[:, beside]], axis=1)

    def valued(
        self, start: int, count: int, when: AsOf
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of rows, and by which order they would be evicted: both int64 [n].

        Of a table whose rows have no value there are none.

        Args:
            start: First place.
            count: How many, fewer where they end.
            when: At what time.
        """
        if not is_valued(self.spec):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        slots = self.live(start, start + count)
        ids = self.ids()[slots]
        return ids, self._eviction_keys(self._floats, ids, slots, when)

    def _eviction_keys(
        self,
        rows: NDArray[np.float32],
        ids: NDArray[np.int64],
        slots: NDArray[np.int64],
        when: AsOf,
    ) -> NDArray[np.int64]:
        """Return by which order rows would be evicted, those at slots of some: int64 [n]."""
        counted = seen = None
        if self._ctr is not None:
            counted = CtrTable(self._rows.firsts, rows.reshape(-1), self._ctr)
        else:
            seen = rows[:, self.layout.spans[SEEN.name].start]
        return eviction_keys(Valued(self.spec, counted, seen), ids, slots, when)

    def sample(self, most: int) -> Worths:
        """Return the ages and scores of some rows, at most so many, spread over all places."""
        places = np.linspace(0, max(0, self.num_slots - 1), min(most, self.num_slots))
        some = places.astype(np.int64)
        found = self._index.find(self.ids()[some], create=False)
        slots = some[found == some]  # which have a row
        nothing = np.empty(0, np.float32)
        if self._ctr is not None:
            counted = CtrTable(self._rows.firsts, self._rows.floats, self._ctr)
            scores, _ = scores_of(self.spec.optimizer, counted, slots, day=self._latest)
            seen = self._floats[slots, self._ctr.seen_day]
            return Worths(self._latest - seen[seen > 0], scores)
        if self.spec.optimizer.tracks == "none":
            return Worths(nothing, nothing)
        seen = self._seen[slots]
        return Worths(np.maximum(self._latest - seen[seen > 0], 0), nothing)

    def discount(self, ids: NDArray[np.int64], amounts: NDArray[np.float32]) -> None:
        """Subtract from the ``delta_score`` of rows with an accessor what was written of it.

        A row that has less was made anew meanwhile: it stays, as do ids without a row.

        Args:
            ids: int64 [n], each once.
            amounts: float32 [n].

        Raises:
            RowShapeError: if an array has the wrong shape or type.
        """
        check_array(amounts, np.float32, (len(ids),), table=self.spec.name)
        if self._ctr is None:
            return
        slots = self.find(ids)
        self._put_aside(ids)
        self._note_changed(discounted(self._floats[:, self._ctr.delta_score], slots, amounts))

    def create(self, ids: NDArray[np.int64]) -> None:
        """Make rows of those ids, int64 [n], that are unknown.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for the new rows.
        """
        self._find(ids)

    def assign(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
    ) -> None:
        """Create or overwrite rows; of two for one id, the later stays.

        Args:
            ids: int64 [n].
            values: float32 [n, D], rounded to nearest where the table keeps less.
            states: float32 [n, W].

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
        """
        name = self.spec.name
        check_array(values, np.float32, (len(ids), self._dim), table=name)
        dim, value_pitch, pitch, first_state = self._rows.layout
        check_array(states, np.float32, (len(ids), pitch - first_state), table=name)
        self._put_aside(ids)
        slots = self._find(ids)
        flat_values = as_input(values, np.float32).reshape(-1)
        scatter(self._rows.values, value_pitch, slots, flat_values, (0, dim))
        if states.size:
            flat_states = as_input(states, np.float32).reshape(-1)
            scatter(self._rows.floats, pitch, slots, flat_states, (first_state, pitch))
        when = self.layout.spans.get(SEEN.name)
        if when is not None and len(ids):
            latest = int(states[:, when.start - first_state].max())
            self._latest = max(self._latest, latest)
        self._note_changed(slots)

    def write(self, ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Set the values of rows; their states stay, and unknown ids get rows.

        Args:
            ids: int64 [n]; of two values for one id, the later stays.
            values: float32 [n, D], rounded to nearest where the table keeps less.

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
        """
        check_array(values, np.float32, (len(ids), self._dim), table=self.spec.name)
        self._put_aside(ids)
        slots = self._find(ids)
        flat = as_input(values, np.float32).reshape(-1)
        scatter(self._rows.values, self._rows.layout[1], slots, flat, (0, self._dim))
        self._note_changed(slots)

    def load(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
    ) -> NDArray[np.int64]:
        """Take rows of ids that have none, as ``assign`` does, when a table is restored.

        Returns:
            Those that had one, as far as that is known before ``count_doubled``: int64 [m].

        Raises:
            RowShapeError: if an array has the wrong shape or type.
            CapacityError: if there is no room for the new rows.
        """
        before = self.num_rows
        self.assign(ids, values, states)
        if self.num_rows - before == len(ids):
            return np.empty(0, np.int64)
        return ids[self.find(ids) < before]

    def count_doubled(self) -> int:
        """Return how many ids came twice in all that was loaded, beside those of ``load``."""
        return 0

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of ids' rows, or -1: int64 [n].

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        known = self._known(ids)
        return known if known.size else self._index.find(ids, create=False)

    def _known(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of ids' rows if they were found for this call: [n], else [0]."""
        found = self._found
        return found[1] if found is not None and found[0] is ids else _NOT_FOUND

    def remove(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove the rows of ids; return the places of those that there were: int64 [removed].

        An id that comes again is as new. New rows take these places and their memory once
        they are released; until then ``ids`` has the former ids there.

        Args:
            ids: int64 [n]; an id may occur many times, or have no row.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        self._put_aside(ids)
        slots = self._index.remove(ids)
        is_gone = slots >= 0
        self.num_removed += int(is_gone.sum())
        if self.admission is not None:
            self.admission.note_removed(ids[is_gone])
        if self._changes is not None:
            gone = np.array(ids[is_gone], np.int64)
            if not self._changes.note_removed(gone, num_places=self.num_slots):
                self.end_marks()
        return slots[is_gone]

    def release(self, slots: NDArray[np.int64]) -> None:
        """Give places, int64 [n] as of ``remove``, each once, to new rows."""
        for image in self._images:
            image.keep_ids(slots, self.ids())
        self._index.release(slots)

    def unknown(self, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return those of ids, int64 [n], that have no row, each once and sorted.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        return self._index.unknown(ids)

    def read_ahead(self, ids: NDArray[np.int64]) -> bool:  # noqa: ARG002 - others do
        """Begin to read what a call about ids, int64 [n], is going to need; waits for nothing.

        Returns:
            Whether there is anything to read.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
        """
        return False

    def fetch_order(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids, int64 [n], in the order in which ``fetch`` takes the least time."""
        return ids

    def fetch(self, ids: NDArray[np.int64]) -> Fetch:
        """Bring rows that are on disk into memory before they are needed: of some of the ids.

        As many as take some milliseconds; the rest is for another call. None is made.

        Args:
            ids: int64 [n].

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            FleetError: if a disk refuses.
        """
        return Fetch(len(ids))

    @property
    def num_granted(self) -> int:
        """Return how many more rows are promised room beside the places that are taken."""
        return self._index.granted_rows - self.num_taken

    def grant(self, num_rows: int) -> bool:
        """Promise that ``num_rows`` places may be taken, and more: see ``SlotIndex.grant``.

        Called by the one thread that hands the owner its work.
        """
        return self._index.grant(num_rows)

    def grant_exactly(self, num_rows: int) -> None:
        """Promise that ``num_rows`` places may be taken, which ``check_capacity`` has found."""
        self._index.granted_rows = max(self._index.granted_rows, num_rows)

    def check_capacity(self, num_rows: int) -> None:
        """Pass if ``num_rows`` places may be taken in all.

        Raises:
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
        """
        self._index.check_capacity(num_rows)

    def ids(self) -> NDArray[np.int64]:
        """Return the id of each place: int64 [num_slots], a view.

        That of a place without a row is one that was removed.
        """
        return self._index.ids()

    def live(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return which places of [start, stop) have a row, in order: int64 [n]."""
        live = self._index.live(start, stop)
        return np.arange(live.start, live.stop) if isinstance(live, slice) else live

    def places(self) -> Places:
        """Return where the rows are."""
        is_live = np.zeros(self.num_slots, np.bool_)
        is_live[self._index.live(0, self.num_slots)] = True
        free, num_turns = self._index.free_slots(), self.num_turns
        return Places(self.ids().copy(), is_live, free, num_turns, self._num_pushes)

    def restore(self, places: Places) -> None:
        """Make rows in the places that another shard had them in; this one has none.

        Their values and states are to be assigned.

        Raises:
            RowShapeError: if ids aren't int64 [n].
            CapacityError: if there is no room for them.
            TableMemoryError: if there is no memory for them.
            ValueError: if an id is in two places.
        """
        ids, is_live, free, num_turns, self._num_pushes = places
        self._index.restore(ids, is_live, free, num_turns=num_turns)
        if self.admission is not None:
            self.admission.note_made(ids[is_live])
        self._look_ahead()

    def live_ids(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the ids of the rows in ``count`` places from ``start`` on: int64 [n]."""
        return self.ids()[self._index.live(start, start + count)]

    def export(
        self, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Return copies of ids [n], values [n, D] and states [n, W], in order of places.

        Args:
            start: First place.
            count: How many, fewer where they end; those without a row are left out.
        """
        where = self._index.live(start, start + count)
        return self.ids()[where].copy(), *self._columns(self._floats[where])

    def scan(self) -> RowScan:
        """Return what goes through all rows as they are."""

        def pull(ids: NDArray[np.int64], values: NDArray[np.float32]) -> None:
            self.pull(ids, values, create=False)

        return PlaceScan(lambda: self.num_slots, self.live_ids, pull, self._dim)

    def image(
        self, *, save: str = "", since: str = "", chain: str = "checkpoints"
    ) -> ShardImage:
        """Take an image of the rows: ``read_image`` returns them as they are now.

        It costs a copy of each row that changes before it is read, until ``end_image``.

        Args:
            save: The name of the save that it is for, if changes are to be marked from now on.
            since: The name of an earlier one: the image says what changed since, if known.
            chain: Of which saves it is one: those of others don't end what changed since one
                of these.
        """
        counts = IndexCounts(self._index.free_slots(), self.num_turns, self._num_pushes)
        image = ShardImage(self.num_slots, self._rows.layout.pitch, self._growth, counts)
        image.keep_ids(counts.free, self.ids())
        self._images.append(image)
        if save:
            image.changed = self._mark_from(save, since, chain)
        return image

    def follow(self, reader: TouchedIds) -> None:
        """Have a reader know of all ids whose rows change from now on, come or go."""
        self._readers = (*self._readers, reader)

    def unfollow(self, reader: TouchedIds) -> None:
        """Let a reader know of nothing any more. May be repeated."""
        self._readers = tuple(each for each in self._readers if each is not reader)

    def end_marks(self) -> None:
        """Mark no changes any more: the next save is a whole one."""
        self._changes, self._marks = None, _UNMARKED

    def image_places(
        self, image: ShardImage, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids of places as they were, int64 [n], and which had a row: bool [n].

        Args:
            image: It, of this shard.
            start: First place; none from it on was read by ``read_image``.
            count: How many, fewer where they ended.

        Raises:
            TableMemoryError: if there was no memory for the rows that changed since.
        """
        stop = min(start + count, image.num_places)
        return image.places(start, stop, self.ids(), self._index.live(start, stop))

    def read_image(
        self, image: ShardImage, start: int, count: int, *, changed: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Return ids [n], values [n, D] and states [n, W] as they were, in order of places.

        Args:
            image: It, of this shard.
            start: First place: the one after those that were read.
            count: How many, fewer where they ended; those without a row are left out.
            changed: Whether rows are left out that haven't changed since the image's earlier
                save. Some may be there that changed after the image.

        Raises:
            TableMemoryError: if there was no memory for the rows that changed since.
        """
        stop = min(start + count, image.num_places)
        live = self._index.live(start, stop)
        only = None
        if changed and self._changes is not None and image.changed is not None:
            only = self._changes.marks[start:stop] > image.changed.since
        rows = image.read(start, stop, live, only=only)
        dim, _, pitch, first_state = self._rows.layout
        space = RowSpace(
            np.empty(rows.num_rows, np.int64),
            np.empty((rows.num_rows, dim), np.float32),
            np.empty((rows.num_rows, pitch - first_state), np.float32),
        )
        self._copy_image(rows, space)
        return space.ids, space.values, space.states

    def copy_image(self, image: ShardImage, start: int, count: int, space: RowSpace) -> int:
        """Copy rows as they were to the front of a space; return how many.

        Args:
            image: As of ``read_image``.
            start: The same.
            count: The same; at most the space's rows.
            space: Where to.

        Raises:
            TableMemoryError: if there was no memory for the rows that changed since.
        """
        stop = min(start + count, image.num_places)
        rows = image.read(start, stop, self._index.live(start, stop))
        self._copy_image(rows, space)
        return rows.num_rows

    def _copy_image(self, rows: ImageRows, space: RowSpace) -> None:
        """Copy the rows of an image to the front of a space."""
        target = space.part(0, rows.num_rows)
        target.ids[:] = self.ids()[rows.places]
        self._copy_columns(self._floats[rows.places], target.values, target.states)
        if len(rows.aside):
            target.ids[rows.aside] = rows.ids
            values, states = self._columns(rows.floats)
            target.values[rows.aside], target.states[rows.aside] = values, states

    def end_image(self, image: ShardImage) -> None:
        """Put nothing aside for an image any more. May be repeated."""
        self._images = [each for each in self._images if each is not image]

    @property
    def _floats(self) -> NDArray[np.float32]:
        """Return the rows as they are kept, float32 [places, pitch], a view."""
        return self._rows.floats.reshape(-1, self._rows.layout.pitch)

    @property
    def _seen(self) -> NDArray[np.float32]:
        """Return when each row was pushed last, by place, a view, of rows that keep it."""
        return self._floats[:, self.layout.spans[SEEN.name].start]

    def _note_seen(self, ids: NDArray[np.int64], now: int) -> None:
        """Keep when rows were pushed, of a table that tracks it; later ones stay."""
        if self.spec.optimizer.tracks != "none":
            slots, seen = self.find(ids), self._seen
            seen[slots] = seen_after(seen[slots], now, self.spec.optimizer.half_life)

    def _columns(
        self, floats: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return copies of values [n, D] and states [n, W] of rows as they are kept."""
        dim, _, _, first_state = self._rows.layout
        shapes = [(len(floats), dim), (len(floats), floats.shape[1] - first_state)]
        values, states = (np.empty(shape, np.float32) for shape in shapes)
        self._copy_columns(floats, values, states)
        return values, states

    def _copy_columns(
        self,
        floats: NDArray[np.float32],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
    ) -> None:
        """Copy values [n, D] and states [n, W] of rows as they are kept."""
        dim, value_pitch, _, first_state = self._rows.layout
        if self._rows.values.dtype == np.float32:
            values[:] = floats[:, :dim]
        else:
            kept = np.ascontiguousarray(floats).view(self._rows.values.dtype)
            values[:] = as_floats(kept.reshape(-1, value_pitch)[:, :dim])
        states[:] = floats[:, first_state:]

    def _put_aside(self, ids: NDArray[np.int64]) -> None:
        """Note ids, int64 [n], whose rows are about to change; images keep the rows."""
        for reader in self._readers:
            reader.note(ids)
        if self._images:
            places = self.find(ids)
            for image in self._images:
                image.keep(places, self.ids(), self._floats)

    def _mark_from(self, save: str, since: str, chain: str) -> Changed | None:
        """Mark what changes from now on; return what changed since an earlier save."""
        if self._changes is None:
            self._changes, changed = ChangeMarks(self._index.max_rows, save, chain), None
        else:
            changed = self._changes.end(save, since, chain, num_places=self.num_slots)
        self._marks = (self._changes.marks, np.uint8(self._changes.generation))
        return changed

    def _note_changed(self, places: slice | NDArray[np.int64]) -> None:
        marks, mark = self._marks
        if marks.size:
            marks[places] = mark

    def _made_since(self, mark: Mark) -> None:
        """Act on rows that were made since a mark."""
        if self.admission is not None:
            for made in self._index.made_since(mark):
                self.admission.note_made(self.ids()[made])
        if self._changes is not None:
            for made in self._index.made_since(mark):
                self._note_changed(made)
        if self._images:
            for made in self._index.made_since(mark):
                if not isinstance(made, slice):  # places that were never used are in no image
                    for image in self._images:
                        image.note_new(made)
        self._look_ahead()

    def _next_salt(self) -> np.uint64:
        """Return by what the next push rounds: 0 where values lose nothing, or to nearest."""
        self._num_pushes += 1
        if self.spec.storage == "float32" or self.spec.rounding == "nearest":
            return np.uint64(0)
        # Not the step's number: in GEO all pushes have the same, and would round alike.
        salt = int(self._rows.firsts.seed) ^ (self._num_pushes * 0x9E3779B97F4A7C15)
        return np.uint64(salt & (2**64 - 1) | 1)

    def _keys(self, ids: NDArray[np.int64], *, create: bool) -> NDArray[np.uint64]:
        """Return ids as kernels take them, if there is room for as many new rows.

        Raises:
            RowShapeError: if ``ids`` are not int64 [n].
            CapacityError: if there is no room for the new ones.
        """
        return self._index.keys_of(ids, create=create)

    def _find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        known = self._known(ids)
        if known.size:
            return known
        if self._slots.size < len(ids):
            self._slots = np.empty(_power_of_2(len(ids)), np.int64)
        before = self._index.mark()
        try:
            return self._index.find(ids, create=True, out=self._slots[: len(ids)])
        finally:  # a row exists from the moment its id does
            if self._index.mark() != before:
                fill_new_rows(self._rows, *before)
                self._made_since(before)

    def _look_ahead(self) -> None:
        """Have the pages made that the next rows will need."""
        self._index.look_ahead()
        self._lookahead.reach(self.layout.row_bytes * self.num_slots)


class _LatestStep:
    """The numbers of the step that was asked for last: tables of one optimizer share them.

    Any thread may ask.
    """

    def __init__(self) -> None:
        self._latest: tuple[int, float, OptimizerSpec, Step] | None = None

    def step_of(self, optimizer: OptimizerSpec, lr: float, step: int) -> Step:
        """Return what ``step_of`` of the kernels does for a sparse table."""
        latest = self._latest
        if latest is not None and latest[:3] == (step, lr, optimizer):
            return latest[3]
        numbers = step_of(optimizer, sparse=True, lr=lr, step=step)
        self._latest = step, lr, optimizer, numbers
        return numbers


_LATEST = _LatestStep()


class _Growth:
    """Implements ``Growth`` for a shard.

    Args:
        num_bytes: What a row takes beside the index.
        check_memory: As of the shard.
    """

    def __init__(self, num_bytes: int, check_memory: Callable[[str, int], None]) -> None:
        self._own_bytes = num_bytes + INDEX_BYTES
        self._check_memory = check_memory
        self.bytes_beside = 0
        """That others keep for each row."""

    @property
    def row_bytes(self) -> int:
        return self._own_bytes + self.bytes_beside

    def check(self, num_rows: int) -> None:
        arithmetic = f"{num_rows:,} more rows x {self.row_bytes:,} bytes"
        self._check_memory(arithmetic, num_rows * self.row_bytes)


def _type_of(array: NDArray[Any]) -> type[np.generic]:
    """Return what rows that come or go must hold: bits of bfloat16 if any, else floats."""
    return np.uint16 if array.dtype == np.uint16 else np.float32


def _chains_for(num: int) -> Chains:
    length = _power_of_2(num)
    return Chains(
        places=np.zeros(2 * length, np.int32),
        slots=np.empty(length, np.int64),
        heads=np.empty(length, np.int32),
        tails=np.empty(length, np.int32),
        repeats=np.empty(length, np.int32),
        nexts=np.empty(length, np.int32),
    )


def _power_of_2(num: int) -> int:
    """Return the least power of 2 that is not below ``num``, and at least 16."""
    return 1 << max(4, (num - 1).bit_length())
