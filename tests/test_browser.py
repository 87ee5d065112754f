"""The artifact browser: every page of a real store, hostile texts, faults as clear pages, metrics that agree with the tables."""

import html
import json
import re

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from flows.browser.app import make_app
from flows.browser.pedigree import Pedigree
from flows.browser.serve import listen
from flows.browser.table_view import Asked, row, view
from flows.config import ConfigError
from flows.file_store import FileStore
from flows.lease import hold
from flows.manifest import Run
from flows.slices import parquet_file
from flows.storage import NotStored, StoreRefused, encode_table
from flows.watch import Watch
from stages.core import tables
from tests import example_run
from tests.report_run import HOSTILE, made

SCRIPT = "<script>alert(1)</script>"


def client(store: str) -> TestClient:
    return TestClient(make_app(store), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run with births and real adapters, one with hostile texts that is not finished, and one damaged, retired and robbed."""
    root = tmp_path_factory.mktemp("store")
    files = FileStore(root)
    for name in ("whole", "broken"):
        with hold(files, name) as epoch:
            example_run.build(Run(files, name, epoch), 3)
    with made(root, "hostile", 3, until="grade"):
        pass
    spoil(root / "broken")
    (root / "notes").mkdir()
    return root


def spoil(folder):
    """A flipped table, a missing one, and a retired adapter file."""
    (folder / "generation=0001" / "tasks.parquet").write_bytes(b"damaged")
    (folder / "generation=0001" / "matches.parquet").unlink()
    gone = folder / "adapters" / "t0-g0000" / "optimizer.safetensors"
    gone.unlink()
    (folder / "gc").mkdir()
    entry = {"uri": "adapters/t0-g0000/optimizer.safetensors", "sha256": "0" * 64, "reason": "newest 2 only"}
    (folder / "gc" / "0001.json").write_text(json.dumps({"schema": 1, "retired": [entry], "clock": {}}))


@pytest.fixture(scope="module")
def pages(store):
    with client(str(store)) as found:
        yield found


def shown(pages, address, status=200):
    """The page as text without markup."""
    answer = pages.get(address)
    assert answer.status_code == status, (address, answer.text[-500:])
    return html.unescape(re.sub(r"<[^>]+>", " ", answer.text))


def links(text):
    return {html.unescape(found) for found in re.findall(r'(?:href|action|src)="([^"]*)"', text)}


def test_every_link_of_a_run_leads_to_a_page_and_nothing_leaves_the_machine(pages):
    seen, todo, families = set(), ["/"], {}
    while todo:
        address = todo.pop().partition("#")[0]
        family = re.sub(r"\d+", "0", address)
        if not address or address in seen or families.get(family, 0) > 0 or "/runs/broken" in address:
            continue
        seen.add(address)
        families[family] = families.get(family, 0) + 1
        answer = pages.get(address)
        assert answer.status_code == 200, (address, answer.text[-500:])
        if "text/html" in answer.headers["content-type"]:
            found = links(answer.text)
            assert all(link.startswith(("/", "#", "?")) for link in found), found
            assert "<script" not in answer.text and "<style" not in answer.text and "javascript:" not in answer.text
            todo += [link for link in found if link.startswith("/")]
    assert {family.split("/")[3] for family in families if family.count("/") >= 3} >= {
        "generations", "tables", "rows", "tasks", "adapters", "figures", "manifests", "files",
    }  # fmt: skip


def test_runs_page_says_where_each_run_stands(pages):
    text = " ".join(shown(pages, "/").split())
    assert "3 of 3 generations; last finished: evolve of generation 2" in text
    assert "grade of generation 2" in text and "reward of generation 2" in text
    assert "notes" not in links(pages.get("/").text)


def test_from_an_attempt_to_the_weights_that_its_teacher_came_from(pages):
    """Attempt → task → proposal's weights → update before → parents at birth, and forward to what the task moved."""
    run = "/runs/whole"
    attempt = "g0002-m00-p000-r00"
    rollouts = pages.get(f"{run}/tables/generation=0002/rollouts.parquet").text
    assert f'href="{run}/tasks/g0002-m00-p000#{attempt}"' in rollouts
    task = pages.get(f"{run}/tasks/{attempt}").text
    assert f'id="{attempt}"' in task and f'href="{run}/tasks/seed-deduction"' in task
    page = shown(pages, f"{run}/tasks/g0002-m00-p000")
    stored = Run(FileStore_of(pages), "whole")
    rollout = stored.read_table(2, "rollouts").to_pylist()[0]
    assert rollout["adapter_sha256"][:12] in page and "advantage" in page
    sample = next(one for one in stored.read_table(2, "samples").to_pylist() if one["sample_id"] == attempt)
    assert f"{sample['advantage']:+.3f}".replace("-", "−") in page
    student = stored.read_table(2, "ratings").to_pylist()
    moved = next(one for one in student if one["member_id"] == rollout["student_id"])
    assert f'href="{run}/adapters/{moved["next_adapter_id"]}"' in task
    child = stored.read_table(0, "offspring").to_pylist()[0]
    adapter = pages.get(f"{run}/adapters/{child['adapter_id']}")
    assert f'href="{run}/adapters/{child["parent_adapter_ids"][0]}"' in adapter.text
    assert f"{child['operator']} in generation" in shown(pages, f"{run}/adapters/{child['adapter_id']}")


def FileStore_of(pages):
    from flows.storage import open_store

    return open_store(pages.get("/healthz").json()["store"])


def test_the_tree_of_an_adapter(store):
    watch = Watch(Run(FileStore(store), "whole")).look()
    pedigree = Pedigree(watch)
    birth = watch.of(0, "offspring").to_pylist()[0]
    newest = pedigree.members()[birth["member_id"]][-1]
    up = pedigree.ancestors(newest.adapter_id)
    assert [step.made_by for step in up.steps][-1] == "evolve"
    assert [branch.node.adapter_id for branch in up.branches] == birth["parent_adapter_ids"]
    assert up.branches[0].steps[-1].adapter_id == "s0-start"
    down = pedigree.descendants("s0-start")
    assert {branch.node.member_id for branch in down.branches} == {"s2", "s3"}
    assert [node.adapter_id for node in pedigree.lineage("t0-g0001")] == ["t0-g0001", "t0-g0000", "t0-start"]
    assert pedigree.node("none") is None


def test_change_of_weights_is_worked_out_from_both(pages):
    from safetensors.numpy import load

    from stages.core.delta import compare

    run = Run(FileStore_of(pages), "whole")
    weights = [load(run.read_blob(f"adapters/{name}/adapter_model.safetensors")) for name in ("t0-g0001", "t0-g0000")]
    assert f"{compare(*weights).relative:.3g}" in shown(pages, "/runs/whole/adapters/t0-g0001")


def test_hostile_text_is_shown_and_obeyed_by_nobody(pages):
    run = Run(FileStore_of(pages), "hostile")
    tasks = run.read_table(1, "tasks").to_pylist()
    hostile = [one for one in tasks if "<script>" in one["program"] + one["message"] + "".join(one["inputs"])]
    rollouts = [one for one in run.read_table(1, "rollouts").to_pylist() if HOSTILE in (one["text"], one["answer"])]
    addresses = [f"/runs/hostile/tasks/{one['task_id']}" for one in [*hostile, *rollouts]][:6]
    addresses += [f"/runs/hostile/tables/generation=0001/{name}.parquet" for name in ("tasks", "rollouts", "proposals")]
    assert len(addresses) > 3
    said = 0
    for address in addresses:
        text = pages.get(address).text
        assert "<script" not in text and "<img" not in text and "\u202e" not in text and "\x1b" not in text, address
        said += "&lt;script&gt;" in text
    assert said


def test_long_values_and_odd_characters_are_cut_and_written_out():
    from flows.browser.render import environment

    pages = environment()
    show = pages.from_string("{{ text|cut(20) }}|{{ text }}|{{ code|code }}").render(
        text="a\u202eb<i>\x00" + "x" * 70_000, code="x = '</pre>" + SCRIPT + "'" + "y" * 70_000
    )
    assert show.startswith("a\\u202eb&lt;i&gt;\\x00") and "(69,986 more characters)" in show.split("|")[0]
    assert "<script" not in show and "more characters" in show.split("|")[2]


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/runs/none", 404, "There is no run none"),
        ("/runs/..%2Fetc", 404, "run id"),
        ("/runs/UPPER", 404, "run id"),
        ("/runs/whole/generations/7", 404, "has finished no stage of generation=0007"),
        ("/runs/whole/generations/x", 404, "has no generation x"),
        ("/runs/whole/tables/generation=0000/nonsense.parquet", 404, "No manifest of run whole names"),
        ("/runs/whole/tables/../../../etc/passwd", 404, ""),
        ("/runs/whole/tables/%2e%2e/%2e%2e/etc/passwd.parquet", 404, "No manifest"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?page=9", 400, "There is no page 9"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?page=0", 400, "page"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?column=none&value=1", 400, "no column 'none'"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?sort=inputs", 400, "holds lists"),
        ("/runs/whole/tables/generation=0000/rollouts.parquet?column=seed&value=one", 400, "holds int64 values"),
        ("/runs/whole/rows/999/generation=0000/tasks.parquet", 404, "There is no row 999"),
        ("/runs/whole/rows/-1/generation=0000/tasks.parquet", 400, "no number of a row"),
        ("/runs/whole/tasks/g0000-m00-p999", 404, "has no task g0000-m00-p999"),
        ("/runs/whole/tasks/%3Cscript%3E", 404, "has no task"),
        ("/runs/whole/adapters/t9-g0000", 404, "has no adapter t9-g0000"),
        ("/runs/whole/manifests/generation=0000/none.json", 404, "has no manifest"),
        ("/runs/whole/figures/none.png", 404, "has no figure none"),
        ("/nowhere", 404, "Not Found"),
        ("/runs/broken/tables/generation=0001/tasks.parquet", 502, "its digest is not"),
        ("/runs/broken/tasks/g0001-m00-p000", 502, "its digest is not"),
        ("/runs/broken/tables/generation=0001/matches.parquet", 404, "no such artifact"),
        ("/runs/broken/files/adapters/t0-g0000/optimizer.safetensors", 410, "was retired: newest 2 only"),
    ],
)
def test_what_is_not_there_is_a_clear_page(pages, address, status, said):
    text = shown(pages, address, status)
    assert said in text and "Traceback" not in text


