"""Images of what waits for GEO's workers: of each block what its recorder and sharers hold."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from paramfleet_pserver.commands.geo import Recorded
from paramfleet_pserver.commands.snapshot.arrays import table_of
from paramfleet_pserver.commands.snapshot.tables import Piece
from paramfleet_pserver.core.geo.recorder import RecorderImage
from paramfleet_pserver.core.geo.sharers import SharersImage
from paramfleet_pserver.tables.owners import Job
from paramfleet_shared.net.wire.message import Message

__all__ = ["WaitingImage"]

WAITING_BYTES = 16
"""What is said of a row that waits."""
PERIOD_BYTES = 9
"""What is said of a row that others changed."""

_Images = tuple[RecorderImage, SharersImage]


class WaitingImage:
    """What waits for workers of one block when its owner has run ``begin_job``.

    Args:
        table: Its name.
        index: Of the block.
        recorded: The block, and what is kept of it.
        check_memory: Refuses bytes that there is no memory for, given how they are computed.
        piece_bytes: About how much one message has.
    """

    def __init__(
        self,
        table: str,
        index: int,
        recorded: Recorded,
        *,
        check_memory: Callable[[str, int], None],
        piece_bytes: int,
    ) -> None:
        self._at = {"table": table, "block": index}
        self._recorded = recorded
        self._check_memory = check_memory
        self._piece_bytes = piece_bytes
        self._images: _Images | None = None

    def begin_job(self) -> Job:
        """Return what takes the image."""

        def take() -> None:
            recorder, sharers = self._recorded.recorder, self._recorded.sharers
            self._images = recorder.image(self._check), sharers.image(self._check)

        return Job(self._recorded.block.owner, 0, take)

    def end_job(self) -> Job:
        """Return what puts nothing aside any more."""
        return Job(self._recorded.block.owner, 0, self._end)

    def pieces(self) -> Iterator[Piece | Message]:
        """Yield what waited for each worker, and what others had changed of late."""
        assert self._images is not None, "it has begun"
        recorder, sharers = self._images
        about = {"last": recorder.last_batch, "shares": sharers.is_used}
        yield Message(fields={"kind": "recorder", **self._at, **about})
        counting = {each.rank: index for index, each in enumerate(sharers.counting)}
        for index, queued in enumerate(recorder.queued):
            at: dict[str, Any] = {**self._at, "rank": queued.rank}
            counted = sharers.counting[counting[queued.rank]]
            yield Message(
                fields={"kind": "waiting", **at, "batch": queued.batch},
                tensors={
                    "sent": table_of(queued.sent, 2),
                    "counts": table_of([counted.counts], 3),
                },
            )
            size = max(1, self._piece_bytes // WAITING_BYTES)
            for start in range(0, len(queued.queue), size):
                make = partial(self._queue, index, slice(start, start + size), at)
                yield self._piece(WAITING_BYTES * size, make)
            size = max(1, self._piece_bytes // PERIOD_BYTES)
            for start in range(0, counted.num_rows, size):
                where = slice(start, start + size)
                make = partial(self._periods, counting[queued.rank], where, at)
                yield self._piece(PERIOD_BYTES * size, make)
        yield Piece(self._recorded.block.owner, 0, self._end)

    def _piece(self, num_bytes: int, make: Callable[[], Message]) -> Piece:
        return Piece(self._recorded.block.owner, num_bytes, make)

    def _queue(self, index: int, where: slice, at: dict[str, Any]) -> Message:
        assert self._images is not None, "it is being read"
        queue, marks = self._images[0].read(index, where)
        return Message(
            fields={"kind": "queue", **at, "start": where.start},
            tensors={"queue": queue, "marks": marks},
        )

    def _periods(self, index: int, where: slice, at: dict[str, Any]) -> Message:
        assert self._images is not None, "it is being read"
        periods, changes = self._images[1].read(index, where)
        return Message(
            fields={"kind": "periods", **at, "start": where.start},
            tensors={"periods": periods, "changes": changes},
        )

    def _check(self, num_bytes: int) -> None:
        """Pass if so many bytes may be put aside.

        Raises:
            TableMemoryError: if there is no memory for them.
        """
        self._check_memory(f"{num_bytes:,} bytes to put aside", num_bytes)

    def _end(self) -> None:
        images, self._images = self._images, None
        if images is not None:
            self._recorded.recorder.end_image(images[0])
            self._recorded.sharers.end_image(images[1])
