"""Every route of the admin API, and what they find in their application."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from paramfleet_coordinator.access import AUDIT_LOG, AuditLog
from paramfleet_coordinator.api.acting import ACTING
from paramfleet_coordinator.api.admin_service import AdminService
from paramfleet_coordinator.api.entering import ENTERING
from paramfleet_coordinator.api.openapi import describe
from paramfleet_coordinator.api.pages import PAGES
from paramfleet_coordinator.api.reading import READING
from paramfleet_coordinator.api.route import ADMIN_SERVICE
from paramfleet_coordinator.api.stream import READERS, STREAMING
from paramfleet_shared.net.access import requires

__all__ = ["API", "routes", "state"]

API = (*READING, *STREAMING, *ACTING, *ENTERING)


@requires("open")
async def _openapi(_request: web.Request) -> web.Response:
    return web.json_response(describe(API))


def routes() -> list[web.RouteDef]:
    """Return the routes for the coordinator's admin server."""
    own = [web.get("/api/v1/openapi.json", _openapi), *PAGES]
    return [*(route.defined for route in API), *own]


def state(service: AdminService, audit_log: AuditLog) -> Mapping[web.AppKey[Any], Any]:
    """Return what their application must hold."""
    return {ADMIN_SERVICE: service, AUDIT_LOG: audit_log, READERS: set()}
