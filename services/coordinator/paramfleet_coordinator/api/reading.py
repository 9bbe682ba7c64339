"""What is read of a job: the GET routes of the admin API."""

from typing import Any

from aiohttp import web

from paramfleet_coordinator.access import AUDIT_LOG
from paramfleet_coordinator.api.route import Route, answering, service_of
from paramfleet_shared.net.access import requires

__all__ = ["READING"]

_OBJECT = {"type": "object"}
_LIST = {"type": "array", "items": _OBJECT}
_COUNT = {"type": "integer", "minimum": 0}


def _record(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


_TABLE = _record(
    name={"type": "string"},
    kind={"enum": ["dense", "sparse"]},
    rows=_COUNT,
    rows_in_memory=_COUNT,
    rows_on_disk=_COUNT,
    bytes=_COUNT,
    pulls=_COUNT,
    pushes=_COUNT,
    version=_COUNT,
    tier={"enum": ["memory", "memory+disk"]},
    shards={
        "type": "array",
        "items": _record(
            shard=_COUNT, server=_COUNT, rows=_COUNT, bytes=_COUNT, pulled=_COUNT, pushed=_COUNT
        ),
    },
    servers={"type": "array", "items": _record(server=_COUNT, rows=_COUNT, bytes=_COUNT)},
)


@requires("read")
@answering
async def _status(request: web.Request) -> Any:
    return service_of(request).status()


@requires("read")
@answering
async def _tables(request: web.Request) -> Any:
    return service_of(request).tables()


@requires("read")
@answering
async def _workers(request: web.Request) -> Any:
    return service_of(request).workers()


@requires("read")
@answering
async def _barriers(request: web.Request) -> Any:
    return service_of(request).barriers()


@requires("read")
@answering
async def _placement(request: web.Request) -> Any:
    return service_of(request).placement()


@requires("read")
@answering
async def _history(request: web.Request) -> Any:
    return service_of(request).view.history()


@requires("read")
@answering
async def _events(request: web.Request) -> Any:
    text = request.query.get("after", "0")
    after = int(text) if text.isdecimal() and len(text) < 16 else 0
    return service_of(request).view.events(after=after)


@requires("read")
@answering
async def _audit(request: web.Request) -> Any:
    return [entry.to_plain() for entry in request.config_dict[AUDIT_LOG].entries]


_ENTRY = _record(
    number=_COUNT,
    at={"type": "string"},
    who={"type": "string"},
    peer={"type": "string"},
    action={"type": "string"},
    before={},
    after={},
)

_AFTER = {
    "name": "after",
    "in": "query",
    "required": False,
    "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999_999_999},
    "description": "Only events with a higher number.",
}

READING = (
    Route(
        method="GET",
        path="/api/v1/status",
        handler=_status,
        summary="The whole job: state, mode, workers, servers, tables, barriers, straggler.",
        answer={
            "type": "object",
            "required": ["job", "state", "mode", "workers", "servers", "tables", "barriers"],
        },
    ),
    Route(
        method="GET",
        path="/api/v1/tables",
        handler=_tables,
        summary="Tables: rows, bytes, pulls, pushes, where their rows live, the shards used "
        "most, and the servers by how much they hold.",
        answer={"type": "array", "items": _TABLE},
    ),
    Route(
        method="GET",
        path="/api/v1/workers",
        handler=_workers,
        summary="Workers: rank, host, step, samples a second, loss, staleness, last seen, "
        "where their time goes, and why they lag.",
        answer=_LIST,
    ),
    Route(
        method="GET",
        path="/api/v1/barriers",
        handler=_barriers,
        summary="Barriers at which a worker waits: who has arrived, and who has not.",
        answer=_LIST,
    ),
    Route(
        method="GET",
        path="/api/v1/placement",
        handler=_placement,
        summary="Which pserver has which shards.",
        answer=_OBJECT,
    ),
    Route(
        method="GET",
        path="/api/v1/history",
        handler=_history,
        summary="Samples of the last quarter of an hour, of workers and servers.",
        answer=_OBJECT,
    ),
    Route(
        method="GET",
        path="/api/v1/events",
        handler=_events,
        summary="Joins, ends, checkpoints, an operator's actions, stragglers; oldest first.",
        answer=_LIST,
        query=(_AFTER,),
    ),
    Route(
        method="GET",
        path="/api/v1/audit",
        handler=_audit,
        summary="Who changed what of the job, in its former runs too; oldest first.",
        answer={"type": "array", "items": _ENTRY},
    ),
)
