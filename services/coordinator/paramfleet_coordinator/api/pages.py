"""The dashboard: a few files that come with the package, and nothing from elsewhere."""

from importlib import resources

from aiohttp import web

from paramfleet_shared.net.access import requires

__all__ = ["PAGES"]

_FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard/actions.js": ("actions.js", "text/javascript"),
    "/dashboard/app.js": ("app.js", "text/javascript"),
    "/dashboard/charts.js": ("charts.js", "text/javascript"),
    "/dashboard/style.css": ("style.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@requires("open")
async def _page(request: web.Request) -> web.Response:
    """Answer with a file; it holds nothing of the job, which its script asks for itself."""
    name, kind = _FILES[request.path]
    text = (resources.files("paramfleet_coordinator") / "dashboard" / name).read_text("utf-8")
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=_HEADERS)


PAGES = tuple(web.get(path, _page) for path in _FILES)
