"""What is done to a job: the POST routes of the admin API.

An action is written to the registry before it is answered; members receive it with their next
heartbeat. What a job can't do as it stands is refused with 409, and nothing is changed.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from paramfleet_coordinator.access import audit
from paramfleet_coordinator.api.route import Route, answering, read_body, service_of
from paramfleet_coordinator.core import operator_actions
from paramfleet_coordinator.core.operator_actions import SettingRefusedError
from paramfleet_shared.discovery.orders import Orders
from paramfleet_shared.net.access import requires
from paramfleet_shared.settings.hurts import ACTIONS

__all__ = ["ACTING"]

_NOTHING: frozenset[str] = frozenset()


async def _switch(
    request: web.Request, action: Callable[..., Orders], flag: str
) -> dict[str, Any]:
    """Change one flag of the orders; answer with what it was and is."""
    await read_body(request, _NOTHING)
    before, after = await service_of(request).act(action)
    was, now = getattr(before, flag), getattr(after, flag)
    await audit(request, action.__name__, {flag: was}, {flag: now})
    return {flag: now, "before": {flag: was}}


@requires("admin")
@answering
async def _pause(request: web.Request) -> Any:
    return await _switch(request, operator_actions.pause, "paused")


@requires("admin")
@answering
async def _resume(request: web.Request) -> Any:
    return await _switch(request, operator_actions.resume, "paused")


@requires("admin")
@answering
async def _end(request: web.Request) -> Any:
    return await _switch(request, operator_actions.end, "ends")


@requires("admin")
@answering
async def _checkpoint(request: web.Request) -> Any:
    body = await read_body(request, frozenset({"name"}))
    name = body.get("name")
    if name is not None and not isinstance(name, str):
        raise SettingRefusedError(name="name", value=str(name)[:64], rule="must be a text")
    asked = await service_of(request).checkpoint(name)
    await audit(request, "checkpoint", None, asked)
    return asked


@requires("admin")
@answering
async def _load(request: web.Request) -> Any:
    body = await read_body(request, frozenset({"dirname", "timeout_s"}))
    dirname, timeout_s = body.get("dirname"), body.get("timeout_s", 600.0)
    if not isinstance(dirname, str):
        raise SettingRefusedError(
            name="dirname", value=str(dirname)[:64], rule="must be a text"
        )
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        value = str(timeout_s)[:64]
        raise SettingRefusedError(name="timeout_s", value=value, rule="must be a number")
    asked = await service_of(request).load(dirname, timeout_s)
    await audit(request, "load", None, asked)
    return asked


@requires("admin")
@answering
async def _shrink(request: web.Request) -> Any:
    body = await read_body(request, frozenset({"table", "dry_run"}))
    table, dry_run = body.get("table", ""), body.get("dry_run", False)
    if not isinstance(table, str):
        raise SettingRefusedError(name="table", value=str(table)[:64], rule="must be a text")
    if not isinstance(dry_run, bool):
        rule = "must be true or false"
        raise SettingRefusedError(name="dry_run", value=str(dry_run)[:64], rule=rule)
    asked = await service_of(request).shrink(table, dry_run=dry_run)
    await audit(request, "shrink", None, asked)
    return asked


@requires("admin")
@answering
async def _settings(request: web.Request) -> Any:
    wanted = await read_body(request, frozenset({"lr", "k_steps", "max_staleness"}))
    before, after = await service_of(request).change(wanted)
    await audit(request, "settings", before, after)
    return {"settings": after, "before": before}


@requires("admin")
@answering
async def _drain(request: web.Request) -> Any:
    await read_body(request, _NOTHING)
    text = request.match_info["rank"]
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        rule = "must be a whole number of at least 0"
        raise SettingRefusedError(name="rank", value=text[:64], rule=rule)
    rank = int(text)
    await service_of(request).drain(rank)
    await audit(
        request, "drain", {"rank": rank, "drained": False}, {"rank": rank, "drained": True}
    )
    return {"rank": rank, "drained": True}


@requires("admin")
@answering
async def _chaos(request: web.Request) -> Any:
    asked = await read_body(request, _HURT)
    hurt = await service_of(request).hurt(asked)
    await audit(request, "chaos", None, hurt.facts())
    await service_of(request).carry_out(hurt)
    return hurt.facts()


_HURT = frozenset({"action", "target", "peer", "at", "for", "rate", "by"})


@requires("admin")
@answering
async def _scale(request: web.Request) -> Any:
    body = await read_body(request, frozenset({"pservers"}))
    wanted = body.get("pservers")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted < 1 << 31:
        rule = "must be a whole number of at least 1"
        raise SettingRefusedError(name="pservers", value=str(wanted)[:64], rule=rule)
    answer = await service_of(request).scale(wanted)
    await audit(request, "scale", {"pservers": answer["before"]}, {"pservers": wanted})
    return answer


_EMPTY = {"type": "object", "additionalProperties": False}


def _flagged(flag: str) -> dict[str, Any]:
    return {"type": "object", "required": [flag, "before"]}


def _action(path: str, handler: Any, summary: str, answer: Any, **more: Any) -> Route:
    return Route(
        method="POST",
        path=f"/api/v1/{path}",
        handler=handler,
        summary=summary,
        answer=answer,
        access="admin",
        **{"body": _EMPTY, "refusals": (409, 413, 415, 422, 503), **more},
    )


ACTING = (
    _action("pause", _pause, "Stop the workers before their next step.", _flagged("paused")),
    _action("resume", _resume, "Let the workers continue.", _flagged("paused")),
    _action("end", _end, "Finish the training now, as after the last batch.", _flagged("ends")),
    _action(
        "checkpoint",
        _checkpoint,
        "Let worker 0 write a checkpoint; the status shows when it is complete.",
        {"type": "object", "required": ["number", "dirname"]},
        body={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
            },
        },
    ),
    _action(
        "load",
        _load,
        "Have all workers and pservers load a checkpoint between two steps; the status shows "
        "what became of it.",
        {"type": "object", "required": ["number", "dirname"]},
        body={
            "type": "object",
            "required": ["dirname"],
            "additionalProperties": False,
            "properties": {
                "dirname": {"type": "string", "maxLength": 4096},
                "timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
            },
        },
    ),
    _action(
        "tables/shrink",
        _shrink,
        "Remove rows of tables that have expired or are too many (async), or count them; the "
        "status shows how many.",
        {"type": "object", "required": ["number", "table", "dry_run"]},
        body={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "table": {"type": "string", "maxLength": 128},
                "dry_run": {"type": "boolean"},
            },
        },
    ),
    _action(
        "settings",
        _settings,
        "Change lr, k_steps (geo) or max_staleness (async) of the running job.",
        {"type": "object", "required": ["settings", "before"]},
        body={
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {
                "lr": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6},
                "k_steps": {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1},
                "max_staleness": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "maximum": (1 << 31) - 1,
                },
            },
        },
    ),
    _action(
        "chaos",
        _chaos,
        "Inject a fault into a process of a job that was started with chaos.",
        {"type": "object", "required": ["number", "action", "role", "index"]},
        body={
            "type": "object",
            "required": ["action", "target"],
            "additionalProperties": False,
            "properties": {
                "action": {"type": "string", "enum": list(ACTIONS)},
                "target": {"type": "string"},
                "peer": {"type": ["string", "null"]},
                "at": {"type": ["string", "null"]},
                "for": {"type": ["number", "null"]},
                "rate": {"type": ["number", "null"]},
                "by": {"type": ["number", "null"]},
            },
        },
    ),
    _action(
        "scale",
        _scale,
        "Change the number of processes for pservers; groups move during the training.",
        {"type": "object", "required": ["pservers", "before", "by_launcher", "advice"]},
        body={
            "type": "object",
            "required": ["pservers"],
            "additionalProperties": False,
            "properties": {"pservers": {"type": "integer", "minimum": 1}},
        },
    ),
    _action(
        "workers/{rank}/drain",
        _drain,
        "Let a worker leave while the others continue; in async and geo.",
        {"type": "object", "required": ["rank", "drained"]},
        refusals=(404, 409, 413, 415, 422, 503),
    ),
)
