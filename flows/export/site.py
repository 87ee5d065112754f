"""`populora export RUN --site DIR`: the artifact browser of one run as static pages, for any web server, object store or folder.

Each page is the browser's own, asked of its application inside this process and rewritten (flows/export/site_page.py), beginning
with the run's page and following every link. A run that continues meanwhile is shown as it stood at the start. The folder appears
when everything is in it. Equal runs give equal bytes.
"""

import asyncio
import html
import json
import posixpath
import shutil
import sys
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urljoin

import httpx2
from starlette.requests import Request
from starlette.responses import Response

from flows.browser.app import make_app
from flows.browser.figure_markup import inlined
from flows.export.folder import whole_folder
from flows.export.site_library import SiteLibrary
from flows.export.site_page import static_page
from flows.export.site_places import Place, place
from flows.export.snapshot import SnapshotStore
from flows.pages.keys import CHOICES
from flows.run.addresses import Addresses
from flows.run.run import Run
from flows.run.table_reader import TableFile, batches, parquet_file
from flows.run.verified import Reader, open_verified
from flows.storage import Damaged, NotStored, StoreRefused, StoreUnavailable
from stages.core.lora.adapter_files import CONFIG_FILE
from stages.core.places import is_place

MARK = "site.json"
HOST = "http://127.0.0.1"
PAGES_BETWEEN_LINES = 1000
LINKS = 1 << 16
FAULTS: tuple[type[Exception], ...] = (StoreRefused, StoreUnavailable)
"""Faults of the store: they end the export. The browser would show them as a page."""
ABSENT = (404, 410)  # a link may lead to what was never made, or was retired


def export_site(run: Run, folder: Path, largest: int) -> str:
    """Write the site and return a one-line summary. Artifacts of more than `largest` bytes are left out and not linked.

    Raises StoreRefused if the folder exists, Damaged if an artifact that a page shows is damaged, and what the store raises.
    """
    if run.history.description() is None:
        raise StoreRefused(f"there is no run {run.run_id} in {run.store.url}")
    with whole_folder(folder) as unfinished:
        site = _Site(Run(SnapshotStore(run.store, run.run_id), run.run_id), unfinished, largest)
        asyncio.run(site.write())
        site.finish()
    return f"{site.summary()} in {folder}; open {folder / 'index.html'}"


def _raised(_: Request, error: Exception) -> Response:
    """Let an error end the request instead of a page that shows it."""
    raise error


