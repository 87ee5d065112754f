"""The page of a report: its frame, its light and dark themes, and the HTML elements of its sections.

The page loads nothing and runs nothing: no script, no font, no image file. These functions take plain text. Markup has the type
`Html`, so a missing escape is a type error.
"""

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NewType
from urllib.parse import quote

from flows.storage import Store
from flows.store.file_store import FileStore
from stages.core.highlight import visible

Html = NewType("Html", str)
THEME = (Path(__file__).parent / "theme.css").read_text(encoding="utf-8")
"""The colours of pages and figures, light and dark."""
CSS = THEME + (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


class ArtifactLinks:
    """Links to artifacts, relative to the report's folder; plain names if links would not work (S3, a report elsewhere).

    `origins` has the run that holds an artifact, by its name, where that is another one: a fork copies none.
    """

    def __init__(self, store: Store, run_id: str, out: Path, origins: Mapping[str, str]) -> None:
        self._run_id, self._origins, self._folder = run_id, origins, out.resolve().parent
        self._store: Path | None = None
        if isinstance(store, FileStore):
            root = (store.root / run_id).resolve()
            if self._folder in (root, *root.parents[:2]) or root in self._folder.parents:
                self._store = store.root

    def __call__(self, uri: str, name: str = "") -> Html:
        """Return a link to the artifact `uri` of the run, under its name."""
        label = Html(f"<code>{escape(name or uri)}</code>")
        if self._store is None:
            return label
        holder = (self._store / self._origins.get(uri, self._run_id)).resolve()
        path = Path(os.path.relpath(holder / uri, self._folder)).as_posix()
        return Html(f'<a href="{html.escape(quote(path, safe="/=.-"))}">{label}</a>')


def escape(text: object) -> Html:
    """Return the text, escaped and with hidden characters made visible."""
    return Html(html.escape(visible(str(text))))


def table(header: Sequence[str], rows: Iterable[Sequence[Html | str]], classes: Sequence[str] = ()) -> Html:
    """Return a table that scrolls if it is too wide. Cells are markup. `classes` has one class per row."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = []
    for place, row in enumerate(rows):
        chosen = f' class="{classes[place]}"' if place < len(classes) and classes[place] else ""
        body.append(f"<tr{chosen}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return Html(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>')


def tile(value: str, name: str, source: Html) -> Html:
    """Return one headline number with the artifact that it comes from."""
    return Html(f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><span>{source}</span></div>')


def note(heading: str, lines: Sequence[str]) -> Html:
    """Return a box with important notes."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return Html(f'<div class="note"><b>{escape(heading)}</b><ul>{items}</ul></div>')


def details(heading: str, content: Html) -> Html:
    """Return long content, collapsed."""
    return Html(f"<details><summary>{escape(heading)}</summary>{content}</details>")


def joined(parts: Iterable[Html], between: str = "\n") -> Html:
    """Concatenate pieces."""
    return Html(between.join(parts))


def page(title: str, lead: Html, sections: Sequence[tuple[str, str, Html]]) -> str:
    """Return the whole document. Sections are (anchor, heading, content)."""
    links = "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading, _ in sections)
    bodies = "\n".join(
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>\n{content}</section>' for anchor, heading, content in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body><main>
<header><h1>{escape(title)}</h1>
{lead}
<nav aria-label="Sections">{links}</nav></header>
{bodies}
</main></body>
</html>
"""
