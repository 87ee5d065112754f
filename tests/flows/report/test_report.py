import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from flows.monitoring.status import status
from flows.prefect_ops.flows import write_report_of
from flows.report.report import export_figures, report
from flows.report.report_data import gather
from flows.report.report_page import ArtifactLinks, escape
from flows.run.fork import fork
from flows.run.history import population_age
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import NotStored, StoreRefused
from flows.store.file_store import FileStore
from stages.core import tables
from stages.core.highlight import python_html, visible
from tests.support import example_run
from tests.support.report_run import HOSTILE, made

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps what a browser would act upon."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def values(self, name):
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    with made(root, "half", 4, until="solve"):
        pass
    return root


@pytest.fixture(scope="module")
def half(store):
    return Run(FileStore(store), "half")


@pytest.fixture(scope="module")
def page(store, half):
    return Page(report(half, store / "half" / "report.html"))


def test_nothing_on_the_page_runs_or_comes_from_elsewhere(page):
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "image", "foreignobject"}
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcset", "action", "background")]
    assert "default-src 'none'" in page.values("content")[2]
    for target in page.values("href") + page.values("xlink:href"):
        assert not re.match(r"[a-z]+:|//", target), target


def test_links_lead_to_artifacts_and_places_that_exist(page, store):
    ids = set(page.values("id"))
    assert len(ids) == len(page.values("id"))
    links = [target for target in page.values("href") if not target.startswith("#")]
    assert "generation=0002/grades.parquet" in links and "generation=0003/solve.json" in links and "run.json" in links
    assert all((store / "half" / unquote(target)).is_file() for target in links)
    assert {target[1:] for target in page.values("href") + page.values("xlink:href") if target.startswith("#")} <= ids


def test_hostile_text_is_shown_and_not_obeyed(page, store):
    source = (store / "half" / "report.html").read_text(encoding="utf-8")
    assert "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \\x1b[31mred\\u202e" in page.text
    assert HOSTILE not in source and "\x1b" not in source and "\u202e" not in source


def test_a_half_finished_run_says_what_is_missing(page):
    assert "Generation 3 is not finished: grade is its next stage" in page.text
    assert "3 of 4" in page.text
    assert "No benchmark has been scored yet." in page.text


def test_numbers_carry_their_source_and_the_configuration_is_shown(page):
    assert "How often do students solve tasks?" in page.text
    assert "Hardest solved" in page.text
    assert "group_size" in page.text and "0123456789ab" in page.text


def test_a_folder_is_no_report_and_nothing_is_left_behind(half, tmp_path, monkeypatch):
    monkeypatch.setattr("flows.report.report.gather", lambda run: pytest.fail("refused after the work"))
    (tmp_path / "taken").mkdir()
    with pytest.raises(StoreRefused, match="taken is a folder; name a file"):
        report(half, tmp_path / "taken")
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def test_reports_of_one_run_are_equal(page, store, half):
    second = report(half, store / "half" / "second.html")
    assert second.read_bytes() == (store / "half" / "report.html").read_bytes()


@pytest.mark.slow
def test_a_report_elsewhere_names_artifacts_without_links(half, tmp_path):
    found = Page(report(half, tmp_path / "deep" / "report.html"))
    assert all(target.startswith("#") for target in found.values("href"))
    assert "run.json" in found.text and str(tmp_path) not in found.text


def test_links_start_where_the_report_lies(store, half):
    assert ArtifactLinks(half.store, "half", store / "half.html", {})("run.json").startswith('<a href="half/run.json">')
    assert (
        ArtifactLinks(half.store, "half", store / "half" / "r.html", {})("run.json", "<b>")
        == '<a href="run.json"><code>&lt;b&gt;</code></a>'
    )


def test_what_a_fork_shares_is_linked_in_the_run_that_holds_it(tmp_path):
    store = FileStore(tmp_path)
    with hold(store, "first") as epoch:
        example_run.build(Run(store, "first", epoch), 2)
    for parent, run_id, generation in (("first", "second", 1), ("second", "third", 0)):
        fork(Run(store, parent), run_id, generation, [], lambda config: {}, {})
    for out in (tmp_path / "third.html", tmp_path / "third" / "report.html"):
        page = Page(report(Run(store, "third"), out))
        links = [unquote(target) for target in page.values("href") if not target.startswith("#")]
        assert all((out.parent / target).is_file() for target in links)
        assert any(target.endswith("first/generation=0000/grades.parquet") for target in links)
        assert any(target.endswith("generation=0000/grade.json") and "first" not in target for target in links)


