"""What a pull reads of the tables, and where it is put for the answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.checked import PullRequest
from paramfleet_pserver.requests.fields import Fields
from paramfleet_pserver.tables.old_values import StepBefore, pull_old_job, pull_old_jobs
from paramfleet_pserver.tables.owners import Job
from paramfleet_pserver.tables.table import DenseTable, SparseTable
from paramfleet_pserver.tables.table_store import TableStore
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.tables.encoding import Encoded, buffer_for

__all__ = ["INLINE_PACKED_BYTES", "pull_of_step", "read_packed", "reading", "tensors_of"]

R = TypeVar("R")

_PACKED = np.dtype(np.uint8)

INLINE_PACKED_BYTES = 1 << 16
"""Packed ids that are unpacked on the event loop: some 50,000, in as few microseconds."""

_OF_PULL = "pull."
"""What names of tensors begin with that belong to the pull of a ``step``."""


async def read_packed(
    reader: Callable[[Message, TableStore], R], message: Message, store: TableStore
) -> R:
    """Take a request apart, on another thread if that means to unpack many ids."""
    packed = sum(t.nbytes for t in message.tensors.values() if t.dtype == _PACKED)
    if packed <= INLINE_PACKED_BYTES:
        return reader(message, store)
    return await asyncio.to_thread(reader, message, store)


def pull_of_step(message: Message) -> Message:
    """Return what a ``step`` pulls as the message of a ``pull``.

    Raises:
        MalformedMessageError: if a field is missing or of a wrong type.
    """
    fields = Fields(message.fields, where="step")
    wanted = {
        "rank": fields.integer("rank"),
        "incarnation": fields.integer("incarnation"),
        "parts": list(fields.parts("pull")),
    }
    if fields.flag("exact"):
        wanted["version"] = fields.integer("step") + 1
    tensors = {
        name.removeprefix(_OF_PULL): tensor
        for name, tensor in message.tensors.items()
        if name.startswith(_OF_PULL)
    }
    return Message(fields={**wanted, "min_version": 0}, tensors=tensors)


def reading(
    pull: PullRequest, *, keeps: bool, before: Sequence[StepBefore] = ()
) -> tuple[list[Job], dict[str, NDArray[Any]]]:
    """Return the jobs that read what a pull asks for, and where they put it.

    Args:
        pull: What is asked for.
        keeps: Whether the worker's push may name the pull's ids from now on.
        before: What takes the values back to the version that is asked for.
    """
    jobs: list[Job] = []
    tensors: dict[str, NDArray[Any]] = {}
    for index, part in enumerate(pull.parts):
        part.table.num_pulls += 1
        if isinstance(part.table, SparseTable) and part.rows is not None:
            if before:
                jobs += pull_old_jobs(part.table, part.rows, before, create=part.create)
            else:
                jobs += part.table.pull_jobs(part.rows, create=part.create)
            tensors |= tensors_of(index, part.rows.rows)
            if keeps and part.keep is not None:
                ids, offsets = part.rows.ids, part.rows.offsets
                part.table.pulled.keep(pull.rank, part.keep, ids, offsets)
        elif isinstance(part.table, DenseTable):
            assert part.where is not None, "a dense part says which values"
            buffer = buffer_for((part.where.stop - part.where.start,), part.wire)
            if before:
                jobs.append(pull_old_job(part.table, buffer, part.wire, part.where, before))
            else:
                jobs.append(part.table.pull_job(buffer, part.wire, part.where))
            tensors |= tensors_of(index, buffer)
    return jobs, tensors


def tensors_of(index: int, rows: Encoded) -> dict[str, NDArray[Any]]:
    """Return the numbers of an answer's part by name."""
    tensors = {f"{index}.rows": rows.rows}
    if rows.scales is not None:
        tensors[f"{index}.scales"] = rows.scales
    return tensors
