"""The artifact browser: every page of a real store, hostile texts, and faults as clear pages."""

import html
import json
import re

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.browser.serve import listen
from flows.config import ConfigError
from flows.monitoring.run_tables import RunTables
from flows.pages.pedigree import Pedigree
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import StoreRefused, open_store
from flows.store.file_store import FileStore
from tests.support import example_run
from tests.support.report_run import HOSTILE, made

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


def inert(text, scripts=False):
    """Whether a page has no script, none but files of this server if `scripts`, and no style of its own."""
    own = re.sub(r'<script src="/static/[\w./]+\.js" defer></script>', "", text) if scripts else text
    return not re.search(r"<script|<style|javascript:|<[^<>]*\son\w+\s*=", own)


def test_every_link_of_a_run_leads_to_a_page_and_nothing_leaves_the_machine(pages):
    seen, todo, families = set(), ["/"], {}
    while todo:
        address = todo.pop().partition("#")[0]
        family = re.sub(r"/figures/[\w-]+", "/figures/0", re.sub(r"\d+", "0", address))
        if not address or address in seen or families.get(family, 0) > 0 or "/runs/broken" in address:
            continue
        seen.add(address)
        families[family] = families.get(family, 0) + 1
        answer = pages.get(address)
        assert answer.status_code == 200, (address, answer.text[-500:])
        if "text/html" in answer.headers["content-type"]:
            found = links(answer.text)
            assert all(link.startswith(("/", "#", "?")) for link in found), found
            assert inert(answer.text, scripts=family.endswith(("/live", "/figures/0"))), address
            todo += [link for link in found if link.startswith("/")]
    assert {family.split("/")[3] for family in families if family.count("/") >= 3} >= {
        "generations", "tables", "rows", "tasks", "adapters", "figures", "manifests", "files", "live",
    }  # fmt: skip


def test_runs_page_says_where_each_run_stands(pages):
    text = " ".join(shown(pages, "/").split())
    assert "whole finished 3 of 3" in text and "broken finished 3 of 3" in text
    assert "hostile stopped 2 of 3" in text and "reward of generation 2" in text
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
    stored = Run(store_of(pages), "whole")
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


def store_of(pages):
    """The store that the pages show."""
    return open_store(pages.get("/healthz").json()["store"])


def test_the_tree_of_an_adapter(store):
    watch = RunTables(Run(FileStore(store), "whole")).look()
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

    from stages.core.lora.delta import compare

    run = Run(store_of(pages), "whole")
    weights = [load(run.read_blob(f"adapters/{name}/adapter_model.safetensors")) for name in ("t0-g0001", "t0-g0000")]
    assert f"{compare(*weights).relative:.3g}" in shown(pages, "/runs/whole/adapters/t0-g0001")


def test_hostile_text_is_shown_and_obeyed_by_nobody(pages):
    run = Run(store_of(pages), "hostile")
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


def test_a_table_shows_the_first_lines_of_a_program_as_text():
    from flows.browser.render import environment

    show = environment().from_string("{{ text|preview }}").render
    assert show(text="def f(x):\n    return x\n") == "def f(x):\n    return x"
    assert show(text="a\n  b\nc\nd\n\ne") == "a\n  b\nc\n… 3 more lines"
    assert show(text=f"<i>\u202e\n{'x' * 200}\n1\n2") == f"&lt;i&gt;\\u202e\n{'x' * 120}…\n1\n… 1 more line"


def test_programs_keep_their_lines_in_tables(pages):
    program = Run(store_of(pages), "whole").read_table(1, "tasks").to_pylist()[0]["program"]
    first, second = program.split("\n")[:2]
    shown_lines = html.unescape(pages.get("/runs/whole/tables/generation=0001/tasks.parquet").text)
    assert f'<code class="lines">{first}\n{second}' in shown_lines


