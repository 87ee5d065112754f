"""Notes of a generation: links lead to pages of the browser, model-written text stays text, numbers are those of the tables."""

import html
import logging
import re
import sys
from urllib.parse import parse_qsl

import pytest
from fastapi.testclient import TestClient

from flows.browser.app import make_app
from flows.config import ConfigError, load
from flows.form_links import FormLinks, values
from flows.monitoring.alarms import Alarm
from flows.notes import publish
from flows.notes.end_text import HERE
from flows.notes.note_data import NoteBuilder
from flows.notes.note_text import SPARKS, fence, generation_note, match_rows, rating_rows, run_note, sparkline
from flows.notes.note_writer import LARGEST, NotesNotWritten, Writer, fitting, written
from flows.run.lease import hold
from flows.run.run import Run
from flows.store.file_store import FileStore
from stages.core.tables import GRADES, TASKS, table
from tests.support import example_run
from tests.support.report_run import HOSTILE, made

BASE = "http://127.0.0.1:8750"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    with made(root, "run", 3, until="evolve"):
        pass
    return root


@pytest.fixture(scope="module")
def teller(store):
    return NoteBuilder(Run(FileStore(store), "run"), 3, BASE)


@pytest.fixture(scope="module")
def told(teller):
    return teller.told(1)


def test_every_link_leads_to_a_page_of_the_browser(told, store):
    links = re.findall(rf"\]\(({BASE}[^)]*)\)", generation_note(told) + run_note("run", 3, ["a line"], [], told.at))
    assert len(set(links)) >= 5 + len({row["member_id"] for row in told.ratings}) + len(told.samples)
    with TestClient(make_app(str(store)), base_url="http://127.0.0.1") as pages:
        for link in sorted(set(links)):
            if "/figures" not in link:  # drawn in the browser's own tests
                assert pages.get(link.removeprefix(BASE)).status_code == 200, link


def test_under_serve_it_links_to_forms_that_are_filled_in(told, teller):
    assert "/forms/" not in generation_note(told)
    with_forms = NoteBuilder(teller.run, 3, BASE, FormLinks("http://127.0.0.1:4200")).told(2)
    links = re.findall(r"\]\(http://127.0.0.1:4200/forms/([^?]*)\?([^)]*)\)", generation_note(with_forms))
    filled = [(form, values(form, dict(parse_qsl(query)))) for form, query in links]
    assert (
        "fork",
        {"run_id": "run", "generation": "generation 2", "new_run_id": "run-g0002", "settings": ["generations=6"]},
    ) in filled
    assert [one["stage"] for form, one in filled if form == "restart"] == [
        one.stage for one in teller.run.history.of_generation(2)
    ]
    assert len([one for form, one in filled if form == "benchmark-member"]) == 2
    assert ("compare", {"runs": ["run"]}) in filled


def test_the_numbers_are_those_of_the_tables(told, teller):
    note = generation_note(told)
    tasks, grades = teller.run.read_table(1, "tasks").to_pylist(), teller.run.read_table(1, "grades").to_pylist()
    valid = sum(row["status"] == "valid" for row in tasks)
    assert f"| proposals valid | {100 * valid / len(tasks):.0f} % |" in note
    assert f"| attempts correct | {100 * sum(row['correct'] for row in grades) / len(grades):.0f} % |" in note
    assert f"valid {valid} ({valid / len(tasks):.0%})" in note
    assert re.search(r"\| valid program \| lines [\d.]+.*, depth [\d.]+.*, cyclomatic [\d.]+.*, variables [\d.]+", note)
    assert re.search(r"\| cells of problem space \| \d+ so far, \d+ of them new \|", note)
    assert "| match | propose | verify | solve |" in note
    assert note.count("data:image/png;base64,") == len(told.pictures) > 0 and "http" not in note.replace(BASE, "")


def test_tables_of_ratings_and_matches(told, teller):
    rows = rating_rows(told.ratings)
    assert [row["role"] for row in rows] == ["teacher"] * 3 + ["student"] * 3
    assert all(set(row) >= {"member", "mu", "change", "sigma", "weights"} for row in rows)
    last = [row for row in told.ratings if row["member_id"] == rows[0]["member"]][-1]
    twice = rating_rows([*told.ratings, last | {"mu_before": last["mu"], "mu": last["mu"] - 1, "result": "loss"}])
    change = next(row["change"] for row in twice if row["member"] == rows[0]["member"])
    assert change == pytest.approx(rows[0]["change"] - 1, abs=0.011), "all matches of a member count"
    tasks, grades = teller.tasks(1), teller.grades(1)
    for row in match_rows(teller.matches(1), tasks, grades):
        own = [one for one in grades if one["match_id"] == row["match"]]
        assert row["attempts"] == len(own)
        assert row["solved %"] == round(100 * sum(one["correct"] for one in own) / len(own), 1)


