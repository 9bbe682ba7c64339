"""Pages that are read before keys are looked up on them, while something else is done.

What was read is the same as on disk until a page is written: then it is used no more.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from paramfleet_shared.tables.disk.access.buffers import AheadBuffer
from paramfleet_shared.tables.disk.kernels.pages import first_damaged
from paramfleet_shared.tables.disk.pages.files import PageFiles

__all__ = ["PagesAhead"]


class _Request:
    """Pages that are being read, or are there.

    Args:
        numbers: int64 [n], sorted, each once.
        buffer: Where they are read to.
    """

    def __init__(self, numbers: NDArray[np.int64], buffer: AheadBuffer) -> None:
        self.numbers = numbers
        self.buffer = buffer
        self.is_same = np.ones(numbers.size, np.bool_)
        """[n]: as on disk, as far as is known."""
        self.is_there = False

    def places(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of the pages each of some is, or -1: int64 [m] for int64 [m]."""
        at = np.searchsorted(self.numbers, pages)
        at[at == self.numbers.size] = 0
        at[(self.numbers[at] != pages) | ~self.is_same[at]] = -1
        return at


class PagesAhead:
    """Reads pages of one tier ahead. One thread uses it.

    The memory is that of all tiers of this thread: their two last requests are kept, one that
    is looked up and the next one, which is read meanwhile.

    Args:
        files: Where the pages are.
    """

    def __init__(self, files: PageFiles) -> None:
        self._files = files
        self._requests: list[_Request] = []
        files.helpers.add(self)
        files.note_writing = self._note_writing

    def begin(self, numbers: NDArray[np.int64]) -> None:
        """Begin to read pages: int64 [n], sorted, each once."""
        if not numbers.size:
            return
        buffers = self._files.buffers
        buffer = buffers.ahead[0]
        buffers.ahead.rotate(-1)
        request = _Request(numbers, buffer)
        engine = self._files.transfers.engine_of_others
        by = buffer.lend(request, partial(self._forget, request), engine, buffers.threads)
        self._requests.append(request)
        self._files.begin_read(self._files.main, numbers, by)

    def look(
        self, pages: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]] | None:
        """Return where some of the pages are, or None if none is there.

        It waits for what isn't there as yet only if that are most of the pages.

        Args:
            pages: int64 [n], sorted; one may be there many times.

        Returns:
            int64 [n], -1 for others, and the words of the pages, valid until ``begin``.
        """
        for request in self._requests:
            places = request.places(pages)
            num = np.count_nonzero(places >= 0)
            if num and not request.is_there and 2 * num > pages.size:
                self._finish(request)
                places = request.places(pages)
                num = np.count_nonzero(places >= 0)
            if num and request.is_there:
                return places, request.buffer.arena.words
        return None

    def close(self) -> None:
        """Wait for what is under way, and forget all; idempotent."""
        for request in list(self._requests):
            request.buffer.give_back(request)
            self._forget(request)
        self._files.helpers.discard(self)

    def _finish(self, request: _Request) -> None:
        """Wait for pages; those that can't be read are left to who needs them."""
        request.is_there = True
        try:
            request.buffer.wait(request)
        except OSError:
            request.is_same[:] = False
            return
        files, num, first = self._files, request.numbers.size, 0
        words = request.buffer.arena.words
        while first < num:  # one that was written meanwhile may be anything
            rest = words[first * files.form.page_words :]
            tags = request.numbers[first:] + files.main.tag
            damaged = first_damaged(rest, tags, files.form, -1)
            if damaged < 0:
                return
            request.is_same[first + damaged] = False
            first += damaged + 1

    def _forget(self, request: _Request) -> None:
        self._requests = [each for each in self._requests if each is not request]

    def _note_writing(self, tags: NDArray[np.int64]) -> None:
        for request in self._requests:
            places = request.places(tags)
            request.is_same[places[places >= 0]] = False