def test_a_key_breaks_between_its_words_and_stays_text():
    from flows.browser.render import environment

    shown_key = environment().from_string("{{ key|breakable }}").render(key="learning.learning_rate<b>.\x1b")
    assert shown_key == "learning.<wbr>learning_<wbr>rate&lt;b&gt;.\\x1b"


def test_an_adapters_line_has_arrows_and_says_what_is_not_there_yet(pages):
    text = " ".join(shown(pages, "/runs/whole/adapters/t0-g0000").split())
    assert "Came from t0-g0000 ← t0-start start Became t0-g0000 → t0-g0001 → t0-g0002" in text
    assert "Became Nothing yet." in " ".join(shown(pages, "/runs/whole/adapters/t0-g0002").split())


def test_an_empty_completion_says_so(pages):
    assert "The completion is empty." in shown(pages, "/runs/hostile/tasks/g0001-m00-p000")


def test_long_values_and_odd_characters_are_cut_and_written_out():
    from flows.browser.render import environment

    pages = environment()
    show = pages.from_string("{{ text|cut(20) }}|{{ text }}|{{ code|code }}").render(
        text="a\u202eb<i>\x00" + "x" * 70_000, code="x = '</pre>" + SCRIPT + "'" + "y" * 70_000
    )
    assert show.startswith("a\\u202eb&lt;i&gt;\\x00") and "(69,987 more characters)" in show.split("|")[0]
    assert "<script" not in show and show.endswith(" more characters)")


def test_negative_numbers_have_a_minus_sign(pages):
    stored = Run(store_of(pages), "whole").read_table(2, "ratings").to_pylist()
    worst = min(stored, key=lambda row: row["mu"] - row["mu_before"])
    change = f"−{worst['mu_before'] - worst['mu']:.2f}"
    names = ("generations/2", f"adapters/{worst['adapter_id']}", "adapters")
    text = "".join(shown(pages, f"/runs/whole/{name}") for name in names)
    assert text.count(change) >= 2
    assert not re.search(r"(?<![\w.=-])-\d", text), "a hyphen before a number"


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/runs/none", 404, "There is no run none"),
        ("/runs/..%2Fetc", 404, "has no page at this address"),
        ("/runs/UPPER", 404, "run id"),
        ("/runs/whole/generations/7", 404, "has finished no stage of generation 7: it has begun generations 0 to"),
        ("/runs/whole/generations/x", 404, "has no generation x"),
        ("/runs/whole/tables/generation=0000/nonsense.parquet", 404, "No manifest of run whole lists"),
        ("/runs/whole/tables/../../../etc/passwd", 404, ""),
        ("/runs/whole/tables/%2e%2e/%2e%2e/etc/passwd.parquet", 404, "No manifest"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?page=9", 400, "There is no page 9"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?page=0", 400, "page"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?column=none&value=1", 400, "no column 'none'"),
        ("/runs/whole/tables/generation=0000/tasks.parquet?sort=inputs", 400, "contains lists"),
        ("/runs/whole/tables/generation=0000/rollouts.parquet?column=seed&value=one", 400, "contains int64 values"),
        ("/runs/whole/rows/999/generation=0000/tasks.parquet", 404, "There is no row 999"),
        ("/runs/whole/rows/-1/generation=0000/tasks.parquet", 400, "not a row number"),
        ("/runs/whole/tasks/g0000-m00-p999", 404, "has no task g0000-m00-p999"),
        ("/runs/whole/tasks/%3Cscript%3E", 404, "has no task"),
        ("/runs/whole/adapters/t9-g0000", 404, "has no adapter t9-g0000"),
        ("/runs/whole/manifests/generation=0000/none.json", 404, "has no manifest"),
        ("/runs/whole/manifests/run.json", 404, "has no manifest"),
        ("/runs/whole/manifests/adapters/s0-start/adapter_config.json", 404, "has no manifest"),
        ("/runs/whole/files/gradients", 404, ""),
        ("/runs/whole/files/adapters", 404, ""),
        ("/runs/whole/figures/none", 404, "has no figure none"),
        ("/runs/whole/figures/none.svg", 404, "has no figure none"),
        ("/runs/whole/figures/none.png", 404, "has no figure none"),
        ("/runs/whole/figures/benchmark.png", 404, "has no figure benchmark yet"),
        ("/runs/whole/figures/none.json", 404, "has no figure none"),
        ("/runs/none/live", 404, "There is no run none"),
        ("/runs/none/live/events", 404, "There is no run none"),
        ("/runs/..%2Fetc/live/events", 404, "has no page at this address"),
        ("/static/vendor/none.js", 404, "There is no script"),
        ("/static/%2e%2e/templates/base.html.js", 404, "There is no script"),
        ("/nowhere", 404, "has no page at this address"),
        ("/runs/broken/tables/generation=0001/tasks.parquet", 502, "its digest is not"),
        ("/runs/broken/tasks/g0001-m00-p000", 502, "its digest is not"),
        ("/runs/broken/tables/generation=0001/matches.parquet", 404, "no such artifact"),
        ("/runs/broken/files/adapters/t0-g0000/optimizer.safetensors", 410, "was retired: newest 2 only"),
    ],
)
def test_what_is_not_there_is_a_clear_page(pages, address, status, said):
    text = shown(pages, address, status)
    assert said in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("/nowhere", []),
        ("/runs/hole", ["/runs/whole"]),
        ("/runs/Whole", ["/runs/whole"]),
        ("/runs/whole/adapters/t0-g000", ["/runs/whole/adapters/t0-g0000", "/runs/whole/adapters", "/runs/whole"]),
        ("/runs/whole/tasks/g0000-m0-p000", ["/runs/whole/tasks/g0000-m00-p000", "/runs/whole/generations/0", "/runs/whole"]),
        ("/runs/whole/tasks/seed-deductio", ["/runs/whole/tasks/seed-deduction"]),
        ("/runs/whole/generations/7", ["/runs/whole/generations/2", "/runs/whole"]),
        ("/runs/whole/tables/generation=0000/nonsense.parquet", ["/runs/whole/generations/0"]),
        (f"/runs/whole/tasks/g{'9' * 5000}-m00", ["/runs/whole/generations/2"]),
    ],
)
def test_a_missing_page_leads_to_the_nearest_ones_and_to_the_list_of_runs(pages, address, near):
    found = links(pages.get(address).text)
    assert found >= {"/", *near} and all(pages.get(link).status_code == 200 for link in found)


