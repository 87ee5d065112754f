"""Which address shows which page. Each page is read from the store: the only state is caches of what never changes."""

from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from flows.browser.assets import FIGURE_SCRIPTS, LIVE_SCRIPTS, PICTURE_POLICY, script
from flows.browser.limits import ANSWER_SECONDS
from flows.browser.live_stream import Streams
from flows.compare.run_query import RunQuery
from flows.monitoring.telemetry import StoreMetrics
from flows.pages.adapter_page import adapter_page, adapters_page
from flows.pages.bad_request import BadRequest
from flows.pages.compare_page import ComparePages
from flows.pages.figure_pages import Draws, FigureCache
from flows.pages.library import Library
from flows.pages.live_page import Followers, live_page
from flows.pages.run_pages import artifact_ref, complete_page, generation_page, manifest_page, row_page, run_page, table_page
from flows.pages.runs_page import RunsPage
from flows.pages.table_view import TableQuery
from flows.pages.task_page import task_page
from flows.program import Commands
from flows.run.addresses import Addresses
from flows.run.lineage import Json
from flows.run.verified import PIECE
from flows.storage import NotStored

Text = Annotated[str, Query(max_length=65_536)]
Count = Annotated[int, Query(ge=1, le=10**9)]
Word = Annotated[str, Query(max_length=200)]
RunIds = Annotated[tuple[str, ...], Query(max_length=100)]


class RenderTemplate(Protocol):
    """Render a template."""

    def __call__(
        self, template: str, status: int = 200, scripts: tuple[str, ...] = (), draws: Draws | None = None, **values: Any
    ) -> Response:
        """The page; with `scripts`, its policy allows those of this server; `draws` draws its figures."""
        ...


def add_routes(app: FastAPI, library: Library, show: RenderTemplate, style: str, commands: Commands) -> None:
    """Add all pages to the application."""
    drawings = FigureCache(library.watch, ANSWER_SECONDS)
    _add_plain(app, library, style)
    _add_runs(app, library, show)
    _add_run(app, library, show, drawings)
    _add_live(app, library, show, commands)
    _add_tables(app, library, show)
    _add_lineage(app, library, show)


def _add_plain(app: FastAPI, library: Library, style: str) -> None:
    @app.get("/static/browser.css")
    def look() -> Response:
        return Response(style, media_type="text/css", headers={"Cache-Control": "max-age=300"})

    @app.get("/static/{name:path}.js")
    def code(name: str) -> Response:
        return Response(script(f"{name}.js"), media_type="text/javascript", headers={"Cache-Control": "max-age=300"})

    @app.get("/healthz")
    def healthz() -> Json:
        return {"status": "ok", "store": library.store.url}

    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        StoreMetrics(library.store, library.states, library.run_ids, lambda run_id: library.watch(library.run(run_id)))
    )

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/favicon.ico")
    def no_icon() -> Response:
        return Response(status_code=204)


def _add_runs(app: FastAPI, library: Library, show: RenderTemplate) -> None:
    listing, comparisons = RunsPage(library), ComparePages(library)

    @app.get("/")
    def runs(
        run: RunIds = (),
        name: Word = "",
        state: Word = "",
        setting: Word = "",
        score_from: Word = "",
        score_to: Word = "",
        age_from: Word = "",
        age_to: Word = "",
        size_from: Word = "",
        size_to: Word = "",
        sort: Word = "age",
        page: Count = 1,
    ) -> Response:
        limits = (score_from, score_to, age_from, age_to, size_from, size_to)
        return show("runs.html", **listing.page(RunQuery(name, state, setting, *limits, sort, page), run))

    @app.get("/compare")
    def compare(request: Request, run: RunIds = (), every: bool = False, by: Word = "generation") -> Response:
        if request.query_params.keys() - {"run", "every", "by"}:  # the filters of the list, whose form leads here
            return RedirectResponse(Addresses().compare(dict.fromkeys(run)), 303)
        return show("compare.html", **comparisons.page(run, every, by))


