"""Following a job live: server-sent events, one a second.

A reader that reconnects sends the number of its last frame, and gets those it missed if they
are still kept; else, and at first, it gets the whole. A reader that doesn't keep up is
disconnected, and reconnects: per reader only the small buffer of its connection is kept.
"""

import asyncio
import json
import socket
from typing import Any

from aiohttp import web

from paramfleet_coordinator.api.route import Route, service_of
from paramfleet_shared.net.access import requires
from paramfleet_shared.telemetry.logs_and_metrics import finite

__all__ = ["STREAMING"]

_LOOK_S = 0.25
_CHUNK_BYTES = 1 << 15
_WRITE_TIMEOUT_S = 5.0
"""How long a reader may take to make room for a chunk."""

_SEND_BUFFER_BYTES = 1 << 17
"""What the system keeps for a reader. Left to itself it takes megabytes, minutes of frames,
before it says that somebody doesn't read."""

_MAX_READERS = 64
READERS = web.AppKey("paramfleet_stream_readers", set[int])


@requires("read")
async def _stream(request: web.Request) -> web.StreamResponse:
    readers = request.config_dict[READERS]
    if len(readers) >= _MAX_READERS:
        return web.Response(status=503, text=f"{_MAX_READERS} readers are here already")
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    readers.add(id(request))
    try:
        await response.prepare(request)
        _keep_little(request)
        await _follow(request, response)
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    finally:
        readers.discard(id(request))
    return response


async def _follow(request: web.Request, response: web.StreamResponse) -> None:
    """Send what is new until the reader goes.

    Raises:
        ConnectionResetError: when it has gone.
        TimeoutError: if it doesn't read.
    """
    service = service_of(request)
    seen = _last_seen(request)
    while True:
        frames = None if seen is None else service.view.frames(after=seen)
        if frames is None:
            seen = service.view.newest_frame
            whole = {
                "number": seen,
                "status": service.status(),
                "history": service.view.history(),
                "events": service.view.events(),
            }
            await _send(response, "whole", seen, whole)
        for frame in frames or ():
            seen = frame["number"]
            await _send(response, "frame", seen, {**frame, "status": service.status()})
        await asyncio.sleep(_LOOK_S)
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError


def _last_seen(request: web.Request) -> int | None:
    text = request.headers.get("Last-Event-ID", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _keep_little(request: web.Request) -> None:
    transport = request.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


async def _send(
    response: web.StreamResponse, kind: str, number: int, content: dict[str, Any]
) -> None:
    data = json.dumps(finite(content), separators=(",", ":"))
    message = f"event: {kind}\nid: {number}\ndata: {data}\n\n".encode()
    for start in range(0, len(message), _CHUNK_BYTES):
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await response.write(message[start : start + _CHUNK_BYTES])


STREAMING = (
    Route(
        method="GET",
        path="/api/v1/stream",
        handler=_stream,
        summary="Server-sent events: the whole at first, then what changed, each second.",
        answer={"type": "string"},
        kinds="text/event-stream",
        refusals=(503,),
    ),
)
