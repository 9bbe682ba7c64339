"""A pserver's part of a dense table: a contiguous range of a flat vector.

A range may be gigabytes long. Whatever is done to all of it is done in pieces of
``PIECE_VALUES``, so that nothing besides the range itself takes as much memory.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.basics.compiled import as_input
from paramfleet_shared.tables.kernels.stepping.rules import step_of, step_range
from paramfleet_shared.tables.rowstore import check_array, initial_rows
from paramfleet_shared.tables.spec import OptimizerSpec, TableSpec

__all__ = ["PIECE_VALUES", "DenseRange", "pieces_of"]

PIECE_VALUES = 1 << 18
"""Values that are worked on at a time: 1 MiB, a multiple of every vector and of the values
that share a scale."""


def pieces_of(num_values: int) -> Iterator[slice]:
    """Yield where the pieces of a range are, in order."""
    for start in range(0, num_values, PIECE_VALUES):
        yield slice(start, min(start + PIECE_VALUES, num_values))


class DenseRange:
    """The values [start, stop) of a dense table. One thread owns it.

    Value ``i`` starts as the initializer makes the first column of id ``i``. To make a
    range is to write to all of its memory: make a long one where nobody waits.

    Args:
        spec: The table, of kind ``dense``.
        start: First value held.
        stop: The one after the last.
    """

    # n = stop - start, S = columns of state, m = values of one piece

    def __init__(self, spec: TableSpec, start: int, stop: int) -> None:
        assert spec.kind == "dense", spec
        assert 0 <= start <= stop <= spec.size, (start, stop, spec.size)
        self.spec = spec
        self.start = start
        self.stop = stop
        optimizer, num = spec.optimizer, stop - start
        self._block = np.empty((1 + optimizer.num_state_columns, num), np.float32)
        self.values: NDArray[np.float32] = self._block[0]
        """float32 [n]"""
        self.states: NDArray[np.float32] = self._block[1:]
        """float32 [S, n]"""
        for piece in pieces_of(num):
            ids = np.arange(start + piece.start, start + piece.stop, dtype=np.int64)
            self.values[piece] = initial_rows(spec, ids).reshape(-1)
            self.states[:, piece] = optimizer.initial_state
        self._rule = optimizer
        self._untouched = True
        self.num_changes = 0
        """How often values were changed: what is equal later means that they are, too."""

    @property
    def num_bytes(self) -> int:
        """Return the memory in use by values and state."""
        return self._block.nbytes

    def train_by(self, rule: OptimizerSpec | None) -> None:
        """Step values from now on with the numbers of a rule: the table's own for None.

        Args:
            rule: The table's rule, perhaps with other constants.
        """
        self._rule = self.spec.optimizer if rule is None else rule

    def push(self, grads: NDArray[np.float32], *, lr: float, step: int) -> None:
        """Let the optimizer step every value.

        Args:
            grads: float32 [n].
            lr: Learning rate of this step.
            step: From 1; what Adam's bias correction and Adagrad's decay count by.

        Raises:
            RowShapeError: if ``grads`` has the wrong shape or type.
        """
        check_array(grads, np.float32, self.values.shape, table=self.spec.name)
        self.push_pieces(lambda piece: grads[piece], lr=lr, step=step)

    def push_pieces(
        self,
        read: Callable[[slice], NDArray[np.float32]],
        *,
        lr: float,
        step: int,
        at: int = 0,
        num: int | None = None,
        first: bool | None = None,
    ) -> None:
        """Let the optimizer step values, as ``push`` does, by gradients made in pieces.

        Args:
            read: Returns the gradients of a piece, which counts from ``at``, float32 [m]; it
                must not fail.
            lr: As in ``push``.
            step: As in ``push``.
            at: The first one's place in the range.
            num: How many values step; None for all from ``at`` on.
            first: Whether momentum has no buffer yet; None if the range knows.
        """
        self.num_changes += 1
        if first is None:
            first = self._untouched
        numbers = step_of(self._rule, sparse=False, lr=lr, step=step, first=first)
        table, length = self._block.reshape(-1), len(self.values)
        for piece in pieces_of(length - at if num is None else num):
            grads = as_input(read(piece), np.float32)
            step_range(numbers, table, grads, at + piece.start, length)
        self._untouched = False

    @property
    def is_untouched(self) -> bool:
        """Whether the optimizer has stepped none of the values as yet."""
        return self._untouched

    def restore(self, *, untouched: bool) -> None:
        """Say whether the optimizer has stepped the values that ``put`` has put here."""
        self._untouched = untouched

    def assign(
        self, values: NDArray[np.float32], states: NDArray[np.float32] | None = None
    ) -> None:
        """Overwrite the values and, unless None, the state.

        Args:
            values: float32 [n].
            states: float32 [S, n]. Momentum that is zero everywhere counts as not begun.

        Raises:
            RowShapeError: if an array has the wrong shape or type; nothing was changed.
        """
        check_array(values, np.float32, self.values.shape, table=self.spec.name)
        if states is not None:
            check_array(states, np.float32, self.states.shape, table=self.spec.name)
            self._untouched = True
            self.assign_part(0, values, states)
        else:
            self.num_changes += 1
            self.values[:] = values

    def assign_part(
        self, at: int, values: NDArray[np.float32], states: NDArray[np.float32]
    ) -> None:
        """Overwrite some values and their state, in a range that hasn't stepped as yet.

        Args:
            at: The first one's place in the range.
            values: float32 [m].
            states: float32 [S, m]. Momentum that is zero in all parts counts as not begun.

        Raises:
            RowShapeError: if an array has the wrong shape or type; nothing was changed.
        """
        where = slice(at, at + len(values))
        check_array(values, np.float32, self.values[where].shape, table=self.spec.name)
        check_array(states, np.float32, self.states[:, where].shape, table=self.spec.name)
        self.num_changes += 1
        self.values[where] = values
        self.states[:, where] = states
        self._untouched = self._untouched and not states.any()

    def put(
        self,
        at: int,
        values: NDArray[np.float32],
        states: NDArray[np.float32],
        *,
        stepped: bool,
    ) -> None:
        """Overwrite some values and their state, whether or not the range has stepped.

        Args:
            at: The first one's place in the range.
            values: float32 [m].
            states: float32 [S, m].
            stepped: Whether the optimizer that made them has stepped: then momentum has begun
                in all of the range. A range that has stepped stays one.

        Raises:
            RowShapeError: if an array has the wrong shape or type; nothing was changed.
        """
        was_untouched = self._untouched
        self.assign_part(at, values, states)
        self._untouched = was_untouched and not stepped

    def set_some(self, places: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        """Overwrite some values; their states stay.

        Args:
            places: Of the values in the range, int64 [k].
            values: float32 [k].
        """
        self.num_changes += 1
        self.values[places] = values

    def add(self, deltas: NDArray[np.float32]) -> None:
        """Add to the values, past the optimizer.

        Args:
            deltas: float32 [n].

        Raises:
            RowShapeError: if ``deltas`` has the wrong shape or type.
        """
        check_array(deltas, np.float32, self.values.shape, table=self.spec.name)
        self.num_changes += 1
        self.values += deltas