def test_model_written_text_stays_in_its_fence(told):
    """Shown are three tasks; each of their texts is replaced by one that tries to get out."""
    nasty = f"```\n</pre>{HOSTILE}\n````` <b>x</b>\n| a | b |"
    samples = []
    for sample in told.samples:
        task = sample.task | {"program": nasty, "inputs": [nasty], "outputs": [nasty]}
        samples.append(type(sample)(sample.heading, task, sample.right, sample.attempts, [(nasty, "wrong", 8)]))
    note = generation_note(type(told)(**(told.__dict__ | {"samples": samples, "pictures": {}})))
    outside, inside, ticks = [], [], ""
    for line in note.split("\n"):
        found = re.match(r"(`{3,})\w*$", line)
        if not ticks and found:
            ticks = found[1]
        elif ticks and line == ticks:
            ticks = ""
        else:
            (inside if ticks else outside).append(line)
    assert not ticks and samples
    assert "<script>" in "\n".join(inside) and "\u202e" not in note and "\x1b" not in note
    assert "<" not in html.unescape("\n".join(outside)).replace("->", ""), [line for line in outside if "<" in line]


def test_alarms_are_escaped_and_a_note_stays_small(told):
    alarmed = type(told)(**(told.__dict__ | {"alarms": [Alarm(1, "slow", "solve", "<b>[x](http://e)</b> | `y`")]}))
    assert r"> **Alarm** g0001 slow: \<b\>\[x\](http://e)\</b\> \| \`y\`" in generation_note(alarmed)
    huge = type(told)(**(told.__dict__ | {"pictures": {"curve": "data:" + "x" * LARGEST}}))
    assert len(fitting(huge)) < LARGEST and "data:" not in fitting(huge)


def test_pieces(store):
    assert fence("a ```` b").startswith("`````\n") and fence("a").startswith("```\n")
    assert sparkline([0.0, None, 0.5, 1.0]) == "▁ ▅█"
    assert "No generation is done yet." in run_note("run", 3, [], [], None)
    with pytest.raises(ConfigError, match="must start with http"):
        NoteBuilder(Run(FileStore(store), "run"), 3, "javascript:alert(1)")


def test_the_curves_of_text_look_at_no_more_generations_than_they_show(tmp_path):
    with hold(FileStore(tmp_path), "long") as epoch:
        run = example_run.build(Run(FileStore(tmp_path), "long", epoch), SPARKS + 3)
    for generation, shown in ((SPARKS + 2, SPARKS), (4, 5)):
        assert len(NoteBuilder(run, SPARKS + 3).told(generation).earlier) == shown


def test_answers_to_a_task_that_a_leak_let_through_are_in_no_share(store, tmp_path):
    """Neither those without a value to compare with nor unreadable ones, as in the metrics."""
    of = FileStore(tmp_path)
    kept = {
        name: Run(FileStore(store), "run").read_table(1, name) for name in ("matches", "proposals", "tasks", "rollouts", "grades")
    }
    grades = kept["grades"].to_pylist()
    leaked = grades[0]["task_id"]
    tasks = [row | ({"status": "error"} if row["task_id"] == leaked else {}) for row in kept["tasks"].to_pylist()]
    judged = [row for row in grades if row["task_id"] == leaked]
    for number, row in enumerate(judged):
        row |= {"status": "no_value" if number else "format", "correct": False}
    found = []
    for run_id, some in (("leaky", grades), ("sound", [row for row in grades if row["task_id"] != leaked])):
        with hold(of, run_id) as epoch:
            run = Run(of, run_id, epoch)
            run.describe({}, {}, {})
            tables_ = kept | {"tasks": table(tasks, TASKS), "grades": table(some, GRADES)}
            for stage, name in zip(("match", "propose", "verify", "solve", "grade"), kept, strict=True):
                run.commit(stage, 1, [], [run.write_table(1, name, tables_[name])], {}, {})
        builder = NoteBuilder(run, 3)
        note = builder.told(1)
        pairs = match_rows(builder.matches(1), builder.tasks(1), builder.grades(1))
        found.append((pairs, note.pictures, [(one.task["task_id"], one.right, one.attempts) for one in note.samples]))
    assert len(judged) > 1 and found[0] == found[1]


def test_a_note_that_comes_late_knows_nothing_of_what_came_after(store, told):
    late = NoteBuilder(Run(FileStore(store), "run"), 3, BASE)
    late.told(2)
    assert late.told(1).pictures == told.pictures


def test_without_a_browser_there_are_no_links(store):
    note = generation_note(NoteBuilder(Run(FileStore(store), "run"), 3).told(0))
    assert "](http" not in note and "artifact browser" not in note


def test_a_process_of_its_own_writes_the_same(store, teller):
    writer = Writer(teller.run, 3, BASE)
    try:
        assert writer.write(1) == written(NoteBuilder(teller.run, 3, BASE), 1)
        with pytest.raises(NotesNotWritten, match="ValueError"):
            writer.write("a fault")
        assert writer.write(2).link == f"{BASE}/runs/run/generations/2"
    finally:
        writer.close()
    with pytest.raises(NotesNotWritten, match="has exited"):
        writer.write(2)


def test_a_process_that_cannot_be_started_is_one_warning_and_the_run_goes_on(teller, monkeypatch, caplog):
    monkeypatch.delenv(HERE, raising=False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    done = []
    with caplog.at_level(logging.WARNING, "populora.notes"), publish.publishing(teller.run, load("smoke"), BASE):
        for generation in range(2):
            publish.publish_progress(generation, "solve")
            publish.publish_generation(generation)
            done.append(generation)
    assert done == [0, 1]
    (said,) = caplog.messages
    assert said.startswith("run run: notes are not published (the process that writes them cannot be started: ")
