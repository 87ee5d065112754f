"""A page of the artifact browser as a page of a static site: links become relative, and what needs a server or a script goes.

The browser's pages are its own templates with escaped text, so a `<` always begins a tag, and attributes are in double quotes.
If a page broke that rule, the policy in its head would still forbid every script and every address but the site's own.
"""

import html
import re
from collections.abc import Callable, Iterator

POLICY = (
    "default-src 'none'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data:; form-action 'none'; base-uri 'none'"
)
HEAD = (
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    '<meta name="referrer" content="no-referrer">\n<meta name="generator" content="populora export">\n'
    '<link rel="icon" href="data:,">'
)
_ADDRESSES = {"href", "src", "action", "formaction", "srcset", "data", "poster", "ping", "xlink:href", "background", "target"}
_WITHOUT = {"script", "form", "iframe", "object", "embed", "base"}
_VOID = {"link", "meta", "img", "input", "br", "hr", "embed", "base"}
_CHANGED = "|".join(sorted({"a", "link", "meta", "img", "head", "footer", "noscript"} | _WITHOUT))
_TAG = re.compile(  # the tags that may change: by their name, or by an attribute
    rf"<(?P<closing>/?)(?P<name>{_CHANGED})(?P<rest>(?![a-zA-Z0-9-])[^<>]*+)>"
    rf"|<(?P<other>[a-zA-Z][a-zA-Z0-9-]*+)(?P<more>(?=[^<>]*\s(?:data-server|{'|'.join(sorted(_ADDRESSES))})(?![a-z-]))[^<>]*+)>",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r'\s([a-zA-Z:_-]++)(?:="([^"]*+)")?')

Relative = Callable[[str], tuple[str, str]]
"""From an address on the page to (its relative address or nothing, a title that says why it is not what the browser shows)."""


def static_page(text: str, relative: Relative, note: str) -> str:
    """Return the page with relative links. Elements marked `data-server`, forms and scripts go; `note` stands at the bottom."""
    return "".join(_pieces(text, relative, note))


def _pieces(text: str, relative: Relative, note: str) -> Iterator[str]:
    at = 0
    anchors: list[str] = []  # what each open <a> has become
    while found := _TAG.search(text, at):
        closing, tag = bool(found["closing"]), (found["name"] or found["other"]).lower()
        rest = found["rest"] if found["name"] else found["more"]
        yield text[at : found.start()]
        at = found.end()
        if not closing and (tag in _WITHOUT or " data-server" in rest):
            at = at if tag in _VOID else _end(text, tag, at)
        elif tag == "noscript":  # what it holds is for readers without scripts, and no page of the site has any
            continue
        elif tag == "a":
            if closing:
                yield f"</{anchors.pop() if anchors else 'a'}>"
            else:
                shown = _anchor(rest, relative)
                anchors.append(shown[1 : shown.index(" ") if " " in shown else -1])
                yield shown
        elif closing:
            yield f"<p>{note}</p></footer>" if tag == "footer" else found[0]
        else:
            yield _element(found[0], tag, rest, relative)
    yield text[at:]


def _end(text: str, tag: str, at: int) -> int:
    """Return where the element that was opened before `at` ends; the end of the text if nothing closes it."""
    depth = 1
    for found in re.compile(rf"<(/?){re.escape(tag)}(?![a-zA-Z0-9-])[^<>]*+>", re.IGNORECASE).finditer(text, at):
        depth += -1 if found[1] else 1
        if depth == 0:
            return found.end()
    return len(text)


def _anchor(rest: str, relative: Relative) -> str:
    """Return the opening tag of a link, or of a span if the site does not hold what it leads to."""
    attributes = {found[1].lower(): html.unescape(found[2] or "") for found in _ATTRIBUTE.finditer(rest)}
    address, why = relative(attributes["href"]) if "href" in attributes else ("", "")
    kept = {name: value for name, value in attributes.items() if name not in _ADDRESSES and not name.startswith(("on", "data-"))}
    if why:
        kept["title"] = why
    return _tag("a", {"href": address} | kept) if address else _tag("span", kept)


def _element(whole: str, tag: str, rest: str, relative: Relative) -> str:
    """Return an opening tag that loads nothing but what the site holds."""
    if tag == "head":
        return f"{whole}\n{HEAD}"
    if tag == "meta":
        return "" if "http-equiv" in rest else whole
    attributes = {found[1].lower(): html.unescape(found[2] or "") for found in _ATTRIBUTE.finditer(rest)}
    named = _ADDRESSES & attributes.keys()
    if tag not in ("link", "img") and all(attributes[name].startswith("#") for name in named):
        return whole  # most tags, and references inside a picture
    wanted = "href" if tag == "link" else "src"
    if tag == "link" and attributes.get("rel") not in ("stylesheet", "icon"):
        return ""
    address, _ = relative(attributes[wanted]) if tag in ("link", "img") and wanted in attributes else ("", "")
    kept = {name: value for name, value in attributes.items() if name not in _ADDRESSES}
    return _tag(tag, {wanted: address} | kept) if address else "" if tag == "link" else _tag(tag, kept)


def _tag(name: str, attributes: dict[str, str]) -> str:
    written = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>"
