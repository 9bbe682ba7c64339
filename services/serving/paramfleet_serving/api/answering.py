"""Answers: versions, errors and rows as JSON and as safetensors.

Shape legend: q = ids of a table, D = width of its rows.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from paramfleet_serving.api.reading import JSON, RAW
from paramfleet_serving.store.model import View
from paramfleet_shared.errors import ContractError, FleetError, error_to_wire
from paramfleet_shared.errors.serving import (
    LookupTooLargeError,
    NumberNotKeptError,
    ServingTableError,
)
from paramfleet_shared.files.tensorfile import tensor_pieces
from paramfleet_shared.telemetry.logs_and_metrics import finite

__all__ = ["error_answer", "json_rows", "raw_answer", "version_headers"]

_RETRY_S = "1"
_PART_NUMBERS = 1 << 14
"""Numbers that are made JSON between two other requests: some milliseconds' work."""


def error_answer(error: FleetError) -> web.Response:
    """Return the answer that an error is."""
    status = 400 if isinstance(error, ContractError) else 503
    for kind, other in (
        (ServingTableError, 404),
        (NumberNotKeptError, 409),
        (LookupTooLargeError, 413),
    ):
        status = other if isinstance(error, kind) else status
    headers = {"Retry-After": _RETRY_S} if status == 503 else {}
    body = finite({"error": error_to_wire(error)})
    return web.json_response(body, status=status, headers=headers)


def version_headers(view: View, age_s: float) -> dict[str, str]:
    """Return what an answer in bytes says of its version."""
    return {
        "Paramfleet-Stream": view.version.stream,
        "Paramfleet-Number": str(view.number),
        "Paramfleet-Age": f"{age_s:.6f}",
    }


def raw_answer(tensors: Mapping[str, NDArray[Any]], headers: Mapping[str, str]) -> web.Response:
    """Return tensors by name as a safetensors file."""
    body = b"".join(tensor_pieces(tensors, {}))
    return web.Response(body=body, content_type=RAW, headers=headers)


async def json_rows(
    head: Mapping[str, Any], rows: Mapping[str, NDArray[np.float32]]
) -> web.Response:
    """Return rows, float32 [q, D] by table, as JSON; other requests are answered meanwhile.

    Args:
        head: What else the answer says.
        rows: By table.
    """
    parts = [json.dumps(dict(head))[:-1], ', "tables": {']
    for number, (name, table) in enumerate(rows.items()):
        parts += [", " if number else "", json.dumps(name), ": ["]
        step = max(1, _PART_NUMBERS // max(1, table.shape[1]))
        for start in range(0, len(table), step):
            text = json.dumps(table[start : start + step].tolist())
            parts += [", " if start else "", text[1:-1]]
            await asyncio.sleep(0)
        parts.append("]")
    parts.append("}}")
    return web.Response(body="".join(parts).encode(), content_type=JSON)