def test_missing_and_damaged_generations_are_named_and_left_out(store, tmp_path):
    shutil.copytree(store / "half", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "generation=0001")
    (tmp_path / "half" / "generation=0002" / "grades.parquet").write_bytes(b"flipped")
    (tmp_path / "half" / "generation=0000" / "samples.parquet").unlink()
    found = Page(report(Run(FileStore(tmp_path), "half"), tmp_path / "half" / "report.html"))
    assert "Generations 1 are not stored; lines are broken there." in found.text
    assert "generation=0002/grades.parquet is left out of every figure" in found.text
    assert "generation=0000/samples.parquet is left out of every figure" in found.text


@pytest.mark.slow
def test_lost_tables_of_tasks_and_matches_leave_a_report(tmp_path):
    with made(tmp_path, "run", 2):
        pass
    whole = Page(report(Run(FileStore(tmp_path), "run"), tmp_path / "whole.html")).text
    assert "valid, generation 1" in whole and "solved, generation 1" in whole and "Empty pairs never met" in whole
    (tmp_path / "run" / "generation=0001" / "tasks.parquet").unlink()
    for generation in range(2):
        (tmp_path / "run" / f"generation={generation:04d}" / "matches.parquet").unlink()
    text = Page(report(Run(FileStore(tmp_path), "run"), tmp_path / "lost.html")).text
    assert "nan" not in re.findall(r"\b\w+\b", text)
    assert "valid, generation 1" not in text and "solved, generation 1" in text
    assert "The matches of the graded attempts cannot be read." in text


@pytest.mark.parametrize(("generations", "until"), [(1, "match"), (1, "propose"), (1, "verify"), (1, "")])
def test_any_beginning_of_a_run_has_a_report_and_a_status(tmp_path, generations, until):
    with made(tmp_path, "run", generations, until=until) as run:
        Page(report(run, tmp_path / "run" / "report.html"))
        assert "held by process" in status(run)
    assert "not held" in status(run)


@pytest.mark.slow
def test_a_single_agent_has_a_report(tmp_path):
    with made(tmp_path, "one", 3, mode="single") as run:
        found = Page(report(run, tmp_path / "one" / "report.html"))
        assert "g0002  valid" in status(run)
    assert "A single agent in both roles" in found.text
    assert "Who is getting stronger?" in found.text


def test_a_run_never_started_is_refused(tmp_path):
    with pytest.raises(NotStored, match="no run nothing"):
        report(Run(FileStore(tmp_path), "nothing"), tmp_path / "report.html")
    with pytest.raises(NotStored, match="no run nothing"):
        status(Run(FileStore(tmp_path), "nothing"))
    assert not (tmp_path / "report.html").exists()


def test_the_flow_s_report_lies_beside_the_run_whatever_the_folder_is_called(tmp_path):
    with made(tmp_path / "my runs", "run", 1, until="match") as run:
        place = Path(write_report_of(run))
    assert place == tmp_path / "my runs" / "run.html" and place.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my runs"]


def test_newborns_have_the_generations_of_their_parents_behind_them(tmp_path):
    with made(tmp_path, "run", 4) as run:
        newborn = next(row for row in run.read_table(1, "offspring").to_pylist())
        parent = newborn["parents"][0]
        adapters = ["s0-start", newborn["adapter_id"], f"{parent}-g0001", f"{newborn['member_id']}-g0002"]
        rows = [_scored(adapter) for adapter in adapters]
        for who, some in (
            ("births", rows),
            ("generation=0001", rows[2:3]),
            ("generation=0001-top1", rows[2:3]),
            ("start", rows[:1]),
        ):
            place = f"benchmarks/probe-dev/asked/{who}-n0-k0"
            ref = run.write_table_at(f"{place}/scores.parquet", tables.table(some, tables.SCORES), tables.SCORES)
            run.commit_benchmark(place.removeprefix("benchmarks/"), [], [ref], {}, {}, {})
        found = gather(Run(run.store, "run")).tables["scores"]
    assert newborn["adapter_id"].endswith("-start")
    trained = dict(zip(found["adapter_id"].to_pylist(), found["trained"].to_pylist(), strict=True))
    assert [trained[adapter] for adapter in adapters] == [0, 2, 2, 3]
    population = found.filter(found["population"])
    assert sorted(population["uri"].to_pylist()) == [
        "benchmarks/probe-dev/asked/generation=0001-n0-k0/scores.parquet",
        "benchmarks/probe-dev/asked/start-n0-k0/scores.parquet",
    ]


