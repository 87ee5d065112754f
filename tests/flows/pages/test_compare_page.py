"""The list of runs and runs side by side as pages: choosing, comparing, hostile texts, and addresses that cannot be."""

import html
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from stages.core import tables
from tests.support import compared_runs
from tests.support.report_run import HOSTILE, made

CHOSEN = "run=first&run=second"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    store = FileStore(root)
    compared_runs.build(store, "first", 3, {0: lambda number: number < 2, 2: lambda number: number < 4})
    other = compared_runs.configured(learning={"learning_rate": 0.5})
    compared_runs.build(store, "second", 3, {2: lambda number: number in (1, 2, 3)}, other)
    with made(root, "half", 2, until="solve"):
        pass
    hostile(store)
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text('{"schema": "</td><script>alert(1)</script>"}')
    return root


def hostile(store: FileStore) -> None:
    """A run whose every text is hostile: settings and their names, versions, members, operators."""
    with hold(store, "hostile") as epoch:
        run = Run(store, "hostile", epoch)
        config = {
            "generations": 2,
            "mode": HOSTILE,
            "model": {"name": HOSTILE},
            "population": {"teachers": HOSTILE},
            HOSTILE: HOSTILE,
        }
        run.describe(config, {HOSTILE: HOSTILE, "forked_from": {"run": HOSTILE, "generation": HOSTILE}}, {})
        run.commit("start", None, [], [], {}, {"base_model": HOSTILE})
        metrics = [{"name": "solve.rate", "value": 0.5, "member_id": None, "role": None, "kind": None}]
        run.commit("update", 0, [], [run.write_table(0, "metrics", tables.table(metrics, tables.METRICS))])
        rated = {"role": "student", "born": 0, "result": HOSTILE, "mu": 25.0, "sigma": 8.0, "fitness": 1.0}
        rated |= {"mu_before": 25.0, "sigma_before": 8.0, "adapter_sha256": HOSTILE, "next_adapter_sha256": HOSTILE}
        rated |= dict.fromkeys(("member_id", "adapter_id", "next_adapter_id"), HOSTILE)
        run.commit("rate", 0, [], [run.write_table(0, "ratings", tables.table([rated], tables.RATINGS))])
        born = dict.fromkeys(("role", "replaces", "operator", "operator_kind", "seed", "parameters", "note"), HOSTILE)
        born |= {
            "member_id": HOSTILE,
            "parents": [HOSTILE, "s0"],
            "parent_adapter_ids": [HOSTILE],
            "adapter_id": HOSTILE,
            "adapter_sha256": HOSTILE,
        }
        born |= {"mu": 25.0, "sigma": 8.0, "relative_change": 0.1, "cosine": 0.9}
        score = {"suite": HOSTILE, "member_id": HOSTILE, "role": "student", "adapter_id": HOSTILE, "adapter_sha256": HOSTILE}
        score |= {"group": "all", "measure": f"{HOSTILE} $\\nothing$", "score": 0.5, "problems": 4, "attempts": 1, "stderr": 0.1}
        folder = "probe-dev/asked/start-n0-k0"
        scores = tables.table([score], tables.SCORES)
        written = run.write_table_at(f"benchmarks/{folder}/scores.parquet", scores, tables.SCORES)
        run.commit_benchmark(folder, [], [written], {}, {}, {})
        run.commit("evolve", 0, [], [run.write_table(0, "offspring", tables.table([born], tables.OFFSPRING))])


@pytest.fixture(scope="module")
def pages(root: Path):
    with TestClient(make_app(str(root)), base_url="http://127.0.0.1") as found:
        yield found


def shown(pages: TestClient, address: str, status: int = 200) -> str:
    """The page as text without markup."""
    answer = pages.get(address)
    assert answer.status_code == status, (address, answer.text[-500:])
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def listed(pages: TestClient, address: str) -> list[str]:
    """The runs of the list's table, in order."""
    return re.findall(r'<td><a href="/runs/([a-z-]+)">', pages.get(address).text)


