"""The live page: what it says of a run at work; text stays text there and in the feed; its readers share one look at the run."""

import json
import re

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.compare.run_list import RunList
from flows.monitoring.meter import duration
from flows.monitoring.run_state import StateReader, silent_text
from flows.monitoring.status import status
from flows.monitoring.telemetry import StoreMetrics
from flows.monitoring.working import Working
from flows.pages.library import Library
from flows.pages.live_page import Followers, live_page
from flows.pages.run_pages import run_page
from flows.run.lease import DOING, STALE_SECONDS, hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support.report_run import made

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run with hostile texts that is at work by its lease."""
    root = tmp_path_factory.mktemp("store")
    with made(root, "hostile", 2, until="grade"):
        pass
    steps = [{"stage": SCRIPT, "generation": 1, "part": None, "seconds": 3.0}]
    steps.append({"stage": "reward", "generation": 1, "part": "\x1b[2J\u202e" + SCRIPT, "seconds": 4.0})
    values = {"host": "elsewhere", "pid": 1, "beat": 5, "token": "t", DOING: {"planned": 9, "steps": steps}}
    (root / "hostile" / ".lease").write_text(json.dumps(values))
    return root


@pytest.fixture(scope="module")
def pages(store):
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as found:
        yield found


def test_the_page_shows_the_state_without_a_script(pages):
    answer = pages.get("/runs/hostile/live")
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in answer.text
    assert "running reward of generation 1; 1 of 9 generations done" in answer.text
    assert 'data-live="/runs/hostile/live/events"' in answer.text
    assert len(re.findall(r'<a href="/runs/hostile/tasks/g0001-', answer.text)) >= 16


def test_while_the_start_runs_page_and_status_say_so(tmp_path):
    store = FileStore(tmp_path)
    working = Working()
    working.planned = 3
    with hold(store, "new", doing=working.record) as epoch, working.step("start", None, None):
        run = Run(store, "new", epoch)
        run.describe({"generations": 3}, {}, {})
        lease = json.loads((tmp_path / "new" / ".lease").read_text())
        (tmp_path / "new" / ".lease").write_text(json.dumps(lease | {DOING: working.record()}))
        fields = live_page(Followers(Library(str(tmp_path))).state("new"))["fields"]
        assert (fields["headline"], fields["done_title"]) == ("running start; 0 of 3 generations done", "none yet of the start")
        assert "now        running start; 0 of 3 generations done; start: 0 s so far" in status(run).splitlines()


def test_a_machine_that_died_elsewhere_is_a_crash_on_every_page_and_in_the_metrics(tmp_path):
    with made(tmp_path, "far", 2, until="solve"):
        pass
    values = {"host": "elsewhere", "pid": 7, "beat": 5, "token": "t", DOING: {"planned": 9, "steps": []}}
    (tmp_path / "far" / ".lease").write_text(json.dumps(values))
    now, library = [0.0], Library(str(tmp_path))
    library.states = StateReader(library.store, lambda: now[0])
    metrics = StoreMetrics(library.store, library.states, library.run_ids, lambda run_id: library.watch(library.run(run_id)))

    def said():
        numbers = {one.name: one.value for family in metrics.collect() for one in family.samples}
        live = live_page(Followers(library).state("far"))
        (entry,) = RunList(library.store, library.states).entries()
        standing = run_page(library, "far")["standing"]
        lease = (numbers["populora_lease_held"], numbers["populora_lease_unchanged_seconds"])
        condition, headline = live["condition"], live["fields"]["headline"]
        return lease, condition, headline, str(entry.state), standing["holder"], standing["trouble"]

    where = "process 7 on host elsewhere"
    at_work = "running grade of generation 1; 1 of 9 generations done"
    assert said() == ((1, 0), "running", at_work, "running", f"held by {where}, beat 5", "")
    now[0] = 60.0
    silent = f"{silent_text(where)}; at grade of generation 1; 1 of 9 generations done"
    trouble = f"There is {silent_text(where)}."
    assert said() == ((1, 60), "silent", silent, "no heartbeat", f"held by {where}, last heartbeat 60 s ago", trouble)
    now[0] = STALE_SECONDS + 120.0
    why = f"no heartbeat of its process for more than {duration(STALE_SECONDS)}"
    crashed = (
        f"crashed: {why}; Retry in Prefect or populora run --resume far continues at grade of generation 1; 1 of 2 generations"
    )
    left = f"left by {where}, last heartbeat {duration(now[0])} ago"
    trouble = f"Crashed: its lease was {left}. Retry in Prefect or populora run --resume far resumes it."
    assert said() == ((0, now[0]), "crashed", f"{crashed} done", "crashed", left, trouble)
    (tmp_path / "far" / ".lease").unlink()
    stopped = "Stopped: no process works on this run. populora run --resume far resumes it."
    assert run_page(library, "far")["standing"]["trouble"] == stopped


def test_hostile_text_is_text_on_the_page_and_in_the_feed(pages, store):
    page = pages.get("/runs/hostile/live").text
    values = live_page(Followers(Library(str(store))).state("hostile"))
    shown = json.dumps(values)
    assert "<script>alert" in shown and "\\\\u202e" in shown and "\\u202e" not in shown.replace("\\\\u202e", "")
    assert "\\u001b" not in shown and "\\\\x1b" in shown
    body = page.partition("<body>")[2]
    assert "<script" not in body and "<img" not in body and "\u202e" not in body and "\x1b" not in body
    assert "&lt;script&gt;" in body
    links = [cell["href"] for rows in values["rows"].values() for row in rows for cell in row if cell["href"]]
    assert links and all(link.startswith("/runs/hostile/") and "<" not in link for link in links)


def test_many_streams_read_a_run_once(store):
    followers = Followers(Library(str(store)))
    assert followers.state("hostile") is followers.state("hostile")
