"""Orders drawn by lot, and samples that change their worker."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet.api.collectives import Util
from paramfleet.data.parsing.rows import Rows
from paramfleet.data.parsing.slots import Layout
from paramfleet.data.store import Store
from paramfleet_shared.net.wire.message import MalformedMessageError, Message

__all__ = ["Drawing", "exchange_rows", "permuted"]

_TENSORS = (("counts", np.int32, 2), ("ids", np.int64, 1), ("floats", np.float32, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How samples change their worker."""

    seed: Sequence[int]
    """Of this shuffle in this worker."""
    block_rows: int
    """Samples of a message."""
    in_flight: int
    """Messages that may be on their way at a time."""


def permuted(order: NDArray[np.int64], seed: Sequence[int]) -> NDArray[np.int64]:
    """Return the numbers in an order drawn by lot; the same of the same seed."""
    return np.random.default_rng(list(seed)).permutation(order)


def exchange_rows(
    rows: Rows,
    order: NDArray[np.int64],
    layout: Layout,
    util: Util,
    drawing: Drawing,
) -> tuple[Rows, NDArray[np.int64]]:
    """Send each row to a worker drawn by lot; returns the rows that came, and their order.

    The order is that of senders and of what each sent, whatever came first.

    Args:
        rows: This worker's.
        order: Their numbers; the lots are drawn in this order.
        layout: The slots, the same in all workers.
        util: The workers.
        drawing: How.

    Raises:
        FleetError: if a worker doesn't come or can't be reached in time.
    """
    came: dict[tuple[int, int], Rows] = {}

    def outgoing(ranks: Sequence[int]) -> Iterator[tuple[int, Message]]:
        lots = np.random.default_rng(list(drawing.seed)).integers(0, len(ranks), len(order))
        by_lot = np.argsort(lots, kind="stable")
        ends = np.searchsorted(lots[by_lot], np.arange(len(ranks) + 1))
        size = drawing.block_rows
        pieces = [
            (ranks[lot], order[by_lot[begin : min(begin + size, ends[lot + 1])]])
            for lot in range(len(ranks))
            for begin in range(ends[lot], ends[lot + 1], size)
        ]
        turns = np.random.default_rng(list(drawing.seed)).permutation(len(pieces))
        for turn in turns:  # so that not all workers send to the same one at once
            rank, numbers = pieces[turn]
            yield rank, _to_message(rows.take(numbers))

    def receive(source: int, number: int, message: Message) -> None:
        came[source, number] = _from_message(message, layout)

    util.exchange("fleet.data.shuffle", outgoing, receive, in_flight=drawing.in_flight)
    store = Store(len(layout))
    for key in sorted(came):
        store.append(came.pop(key), place=0)
    return store.finish()


def _to_message(rows: Rows) -> Message:
    return Message(tensors={"counts": rows.counts, "ids": rows.ids, "floats": rows.floats})


def _from_message(message: Message, layout: Layout) -> Rows:
    """Return the rows of ``_to_message``.

    Raises:
        MalformedMessageError: if they don't fit this worker's slots.
    """
    for name, dtype, dimensions in _TENSORS:
        tensor = message.tensors.get(name)
        if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions:
            rule = f"must be {dtype.__name__} of {dimensions} dimensions"
            raise MalformedMessageError(where=name, rule=rule)
    counts = message.tensors["counts"]
    if counts.shape[1] != len(layout) or (counts.size and int(counts.min()) < 0):
        raise MalformedMessageError(where="counts", rule=f"must be of {len(layout)} slots")
    rows = Rows.of(counts, message.tensors["ids"], message.tensors["floats"], layout.is_float)
    if rows.id_starts[-1] != len(rows.ids) or rows.float_starts[-1] != len(rows.floats):
        raise MalformedMessageError(where="counts", rule="must be those of the values")
    return rows