def test_scores_say_how_they_were_asked_for(tmp_path):
    """`populora benchmark --style chat`, then `--style completion`: rows that differ in nothing else a reader could see."""
    with made(tmp_path, "run", 2) as run:
        for style, tokens in (("chat", 1024), ("completion", 512)):
            place = f"benchmarks/humaneval/asked/generation=0001-{style}"
            scores = tables.table([_scored("s0-g0001") | {"suite": "humaneval"}], tables.SCORES)
            ref = run.write_table_at(f"{place}/scores.parquet", scores, tables.SCORES)
            asked = {"question": {"style": style, "max_new_tokens": tokens, "attempts": 0, "temperature": 1.0}}
            run.commit_benchmark(place.removeprefix("benchmarks/"), [], [ref], {}, asked, {})
        found = gather(Run(run.store, "run")).tables["scores"].to_pylist()
        page = report(run, tmp_path / "report.html").read_text()
    ways = ["chat, 1,024 tokens", "completion, 512 tokens"]
    assert sorted(row["question"] for row in found) == ways
    assert all(f"<td>{way}</td>" in page for way in ways)


@pytest.mark.parametrize(
    ("scores", "generation", "age"),
    [
        ("benchmarks/probe-dev/generation=0009/scores.parquet", 9, 10),
        ("benchmarks/probe-dev/start/scores.parquet", 0, 0),
        ("benchmarks/probe-dev/generation=0009/births/scores.parquet", 9, None),
        ("benchmarks/probe-dev/generation=0009/children/scores.parquet", 9, None),
        ("benchmarks/probe-dev/generation=0009/answers.parquet", 9, None),
        ("benchmarks/probe-dev/asked/generation=0009-n0-k0/scores.parquet", None, 10),
        ("benchmarks/probe-dev/asked/generation=0009-all-n0-k0/scores.parquet", None, 10),
        ("benchmarks/probe-dev/asked/start-n0-k0/scores.parquet", None, 0),
        ("benchmarks/probe-dev/asked/generation=0009-top2-n0-k0/scores.parquet", None, None),
        ("benchmarks/probe-dev/asked/s1-g0009-n0-k0/scores.parquet", None, None),
        ("benchmarks/probe-dev/chosen/generation=0009-n0-k0/scores.parquet", None, None),
        ("scores.parquet", None, None),
    ],
)
def test_scores_of_a_population_are_known_by_their_place(scores, generation, age):
    assert population_age(scores, generation) == age


def _scored(adapter: str) -> dict[str, object]:
    row = {"suite": "probe-dev", "member_id": adapter.partition("-")[0], "role": "student", "adapter_id": adapter}
    row |= {"adapter_sha256": "0" * 64, "group": "all", "measure": "pass@1 greedy"}
    return row | {"score": 0.5, "problems": 4, "attempts": 1, "stderr": None}


def test_a_place_that_cannot_be_written_is_named(half, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="file"):
        report(half, tmp_path / "file" / "report.html")


def test_status_says_where_a_run_stands(half, store):
    lines = dict(line.split(maxsplit=1) for line in status(half).splitlines())
    assert lines["done"] == "3 of 4 generations; last finished: solve of generation 3"
    assert lines["next"] == "grade of generation 3"
    assert lines["head"] == half.history.head()
    assert lines["numbers"].startswith("g0002  valid ")
    assert re.fullmatch(r"[\d.]+ [KM]B \(generations .*, other .*\)", lines["stored"])


@pytest.mark.slow
def test_figures_as_files(half, tmp_path):
    written = export_figures(half, tmp_path)
    assert {path.suffix for path in written} == {".svg", ".png"}
    assert all(path.stat().st_size > 1000 for path in written)
    assert not list(tmp_path.glob(".*"))


def test_hidden_characters_are_written_out_and_long_texts_cut():
    assert visible("a\tb\n\x00\x9b\u200b\ufeff\ud800") == "a\tb\n\\x00\\x9b\\u200b\\ufeff\\ud800"
    unseen = "\u3164\u115f\u1160\uffa0\u034f\ufe0f\u180e\u2062"
    assert visible(unseen) == unseen.encode("unicode_escape").decode()
    assert visible("a\U000e0061\U000e007f\U000e0100") == "a\\U000e0061\\U000e007f\\U000e0100"
    assert visible("é\u0301 한글 😀 \ufffd") == "é\u0301 한글 😀 \ufffd"
    assert visible("abcdef", 4) == "abcd … (2 more characters)"
    assert python_html("x = '<b>'\n").startswith('<span class="n">x</span> ')
    assert "&lt;b&gt;" in python_html("x = '<b>'") and not python_html("x = 1\n").endswith("\n")
    assert python_html("x\n\t \n") == '<span class="n">x</span>\n'  # n such lines take Pygments a time like n²
    assert python_html("<" * 20_000) == "&lt;" * 20_000
    assert escape('<"&\u2028') == "&lt;&quot;&amp;\\u2028"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sixty_generations_take_under_thirty_seconds_and_fifteen_megabytes(tmp_path):
    with made(tmp_path, "long", 60) as run:
        began = time.process_time()
        out = report(run, tmp_path / "long" / "report.html")
        assert time.process_time() - began < 30
    assert out.stat().st_size < 15e6
    Page(out)
