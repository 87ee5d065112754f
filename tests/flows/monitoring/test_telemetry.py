"""Prometheus metrics of a store agree with what is stored; the dashboard asks only for metrics that are exported."""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from flows.browser.app import make_app
from flows.config import PROJECT
from flows.monitoring import telemetry_machine
from flows.monitoring.live import Follower
from flows.monitoring.run_tables import RunTables
from flows.monitoring.status import status, stored_bytes
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import example_run, malformed
from tests.support.report_run import made

SECONDS = {"propose": 2.1, "solve": 4.0, "update": 5.2, "verify": 1.2, "grade": 1.5}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run with births and adapters, and one with the real metrics that stopped in its third generation."""
    root = tmp_path_factory.mktemp("store")
    with hold(FileStore(root), "whole") as epoch:
        example_run.build(Run(FileStore(root), "whole", epoch), 3)
    with made(root, "stopped", 3, until="grade"):
        pass
    return root


@pytest.fixture(scope="module")
def text(store):
    with client(store) as pages:
        return pages.get("/metrics").text


@pytest.fixture(scope="module")
def value(text):
    return lambda name, **labels: values(text, name, **labels)


def client(store):
    return TestClient(make_app(str(store)), base_url="http://127.0.0.1")


def values(text, name, **labels):
    """The value of the sample with exactly these labels; None where there is none."""
    families = list(text_string_to_metric_families(text))
    found = [one.value for family in families for one in family.samples if one.name == name and one.labels == labels]
    assert len(found) <= 1, (name, labels, found)
    return found[0] if found else None


def test_the_text_is_valid_and_every_family_is_described(text):
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20 and len({family.name for family in families}) == len(families)
    for family in families:
        assert family.documentation.endswith("."), family.name
        names = {one.name for one in family.samples}
        assert names <= {family.name + ("_total" if family.type == "counter" else "")}, family.name
        assert all(one.labels.get("run", "whole") in ("whole", "stopped") for one in family.samples)


def test_progress_ratings_and_rates(value, store):
    assert value("populora_generations_done", run="whole") == 3 == value("populora_generations_planned", run="whole")
    assert value("populora_generations_done", run="stopped") == 2
    assert value("populora_solve_rate", run="whole", kind="all") == 0.5
    rated = Run(FileStore(store), "whole").read_table(2, "ratings").to_pylist()
    for row in rated:
        labels = {"run": "whole", "member": row["member_id"], "role": row["role"]}
        assert value("populora_rating_mu", **labels) == row["mu"] and value("populora_rating_sigma", **labels) == row["sigma"]


def test_seconds_of_stages(value, store):
    clock = RunTables(Run(FileStore(store), "stopped")).look().clock()
    assert set(SECONDS) <= set(clock[1])
    for stage, spent in clock[1].items():
        assert value("populora_newest_stage_seconds", run="stopped", stage=stage) == spent
        total = sum(one.get(stage, 0.0) for one in clock.values())
        assert value("populora_stage_seconds_total", run="stopped", stage=stage) == pytest.approx(total)


def test_tokens_and_programs_in_all_and_a_second(value, store):
    run = Run(FileStore(store), "stopped")
    spent = RunTables(run).look().clock()[1]
    for stage, table in (("propose", "proposals"), ("solve", "rollouts")):
        tokens = [sum(map(len, run.read_table(number, table)["completion_ids"].to_pylist())) for number in (0, 1)]
        assert value("populora_tokens_total", run="stopped", stage=stage) == sum(tokens)
        assert value("populora_tokens_per_second", run="stopped", stage=stage) == pytest.approx(tokens[1] / spent[stage])
    for stage, table in (("verify", "tasks"), ("grade", "grades")):
        programs = [run.read_table(number, table).num_rows for number in (0, 1)]
        assert value("populora_programs_total", run="stopped", stage=stage) == sum(programs)
        assert value("populora_programs_per_second", run="stopped", stage=stage) == pytest.approx(programs[1] / spent[stage])


def test_parts_that_ran_at_the_same_time_count_once_in_rates_and_times(tmp_path):
    """Two parts of 8 s and a join of 2 s took 10 s, not 18."""
    with made(tmp_path, "r", 1):
        pass
    folder = tmp_path / "r" / "generation=0000"
    found = json.loads((folder / "solve.json").read_text())
    (folder / "solve.json").write_text(json.dumps(found | {"clock": {"started": 108.0, "seconds": 2.0}}))
    (folder / "solve.parts").mkdir()
    for part in ("00of02", "01of02"):
        values_of = {"stage": f"solve.parts/{part}", "outputs": [], "clock": {"started": 100.0, "seconds": 8.0}}
        (folder / "solve.parts" / f"{part}.json").write_text(json.dumps(found | values_of))
    run = Run(FileStore(tmp_path), "r")
    tables = RunTables(run).look()
    spent = tables.seconds(0)
    assert spent["solve"] == 10.0
    tokens = {
        stage: sum(map(len, run.read_table(0, table)["completion_ids"].to_pylist()))
        for stage, table in (("propose", "proposals"), ("solve", "rollouts"))
    }
    with client(tmp_path) as pages:
        text = pages.get("/metrics").text
    assert values(text, "populora_tokens_per_second", run="r", stage="solve") == pytest.approx(tokens["solve"] / 10.0)
    speed, _ = Follower(run, tables).look().speed
    assert speed == pytest.approx(sum(tokens.values()) / (spent["propose"] + 10.0))
    assert f"total {sum(spent.values()):.0f} s" in status(run)


def test_bytes_of_the_store(value, store):
    sizes = stored_bytes(Run(FileStore(store), "whole"))
    assert sizes["adapters"] == sum(path.stat().st_size for path in (store / "whole" / "adapters").rglob("*") if path.is_file())
    for kind, size in sizes.items():
        assert value("populora_store_bytes", run="whole", kind=kind) == size
    assert value("populora_store_free_bytes") > 0


def test_memory_of_a_stage_on_the_host_and_on_a_card(tmp_path):
    with hold(FileStore(tmp_path), "r") as epoch:
        example_run.build(Run(FileStore(tmp_path), "r", epoch), 1)
    manifest = tmp_path / "r" / "generation=0000" / "update.json"
    found = json.loads(manifest.read_text())
    manifest.unlink()
    manifest.write_text(json.dumps(found | {"clock": found["clock"] | {"peak_memory_mb": 3000, "peak_gpu_memory_mb": 70_000}}))
    with client(tmp_path) as pages:
        text = pages.get("/metrics").text
    assert values(text, "populora_stage_peak_memory_bytes", run="r", stage="update") == 3000 * 2**20
    assert values(text, "populora_stage_peak_gpu_memory_bytes", run="r", stage="update") == 70_000 * 2**20
    assert values(text, "populora_stage_peak_gpu_memory_bytes", run="r", stage="solve") is None


def test_the_lease_ages_until_it_is_given_back(tmp_path):
    files = FileStore(tmp_path)
    with hold(files, "r", beat_seconds=60) as epoch:
        example_run.build(Run(files, "r", epoch), 1)
        with client(tmp_path) as pages:
            texts = [pages.get("/metrics").text for _ in range(2)]
    ages = [values(text, "populora_lease_unchanged_seconds", run="r") for text in texts]
    assert values(texts[0], "populora_lease_held", run="r") == 1 and 0 <= ages[0] < ages[1]
    with client(tmp_path) as pages:
        text = pages.get("/metrics").text
    assert values(text, "populora_lease_held", run="r") == 0
    assert values(text, "populora_lease_unchanged_seconds", run="r") is None


def test_a_run_that_cannot_be_read_is_counted_and_the_others_are_there(store, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("no json")
    with hold(FileStore(tmp_path), "good") as epoch:
        example_run.build(Run(FileStore(tmp_path), "good", epoch), 1)
    with client(tmp_path) as pages:
        text = pages.get("/metrics").text
    assert values(text, "populora_unreadable_runs") == 1
    assert values(text, "populora_generations_done", run="good") == 1


@pytest.mark.parametrize("part", malformed.RUN_JSON)
def test_a_malformed_run_is_counted_and_the_others_are_there(part, tmp_path):
    store = FileStore(tmp_path)
    with hold(store, "good") as epoch:
        example_run.build(Run(store, "good", epoch), 1)
    store.create("odd/run.json", json.dumps({"schema": 1, "config": {"generations": 3}} | part).encode())
    with client(tmp_path) as pages:
        text = pages.get("/metrics").text
    assert values(text, "populora_unreadable_runs") == 1
    assert values(text, "populora_generations_done", run="good") == 1


def test_cards_are_read_from_nvidia_smi(tmp_path, monkeypatch):
    """The tool stands in for one on a machine with two cards, one of which does not tell its use."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert telemetry_machine.cards() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 1024, 81559, 37'\necho '1, 3, 81559, [N/A]'\n")
    tool.chmod(0o755)
    found = {(name, labels["card"]): value for name, _, labels, value in telemetry_machine.cards()}
    assert found == {
        ("populora_gpu_memory_used_bytes", "0"): 1024 * 2.0**20,
        ("populora_gpu_memory_bytes", "0"): 81559 * 2.0**20,
        ("populora_gpu_use", "0"): 0.37,
        ("populora_gpu_memory_used_bytes", "1"): 3 * 2.0**20,
        ("populora_gpu_memory_bytes", "1"): 81559 * 2.0**20,
    }
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert telemetry_machine.cards() == []


