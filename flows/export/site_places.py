"""Which file of a static site holds which page of the artifact browser.

A page that is not listed here needs the server (filters, sorting, live pages, JSON) and has no file: links to it become text.
"""

import hashlib
import string
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from flows.pages.table_view import ROWS
from flows.run.addresses import Addresses

_PLAIN = frozenset(string.ascii_lowercase + string.digits + "-_.=")
_RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{number}" for name in ("com", "lpt") for number in range(1, 10))}
_LONGEST = 80
_ALONE = {"figures", "adapters"}
_INERT = (".parquet", ".json", ".safetensors")
_AT = Addresses()


@dataclass(frozen=True)
class Place:
    """A file of the site, the browser's address of what it holds, and the part of the page that was meant.

    `artifact` is the artifact's name in the run if the file is a copy of one; `whole`: the link asked for some rows of the table.
    """

    file: str
    address: str
    fragment: str = ""
    artifact: str = ""
    whole: bool = False


def place(run_id: str, address: str) -> Place | None:
    """Return where the site holds what the browser shows at an address (`/runs/…`); None if it does not."""
    asked = urlsplit(address)
    if asked.scheme or asked.netloc:
        return None
    words = [unquote(word) for word in asked.path.strip("/").split("/")]
    if any("/" in word or word in ("", ".", "..") for word in words):
        return None  # no page of the browser has such a name
    if words[0] == "static" and len(words) == 2:
        return Place(f"static/{safe_name(words[1])}", asked.path)
    if words[:2] != ["runs", run_id]:
        return None
    found = _page(run_id, words[2:], dict(parse_qsl(asked.query)))
    return found and Place(found.file, found.address, found.fragment or asked.fragment, found.artifact, found.whole)


def _page(run_id: str, words: list[str], query: dict[str, str]) -> Place | None:
    """Return the place of a page of the run, by what follows the run in its address."""
    match words:
        case []:
            return Place("index.html", f"{_AT.run(run_id)}?every=true")
        case [kind] if kind in _ALONE:
            return Place(f"{kind}.html", f"{_AT.run(run_id)}/{kind}")
        case ["generations", number]:
            return Place(f"generations/{safe_name(number)}.html", f"{_AT.run(run_id)}/generations/{number}")
        case ["adapters", name]:
            return Place(f"adapters/{safe_name(name)}.html", _AT.adapter(run_id, name))
        case ["tasks", name] if not query:
            return Place(f"tasks/{safe_name(name)}.html", _AT.task(run_id, name))
        case ["manifests", *uri] if uri:
            return Place(f"manifests/{_file(uri)}.html", _AT.manifest(run_id, "/".join(uri)))
        case ["tables", *uri] if uri:
            return _table(run_id, uri, query)
        case ["complete", *uri] if uri:
            return _rows(run_id, uri, _number(query.get("page", "1")))
        case ["rows", number, *uri] if uri and (row := _number(number)) is not None:
            found = _rows(run_id, uri, row // ROWS + 1)
            return found and Place(found.file, found.address, f"row-{row}")
        case ["files", *uri] if uri:
            name = "/".join(uri)
            inert = name.endswith(_INERT)  # a server must not show an artifact as a page, whatever its name
            return Place(f"files/{_file(uri)}{'' if inert else '.bin'}", _AT.file(run_id, name), artifact=name)
    return None


def _table(run_id: str, uri: list[str], query: dict[str, str]) -> Place | None:
    """Return the place of a page of the table in its own order. Rows with a value are found in the whole table."""
    page = _number(query.get("page", "1"))
    if page is None or query.get("sort"):
        return None
    filtered = bool(query.get("value"))
    page = 1 if filtered else page
    name = "/".join(uri)
    return Place(f"tables/{_file(uri)}{_page_mark(page)}.html", _AT.table(run_id, name, page=_later(page)), whole=filtered)


def _rows(run_id: str, uri: list[str], page: int | None) -> Place | None:
    if page is None:
        return None
    return Place(f"complete/{_file(uri)}{_page_mark(page)}.html", _AT.complete(run_id, "/".join(uri), page))


def _page_mark(page: int) -> str:
    return f"~p{page}" if page > 1 else ""


def _later(page: int) -> int | str:
    return page if page > 1 else ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None


def _file(uri: list[str]) -> str:
    return "/".join(safe_name(part) for part in uri)


def safe_name(text: str) -> str:
    """Return a file name that every file system, object store and URL takes as it is, different for every text.

    A usual name stays: lower-case letters, digits and `-_.=`. Any other is cut to those, followed by `~` and a digest:
    capital letters too, since some file systems do not tell them apart.
    """
    usual = (
        _PLAIN.issuperset(text)
        and 0 < len(text) <= _LONGEST
        and not text.startswith((".", "-", "_"))
        and not text.endswith(".")
        and text.partition(".")[0] not in _RESERVED
    )
    if usual:
        return text
    kept = "".join(one if one in _PLAIN else "-" for one in text.lower())[:_LONGEST].strip("._-")
    stem, dot, ending = kept.rpartition(".")
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{stem}~{mark}.{ending}" if dot and ending in ("parquet", "json", "safetensors", "png", "css") else f"{kept}~{mark}"