class _Site:
    """The pages found so far. A page is written once, when a link first leads to it."""

    def __init__(self, run: Run, folder: Path, largest: int) -> None:
        self.head = run.history.head()
        self._base_is_place = is_place((run.history.description() or {}).get("config", {}).get("model", {}).get("name"))
        self._run, self._folder, self._largest = run, folder, largest
        self._known: set[str] = set()
        self._todo: deque[Place] = deque()
        self._links = lru_cache(LINKS)(self._find)  # pages share most of their links
        self._pages, self._copied, self._left_out = 0, dict[str, bool](), dict[str, str]()
        run_name, head = html.escape(run.run_id), self.head[:12]
        self._note = f"Static copy of run <code>{run_name}</code>, head <code>{head}</code>, without filters and sorting."

    async def write(self) -> None:
        """Write every page that can be reached from the run's own."""
        self._find(Addresses().run(self._run.run_id), "")
        app = make_app(SiteLibrary(self._run.store), write=inlined)
        for kind in FAULTS:
            app.add_exception_handler(kind, _raised)
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HOST, timeout=None)
        async with client:
            while self._todo:
                await self._page(client, self._todo.popleft())

    def finish(self) -> None:
        """Write what the site consists of."""
        values = {
            "run": self._run.run_id,
            "head": self.head,
            "pages": self._pages,
            "files": sum(self._copied.values()),
            "left_out": dict(sorted(self._left_out.items())),
        }
        (self._folder / MARK).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    def summary(self) -> str:
        """Return how much was written and left out."""
        left = f", {len(self._left_out)} files left out ({MARK} says why)" if self._left_out else ""
        return f"{self._pages:,} pages and {sum(self._copied.values()):,} files{left}"

    async def _page(self, client: httpx2.AsyncClient, wanted: Place) -> None:
        answer = await client.get(wanted.address)
        shown = answer.status_code == 200 or (answer.status_code in ABSENT and self._pages > 0)  # the first is the run's own
        if not shown:
            where = f"{self._run.run_id}: the page {wanted.address}"
            if answer.status_code == 502:
                raise Damaged(where, f"shows a damaged artifact; populora fsck {self._run.run_id} names it")
            raise StoreUnavailable(f"{where} cannot be shown (status {answer.status_code})")
        file = self._folder / wanted.file
        file.parent.mkdir(parents=True, exist_ok=True)
        if answer.headers["content-type"].startswith("text/html"):
            text = static_page(answer.text, lambda address: self._relative(wanted, address), self._note)
            file.write_text(text, encoding="utf-8", newline="\n")
            self._pages += 1
            if self._pages % PAGES_BETWEEN_LINES == 0:
                print(f"{self._pages:,} pages, {len(self._todo):,} more known", file=sys.stderr, flush=True)
        else:
            file.write_bytes(answer.content)

    def _write(self, wanted: Place, source: BinaryIO) -> None:
        file = self._folder / wanted.file
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as copy:
            shutil.copyfileobj(source, copy)

    def _relative(self, page: Place, address: str) -> tuple[str, str]:
        """Return the relative address of what a link on the page leads to, and what its title says."""
        if address.startswith("#"):
            return address, ""
        folder = posixpath.dirname(page.file)
        return self._links(address, folder) if address.startswith("/") else self._find(urljoin(page.address, address), folder)

    def _find(self, address: str, folder: str) -> tuple[str, str]:
        found = place(self._run.run_id, address)
        if found is None:
            return "", ""
        if found.artifact and not self._copy(found):
            return "", self._left_out.get(found.artifact, "not in this copy")
        if not found.artifact and found.file not in self._known:
            self._known.add(found.file)
            self._todo.append(found)
        relative = posixpath.relpath(found.file, folder or ".")
        fragment = f"#{found.fragment}" if found.fragment else ""
        return relative + fragment, "the whole table: a static copy has no filter" if found.whole else ""

    def _copy(self, wanted: Place) -> bool:
        """Copy an artifact once and return whether the site holds it: it exists, and is not too large."""
        uri = wanted.artifact
        if uri not in self._copied:
            self._copied[uri] = False
            try:
                ref = self._run.history.find(uri)
                size = self._run.store.size(self._run.history.place(ref.uri, ref.origin))
                if self._base_is_place and uri.endswith(f"/{CONFIG_FILE}"):
                    self._left_out[uri] = "left out of this copy: it names the base model's folder"
                    return False
                if size > self._largest:
                    self._left_out[uri] = f"left out of this copy: {size:,} bytes"
                    return False
                with open_verified(self._run, ref) as source:
                    if uri.endswith(".parquet") and names_places(parquet_file(Reader(source), uri)):
                        self._left_out[uri] = "left out of this copy: it names a file outside the project's folder"
                        return False
                    self._write(wanted, source)
            except StoreRefused:  # a ValueError, too
                raise
            except (NotStored, ValueError):
                return False  # never made, or retired, perhaps just now
            self._copied[uri] = True
        return self._copied[uri]


def names_places(file: TableFile) -> bool:
    """Return whether a table names functions of the user by files outside the project's folder."""
    columns = [name for name in file.schema_arrow.names if name in CHOICES]
    found = (value for batch in batches(file, columns) for column in batch.columns for value in column.unique().to_pylist())
    return bool(columns) and any(is_place(value) for value in found)