def test_a_damaged_run_still_has_its_other_pages(pages):
    assert "retired: newest 2 only" in shown(pages, "/runs/broken/adapters/t0-g0000")
    assert "generation 1" in shown(pages, "/runs/broken/generations/1").lower()
    assert "left out of every figure" in shown(pages, "/runs/broken/figures")


def test_only_reading_and_only_under_its_own_names(pages):
    assert pages.post("/").status_code == 405
    assert pages.delete("/runs/whole").status_code == 405
    assert pages.get("/", headers={"host": "attacker.example"}).status_code == 400
    headers = pages.get("/").headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ") and "script" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert pages.get("/docs").status_code == 404 and pages.get("/openapi.json").status_code == 404


def test_a_download_is_the_stored_artifact(pages, store):
    answer = pages.get("/runs/whole/files/generation=0000/tasks.parquet")
    assert answer.content == (store / "whole" / "generation=0000" / "tasks.parquet").read_bytes()
    assert answer.headers["content-disposition"] == 'attachment; filename="whole-generation=0000-tasks.parquet"'
    assert pages.get("/runs/whole/figures/solve-rate.png").content.startswith(b"\x89PNG")


def numbers():
    """5,000 rows in which `group` has 7 values and `score` nulls."""
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("group", pa.int64()),
            ("score", pa.float64()),
            ("ids", pa.list_(pa.string())),
            ("prompt_ids", pa.list_(pa.int32())),
        ]
    )
    rows = [
        {
            "name": f"n{at:04d}",
            "group": at % 7,
            "score": None if at % 5 == 0 else at / 3,
            "ids": [f"i{at % 3}"],
            "prompt_ids": [1] * (at % 4),
        }
        for at in range(5000)
    ]
    return rows, parquet_file(encode_table(pa.Table.from_pylist(rows, schema)), "numbers")


