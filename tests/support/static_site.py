"""Reads a static site as a browser would: its links, what they lead to, and what a page could load or run."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = ("href", "src", "action", "formaction", "srcset", "data", "poster", "ping", "background", "xlink:href")


class SitePage(HTMLParser):
    """The addresses, ids, tags and attributes of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.policy = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag has."""
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id" and value:
                self.ids.add(value)
            if name in LOADING:
                self.addresses.append(value or "")
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = str(dict(attrs)["content"])


def pages(site: Path) -> dict[str, SitePage]:
    """Every page of the site, by its file."""
    return {file.relative_to(site).as_posix(): SitePage(file.read_text()) for file in sorted(site.rglob("*.html"))}


def broken_links(site: Path) -> list[str]:
    """Links that lead nowhere: out of the site, to a file or a place on a page that does not exist."""
    found, read = [], pages(site)
    for name, page in read.items():
        for address in page.addresses:
            if address == "data:,":  # an empty icon, so that no browser asks a server for one
                continue
            parts = urlsplit(address)
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            inside = target.resolve().is_relative_to(site.resolve())
            if parts.scheme or parts.netloc or parts.query or address.startswith("/") or not inside or not target.is_file():
                found.append(f"{name}: {address}")
            elif parts.fragment and target.suffix == ".html":
                whole = read[target.resolve().relative_to(site.resolve()).as_posix()]
                if unquote(parts.fragment) not in whole.ids:
                    found.append(f"{name}: {address} (no such place)")
    return found