def test_the_list_sorts_and_filters_on_the_server(pages: TestClient) -> None:
    assert listed(pages, "/?sort=run") == ["broken", "first", "half", "hostile", "second"]
    assert listed(pages, "/?sort=-run") == ["second", "hostile", "half", "first", "broken"]
    assert listed(pages, "/?sort=-score")[:2] == ["first", "second"]
    assert listed(pages, "/?state=finished&sort=run") == ["first", "second"]
    assert listed(pages, "/?setting=learning_rate%3D0.5&name=&score_from=&page=1") == ["second"]
    assert listed(pages, "/?score_from=40") == ["first"] and listed(pages, "/?state=unreadable") == ["broken"]
    text = shown(pages, "/")
    assert "5 of 5 runs" in text and "50.0 % ± 18.9 probe-dev, n = 8" in text and "grade of generation 1" in text
    assert "No run fits these filters." in shown(pages, "/?name=nobody")
    assert 'aria-sort="descending"' in pages.get("/?sort=-age").text


def test_ticks_survive_filters_and_lead_to_the_comparison(pages: TestClient) -> None:
    page = pages.get(f"/?{CHOSEN}&state=stopped&run=nobody&run=..%2Fetc").text
    assert '<input type="hidden" name="run" value="first">' in page and '<input type="hidden" name="run" value="second">' in page
    assert "nobody" not in page and "etc" not in page
    assert 'value="half" aria-label="compare half">' in page
    assert 'value="first" aria-label="compare first" checked>' in pages.get(f"/?{CHOSEN}").text
    answer = pages.get(f"/compare?name=&sort=age&{CHOSEN}&run=first", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/compare?{CHOSEN}")
    for address in ("/compare", "/compare?run=first"):
        assert "Tick two to 8 runs in the list of runs" in shown(pages, address)


def test_two_runs_side_by_side(pages: TestClient) -> None:
    text = shown(pages, f"/compare?{CHOSEN}")
    assert "second against first, the reference" in text
    assert "One setting differs, " in text
    assert "learning.<wbr>learning_<wbr>rate" in pages.get(f"/compare?{CHOSEN}").text
    assert "Code, packages and base model are the same." in text
    assert "probe-dev : second after 3 generations − first after 3 generations" in text.replace("probe-dev:", "probe-dev :")
    assert "all pass@1 greedy 50.0 % 37.5 % −12.5 ± 12.5 0 1 7 8" in text
    assert "best teacher" in text and ", a founder" in text and "generations computed 3 3" in text
    page = pages.get(f"/compare?{CHOSEN}").text
    assert page.count("<svg") == 2 and 'id="benchmark-probe-dev"' in page and 'id="solve-rate"' in page
    assert 'href="/compare?run=second&amp;run=first"' in page
    assert pages.get(f"/compare?{CHOSEN}&by=seconds").text.count("<svg") == 2


def test_only_differences_of_more_than_two_standard_errors_are_bold(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    compared_runs.build(store, "first", 1, {0: lambda number: False})
    compared_runs.build(store, "second", 1, {0: lambda number: number in (0, 2, 4, 6)})  # all deductions, no abduction
    with TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages:
        page = pages.get("/compare?run=first&run=second").text
    row = r"<tr( class=\"changed\")?><td>(all|deduction|abduction)</td>.*?<td>([^<]*)</td><td>\d+</td><td>\d+</td>"
    rows = re.findall(row, page)
    assert [(group, difference, bool(bold)) for bold, group, difference in rows] == [
        ("all", "+50.0 ± 18.9", True),
        ("abduction", "+0.0 ± 0.0", False),
        ("deduction", "+100.0 ± 0.0", True),
    ]


def test_a_half_finished_run_of_another_size_compares(pages: TestClient) -> None:
    text = shown(pages, "/compare?run=half&run=first&run=second")
    assert "half is stopped: 1 of 2 generations are done; next: grade of generation 1." in text
    assert "3 teachers and 3 students" in text and "2 teachers and 2 students" in text
    more = shown(pages, "/compare?run=half&run=first&every=true")
    assert "Show" in text and "more curves" in text and "more curves" not in more


@pytest.mark.parametrize(
    "address", ["/", "/?sort=run&name=hostile", "/compare?run=hostile&run=first", "/compare?run=first&run=hostile"]
)
def test_hostile_texts_stay_text(pages: TestClient, address: str) -> None:
    answer = pages.get(address)
    assert answer.status_code == 200, answer.text[-500:]
    page = answer.text
    assert "<script" not in page and "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&lt;script&gt;" in page
    assert "\\u202e" in page or not address.startswith("/compare")  # the list cuts long names
    assert all(link.startswith(("/", "#", "?")) for link in re.findall(r'(?:href|action|src)="([^"]*)"', page))
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/compare?run=first&run=nobody", 404, "There is no run nobody in "),
        ("/compare?run=first&run=..%2F..%2Fetc", 404, "run id '../../etc'"),
        ("/compare?run=first&run=" + "a" * 41, 404, "run id"),
        ("/compare?run=first&run=%3Cscript%3E", 404, "run id '<script>'"),
        ("/compare?run=first&run=broken", 502, "broken/run.json"),
        ("/compare?" + "&".join(f"run=r{number}" for number in range(9)), 400, "9 runs are too many to compare"),
        ("/compare?" + "&".join(f"run=r{number}" for number in range(101)), 400, "at most 100 items"),
        (f"/compare?{CHOSEN}&every=maybe", 400, "every"),
        (f"/compare?{CHOSEN}&by=<script>", 400, "'<script>' is not one of generation, generated_tokens, seconds."),
        ("/?sort=<script>", 400, "'<script>' is not one of run, state"),
        ("/?state=x", 400, "'x' is not one of running"),
        ("/?setting=nothing%3D1", 400, "No run has a setting 'nothing'"),
        ("/?score_from=many", 400, "score_from: 'many' is not a number"),
        ("/?page=0", 400, "page"),
        ("/?page=7", 400, "There is no page 7: the list has 1."),
        ("/?name=" + "a" * 201, 400, "name"),
    ],
)
def test_an_address_that_cannot_be_is_said(pages: TestClient, address: str, status: int, said: str) -> None:
    assert said in shown(pages, address, status)
    assert "<script" not in pages.get(address).text