def names(found):
    return [values["name"] for _, values in found.rows]


def test_pages_filters_and_sorts_agree_with_the_table():
    rows, file = numbers()
    first = view(file, Asked())
    assert (first.total, first.found, first.pages, len(first.rows)) == (5000, 5000, 100, 50)
    assert names(view(file, Asked(page=100))) == [row["name"] for row in rows[-50:]]
    assert first.rows[3] == (3, rows[3] | {"prompt_ids": 3})
    found = view(file, Asked("group", "3", "score", True))
    wanted = sorted((row for row in rows if row["group"] == 3), key=lambda row: (row["score"] is None, -(row["score"] or 0)))
    assert found.found == len(wanted) and names(found) == [row["name"] for row in wanted[:50]]
    assert view(file, Asked("ids", "i1")).found == sum(row["ids"] == ["i1"] for row in rows)
    assert view(file, Asked("score", "–")).found == 1000
    assert view(file, Asked("name", "none")).rows == []
    assert names(view(file, Asked(sort="group")))[0] == "n0000"
    assert row(file, 4999) == rows[4999]
    assert first.sortable == ["name", "group", "score"]


def test_a_column_that_was_not_asked_for_is_not_decoded():
    _, file = numbers()
    reads = []

    class Counting:
        metadata, schema_arrow = file.metadata, file.schema_arrow

        def read(self, columns):
            reads.append(columns)
            return file.read(columns)

        def iter_batches(self, size, columns=None):
            for batch in file.iter_batches(size, columns=columns):
                reads.append(batch.num_rows)
                yield batch

    view(Counting(), Asked("group", "3", "name"))
    assert reads == [["group"], ["name"], 2048]


