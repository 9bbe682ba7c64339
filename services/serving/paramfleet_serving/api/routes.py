"""The routes: lookups, tables, the version, dense parameters; and what an admin may do."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from paramfleet_serving.api.answering import (
    error_answer,
    json_rows,
    raw_answer,
    tensor_bytes,
    version_headers,
)
from paramfleet_serving.api.reading import (
    JSON,
    RAW,
    Asked,
    check_size,
    read_lookup,
    read_object,
)
from paramfleet_serving.config import ServingSettings
from paramfleet_serving.following.follower import Follower
from paramfleet_serving.measures import Measures
from paramfleet_serving.store.model import View
from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.serving import (
    LookupRequestError,
    NumberNotKeptError,
    ServerBusyError,
)
from paramfleet_shared.net.access import NOBODY, identity_of, requires
from paramfleet_shared.system.clock import Clock

__all__ = ["Api"]

Handler = Callable[["Api", web.Request], Awaitable[web.StreamResponse]]

PART_IDS = 8192
"""Ids that are looked up between two other requests: a millisecond's work or so."""

_LARGE_BYTES = 1 << 18
"""An answer above is written while its request counts as in work."""


def _answered(handle: Handler) -> Handler:
    """Make errors their answers."""

    @wraps(handle)
    async def handler(self: "Api", request: web.Request) -> web.StreamResponse:
        try:
            return await handle(self, request)
        except FleetError as error:
            self.measures.refused.labels(error.code).inc()
            return error_answer(error)

    return handler


def _counted(handle: Handler) -> Handler:
    """Bound how many requests are in work, and make errors their answers."""

    @wraps(handle)
    async def handler(self: "Api", request: web.Request) -> web.StreamResponse:
        with self.in_work():
            answer = await handle(self, request)
            if isinstance(answer, web.Response) and _length(answer) > _LARGE_BYTES:
                if identity_of(request) is NOBODY:  # whose connection isn't kept
                    answer.force_close()
                await answer.prepare(request)
                await answer.write_eof()
            return answer

    return _answered(handler)


