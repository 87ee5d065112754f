"""The documentation site (`make docs`): Sphinx over the Markdown of this repository, with a page for every source file it names.

Two things are added to Sphinx. The sidebar is the reading order of docs/README.md. And inline code that names a source file
(`path.py` or `path.py:symbol`) becomes a link to that file, highlighted, at the line of the symbol; a name that does not exist
is a warning, which the strict build turns into an error.
"""

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent
ORDER = "docs/README.md"
CODE = ("flows", "stages", "containers", "infra", "tests")
NAME = re.compile(rf"^((?:{'|'.join(CODE)})/[\w./-]*\.\w+)(?::([\w.]+))?$")
READ = {".py", ".sh", ".toml", ".json", ".yaml", ".css", ".html", ".js"}

project = "PopuLoRA Pipeline"
highlight_language = "text"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "AGENTS.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md", "infra/**/README.md"]
exclude_patterns = [".*", "build", "dist", "runs", "flows", "stages", "tests", "containers", "docs/evidence"]
nitpicky = True
myst_heading_anchors = 3
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_use_index = False
suppress_warnings = ["misc.highlighting_failure"]  # SQL of DuckDB, which Pygments does not know
html_theme_options: dict[str, Any] = {"top_of_page_buttons": []}
html_css_files = ["site.css"]
html_static_path = ["_static"]

log = logging.getLogger(__name__)
shown: set[str] = set()


def add_sidebar(app: Sphinx, docname: str, content: list[str]) -> None:
    """Gives the first page a hidden table of contents: the links of docs/README.md under its headings."""
    if docname != root_doc:
        return
    pages = "docs/README\n"
    for section in re.split(r"^## ", (ROOT / ORDER).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        caption = section.partition("\n")[0]
        links = [(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([\w./-]+)\.md\)", section)]
        names = [link.relative_to(ROOT).as_posix() for link in links]
        content[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + pages
        content[0] += "".join(f"{name}\n" for name in names if name != root_doc) + "```\n"
        pages = ""


def link_sources(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turns names of source files and links to them into links to their pages."""
    for node in list(doctree.findall(nodes.literal)):
        found = NAME.match(node.astext())
        if found is None or isinstance(node.parent, nodes.reference | download_reference | nodes.title):
            continue
        target = source(found[1], found[2], f"{docname}.md")
        if target:
            link = nodes.reference("", "", refuri=app.builder.get_relative_uri(docname, target[0]) + target[1], internal=True)
            node.replace_self(link)
            link += node


def source(path: str, symbol: str | None, where: str) -> tuple[str, str] | None:
    """The page of a source file, and the anchor of the symbol's line. Warns about what does not exist."""
    file = ROOT / path
    if not file.is_file():
        log.warning("%s names %s, which does not exist", where, path)
        return None
    line = line_of(file, symbol) if symbol else None
    if symbol and path.endswith(".py") and line is None:
        log.warning("%s names %s, which %s does not define", where, symbol, path)
    if file.suffix not in READ:
        return None
    shown.add(path)
    return f"source/{path}", f"#line-{line}" if line else ""


def line_of(file: Path, symbol: str) -> int | None:
    """The line on which a Python file defines a function, class, constant or `Class.method`."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    found: ast.stmt | None = None
    for name in symbol.split("."):
        found = next((node for node in body if name in _names(node)), None)
        body = getattr(found, "body", [])
    return None if found is None else found.lineno


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each source file that the text names."""
    for path in sorted(shown):
        text = (ROOT / path).read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(path)
        except ClassNotFound:
            lexer = TextLexer()
        code = highlight(text, lexer, HtmlFormatter(linenos="inline", lineanchors="line", anchorlinenos=True))
        yield f"source/{path}", {"title": path, "body": f"<h1>{escape(path)}</h1>\n{code}"}, "page.html"


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Lets a server, or a reader who opens the folder, begin at the first page."""
    if error is None:
        leads = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        page = f'<!doctype html><meta charset="utf-8">{leads}<title>{project}</title>'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connects the additions to Sphinx."""
    app.connect("source-read", add_sidebar)
    app.connect("doctree-resolved", link_sources)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", add_index)
