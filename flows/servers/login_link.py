"""Sign a person in to Prefect's UI without typing its password: a link that works once.

`/enter#TICKET` is a page of this server. Its script sends the ticket back (what follows # is in no log and no Referer), gets the
password and stores it where Prefect's login form does: in the browser's storage of this origin, port included. A cookie would be
sent to every port of this machine, and with requests of other pages; this is not. A ticket is a message authentication code made
with the password: anyone who may read the password can make one, and the server remembers only used ones.
"""

import hashlib
import hmac
import json
import secrets
import time
from base64 import b64encode
from typing import Any

PATH = "/enter"
LIFETIME = 3600
STORAGE_KEY = "prefect-password"
"""Where both of Prefect's pages look for the password, as base64 of user:password."""
LONGEST = 300
SCRIPT = f"""
const say = text => {{ document.getElementById("said").textContent = text; }};
const ticket = location.hash.slice(1);
history.replaceState(null, "", "{PATH}");
fetch("{PATH}", {{method: "POST", body: ticket, cache: "no-store"}}).then(async answer => {{
  if (!answer.ok) return say(await answer.text());
  localStorage.setItem("{STORAGE_KEY}", (await answer.json()).password);
  location.replace("/");
}}).catch(() => say("The server does not answer."));
"""
PAGE = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>populora</title></head>
<body><p id="said">One moment…</p><script>{SCRIPT}</script></body></html>"""
POLICY = "default-src 'none'; connect-src 'self'; script-src 'sha256-{}'; base-uri 'none'; frame-ancestors 'none'"
USED = (
    "This link has been used or has expired, or the server has restarted. Get another one: populora serve --link, or in the "
    "stack: make link"
)


def ticket(password: str, lifetime: float = LIFETIME) -> str:
    """Return a ticket that opens the UI once within `lifetime` seconds."""
    message = f"{int(time.time() + lifetime):x}.{secrets.token_urlsafe(16)}"
    return f"{message}.{_code(password, message)}"


def link(url: str, password: str) -> str:
    """Return the address that a person opens."""
    return f"{url}{PATH}#{ticket(password)}"


class Entrance:
    """An ASGI application that answers at PATH and passes everything else to another one."""

    def __init__(self, app: Any, password: str) -> None:
        self._app, self._password = app, password
        self._spent: dict[str, int] = {}
        self._began = int(time.time())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._app(scope, receive, send)
        elif scope["method"] == "GET":
            digest = b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
            await _answer(send, 200, "text/html; charset=utf-8", PAGE, POLICY.format(digest))
        elif scope["method"] == "POST":
            if self.spend(await _body(receive)):
                password = {"password": b64encode(self._password.encode()).decode()}
                await _answer(send, 200, "application/json", json.dumps(password))
            else:
                await _answer(send, 403, "text/plain; charset=utf-8", USED)
        else:
            await _answer(send, 405, "text/plain; charset=utf-8", "Only GET and POST.")

    def spend(self, given: str) -> bool:
        """Return whether the ticket is valid, and mark it as used."""
        message, _, code = given.rpartition(".")
        if not hmac.compare_digest(code.encode(), _code(self._password, message).encode()):
            return False
        now, expires = time.time(), int(message.partition(".")[0], 16)
        self._spent = {one: until for one, until in self._spent.items() if until >= now}
        # nobody remembers which of the tickets made before this start were used
        if expires < now or expires - LIFETIME < self._began or message in self._spent:
            return False
        self._spent[message] = expires
        return True


def _code(password: str, message: str) -> str:
    return hmac.new(password.encode(), f"populora enter {message}".encode(), hashlib.sha256).hexdigest()


async def _body(receive: Any) -> str:
    """Return the request's body as text; empty if it is longer than any ticket."""
    body, more = b"", True
    while more and len(body) <= LONGEST:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body.decode("ascii", "replace") if len(body) <= LONGEST else ""


async def _answer(send: Any, status: int, kind: str, text: str, policy: str = "default-src 'none'") -> None:
    body = text.encode()
    headers = [("content-type", kind), ("content-length", str(len(body))), ("cache-control", "no-store")]
    headers += [("content-security-policy", policy), ("referrer-policy", "no-referrer"), ("x-content-type-options", "nosniff")]
    start = {"type": "http.response.start", "status": status}
    await send(start | {"headers": [(name.encode(), value.encode()) for name, value in headers]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Print a link for the server whose password is in this environment: `python -m flows.servers.login_link URL`."""
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415

    password = os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    if len(sys.argv) != 2 or not password:
        sys.exit("usage: python -m flows.servers.login_link URL, with PREFECT_SERVER_API_AUTH_STRING set")
    print(link(sys.argv[1], password))


if __name__ == "__main__":
    main()