def test_a_missing_page_shows_a_hostile_name_as_text(pages):
    addresses = (f"/runs/whole/tasks/{SCRIPT.replace('/', '%2F')}", "/runs/whole/adapters/%3Cimg%20src=x%3E")
    text = "".join(pages.get(address).text for address in addresses)
    assert inert(text) and "<img" not in text and "&lt;img" in text


def test_a_damaged_run_still_has_its_other_pages(pages):
    assert "retired: newest 2 only" in shown(pages, "/runs/broken/adapters/t0-g0000")
    assert "generation 1" in shown(pages, "/runs/broken/generations/1").lower()
    assert "left out of every figure" in shown(pages, "/runs/broken/figures/valid-share")


def test_only_reading_and_only_under_its_own_names(pages):
    assert pages.post("/").status_code == 405
    assert pages.delete("/runs/whole").status_code == 405
    assert pages.get("/", headers={"host": "attacker.example"}).status_code == 421
    assert pages.get("/", headers={"origin": "http://attacker.example"}).status_code == 403
    assert pages.get("/", headers={"origin": "http://127.0.0.1:9"}).status_code == 403
    assert pages.get("/", headers={"origin": "http://127.0.0.1"}).status_code == 200
    embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    assert pages.get("/runs/whole/figures/solve-rate.png", headers=embedded).status_code == 403
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert pages.get("/", headers=linked).status_code == 200
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
