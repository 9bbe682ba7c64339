"""Arrays that stay in a file.

Mapping a file would bring whole pages of it into the process, up to 2 MiB each, for every place
that is read: with many runs that is more than the rows that are merged.
"""

import os
import weakref
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["FileArray", "KeptFile"]


class KeptFile:
    """A descriptor of a file, closed when no array reads from it any more.

    Args:
        file: Open; may be closed.

    Raises:
        OSError: if the system refuses.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)


class FileArray:
    """Numbers [n] or [n, D] of a file; each slice is read when it is asked for.

    Args:
        file: Has them.
        start: Where the first number is.
        shape: [n] or [n, D].
        dtype: Of the numbers.
    """

    def __init__(
        self, file: KeptFile, start: int, shape: tuple[int, ...], dtype: type[np.generic]
    ) -> None:
        self._file = file
        self._start = start
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._row_bytes = self._dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self.size = int(np.prod(shape, dtype=np.int64))

    def __len__(self) -> int:
        return self._shape[0]

    @overload
    def __getitem__(self, key: int) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> NDArray[Any]: ...

    def __getitem__(self, key: "int | slice") -> Any:
        """Read one row, or those of a slice without steps.

        Raises:
            OSError: if the system refuses, or the file was cut off.
        """
        if isinstance(key, int):
            return self[key : key + 1][0]
        begin, end, _ = key.indices(len(self))
        found = np.empty((max(0, end - begin), *self._shape[1:]), self._dtype)
        view, at = found.reshape(-1).view(np.uint8).data, 0
        while at < len(view):
            place = self._start + begin * self._row_bytes + at
            count = os.preadv(self._file.descriptor, [view[at:]], place)
            if not count:
                problem = "a temporary file was cut off"
                raise OSError(problem)
            at += count
        return found
