"""Rows that a worker has the pservers remove, and which are to go; what exports have of rows.

Each request to remove some is a change of its own.

A removal goes to every pserver, with or without ids, as every change does: so a checkpoint
knows whether all have taken it. Requests follow one another, and a pserver answers one that
comes a second time as the first time.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paramfleet.training.evicting.selecting import Answer, Count, Question, Selection
from paramfleet.training.job import Job
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.partition import partition
from paramfleet_shared.tables.rows.batch import RowIds
from paramfleet_shared.tables.rows.evicting import NUM_BINS, AsOf
from paramfleet_shared.tables.rows.routing import route

__all__ = ["MAX_IDS", "count_rows", "send_discount", "send_removal", "survey"]

MAX_IDS = 1 << 18
"""Of one request to all pservers: 2 MiB. Others are served between two of them."""

_DISCOUNTED = 1 << 16
"""Ids of one request to all pservers."""

_PLACES = 1 << 17
"""Of each pserver that one request looks at: some milliseconds."""


async def send_removal(job: Job, table: str, ids: NDArray[np.int64], *, step: int) -> int:
    """Remove rows on all pservers; return how many there were.

    To be run on the communicator's loop, one at a time.

    Args:
        job: The worker's connections.
        table: A sparse one.
        ids: int64 [n], each once.
        step: Steps that this worker has taken.

    Raises:
        FleetError: the first error of a pserver; rows of ids before may be removed.
    """
    num = 0
    for start in range(0, len(ids), MAX_IDS):
        messages = _messages(job, table, ids[start : start + MAX_IDS], step)
        answers = await job.pservers.change("remove", messages)
        num += sum(int(answer.fields["removed"]) for answer in answers)
    return num


def _messages(job: Job, table: str, ids: NDArray[np.int64], step: int) -> list[Message]:
    """Return one message a pserver, all of one new change."""
    placement = job.placement
    unique, _, offsets = partition(ids, placement.num_shards)
    rows = RowIds(unique, offsets)
    fields = {**job.author.change(), "table": table, "step": step}
    messages = []
    for server in range(placement.num_servers):
        part, bounds = rows.of(placement.shards_of(server))
        tensors = {"0.ids": unique[part], "0.offsets": bounds}
        messages.append(Message(fields=fields, tensors=tensors))
    return messages


async def send_discount(
    job: Job, table: str, ids: NDArray[np.int64], amounts: NDArray[np.float32], *, step: int
) -> None:
    """Subtract from rows what an export has of their ``delta_score``.

    To be run on the communicator's loop.

    Args:
        job: The worker's connections.
        table: One with an accessor.
        ids: int64 [n], each once.
        amounts: float32 [n].
        step: Steps that this worker has taken.

    Raises:
        FleetError: the first error of a pserver; rows before may be done.
    """
    placement = job.placement
    for start in range(0, len(ids), _DISCOUNTED):
        some = slice(start, start + _DISCOUNTED)
        routed = route(ids[some], placement.num_shards)
        rows, ordered = RowIds(routed.ids, routed.offsets), amounts[some][routed.positions]
        fields = {**job.author.change(), "table": table, "step": step}
        messages = []
        for server in range(placement.num_servers):
            part, bounds = rows.of(placement.shards_of(server))
            tensors: dict[str, NDArray[Any]] = {"0.ids": routed.ids[part]}
            tensors |= {"0.offsets": bounds, "0.amounts": ordered[part]}
            messages.append(Message(fields=fields, tensors=tensors))
        await job.pservers.change("discount", messages)


async def survey(
    job: Job, table: str, as_of: AsOf, selection: Selection, *, step: int
) -> NDArray[np.int64]:
    """Return the ids of rows that are to go: int64 [n], each once.

    To be run on the communicator's loop. All pservers look at once, each at some places.

    Args:
        job: The worker's connections.
        table: A sparse one, whose rows have a value.
        as_of: At what time.
        selection: Asks for what it has to know.
        step: Steps that this worker has taken.

    Raises:
        FleetError: the first error of a pserver.
    """
    try:
        question = next(selection)
        fields = {**job.author.fields(), "table": table, "step": step, **as_of._asdict()}
        while True:
            question = selection.send(await _answer(job, fields, question))
    except StopIteration as done:
        found: NDArray[np.int64] = done.value
        return found


async def count_rows(job: Job, table: str, *, step: int) -> int:
    """Return how many rows a table has on all pservers together.

    To be run on the communicator's loop.

    Args:
        job: The worker's connections.
        table: As of ``survey``.
        step: The same.

    Raises:
        FleetError: the first error of a pserver.
    """
    places = {"block": 0, "start": 0, "count": 0, "below": 0}
    fields = {**job.author.fields(), "table": table, "step": step, **AsOf()._asdict(), **places}
    messages = [Message(fields=fields) for _ in range(job.placement.num_servers)]
    answers = await job.pservers.call("survey", messages)
    return sum(int(answer.fields["rows"]) for answer in answers)


async def _answer(job: Job, about: Mapping[str, Any], question: Question) -> Answer:
    """Return what all pservers together answer."""
    is_count = isinstance(question, Count)
    asked = question._asdict() if is_count else {"below": question[0]}
    fields = {**about, **asked}
    counts = np.zeros(NUM_BINS, np.int64)
    ids, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    num_servers = job.placement.num_servers
    blocks, starts = (dict.fromkeys(range(num_servers), 0) for _ in range(2))
    while blocks:
        messages = [
            Message(
                fields={
                    **fields,
                    "block": blocks.get(server, 0),
                    "start": starts.get(server, 0),
                    "count": _PLACES if server in blocks else 0,
                }
            )
            for server in range(num_servers)
        ]
        answers = await job.pservers.call("survey", messages)
        for server in list(blocks):
            answer = answers[server]
            if is_count:
                counts += answer.tensors["counts"]
            else:
                ids.append(answer.tensors["ids"])
                keys.append(answer.tensors["keys"])
            starts[server] = int(answer.fields["next"])
            if starts[server] >= int(answer.fields["places"]):
                blocks[server], starts[server] = blocks[server] + 1, 0
            if blocks[server] >= int(answer.fields["blocks"]):
                del blocks[server], starts[server]
    return (counts,) if is_count else (np.concatenate(ids), np.concatenate(keys))
