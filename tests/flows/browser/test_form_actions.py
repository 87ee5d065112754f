"""Pages link to forms of the UI, filled in, when a UI belongs to the browser; and to nothing otherwise."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.form_links import URL, values
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from tests.support import example_run

UI = "http://127.0.0.1:4200"
PAGES = {
    "/runs/smoke": [
        ("compare", {"runs": ["smoke"]}),
        ("fork", {"run_id": "smoke", "generation": "start", "new_run_id": "smoke-start"}),
    ],
    "/runs/smoke/generations/0": [("fork", {"run_id": "smoke", "generation": "generation 0", "new_run_id": "smoke-g0000"})],
    "/runs/smoke/manifests/generation=0001/solve.json": [
        ("restart", {"run_id": "smoke", "generation": "generation 1", "stage": "solve", "new_run_id": "smoke-g0001-solve"})
    ],
    "/runs/smoke/adapters/t0-g0001": [
        ("benchmark-member", {"run_id": "smoke", "adapter": "t0-g0001"}),
        ("fork", {"run_id": "smoke", "generation": "generation 1", "new_run_id": "smoke-g0001"}),
    ],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with hold(open_store(str(root)), "smoke") as epoch:
        example_run.build(Run(open_store(str(root)), "smoke", epoch), 2)
    return root


@pytest.fixture
def pages(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv(URL, UI)
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as found:
        yield found


def forms(page: str) -> list[tuple[str, dict[str, object]]]:
    links = [html.unescape(link) for link in re.findall(rf'href="({UI}[^"]*)"', page)]
    return [(urlsplit(link).path.rpartition("/")[2], dict(parse_qsl(urlsplit(link).query))) for link in links]


@pytest.mark.parametrize("address", PAGES)
def test_a_page_links_to_its_forms(pages: TestClient, address: str) -> None:
    found = [(form, values(form, query)) for form, query in forms(pages.get(address).text)]  # type: ignore[arg-type]
    assert [one for one in PAGES[address] if one not in found] == []


def test_each_stage_of_a_generation_can_be_restarted(pages: TestClient) -> None:
    found = [query["stage"] for form, query in forms(pages.get("/runs/smoke/generations/1").text) if form == "restart"]
    assert found == ["match", "propose", "verify", "solve", "grade", "reward", "update", "rate", "evolve"]


def test_without_a_ui_there_is_no_link(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as found:
        for address in (*PAGES, "/runs/smoke/generations/start"):
            page = found.get(address).text
            assert "/forms/" not in page and "Forms of the Prefect UI" not in page
