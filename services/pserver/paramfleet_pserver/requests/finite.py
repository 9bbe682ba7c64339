"""What a change must keep for the tables to stay finite; see ``bounds``.

Looked at before anything is changed.
"""

import asyncio

from paramfleet_pserver.core.reservoir import check_weight
from paramfleet_pserver.requests.checked import ExchangeRequest, PushRequest
from paramfleet_pserver.requests.dense_requests import AssignRequest
from paramfleet_pserver.requests.pass_requests import PrepareRequest
from paramfleet_pserver.requests.row_requests import WriteRequest
from paramfleet_pserver.tables.parts import DensePart, SetValues, SparsePart
from paramfleet_pserver.tables.table import Table
from paramfleet_shared.errors.served import (
    LearningRateRefusedError,
    NonFiniteGradientError,
    NonFiniteValuesError,
    PassNumbersError,
    ShowCountError,
)
from paramfleet_shared.tables.encoding import (
    Encoded,
    WireDtype,
    decode_rows,
    is_finite,
    num_nonfinite,
)
from paramfleet_shared.tables.rows.ctr import num_miscounted
from paramfleet_shared.tables.rows.states import check_rows
from paramfleet_shared.values.bounds import GRADIENT_LOG2, MAX_LEARNING_RATE
from paramfleet_shared.values.ids import Rank

__all__ = ["check_change", "check_pass", "check_row_values", "check_values"]

INLINE_VALUES = 1 << 19
"""Floats that are looked through on the event loop: some 50 microseconds."""


async def check_change(request: PushRequest | ExchangeRequest) -> None:
    """Look at the weight, the learning rates and the numbers of every part.

    Raises:
        BadWeightError: if no mean can use the weight.
        LearningRateRefusedError: if a rate is negative or too large.
        NonFiniteGradientError: if a number is NaN, infinite or too large.
        NonFiniteValuesError: if a program has set a value that is NaN or infinite.
        ShowCountError: if rows that count their use have no show, or fewer than 0 clicks.
    """
    rank, step = request.rank, request.step
    if isinstance(request, PushRequest):
        check_weight(rank, step, request.weight)
    for part in request.parts:
        if not 0 <= part.lr <= MAX_LEARNING_RATE:
            name = part.table.spec.name
            raise LearningRateRefusedError(table=name, rank=rank, rate=part.lr)
    for part in request.parts:
        numbers, wire = part.content.numbers, part.content.wire
        log2 = _log2_of(part.content)
        if numbers.rows.size <= INLINE_VALUES:  # then it isn't worth a coroutine
            fits = is_finite(numbers, wire, log2=log2)
        else:
            fits = await _is_finite(numbers, wire, log2)
        if not fits:
            raise NonFiniteGradientError(
                table=part.table.spec.name,
                rank=rank,
                step=step,
                count=num_nonfinite(numbers, wire, log2=log2),
                limit=2.0**log2,
            )
        if isinstance(part.content, DensePart) and part.content.set_before is not None:
            _check_set(part.table, part.content.set_before, rank=rank)
        if isinstance(request, PushRequest) and part.table.spec.optimizer.num_counts:
            wrong = num_miscounted(decode_rows(numbers, wire))
            if wrong:
                name = part.table.spec.name
                raise ShowCountError(table=name, rank=rank, step=step, count=wrong)


async def check_values(request: AssignRequest) -> None:
    """Look at first values.

    Raises:
        NonFiniteValuesError: if one is NaN or infinite.
    """
    values = Encoded(request.values)
    if not await _is_finite(values, "float32", 128):
        raise NonFiniteValuesError(
            table=request.table.spec.name,
            rank=request.rank,
            count=num_nonfinite(values, "float32"),
        )


async def check_row_values(request: WriteRequest) -> None:
    """Raise if a value of a row is too large, as no training makes it.

    Raises:
        NonFiniteValuesError: if one is NaN, infinite or too large.
    """
    values = Encoded(request.values)
    if not await _is_finite(values, "float32", GRADIENT_LOG2):
        raise NonFiniteValuesError(
            table=request.table.spec.name,
            rank=request.rank,
            count=num_nonfinite(values, "float32", log2=GRADIENT_LOG2),
        )


def _check_set(table: Table, given: SetValues, *, rank: Rank) -> None:
    values = Encoded(given.values)
    if not is_finite(values, "float32", log2=128):
        count = num_nonfinite(values, "float32")
        raise NonFiniteValuesError(table=table.spec.name, rank=rank, count=count)


async def check_pass(request: PrepareRequest) -> None:
    """Look at the values and states of every part.

    Raises:
        PassNumbersError: if there is one that training doesn't make.
    """
    for part in request.parts:
        optimizer, values = part.table.spec.optimizer, part.content.numbers.rows
        if values.size + part.states.size <= INLINE_VALUES:
            wrong = check_rows(optimizer, values, part.states)
        else:
            wrong = await asyncio.to_thread(check_rows, optimizer, values, part.states)
        if wrong is not None:
            raise PassNumbersError(
                table=part.table.spec.name,
                rank=request.piece.rank,
                number=request.piece.number,
                rule=wrong,
            )


async def _is_finite(numbers: Encoded, wire: WireDtype, log2: int) -> bool:
    if numbers.rows.size <= INLINE_VALUES:
        return is_finite(numbers, wire, log2=log2)
    return await asyncio.to_thread(is_finite, numbers, wire, log2=log2)


def _log2_of(content: SparsePart | DensePart) -> int:
    """Return below which power of 2 numbers must be: those of one id are added up first."""
    if isinstance(content, SparsePart) and not content.unique:
        return GRADIENT_LOG2 - max(0, len(content.ids) - 1).bit_length()
    return GRADIENT_LOG2
