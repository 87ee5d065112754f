"""The gate of a server on this machine: which requests get in. Used by Prefect's server and by the artifact browser.

Three checks come before the application. Is the server addressed by one of its own names (a page whose name was rebound to this
machine still sends its own name as Host)? Does the request come from a page of this server (browsers report this in Origin, which
no page can forge, and in Sec-Fetch-Site)? Or does a person follow a link to a page? No response has headers that would let a
foreign page read it. Prefect itself asks for passwords, behind the gate.

Kubernetes' probes ask by a pod's address: paths that say no more than that the server is well are answered at any address, though
under no other name. An address cannot be rebound to this machine, as the name of a page can.
"""

import os
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "")
HOSTS = "POPULORA_HOSTS"
"""Additional names of our servers, separated by commas, such as that of a proxy in front of them."""


class Refused(Exception):
    """The request is refused. `status` and the message are the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def names_of(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server that listens on `host`: this machine's, the address itself, and those listed."""
    listed = [*more, *os.environ.get(HOSTS, "").split(",")]
    own = [] if host in ANY else [host]
    return frozenset(name.strip().strip("[]").lower() for name in [*LOOPBACK, *own, *listed] if name.strip())


class Gate:
    """An ASGI application that passes allowed requests to another one.

    Links from elsewhere cannot open what is below the paths `closed`. The paths `probes` can be read at any address.
    """

    def __init__(self, app: Any, names: Iterable[str], closed: tuple[str, ...] = (), probes: tuple[str, ...] = ()) -> None:
        self._app, self._names, self._closed, self._probes = app, frozenset(names), closed, probes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request or websocket. A refused one never reaches the application."""
        if scope["type"] in ("http", "websocket"):
            try:
                self.check(scope)
            except Refused as refused:
                await _refuse(scope, receive, send, refused)
                return
        await self._app(scope, receive, send)

    def check(self, scope: Any) -> None:
        """Raise Refused unless the request may pass."""
        host = _only(scope, b"host")
        name = None if host is None else _name(host)
        probe = scope.get("method") == "GET" and scope["path"] in self._probes and _is_address(name)
        if not probe and name not in self._names:
            raise Refused(421, f"This server does not go by that name. If it is one of yours, add it to {HOSTS}.")
        if _count(scope, b"origin"):
            origin = _only(scope, b"origin")
            if origin is None or origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
                raise Refused(403, "The request came from a page of another origin. Only this server's own pages are allowed.")
        if self._from_elsewhere(scope):
            raise Refused(403, "The request came from a page of another site. Only this server's own pages are allowed.")

    def _from_elsewhere(self, scope: Any) -> bool:
        """Return whether a foreign page made the browser request anything but a page that its user sees in the address bar."""
        if (_only(scope, b"sec-fetch-site") or "none") in ("none", "same-origin"):
            return False
        followed = (_only(scope, b"sec-fetch-mode"), _only(scope, b"sec-fetch-dest")) == ("navigate", "document")
        return not followed or scope.get("method") != "GET" or scope["path"].startswith(self._closed)


def _count(scope: Any, name: bytes) -> int:
    return sum(key == name for key, _ in scope["headers"])


def _only(scope: Any, name: bytes) -> str | None:
    """Return a header's value; None if it is absent or given more than once."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else None


def _name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if the header is invalid."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname if parts.port is None or parts.port >= 0 else None
    except ValueError:
        return None


def _is_address(name: str | None) -> bool:
    try:
        return bool(ip_address(name or ""))
    except ValueError:
        return False


async def _refuse(scope: Any, receive: Any, send: Any, refused: Refused) -> None:
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        await send({"type": "websocket.close", "code": 1008})
        return
    body = f"{refused}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