def test_runs_at_work_are_compared_as_far_as_they_are(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with made(tmp_path, "whole", 1):
        pass
    with (
        TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages,
        hold(store, "growing") as epoch,
    ):
        run = Run(store, "growing", epoch)
        run.describe(compared_runs.example_run.CONFIG.model_dump(mode="json"), {}, {})
        assert "running" in shown(pages, "/?state=running")
        assert "No generation" not in shown(pages, "/compare?run=whole&run=growing")
        population = compared_runs.example_run.start(run)
        compared_runs.example_run.one_generation(run, population, 0, last=False)
        text = shown(pages, "/compare?run=whole&run=growing")
        assert "2 of 2 runs. To compare, tick 2 of them." in shown(pages, "/")
        assert "growing is running: 1 of 3 generations are done; next: match of generation 1." in text


def test_the_list_has_pages_and_keeps_the_ticks_of_others(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for number in range(60):
        with hold(store, f"run-{number:03d}") as epoch:
            Run(store, f"run-{number:03d}", epoch).describe({"generations": 1}, {}, {"started": float(number)})
    with TestClient(make_app(str(tmp_path)), base_url="http://127.0.0.1") as pages:
        page = pages.get("/?sort=run&page=2&run=run-003&run=run-055").text
        assert re.findall(r'<td><a href="/runs/([a-z0-9-]+)">', page) == [f"run-{number:03d}" for number in range(50, 60)]
        assert 'name="run" value="run-003">' in page and 'aria-label="compare run-055" checked>' in page
        assert '<button name="page" value="1">' in page and "page 2 of 2" in page
