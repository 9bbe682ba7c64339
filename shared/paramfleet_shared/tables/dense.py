"""A pserver's part of a dense table: a contiguous range of a flat vector."""

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.kernels.compiled import as_input
from paramfleet_shared.tables.kernels.rules import step_of, step_range
from paramfleet_shared.tables.rowstore import check_array, initial_rows
from paramfleet_shared.tables.spec import TableSpec

__all__ = ["DenseRange"]


class DenseRange:
    """The values [start, stop) of a dense table. One thread owns it.

    Value ``i`` starts as the initializer makes the first column of id ``i``.

    Args:
        spec: The table, of kind ``dense``.
        start: First value held.
        stop: The one after the last.
    """

    # n = stop - start, S = columns of state

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
        ids = np.arange(start, stop, dtype=np.int64)
        self.values[:] = initial_rows(spec, ids).reshape(-1)
        self.states[:] = optimizer.initial_state
        self._untouched = True

    @property
    def num_bytes(self) -> int:
        """Return the memory in use by values and state."""
        return self._block.nbytes

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
        numbers = step_of(
            self.spec.optimizer, sparse=False, lr=lr, step=step, first=self._untouched
        )
        step_range(numbers, self._block.reshape(-1), as_input(grads, np.float32))
        self._untouched = False

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
            self.states[:] = states
            self._untouched = not states.any()
        self.values[:] = values

    def add(self, deltas: NDArray[np.float32]) -> None:
        """Add to the values, past the optimizer.

        Args:
            deltas: float32 [n].

        Raises:
            RowShapeError: if ``deltas`` has the wrong shape or type.
        """
        check_array(deltas, np.float32, self.values.shape, table=self.spec.name)
        self.values += deltas