class _Api(BaseHTTPRequestHandler):
    """What a Prefect server answers to the two questions; it keeps what it was asked."""

    asked: ClassVar[list[tuple[str, dict, str | None]]] = []

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, question, self.headers["Authorization"]))
        state = question.get("flow_runs", {}).get("state", {}).get("name", {}).get("any_", [""])[0]
        answer = [{"name": "gpu"}, {"name": "cpu"}] if self.path.endswith("/work_pools/filter") else {"Late": 2}.get(state, 0)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


class _SlowApi(_Api):
    """The same, but each answer takes a while."""

    asked: ClassVar[list[tuple[str, dict, str | None]]] = []

    def do_POST(self):
        time.sleep(0.4)
        super().do_POST()


def test_a_slow_prefect_server_is_waited_for_once(monkeypatch):
    """Each answer comes in time, but not all of them together."""
    monkeypatch.setattr(telemetry_machine, "PATIENCE", 1.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _SlowApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = telemetry_machine.queue(f"http://127.0.0.1:{server.server_port}/api")
    server.shutdown()
    server.server_close()
    assert [(name, value) for name, _, _, value in found] == [("populora_prefect_up", 0.0)]
    assert len(_SlowApi.asked) <= 3


def test_flow_runs_that_wait_are_counted_by_pool_and_state(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:secret")
    with client(tmp_path / "empty") as pages:
        texts = [pages.get("/metrics").text for _ in range(2)]
    server.shutdown()
    server.server_close()
    assert values(texts[0], "populora_prefect_up") == 1
    assert values(texts[0], "populora_queue_flow_runs", pool="cpu", state="late") == 2
    assert values(texts[0], "populora_queue_flow_runs", pool="gpu", state="running") == 0
    assert len(_Api.asked) == 1 + 2 * len(telemetry_machine.STATES), "the second scrape is served from what is kept"
    assert all(header and header.startswith("Basic ") for _, _, header in _Api.asked)
    with client(tmp_path / "empty") as pages:
        assert values(pages.get("/metrics").text, "populora_prefect_up") == 0


def test_the_dashboard_asks_only_for_exported_metrics(text):
    dashboard = json.loads((PROJECT / "infra" / "grafana" / "dashboard.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries = [*targets, *(one["expr"] for one in dashboard["annotations"]["list"])]
    queries += [one["definition"] for one in dashboard["templating"]["list"] if "definition" in one]
    asked = {name for query in queries for name in re.findall(r"populora_\w+", query)}
    given = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    sources = "".join((PROJECT / "flows" / "monitoring" / f"telemetry{part}.py").read_text() for part in ("", "_run", "_machine"))
    # What a store at rest on a machine without a card does not export, and the tests above do.
    rare = {name for name in asked - given if f'"{name}"' in sources}
    assert asked - given - rare == set() and len(asked) > 20
    assert rare <= {
        "populora_lease_unchanged_seconds", "populora_alarm", "populora_alarms_total", "populora_entropy_nats",
        "populora_gpu_memory_used_bytes", "populora_gpu_memory_bytes", "populora_gpu_use", "populora_queue_flow_runs",
        "populora_stage_peak_memory_bytes", "populora_stage_peak_gpu_memory_bytes",
        "populora_money_total", "populora_energy_joules_total",
    }  # fmt: skip
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) and len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    labels = {label for query in queries for group in re.findall(r"\{(\w+)=~", query) for label in [group]}
    assert labels == {"run"}
