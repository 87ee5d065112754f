"""A real browser follows links to forms that are filled in, and submits them: fork, restart, benchmark, compare.

What the forms start ends with the bytes that the command line gives. `POPULORA_PICTURES` names a folder for what the browser saw.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.audit.fsck import fsck
from flows.config import PROJECT
from flows.run.run import Run
from flows.storage import open_store
from tests.support import chromium
from tests.support.service import Service, until
from tests.support.stack import NO_GIT, tree

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(3600)]
if chromium.PROGRAM is None:
    pytest.skip("no chromium here; on Debian: apt-get install chromium", allow_module_level=True)

TEXT = "(document.body?.innerText ?? '')"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("forms"))
    made.start()
    try:
        assert made.wait(made.submit("base")) == "COMPLETED"
        until(lambda: "base" in runs_offered(made), 60, lambda: made.words("worker"))
        shutil.copytree(made.store, made.store.parent / "typed")
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def page(service: Service) -> Iterator[chromium.Page]:
    words = [sys.executable, "-m", "flows.cli", "serve", "--home", str(service.home), "--link"]
    link = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
    with chromium.browser() as opened:
        opened.open(link)
        opened.until(f"{TEXT}.includes('Dashboard')")
        yield opened


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("POPULORA_PICTURES") or tmp_path)


def runs_offered(service: Service) -> list[str]:
    found = service.ask("deployments/name/fork/fork")["parameter_openapi_schema"]["properties"]["run_id"]
    return list(found.get("enum", []))


def begun(service: Service, name: str) -> list[str]:
    """Ids of the flow runs of that flow, the newest first."""
    wanted = {"flows": {"name": {"any_": [name]}}, "sort": "EXPECTED_START_TIME_DESC"}
    return [one["id"] for one in service.ask("flow_runs/filter", wanted) if not one["auto_scheduled"]]


def follow(page: chromium.Page, service: Service, address: str, link: str, picture: Path) -> str:
    """Opens a page of the browser, clicks the link, and returns the text of the form once it is there."""
    page.open(f"http://127.0.0.1:{service.browser_port}{address}")
    page.picture(picture.with_name(f"{picture.name}-page.png"))
    page.value(f"document.querySelector({json.dumps(link)}).click()")
    page.until("location.pathname.startsWith('/v2/deployments/deployment/')")
    page.until(f"{TEXT}.includes('Parameters') && {TEXT}.includes('Submit')")
    page.until("document.querySelectorAll('input, textarea').length > 2")  # the fields come after the frame
    page.picture(picture.with_name(f"{picture.name}-form.png"))
    return str(page.value(f"{TEXT} + [...document.querySelectorAll('input, textarea')].map(one => one.value).join(' ')"))


def submit(page: chromium.Page, service: Service, flow: str) -> str:
    """Presses the form's button; the flow run that it began."""
    before = begun(service, flow)
    page.value("[...document.querySelectorAll('button')].find(one => one.innerText === 'Submit').click()")
    until(lambda: len(begun(service, flow)) > len(before), 60, lambda: str(page.value(TEXT)))
    return begun(service, flow)[0]


def typed(service: Service, *words: str) -> None:
    """The same on the command line, in a copy of the store."""
    store = str(service.store.parent / "typed")
    command = [sys.executable, "-m", "flows.cli", *words, "--store", store]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ | NO_GIT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def own(store: Path, run_id: str) -> dict[str, Any]:
    return {uri: data for uri, data in tree(open_store(str(store))).items() if uri.startswith(f"{run_id}/")}


@pytest.mark.parametrize(
    ("address", "link", "run_id", "words"),
    [
        (
            "/runs/base/generations/1",
            'a[href*="/forms/restart"][href*="stage=solve"]',
            "base-g0001-solve",
            ["--generation", "1", "--stage", "solve"],
        ),
        ("/runs/base/generations/0", 'a[href*="/forms/fork"]', "base-g0000", ["--generation", "0"]),
    ],
)
def test_from_the_browser_and_from_the_command_line_the_bytes_are_the_same(
    service: Service, page: chromium.Page, pictures: Path, address: str, link: str, run_id: str, words: list[str]
) -> None:
    before = own(service.store, "base")
    form = follow(page, service, address, link, pictures / run_id)
    assert run_id in form and "base" in form and str(service.store) in form and f"generation {words[1]}" in form
    flow = "restart" if "stage" in link else "fork"
    trained = len(begun(service, "train"))
    assert service.wait(submit(page, service, flow)) == "COMPLETED"
    until(lambda: len(begun(service, "train")) > trained, 60, lambda: service.words("worker"))
    assert service.wait(begun(service, "train")[0]) == "COMPLETED"
    typed(service, "fork", "base", "--run-id", run_id, *words)
    typed(service, "run", "--resume", run_id)
    assert own(service.store, run_id) == own(service.store.parent / "typed", run_id)
    assert own(service.store, "base") == before and fsck(Run(open_store(str(service.store)), run_id)) == []


def test_a_member_is_benchmarked_and_runs_are_compared(service: Service, page: chromium.Page, pictures: Path) -> None:
    form = follow(page, service, "/runs/base/adapters/s0-g0000", 'a[href*="/forms/benchmark-member"]', pictures / "member")
    assert "s0-g0000" in form and "own suite" in form
    assert service.wait(submit(page, service, "benchmark-member")) == "COMPLETED"
    assert (service.store / "base/benchmarks/probe-dev/asked/s0-g0000-n6-k0/benchmark.json").exists()
    page.open(f"http://127.0.0.1:{service.browser_port}/runs/base/adapters/s0-g0000")
    assert "Benchmarks" in str(page.value(TEXT))
    page.open(f"{service.url}/forms/compare?runs=base,base-g0000")
    page.until(f"{TEXT}.includes('Submit')")
    page.picture(pictures / "compare-form.png")
    assert service.wait(submit(page, service, "compare")) == "COMPLETED"


def test_a_wrong_value_is_one_message(service: Service, page: chromium.Page, pictures: Path) -> None:
    before = begun(service, "fork")
    page.open(f"{service.url}/forms/fork?run_id=nobody&new_run_id=x&generation=0")
    page.until(f"{TEXT}.includes('Submit')")
    page.value("[...document.querySelectorAll('button')].find(one => one.innerText === 'Submit').click()")
    page.until(f"{TEXT}.includes('nobody')")
    page.picture(pictures / "refused.png")
    assert begun(service, "fork") == before
    page.open(f"{service.url}/forms/fork?run_id=../../etc")
    assert page.value(TEXT).strip() == "run_id: '../../etc' is not valid there"
