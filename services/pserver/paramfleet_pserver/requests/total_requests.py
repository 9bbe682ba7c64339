"""Requests for sums and norms over the workers of a step, judged before any effect."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paramfleet_pserver.core.sums.norms import LARGEST, GradientPart, NormPart, NormUse
from paramfleet_pserver.requests.fields import Fields
from paramfleet_shared.net.wire.message import MalformedMessageError, Message
from paramfleet_shared.values.bounds import MAX_WEIGHT
from paramfleet_shared.values.ids import Rank, Step

__all__ = ["MAX_NORMS", "NormRequest", "TotalRequest", "norm_request", "total_request"]

MAX_NAME = 1000
"""Characters of a sum's name."""

MAX_NORMS = 1000
"""Norms of one step."""

_MAX_PIECES = 1 << 20


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


@dataclass(frozen=True, kw_only=True, slots=True)
class NormRequest:
    """A worker's gradients, of whose merge it wants the norm."""

    rank: Rank
    incarnation: int
    step: Step
    use: NormUse
    order: float
    """Above 0; ``LARGEST`` for the largest size."""
    part: NormPart


def norm_request(message: Message) -> NormRequest:
    """Read a ``norm``.

    Raises:
        MalformedMessageError: if a field or a tensor is wrong.
    """
    fields = Fields(message.fields, where="norm")
    order, weight = fields.number("order"), fields.number("weight")
    if order < 0:
        raise MalformedMessageError(where="norm field 'order'", rule="must be at least 0")
    if not 0 <= weight <= MAX_WEIGHT:
        rule = f"must be from 0 to {MAX_WEIGHT:g}"
        raise MalformedMessageError(where="norm field 'weight'", rule=rule)
    tables: dict[str, GradientPart] = {}
    for index, name in enumerate(fields.texts("tables")):
        if name in tables:
            raise MalformedMessageError(where="norm", rule=f"names table {name!r} twice")
        tables[name] = _gradient(message, index)
    return NormRequest(
        rank=Rank(fields.integer("rank")),
        incarnation=fields.integer("incarnation"),
        step=Step(fields.integer("step")),
        use=NormUse(
            fields.integer("number", most=MAX_NORMS - 1),
            fields.integer("piece", most=_MAX_PIECES),
        ),
        order=order or LARGEST,
        part=NormPart(weight, tables),
    )


def _gradient(message: Message, index: int) -> GradientPart:
    """Return the gradient of a table.

    Raises:
        MalformedMessageError: if it isn't float32 [n], or [n, D] of n ids.
    """
    values, ids = message.tensors.get(f"{index}.values"), message.tensors.get(f"{index}.ids")
    where = f"tensor '{index}.values'"
    if values is None or values.dtype != np.float32 or values.ndim != (1 if ids is None else 2):
        raise MalformedMessageError(where=where, rule="must be float32 [n], or [n, D] of ids")
    if ids is None:
        return GradientPart(values, None)
    if ids.dtype != np.int64 or ids.shape != values.shape[:1]:
        raise MalformedMessageError(where=f"tensor '{index}.ids'", rule="must be int64 [n]")
    return GradientPart(values, ids)
