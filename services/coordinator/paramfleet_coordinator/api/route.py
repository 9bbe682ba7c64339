"""One route of the admin API: what serves it, and what its page in openapi.json says."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from aiohttp import web

from paramfleet_coordinator.api.admin_service import AdminService, UnknownWorkerRankError
from paramfleet_coordinator.core.groups.errors import ScaleRefusedError
from paramfleet_coordinator.core.operator_actions import ActionRefusedError, SettingRefusedError
from paramfleet_shared.discovery.errors import OtherHostingError
from paramfleet_shared.errors import FleetError, error_to_wire
from paramfleet_shared.telemetry.logs_and_metrics import finite

__all__ = [
    "ADMIN_SERVICE",
    "BadBodyError",
    "Handler",
    "Route",
    "answering",
    "read_body",
    "service_of",
]

ADMIN_SERVICE = web.AppKey("paramfleet_admin_service", AdminService)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY_BYTES = 4096


class BadBodyError(SettingRefusedError):
    """A request's body isn't the JSON that is asked for."""

    code = "contract.setting_refused.body"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A method and a path.

    Its handler is marked with ``@requires``; ``access`` says the same on the page.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Mapping[str, Any]
    """JSON schema of the answer with status 200."""
    access: str = "read"
    body: Mapping[str, Any] | None = None
    """JSON schema of the request's body; None takes none."""
    query: tuple[Mapping[str, Any], ...] = ()
    """OpenAPI parameters of the query."""
    kinds: str = "application/json"
    """Content type of the answer."""
    refusals: tuple[int, ...] = field(default=())
    """Further statuses that answer with an error."""

    @property
    def defined(self) -> web.RouteDef:
        """Return the route for an aiohttp application."""
        return web.route(self.method, self.path, self.handler)


def service_of(request: web.Request) -> AdminService:
    """Return what the application answers from."""
    return request.config_dict[ADMIN_SERVICE]


def answering(handle: Callable[[web.Request], Awaitable[Any]]) -> Handler:
    """Make a handler of a function that returns plain values, and of errors their answers."""

    @wraps(handle)
    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return web.json_response(finite(await handle(request)))
        except FleetError as error:
            return web.json_response({"error": error_to_wire(error)}, status=_status_of(error))

    return handler


async def read_body(request: web.Request, known: frozenset[str]) -> dict[str, Any]:
    """Return the JSON object that a request carries; an empty body is an empty object.

    Another content type is refused: a page of another site may not send this one without
    the browser asking first.

    Raises:
        BadBodyError: if it is no object, or has a key that isn't known.
        HTTPUnsupportedMediaType: if it isn't said to be JSON.
        HTTPRequestEntityTooLarge: if it is long.
    """
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json")
    raw = await request.read()  # not of its content: a part of a body reads as no JSON
    if len(raw) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, len(raw))
    try:
        body = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadBodyError(name="body", value="?", rule=f"is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadBodyError(name="body", value=str(body)[:64], rule="must be an object")
    unknown = sorted(body.keys() - known)
    if unknown:
        rule = f"unknown; there are: {', '.join(sorted(known)) or 'none'}"
        raise BadBodyError(name=unknown[0][:64], value="?", rule=rule)
    return body


def _status_of(error: FleetError) -> int:
    if isinstance(error, UnknownWorkerRankError):
        return 404
    if isinstance(error, ActionRefusedError | ScaleRefusedError | OtherHostingError):
        return 409
    if isinstance(error, SettingRefusedError):
        return 422
    return 503
