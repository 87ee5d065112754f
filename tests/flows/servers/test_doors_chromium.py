"""A real browser: a page of somebody else gets into nothing, and the UI opens by its link without anybody typing a password.

`POPULORA_PICTURES` names a folder for what the browser saw.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.config import PROJECT
from tests.support import chromium
from tests.support.servers import foreign_page
from tests.support.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
if chromium.PROGRAM is None:
    pytest.skip("no chromium here; on Debian: apt-get install chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("doors"))
    made.start()
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(os.environ.get("POPULORA_PICTURES") or tmp_path)


def state(service: Service) -> list[object]:
    """What a page could change: runs, pools, deployments. The runs that the server's own schedules make do not count."""
    pools = sorted(pool["name"] for pool in service.ask("work_pools/filter", {}))
    runs = [run["id"] for run in service.ask("flow_runs/filter", {"limit": 200}) if not run["auto_scheduled"]]
    return [runs, pools, service.ask("deployments/count", {})]


def tried(page: chromium.Page, service: Service) -> list[list[object]]:
    deployment = service.ask("deployments/name/train/train")
    list_of = foreign_page.attempts(
        service.url, f"http://127.0.0.1:{service.browser_port}", deployment["id"], deployment["flow_id"]
    )
    return list(page.value(f"attack({json.dumps(list_of)})"))


def test_a_page_of_another_origin_gets_into_nothing(service: Service, pictures: Path) -> None:
    before = state(service)
    with foreign_page.serving() as port, chromium.browser("--host-resolver-rules=MAP elsewhere.example 127.0.0.1") as page:
        # another site, and another port of this machine, which browsers count as the same site
        for place in ("elsewhere.example", "127.0.0.1"):
            page.open(f"http://{place}:{port}/")
            found = tried(page, service)
            page.picture(pictures / f"foreign-{place}.png")
            assert len(found) > 30 and [one for one in found if one[2]] == []
    assert state(service) == before


def test_a_name_rebound_to_this_machine_gets_into_nothing(service: Service, pictures: Path) -> None:
    before = state(service)
    rules = "--host-resolver-rules=MAP rebound.example 127.0.0.2"
    with (
        foreign_page.serving() as owner,
        foreign_page.rebinding(service.port, owner) as moved,
        chromium.browser(rules) as page,
    ):
        page.open(f"http://rebound.example:{service.port}/")
        moved.set()  # from here on the page's own origin is our server
        deployment = service.ask("deployments/name/train/train")
        ours = f"http://rebound.example:{service.port}"
        list_of = foreign_page.attempts(ours, ours, deployment["id"], deployment["flow_id"])
        found = page.value(f"attack({json.dumps(list_of)})")
        page.picture(pictures / "rebound.png")
    assert any(one[1].startswith("421") for one in found) and [one for one in found if one[2]] == []
    assert state(service) == before


def test_the_ui_opens_by_its_link_once_and_works(service: Service, pictures: Path) -> None:
    words = [sys.executable, "-m", "flows.cli", "serve", "--home", str(service.home), "--link"]
    link = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
    assert service.password not in link
    with chromium.browser() as page:
        page.open(link)
        page.until("location.pathname.startsWith('/v2') && document.body.innerText.includes('Flow Runs')")
        page.picture(pictures / "ui-dashboard.png")
        page.open(f"{service.url}/v2/deployments")
        page.until("document.body.innerText.includes('benchmark')")
        assert "password" not in page.value("document.body.innerText").lower()
        page.picture(pictures / "ui-deployments.png")
        page.open(f"{service.url}/v2/deployments/deployment/{service.ask('deployments/name/train/train')['id']}/run")
        page.until("document.body.innerText.includes('Submit')")
        page.picture(pictures / "ui-form.png")
        page.open(f"http://127.0.0.1:{service.browser_port}/")
        page.until("document.body.innerText.includes('Runs')")
        page.picture(pictures / "browser.png")
    with chromium.browser() as page:  # somebody else with the same link
        page.open(link)
        page.until("document.body.innerText.includes('has been used')")
        page.picture(pictures / "link-used.png")
        page.open(f"{service.url}/v2/deployments")
        page.until("document.querySelector('input[type=password]') !== null")
        page.picture(pictures / "ui-without-link.png")
