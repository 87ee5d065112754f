"""`/forms/…` leads to the form of the deployment, with its own parameters and what the link says; nothing else."""

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from prefect.client.orchestration import get_client

from flows.prefect_ops import deployments
from flows.prefect_ops.form_server import FormServer


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"prefect"})


def get(path: str, query: str = "", method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    asyncio.run(FormServer(application)(scope, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_other_paths_are_prefects() -> None:
    assert get("/v2/dashboard")[2] == b"prefect" and get("/api/health")[2] == b"prefect"


@pytest.mark.parametrize(
    ("form", "query", "method"),
    [
        ("nothing", "", "GET"),
        ("../api", "", "GET"),
        ("fork", "run_id=../x", "GET"),
        ("fork", "store=/etc", "GET"),
        ("fork", "run_id=a&" * 1000, "GET"),
        ("fork", "run_id=%ff%fe", "GET"),
        ("fork", "run_id=smoke", "POST"),
    ],
)
def test_a_wrong_link_is_one_line(form: str, query: str, method: str) -> None:
    status, headers, body = get(f"/forms/{form}", query, method)
    assert status == 404 and body.count(b"\n") == 1 and b"location" not in headers
    assert headers[b"content-type"].startswith(b"text/plain")


@pytest.mark.flow
def test_a_link_opens_the_form_filled_in() -> None:
    deployments.deploy("/tmp/served")
    status, headers, _ = get("/forms/restart", "run_id=smoke&generation=3&stage=solve&new_run_id=again")
    place = urlsplit(headers[b"location"].decode())
    with get_client(sync_client=True) as client:
        served = client.read_deployment_by_name("restart/restart")
    assert (status, place.path, place.netloc) == (303, f"/v2/deployments/deployment/{served.id}/run", "")
    wanted = {"store": "/tmp/served", "run_id": "smoke", "generation": "generation 3", "stage": "solve", "new_run_id": "again"}
    assert json.loads(parse_qs(place.query)["parameters"][0]) == wanted
