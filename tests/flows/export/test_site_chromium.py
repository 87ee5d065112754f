"""A static site in a real browser, from the disk and from a plain web server: it looks right, and nothing is refused or asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.export.site import export_site
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import chromium
from tests.support.report_run import made

if chromium.PROGRAM is None:
    pytest.skip("needs chromium", allow_module_level=True)

SHOWN = "getComputedStyle(document.querySelector('main')).maxWidth !== 'none'"
"""Whether the style sheet was applied."""


class Quiet(SimpleHTTPRequestHandler):
    """A plain web server that says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the folder's parent on a web server: the site is below a prefix."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{folder.name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_pages_look_right_from_disk_and_from_a_server_without_an_error(tmp_path: Path) -> None:
    with made(tmp_path / "store", "shown", 3) as run:
        task = run.read_table(1, "tasks").to_pylist()[0]["task_id"]
    site = tmp_path / "under a prefix" / "site"
    export_site(Run(FileStore(tmp_path / "store"), "shown"), site, 0)
    names = [
        "index.html",
        f"tasks/{task}.html",
        "generations/1.html",
        "tables/generation=0001/tasks.parquet.html",
        "figures.html",
    ]
    with chromium.browser() as page, served(site) as address:
        page.do("Log.enable")
        for start in (site.as_uri(), address.replace(" ", "%20")):
            for name in names:
                page.open(f"{start}/{name}")
                assert page.value(SHOWN), f"{start}/{name}"
                assert page.value("document.querySelectorAll('svg').length") > 0 or name not in ("index.html", "figures.html")
                asked = page.value("performance.getEntriesByType('resource').map(one => new URL(one.name).host)")
                assert set(asked) <= {"", address.split("/")[2]}
        assert page.logged() == []
        page.open(f"{site.as_uri()}/index.html")
        page.value("document.querySelector('a[href^=\"generations/\"]').click()")
        page.until("location.pathname.includes('/generations/') && document.readyState === 'complete'")
        page.picture(tmp_path / "generation.png")
