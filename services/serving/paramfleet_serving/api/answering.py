"""Answers: versions, errors and rows as JSON and as safetensors.

Shape legend: q = ids of a table, D = width of its rows.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from paramfleet_serving.api.reading import JSON, RAW
from paramfleet_serving.store.model import Version
from paramfleet_shared.errors import ContractError, FleetError, error_to_wire
from paramfleet_shared.errors.serving import (
    LookupTooLargeError,
    NumberNotKeptError,
    ServingTableError,
)
from paramfleet_shared.files.tensorfile import tensor_pieces
from paramfleet_shared.net.access import NOBODY, identity_of
from paramfleet_shared.telemetry.logs_and_metrics import finite

__all__ = ["error_answer", "json_rows", "raw_answer", "tensor_bytes", "version_headers"]

_RETRY_S = "1"
_PART_NUMBERS = 1 << 13
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


def version_headers(version: Version, age_s: float) -> dict[str, str]:
    """Return what an answer in bytes says of its version."""
    return {
        "Paramfleet-Stream": version.stream,
        "Paramfleet-Number": str(version.number),
        "Paramfleet-Age": f"{age_s:.6f}",
    }


def raw_answer(tensors: Mapping[str, NDArray[Any]], headers: Mapping[str, str]) -> web.Response:
    """Return tensors by name as a safetensors file."""
    return web.Response(body=tensor_bytes(tensors), content_type=RAW, headers=headers)


def tensor_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytearray:
    """Return tensors by name as a safetensors file, copied in pieces; may block for long."""
    pieces = list(tensor_pieces(tensors, {}))
    body, position = bytearray(sum(map(len, pieces))), 0
    for piece in pieces:
        body[position : position + len(piece)] = piece
        position += len(piece)
    return body


async def json_rows(
    request: web.Request, head: Mapping[str, Any], rows: Mapping[str, NDArray[np.float32]]
) -> web.StreamResponse:
    """Answer rows, float32 [q, D] by table, as JSON; other requests are answered meanwhile.

    What is more than a piece is sent piece by piece: JSON takes many times the memory of rows.

    Args:
        request: What is answered.
        head: What else the answer says.
        rows: By table.
    """
    pieces = _json_pieces(head, rows)
    if sum(table.size for table in rows.values()) <= _PART_NUMBERS:
        return web.Response(body="".join(pieces).encode(), content_type=JSON)
    answer = web.StreamResponse(headers={"Content-Type": f"{JSON}; charset=utf-8"})
    if identity_of(request) is NOBODY:  # whose connection isn't kept
        answer.force_close()
    await answer.prepare(request)
    for piece in pieces:
        await answer.write(piece.encode())
        await asyncio.sleep(0)
    await answer.write_eof()
    return answer


def _json_pieces(
    head: Mapping[str, Any], rows: Mapping[str, NDArray[np.float32]]
) -> Iterator[str]:
    """Yield the text of an answer, each piece some milliseconds' work at most."""
    yield json.dumps(dict(head))[:-1] + ', "tables": {'
    for number, (name, table) in enumerate(rows.items()):
        yield (", " if number else "") + json.dumps(name) + ": ["
        width = table.shape[1]
        step = max(1, _PART_NUMBERS // max(1, width))
        for start in range(0, len(table), step):
            comma = ", " if start else ""
            if width <= _PART_NUMBERS:
                yield comma + json.dumps(table[start : start + step].tolist())[1:-1]
                continue
            for place in range(0, width, _PART_NUMBERS):
                part = table[start, place : place + _PART_NUMBERS].tolist()
                yield (", " if place else comma + "[") + json.dumps(part)[1:-1]
            yield "]"
        yield "]"
    yield "}}"