def _add_run(app: FastAPI, library: Library, show: RenderTemplate, drawings: FigureCache) -> None:
    @app.get("/runs/{run_id}")
    def run(run_id: str, every: bool = False) -> Response:
        return show("run.html", **run_page(library, run_id, every))

    @app.get("/runs/{run_id}/figures")
    def figures(run_id: str) -> Response:
        return show("figures.html", **drawings.groups(library.run(run_id)))

    @app.get("/runs/{run_id}/figures/{name}.png")
    def figure_picture(run_id: str, name: str) -> Response:
        return Response(drawings.png(library.run(run_id), name), media_type="image/png")

    @app.get("/runs/{run_id}/figures/{name}.svg")
    def figure_drawing(run_id: str, name: str) -> Response:
        headers = {"Content-Security-Policy": PICTURE_POLICY}
        return Response(drawings.svg(library.run(run_id), name), media_type="image/svg+xml", headers=headers)

    @app.get("/runs/{run_id}/figures/{name}.json")
    def figure_numbers(run_id: str, name: str) -> Json:
        return drawings.numbers(library.run(run_id), name)

    @app.get("/runs/{run_id}/figures/{name}")
    def figure(run_id: str, name: str) -> Response:
        return show("figure.html", scripts=FIGURE_SCRIPTS, **drawings.page(library.run(run_id), name))

    @app.get("/runs/{run_id}/generations/{generation}")
    def generation(run_id: str, generation: str) -> Response:
        return show("generation.html", **generation_page(library, run_id, _generation(run_id, generation)))

    @app.get("/runs/{run_id}/manifests/{uri:path}")
    def manifest(run_id: str, uri: str) -> Response:
        return show("manifest.html", **manifest_page(library, run_id, uri))


def _add_live(app: FastAPI, library: Library, show: RenderTemplate, commands: Commands) -> None:
    followers, streams = Followers(library), Streams()

    @app.get("/runs/{run_id}/live")
    def live(run_id: str) -> Response:
        return show("live.html", scripts=LIVE_SCRIPTS, **live_page(followers.state(run_id), commands))

    @app.get("/runs/{run_id}/live/events")
    def events(run_id: str) -> Response:
        followers.state(run_id)  # a run that does not exist is a page that says so, not a stream
        return streams.stream(lambda: live_page(followers.state(run_id), commands))


def _add_tables(app: FastAPI, library: Library, show: RenderTemplate) -> None:
    @app.get("/runs/{run_id}/tables/{uri:path}")
    def table(
        run_id: str, uri: str, column: Text = "", value: Text = "", sort: Text = "", descending: bool = False, page: Count = 1
    ) -> Response:
        asked = TableQuery(column if value else "", value, sort, descending, page)
        return show("table.html", **table_page(library, run_id, uri, asked))

    @app.get("/runs/{run_id}/rows/{number}/{uri:path}")
    def row(run_id: str, number: str, uri: str) -> Response:
        if not number.isdecimal() or len(number) > 12:
            raise BadRequest(f"{number[:40]!r} is not a row number.")
        return show("row.html", **row_page(library, run_id, uri, int(number)))

    @app.get("/runs/{run_id}/complete/{uri:path}")
    def complete(run_id: str, uri: str, page: Count = 1) -> Response:
        return show("complete.html", **complete_page(library, run_id, uri, page))

    @app.get("/runs/{run_id}/files/{uri:path}")
    def file(run_id: str, uri: str) -> Response:
        found = library.run(run_id)
        name = f"{run_id}-{uri}".replace("/", "-")
        data = library.file(found, artifact_ref(found, uri))
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(data.size)}
        pieces = iter(lambda: data.read(PIECE), b"")
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def _add_lineage(app: FastAPI, library: Library, show: RenderTemplate) -> None:
    @app.get("/runs/{run_id}/tasks/{task_id}")
    def task(run_id: str, task_id: str, later: Count = 1) -> Response:
        return show("task.html", **task_page(library, run_id, task_id, later))

    @app.get("/runs/{run_id}/adapters")
    def adapters(run_id: str) -> Response:
        return show("adapters.html", **adapters_page(library, run_id))

    @app.get("/runs/{run_id}/adapters/{adapter_id}")
    def adapter(run_id: str, adapter_id: str) -> Response:
        return show("adapter.html", **adapter_page(library, run_id, adapter_id))


def _generation(run_id: str, text: str) -> int | None:
    """Return the number in an address; None for `start`."""
    if text == "start":
        return None
    if not text.isdecimal() or len(text) > 9:
        raise NotStored(f"Run {run_id} has no generation {text[:40]}.")
    return int(text)