@final
class Api:
    """Answers requests from what a follower serves.

    Args:
        follower: Who has the versions.
        settings: The limits.
        measures: What is counted.
        clock: Time.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        follower: Follower,
        *,
        settings: ServingSettings,
        measures: Measures,
        clock: Clock,
        now: Callable[[], float],
    ) -> None:
        self._follower = follower
        self._settings = settings
        self.measures = measures
        self._clock = clock
        self._now = now
        self._num_in_work = 0
        self._dense: tuple[str, asyncio.Task[bytearray]] | None = None
        """The dense parameters that were asked for last, by their tag."""

    @property
    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes for an admin server."""
        return [
            web.post("/v1/lookup", self.look_up),
            web.get("/v1/tables", self.show_tables),
            web.get("/v1/version", self.show_version),
            web.get("/v1/dense", self.give_dense),
            web.post("/v1/rollback", self.roll_back),
            web.post("/v1/follow", self.follow),
        ]

    def facts(self) -> dict[str, Any]:
        """Return what is served, in plain values.

        Raises:
            NoVersionError: if nothing is.
        """
        follower, model = self._follower, self._follower.served
        return {
            "version": {"stream": model.stream, "number": model.number},
            "age_s": round(self._age(model.moment), 6),
            "clock_skew_s": round(max(0.0, model.moment - self._now()), 6),
            "moment": model.moment,
            "base": model.base_number,
            "pinned": follower.pinned,
            "trouble": follower.trouble,
            "overlay_rows": model.overlay_rows,
            "overlay_bytes": model.overlay_bytes,
        }

    def in_work_now(self) -> int:
        """Return how many requests are in work."""
        return self._num_in_work

    @contextmanager
    def in_work(self) -> Iterator[None]:
        """Count a request as one in work.

        Raises:
            ServerBusyError: if there are as many as may be.
        """
        most = self._settings.max_requests
        if self._num_in_work >= most:
            raise ServerBusyError(most=most)
        self._num_in_work += 1
        self.measures.in_work.set(self._num_in_work)
        try:
            yield
        finally:
            self._num_in_work -= 1
            self.measures.in_work.set(self._num_in_work)

    @requires("read")
    @_counted
    async def look_up(self, request: web.Request) -> web.StreamResponse:
        """Answer rows of ids.

        Raises:
            LookupRequestError: if the body is neither JSON nor safetensors.
        """
        began, kind = self._clock.monotonic(), request.content_type
        if kind not in {JSON, RAW}:
            rule = f"must be {JSON} or {RAW}, not {kind[:80]!r}"
            raise LookupRequestError(where="Content-Type", rule=rule)
        settings = self._settings
        asked = read_lookup(await request.read(), kind, max_ids=settings.max_ids)
        with self._follower.served.view() as view:
            widths = {name: view.table(name).dim for name in asked.ids}
            check_size(asked, widths, kind, max_bytes=settings.max_answer_bytes)
            rows = await _rows_of(view, asked)
            version, moment = view.version, view.moment
        self.measures.lookups.labels("raw" if kind == RAW else "json").inc()
        for name, found in rows.items():
            self.measures.rows.labels(name).inc(len(found))
        self.measures.seconds.observe(self._clock.monotonic() - began)
        if kind == JSON:
            return await json_rows(request, self._head(version, moment), rows)
        shaped = {
            name: found.reshape(*asked.shapes[name], found.shape[1])
            for name, found in rows.items()
        }
        return raw_answer(shaped, version_headers(version, self._age(moment)))

    @requires("read")
    @_counted
    async def show_tables(self, _request: web.Request) -> web.StreamResponse:
        """Answer which tables there are."""
        model = self._follower.served
        tables = [
            {
                **table.facts.to_wire(),
                "base_rows": len(table.base.ids),
                "overlay_rows": table.overlay.num_rows,
            }
            for _, table in sorted(model.tables.items())
        ]
        return web.json_response({**self._head(model.version, model.moment), "tables": tables})

    @requires("read")
    @_counted
    async def show_version(self, _request: web.Request) -> web.StreamResponse:
        """Answer which version is served."""
        return web.json_response(self.facts())

    @requires("read")
    @_counted
    async def give_dense(self, request: web.Request) -> web.StreamResponse:
        """Answer the dense parameters; 304 if the asker has them."""
        with self._follower.served.view() as view:
            version, moment, dense = view.version, view.moment, view.dense
            etag = f"{version.stream}.{view.dense_number}"
        headers = version_headers(version, self._age(moment)) | {"ETag": f'"{etag}"'}
        known = request.if_none_match or ()
        if any(each.value in {etag, "*"} for each in known):
            return web.Response(status=304, headers=headers)
        body = await self._dense_bytes(etag, dense)
        return web.Response(body=body, content_type=RAW, headers=headers)

    @requires("admin")
    @_answered
    async def roll_back(self, request: web.Request) -> web.StreamResponse:
        """Serve a former version, and stay there."""
        body = read_object(await request.read(), {"number": int}, may_have={"stream": str})
        number, stream = body["number"], body.get("stream")
        most_s = self._settings.rollback_timeout_s
        try:
            async with asyncio.timeout(most_s):
                version = await self._follower.roll_back(number, stream)
        except TimeoutError as error:
            raise self._not_kept(number, f"it takes longer than {most_s:g} s") from error
        except OSError as error:
            raise self._not_kept(number, str(error)) from error
        return web.json_response({"version": version._asdict()})

    @requires("admin")
    @_answered
    async def follow(self, request: web.Request) -> web.StreamResponse:
        """Follow the stream again."""
        body = await request.read()
        if body:
            read_object(body, {})
        self._follower.follow()
        return web.json_response({"following": True})

    async def _dense_bytes(self, etag: str, dense: Mapping[str, NDArray[Any]]) -> bytearray:
        """Return dense parameters as bytes, made once for all who ask for them."""
        known, making = self._dense or ("", None)
        has_failed = making is not None and making.done() and making.exception() is not None
        if making is None or known != etag or has_failed:
            made = asyncio.to_thread(tensor_bytes, dense)
            making = asyncio.get_running_loop().create_task(made)
            self._dense = etag, making
        return await asyncio.shield(making)

    def _head(self, version: Any, moment: float) -> dict[str, Any]:
        return {"version": version._asdict(), "age_s": round(self._age(moment), 6)}

    def _age(self, moment: float) -> float:
        """Return how old it is; 0 where the clocks disagree, as ``clock_skew_s`` says."""
        return max(0.0, self._now() - moment)

    def _not_kept(self, number: int, reason: str) -> NumberNotKeptError:
        stream = self._follower.served.stream
        return NumberNotKeptError(number=number, stream=stream, reason=reason)


async def _rows_of(view: View, asked: Asked) -> dict[str, NDArray[np.float32]]:
    """Look up, with other requests in between where there is much."""
    rows = {}
    for name, ids in asked.ids.items():
        if len(ids) <= PART_IDS:
            rows[name] = view.lookup(name, ids)
            continue
        whole = np.empty((len(ids), view.table(name).dim), np.float32)
        for start in range(0, len(ids), PART_IDS):
            whole[start : start + PART_IDS] = view.lookup(name, ids[start : start + PART_IDS])
            await asyncio.sleep(0)
        rows[name] = whole
    return rows


def _length(answer: web.Response) -> int:
    body = answer.body
    return len(body) if isinstance(body, bytes | bytearray) else 0


@web.middleware
async def in_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Have refusals of the library's say what was wrong as all others do.

    Raises:
        HTTPException: if it refuses nothing.
    """
    try:
        answer = await handler(request)
    except web.HTTPException as refusal:
        if refusal.status < 400:
            raise
        answer = refusal
    if (
        answer.status < 400
        or answer.content_type == JSON
        or not isinstance(answer, web.Response)
    ):
        return answer
    error = LookupRequestError(where=f"{request.method} {request.path}", rule=_words(answer))
    better = error_answer(error)
    better.set_status(answer.status)
    if "Allow" in answer.headers:
        better.headers["Allow"] = answer.headers["Allow"]
    if not answer.keep_alive:
        better.force_close()
    return better


def _words(answer: web.Response) -> str:
    return (answer.text or answer.reason or "").strip()
