"""The page that describes the admin API to programs: OpenAPI 3.1, made from the routes."""

import re
from collections.abc import Iterable
from typing import Any

from paramfleet_coordinator.api.route import Route

__all__ = ["describe"]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "facts"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "facts": {"type": "object"},
            },
        }
    },
}
_REFUSALS = {
    404: "There is no such thing in this job.",
    409: "The job can't do that in its current state; the error has the action and the mode.",
    413: "The body is too long.",
    415: "The body isn't application/json.",
    422: "A value isn't what it may be.",
    503: "The registry (Redis) is away; nothing was changed.",
}
_OF_JSON = {404, 409, 422, 503}


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the description of these routes, in plain values."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "paramfleet coordinator",
            "version": "1",
            "description": "The state of a training job, and commands to it.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', route.path[1:])}",
        "responses": {
            "200": {"description": "Done.", "content": {route.kinds: {"schema": route.answer}}},
            "401": {"description": "Say who you are: a bearer token or a certificate."},
            "403": {"description": f"Only who has {route.access} access may."},
            "421": {"description": "The request's host isn't this machine's."},
            "429": {"description": "Too many unknown tokens came from this address."},
            **{str(status): _refusal(status) for status in route.refusals},
        },
    }
    if route.access != "open":
        operation["security"] = [{"token": []}]
    if in_path or route.query:
        operation["parameters"] = [*in_path, *route.query]
    if route.body is not None:
        content = {"application/json": {"schema": route.body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _refusal(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": _REFUSALS[status]}
    if status in _OF_JSON:
        schema = {"$ref": "#/components/schemas/Error"}
        answer["content"] = {"application/json": {"schema": schema}}
    return answer
