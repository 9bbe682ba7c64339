"""How a browser comes to a session: by a code that a command asks for, or by a token.

The code is in the part of the page's address that browsers don't send (``/#code=...``), so
that no log of requests has it; it works once. The page sends it here, and discards it.
"""

from typing import Any

from aiohttp import web

from paramfleet_coordinator.api.route import Route, answering, read_body
from paramfleet_coordinator.core.operator_actions import SettingRefusedError
from paramfleet_shared.errors import error_to_wire
from paramfleet_shared.net.access import GATE, NOBODY, identity_of, requires
from paramfleet_shared.net.sessions import CODE_LIFE_S

__all__ = ["ENTERING"]


@requires("read")
@answering
async def _make_code(request: web.Request) -> Any:
    await read_body(request, frozenset())
    who = identity_of(request)
    if who == NOBODY:
        raise SettingRefusedError(name="token", value="none", rule="must be given for a code")
    return {"code": request.config_dict[GATE].make_code(who), "life_s": CODE_LIFE_S}


@requires("open")
async def _log_in(request: web.Request) -> web.StreamResponse:
    try:
        shown = await _read_shown(request)
    except SettingRefusedError as error:
        return web.json_response({"error": error_to_wire(error)}, status=422)
    return request.config_dict[GATE].log_in(request, **shown)


async def _read_shown(request: web.Request) -> dict[str, str]:
    """Return the code and the token that a browser shows; empty is the one that it lacks.

    Raises:
        SettingRefusedError: if it shows neither.
    """
    body = await read_body(request, frozenset({"code", "token"}))
    shown = {name: body.get(name, "") for name in ("code", "token")}
    if not any(shown.values()) or not all(isinstance(text, str) for text in shown.values()):
        raise SettingRefusedError(name="body", value="?", rule="must have a code or a token")
    return shown


_TEXT = {"type": "string", "minLength": 1, "maxLength": 512}

ENTERING = (
    Route(
        method="POST",
        path="/api/v1/codes",
        handler=_make_code,
        summary="A code that opens the page once, with the rights of the caller: /#code=...",
        answer={
            "type": "object",
            "required": ["code", "life_s"],
            "properties": {"code": {"type": "string"}, "life_s": {"type": "number"}},
        },
        body={"type": "object", "additionalProperties": False},
        refusals=(413, 415, 422),
    ),
    Route(
        method="POST",
        path="/api/v1/login",
        handler=_log_in,
        summary="Begin a browser's session: a cookie, and a key that goes with it in the "
        "header Paramfleet-Key.",
        answer={
            "type": "object",
            "required": ["key", "name", "roles"],
            "properties": {
                "key": {"type": "string"},
                "name": {"type": "string"},
                "roles": {"type": "array", "items": {"type": "string"}},
            },
        },
        access="open",
        body={
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {"code": _TEXT, "token": _TEXT},
        },
        refusals=(413, 415, 422),
    ),
)
