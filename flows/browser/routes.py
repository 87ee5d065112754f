"""Which address shows which page. Every page is read anew from the store: there is no state but caches of what never changes."""

from typing import Protocol

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from flows.browser.library import Library


class Show(Protocol):
    """Renders a template."""

    def __call__(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """The page."""
        ...


def add_routes(app: FastAPI, library: Library, show: Show, style: str) -> None:
    """Adds every page to the application."""

    @app.get("/static/browser.css")
    def look() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "max-age=300"})

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok", "store": library.store.url}

    @app.get("/")
    def runs() -> HTMLResponse:
        return show("runs.html", runs=library.run_ids())
