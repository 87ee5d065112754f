"""Which address shows which page. Each page is read from the store: the only state is caches of what never changes."""

from typing import Annotated, Protocol

from fastapi import FastAPI, Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from flows.browser.adapter_page import adapter_page, adapters_page
from flows.browser.errors import BadRequest
from flows.browser.figure_pages import FigureCache
from flows.browser.library import Library
from flows.browser.run_pages import (
    artifact_ref,
    complete_page,
    generation_page,
    manifest_page,
    row_page,
    run_page,
    runs_page,
    table_page,
)
from flows.browser.table_view import TableQuery
from flows.browser.task_page import task_page
from flows.monitoring.telemetry import StoreMetrics
from flows.run.lineage import Json
from flows.run.verified import PIECE
from flows.storage import NotStored

Text = Annotated[str, Query(max_length=65_536)]
Count = Annotated[int, Query(ge=1, le=10**9)]


class RenderTemplate(Protocol):
    """Render a template."""

    def __call__(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """The page."""
        ...


def add_routes(app: FastAPI, library: Library, show: RenderTemplate, style: str) -> None:
    """Add all pages to the application."""
    drawings = FigureCache()
    _add_plain(app, library, style)
    _add_run(app, library, show, drawings)
    _add_tables(app, library, show)
    _add_lineage(app, library, show, drawings)


def _add_plain(app: FastAPI, library: Library, style: str) -> None:
    @app.get("/static/browser.css")
    def look() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "max-age=300"})

    @app.get("/healthz")
    def healthz() -> Json:
        return {"status": "ok", "store": library.store.url}

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreMetrics(library.store, library.run_ids, lambda run_id: library.watch(library.run(run_id))))

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/favicon.ico")
    def no_icon() -> Response:
        return Response(status_code=204)


def _add_run(app: FastAPI, library: Library, show: RenderTemplate, drawings: FigureCache) -> None:
    @app.get("/")
    def runs() -> HTMLResponse:
        return show("runs.html", **runs_page(library))

    @app.get("/runs/{run_id}")
    def run(run_id: str, every: bool = False) -> HTMLResponse:
        page = run_page(library, run_id, every)
        figures = drawings.few(library.run(run_id)) if page["generations"] else []
        return show("run.html", **page, figures=figures)

    @app.get("/runs/{run_id}/figures")
    def figures(run_id: str) -> HTMLResponse:
        return show("figures.html", **drawings.groups(library.run(run_id)))

    @app.get("/runs/{run_id}/figures/{name}.png")
    def figure(run_id: str, name: str) -> Response:
        return Response(drawings.png(library.run(run_id), name), media_type="image/png")

    @app.get("/runs/{run_id}/generations/{generation}")
    def generation(run_id: str, generation: str) -> HTMLResponse:
        return show("generation.html", **generation_page(library, run_id, _generation(run_id, generation)))

    @app.get("/runs/{run_id}/manifests/{uri:path}")
    def manifest(run_id: str, uri: str) -> HTMLResponse:
        return show("manifest.html", **manifest_page(library, run_id, uri))


def _add_tables(app: FastAPI, library: Library, show: RenderTemplate) -> None:
    @app.get("/runs/{run_id}/tables/{uri:path}")
    def table(
        run_id: str, uri: str, column: Text = "", value: Text = "", sort: Text = "", descending: bool = False, page: Count = 1
    ) -> HTMLResponse:
        asked = TableQuery(column if value else "", value, sort, descending, page)
        return show("table.html", **table_page(library, run_id, uri, asked))

    @app.get("/runs/{run_id}/rows/{number}/{uri:path}")
    def row(run_id: str, number: str, uri: str) -> HTMLResponse:
        if not number.isdecimal() or len(number) > 12:
            raise BadRequest(f"{number[:40]!r} is not a row number.")
        return show("row.html", **row_page(library, run_id, uri, int(number)))

    @app.get("/runs/{run_id}/complete/{uri:path}")
    def complete(run_id: str, uri: str, page: Count = 1) -> HTMLResponse:
        return show("complete.html", **complete_page(library, run_id, uri, page))

    @app.get("/runs/{run_id}/files/{uri:path}")
    def file(run_id: str, uri: str) -> Response:
        found = library.run(run_id)
        name = f"{run_id}-{uri}".replace("/", "-")
        data = library.file(found, artifact_ref(found, uri))
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(data.size)}
        pieces = iter(lambda: data.read(PIECE), b"")
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def _add_lineage(app: FastAPI, library: Library, show: RenderTemplate, drawings: FigureCache) -> None:
    @app.get("/runs/{run_id}/tasks/{task_id}")
    def task(run_id: str, task_id: str, later: Count = 1) -> HTMLResponse:
        return show("task.html", **task_page(library, run_id, task_id, later))

    @app.get("/runs/{run_id}/adapters")
    def adapters(run_id: str) -> HTMLResponse:
        page = adapters_page(library, run_id)
        rated = any(row["rating"] for row in page["members"])
        return show("adapters.html", **page, figure=drawings.ratings(library.run(run_id)) if rated else None)

    @app.get("/runs/{run_id}/adapters/{adapter_id}")
    def adapter(run_id: str, adapter_id: str) -> HTMLResponse:
        page = adapter_page(library, run_id, adapter_id)
        return show("adapter.html", **page, figure=drawings.member(library.run(run_id), page["ratings"]))


def _generation(run_id: str, text: str) -> int | None:
    """Return the number in an address; None for `start`."""
    if text == "start":
        return None
    if not text.isdecimal() or len(text) > 9:
        raise NotStored(f"Run {run_id} has no generation {text[:40]}.")
    return int(text)
