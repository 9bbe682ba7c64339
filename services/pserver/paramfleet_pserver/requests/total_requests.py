"""Requests for a sum over the workers of a step, judged before any effect."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.requests.fields import Fields
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["TotalRequest", "total_request"]

MAX_NAME = 1000
"""Characters of a sum's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TotalRequest:
    """A worker's part of a sum."""

    rank: Rank
    incarnation: int
    step: Step
    name: str
    values: NDArray[np.float64]
    """float64 [n], finite."""


def total_request(message: Message) -> TotalRequest:
    """Read a ``total``.

    Raises:
        MalformedMessageError: if a field is wrong, or the numbers aren't finite, or no
            vector of float64.
    """
    fields = Fields(message.fields, where="total")
    name, values = fields.text("name"), message.tensors.get("part")
    if not 0 < len(name) <= MAX_NAME:
        rule = f"must have 1 to {MAX_NAME} characters"
        raise MalformedMessageError(where="total field 'name'", rule=rule)
    if values is None or values.ndim != 1 or values.dtype != np.float64:
        raise MalformedMessageError(where="tensor 'part'", rule="must be float64 [n]")
    if not np.isfinite(values).all():
        raise MalformedMessageError(where="tensor 'part'", rule="must hold finite numbers")
    return TotalRequest(
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
        step=Step(fields.integer("step")),
        name=name,
        values=values,
    )
