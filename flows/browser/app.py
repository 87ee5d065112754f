"""The artifact browser as a web application: read-only pages of any store. See docs/browser.md."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from flows.browser.errors import KINDS, Fault, explain
from flows.browser.library import Library
from flows.browser.render import environment, style_sheet
from flows.browser.routes import add_routes
from flows.servers.gate import LOOPBACK, Gate
from flows.storage import Store

HEADERS = {
    # No script, and nothing from elsewhere: a page can only be viewed, whatever a model wrote. Figures are SVG with
    # style attributes, the only styles allowed besides our style sheet.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app(store: str | Store, names: Iterable[str] = LOOPBACK) -> FastAPI:
    """Create the browser of the store or of its address, which answers under `names`. Raises StoreRefused for a wrong address."""
    app = FastAPI(title="populora artifacts", docs_url=None, redoc_url=None, openapi_url=None)
    library, pages = Library(store), environment()

    def show(template: str, status: int = 200, **values: Any) -> HTMLResponse:
        values = {"store": library.store.url, **values}
        return HTMLResponse(pages.get_template(template).render(values), status)

    add_routes(app, library, show, style_sheet())

    @app.middleware("http")
    async def guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def fault(_: Request, error: Exception) -> Response:
        found: Fault = explain(error)
        return show("error.html", found.status, fault=found)

    for kind in (*KINDS, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, fault)
    app.add_middleware(Gate, names=names)
    return app