def test_metrics_agree_with_the_tables(pages):
    families = {family.name: family for family in text_string_to_metric_families(pages.get("/metrics").text)}

    def value(name, **labels):
        return [
            sample.value
            for family in families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]

    run = Run(FileStore_of(pages), "whole")
    assert value("populora_generations_done", run="whole") == [3] and value("populora_generations_planned", run="whole") == [3]
    assert value("populora_generations_done", run="hostile") == [2]
    assert value("populora_solve_rate", run="whole", kind="all") == [0.5]
    rated = run.read_table(2, "ratings").to_pylist()
    assert value("populora_rating_mu", run="whole", member="t0", role="teacher") == [
        next(row["mu"] for row in rated if row["member_id"] == "t0")
    ]
    assert value("populora_lease_held", run="whole") == [0]
    sizes = run.store.sizes("whole/adapters/")
    assert value("populora_store_bytes", run="whole", kind="adapters") == [sum(sizes.values())]
    hostile = [run for run in ("hostile",) if value("populora_tokens_total", run=run, stage="propose")]
    completions = sum(
        len(ids)
        for generation in (0, 1)
        for ids in Run(run.store, "hostile").read_table(generation, "proposals")["completion_ids"].to_pylist()
    )
    assert hostile and value("populora_tokens_total", run="hostile", stage="propose") == [completions]


def test_the_lease_ages_by_our_own_clock(tmp_path):
    files = FileStore(tmp_path)
    with hold(files, "r", beat_seconds=60) as epoch:
        example_run.build(Run(files, "r", epoch), 1)
        with client(str(tmp_path)) as pages:
            texts = [pages.get("/metrics").text for _ in range(2)]
    ages = [float(re.search(r'lease_unchanged_seconds\{run="r"\} (\S+)', text)[1]) for text in texts]
    assert 'populora_lease_held{run="r"} 1.0' in texts[0] and ages[0] == 0 < ages[1]


def test_a_store_that_is_none(tmp_path):
    with pytest.raises(StoreRefused, match="unknown scheme"):
        make_app("ftp://elsewhere")
    with client(str(tmp_path / "nothing")) as pages:
        assert "This store holds no run yet" in shown(pages, "/")
        assert "populora_unreadable_runs 0.0" in pages.get("/metrics").text


def test_a_taken_port_is_one_line():
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --host or --port"):
            listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match="--port 99999"):
        listen("127.0.0.1", 99999)


def test_the_dashboard_asks_for_metrics_that_are_there(pages):
    from flows.config import PROJECT

    dashboard = json.loads((PROJECT / "infra" / "grafana" / "dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"populora_\w+", target["expr"])
    }
    given = set(re.findall(r"^# TYPE (\S+)", pages.get("/metrics").text, re.MULTILINE))
    assert len(asked) > 10
    # Only while a process works on the run, or where an engine and a trainer have been compared.
    assert asked - given <= {"populora_lease_unchanged_seconds", "populora_alarm", "populora_stage_peak_memory_bytes"}


def test_a_page_says_not_stored_for_a_row_that_is_none():
    with pytest.raises(NotStored, match="There is no row 5000"):
        row(numbers()[1], 5000)
    assert tables.TASKS.names[0] == "task_id"
