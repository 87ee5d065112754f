"""The artifact browser as a web application: read-only pages of any store. See docs/browser.md."""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from flows.browser.assets import POLICY, SCRIPTED_POLICY, style_sheet
from flows.browser.errors import KINDS, Fault, explain
from flows.browser.figure_markup import Writer, linked
from flows.browser.render import environment
from flows.browser.routes import add_routes
from flows.monitoring.prices import of_machine
from flows.pages.elsewhere import Elsewhere, elsewhere
from flows.pages.figure_pages import Draws
from flows.pages.library import Library
from flows.program import PLAIN, Commands
from flows.servers.gate import LOOPBACK, Gate

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def make_app(
    store: str | Library, names: Iterable[str] = LOOPBACK, write: Writer = linked, commands: Commands = PLAIN
) -> FastAPI:
    """Create the browser of the store at this address, or of a library, which answers under `names`.

    `write` renders the page of all figures. `commands` writes the commands on pages.
    Raises StoreRefused for a wrong address, ConfigError for a price in the environment that no page could use.
    """
    of_machine()
    app = FastAPI(title="populora artifacts", docs_url=None, redoc_url=None, openapi_url=None)
    library, pages = Library(store) if isinstance(store, str) else store, environment(commands)

    def show(
        template: str, status: int = 200, scripts: tuple[str, ...] = (), draws: Draws | None = None, **values: Any
    ) -> Response:
        values = {"store": library.store.url, "scripts": scripts, **values}
        policy = {"Content-Security-Policy": SCRIPTED_POLICY} if scripts else {}
        text = pages.get_template(template).render(values) if draws is None else write(pages, template, values, draws)
        return HTMLResponse(text, status, HEADERS | policy)

    add_routes(app, library, show, style_sheet(), commands)

    def fault(request: Request, error: Exception) -> Response:
        found: Fault = explain(error)
        other = elsewhere(library, request.path_params) if found.status == 404 else Elsewhere()
        return show("error.html", found.status, fault=found, elsewhere=other)

    for kind in (*KINDS, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, fault)
    app.add_middleware(Headed)
    app.add_middleware(Gate, names=names)
    return app


class Headed:
    """An ASGI application that adds to each response of another one the headers that it does not set itself."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""

        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, headed)
