"""`/forms/NAME?…`: leads to the form of a deployment in the UI, filled in with its own parameters and what the link says.

The UI takes the values of a form from the address, as JSON (`/v2/deployments/deployment/ID/run?parameters=…`); they replace the
deployment's own, and the id is the database's. So this server puts both together. A link cannot name the store or a path
(flows.form_links.values), and only opens the form: a person signed in to the UI presses its button.
"""

import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

from flows import form_links
from flows.config import ConfigError

LONGEST = 4_000
PAGE = "/v2/deployments/deployment/{}/run?{}"


class FormServer:
    """An ASGI application that answers below `form_links.PATH` and passes everything else to another one."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].startswith(form_links.PATH):
            await self._app(scope, receive, send)
            return
        try:
            place = await _place(scope)
        except ConfigError as error:
            await _answer(send, 404, [], f"{error}\n")
            return
        await _answer(send, 303, [(b"location", place.encode("ascii"))], "")


async def _place(scope: Any) -> str:
    """Return the address of the form. Raises ConfigError."""
    if scope["method"] not in ("GET", "HEAD") or len(scope["query_string"]) > LONGEST:
        raise ConfigError("a form is opened by a link")
    form = scope["path"].removeprefix(form_links.PATH)
    query = parse_qsl(scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)
    given = form_links.values(form, dict(query))
    found = await _deployment(form)
    if found is None:
        raise ConfigError(f"the form {form} is not served here: is its deployment gone? Start populora serve again")
    deployment_id, parameters = found
    return PAGE.format(deployment_id, urlencode({"parameters": json.dumps(parameters | given)}))


async def _deployment(form: str) -> tuple[str, dict[str, Any]] | None:
    """Return the id and the parameters of the deployment that serves the form, from the server's own database."""
    from prefect.server.database import provide_database_interface  # noqa: PLC0415  after the settings
    from prefect.server.models.deployments import read_deployment_by_name  # noqa: PLC0415

    read: Any = read_deployment_by_name  # its decorator hides its type
    database = provide_database_interface()
    async with database.session_context() as session:
        found = await read(session=session, name=form, flow_name=form)
        return None if found is None else (str(found.id), dict(found.parameters))


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]], text: str) -> None:
    body = text.encode()
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    plain += [(b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": body})
