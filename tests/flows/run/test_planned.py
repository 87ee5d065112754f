"""A run whose `generations` was raised when it was resumed, and that was then killed, is unfinished wherever one looks."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli import main
from flows.compare.run_list import RunList
from flows.compare.side_by_side import Comparer
from flows.guide.standing import standing
from flows.monitoring.live import Follower
from flows.monitoring.run_state import RunState
from flows.monitoring.run_tables import RunTables
from flows.monitoring.status import status
from flows.monitoring.telemetry_run import numbers
from flows.notes.endings import _place
from flows.pages.library import Library
from flows.pages.run_pages import generation_page, run_page
from flows.prefect_ops.comparison_note import comparison_note
from flows.report.report_data import gather
from flows.run.fork import fork
from flows.run.inspection import run_summary
from flows.run.lease import hold
from flows.run.planned import GENERATIONS, planned_generations
from flows.run.run import Run
from flows.store.file_store import FileStore
from tests.support import example_run
from tests.support.counted import CountingStore

CLOCK = {"host": "here"}


NEWEST = "r/generation=0003/evolve.json"


def rewrite(store: FileStore, text: str) -> None:
    """Put other bytes in the place of the newest manifest."""
    path = store.root / NEWEST
    path.unlink()
    path.write_text(text)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """A run of three generations, raised to six and killed after four."""
    store = FileStore(tmp_path_factory.mktemp("store"))
    with hold(store, "r") as epoch:
        run = example_run.build(Run(store, "r", epoch), 3)
        example_run.one_generation(run, example_run.population_of(run, 2), 3, last=True)
        lease, head = json.loads(store.read("r/.lease")), run.history.head()
    newest = json.loads(store.read(NEWEST))
    rewrite(store, json.dumps(newest | {"clock": newest["clock"] | {GENERATIONS: 6}}))
    store.replace("r/.lease", json.dumps(lease | {"pid": 2**22 + 1}).encode())  # no process of Linux has a greater id
    assert Run(store, "r").history.head() == head, "no digest covers the clock"
    return store


@pytest.fixture
def watch(store: FileStore) -> RunTables:
    return RunTables(Run(store, "r")).look()


@pytest.fixture
def unrecorded(store: FileStore) -> Iterator[FileStore]:
    """The same run as version 0.2 wrote it."""
    kept = store.read(NEWEST).decode()
    found = json.loads(kept)
    del found["clock"][GENERATIONS]
    rewrite(store, json.dumps(found))
    yield store
    rewrite(store, kept)


def test_lists_commands_and_notes_call_it_crashed(store: FileStore, watch: RunTables) -> None:
    (entry,) = RunList(store).entries()
    assert (entry.state, entry.done, entry.planned, entry.upcoming) == (RunState.CRASHED, 4, 6, "match of generation 4")
    state = Follower(Run(store, "r"), RunTables(Run(store, "r"))).look()
    assert (state.condition, state.complete, state.planned, state.stage, state.generation) == ("crashed", 4, 6, "match", 4)
    (side,) = Comparer(store).compare([watch]).runs
    assert (side.state, side.done, side.planned, side.upcoming) == (RunState.CRASHED, 4, 6, "match of generation 4")
    said = status(Run(store, "r")).splitlines()
    assert "done       4 of 6 generations; last finished: evolve of generation 3" in said
    assert "next       match of generation 4" in said
    found = standing(str(store.root), lambda run_id: store.root / f"{run_id}.html")
    assert "latest     r: crashed before generation 4, " in found.lines[1] and found.following == ("run", "--resume", "r")
    assert _place("r", str(store.root)) == ("match of generation 4", True) and _place("none", str(store.root)) == ("", False)
    assert run_summary(Run(store, "r"))["generations"] == "4 begun of 6"
    assert "| generations | 4 of 6 |" in comparison_note([Run(store, "r")])


def test_pages_reports_and_metrics_have_the_raised_number(store: FileStore, watch: RunTables) -> None:
    library = Library(store)
    page = run_page(library, "r")["standing"]
    assert (page["planned"], page["next"]) == (6, "match of generation 4")
    assert generation_page(library, "r", 0)["planned"] == 6
    assert ("populora_generations_planned", {}, 6) in [(name, labels, value) for name, _, labels, value in numbers(watch)]
    assert "4 of 6 planned generations have begun." in gather(watch.run, watch).gaps


def test_the_list_reads_the_newest_manifest_once(store: FileStore) -> None:
    counted = CountingStore(store)
    listing = RunList(counted)
    listing.entries()
    counted.requests.clear()
    assert [entry.planned for entry in listing.entries()] == [6] and counted.requests["read"] == 0


def test_a_resume_goes_to_the_raised_number(store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    for settings, planned in (([], 6), (["--set", "generations=8"], 8)):
        assert main(["run", "--resume", "r", "--store", str(store.root), "--dry-run", "--json", *settings]) == 0
        assert f'"generations": {planned},' in capsys.readouterr().out


def test_a_damaged_manifest_stops_no_resume(unrecorded: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(unrecorded, "{")
    resumed = ["run", "--resume", "r", "--store", str(unrecorded.root), "--dry-run", "--json"]
    assert main(resumed) == 0
    assert '"generations": 3,' in capsys.readouterr().out, "the newest generation that can be read knows of no more"


def test_without_a_record_it_has_what_it_has_begun(unrecorded: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = RunList(unrecorded).entries()
    assert (entry.state, entry.done, entry.planned) == (RunState.FINISHED, 4, 4)
    resumed = ["run", "--resume", "r", "--store", str(unrecorded.root), "--dry-run"]
    assert main(resumed) == 2
    assert "has begun generation 3; to how many generations it was raised is not recorded" in capsys.readouterr().err
    assert main([*resumed, "--set", "generations=6", "--json"]) == 0
    assert '"generations": 6,' in capsys.readouterr().out


def test_a_fork_has_its_own_number(store: FileStore, tmp_path: Path) -> None:
    shutil.copytree(store.root, tmp_path, dirs_exist_ok=True)
    parent = Run(FileStore(tmp_path), "r")
    made = {
        run_id: fork(parent, run_id, generation, settings, lambda _: {}, CLOCK)
        for run_id, generation, settings in (("like", 3, ()), ("short", 1, ("generations=5",)), ("again", 3, ("generations=5",)))
    }
    for run_id, planned in (("like", 6), ("short", 5), ("again", 5)):
        history = made[run_id].history
        description, finished = history.description(), history.newest_stages()
        assert description is not None and planned_generations(description, finished) == planned
        assert GENERATIONS not in finished[-1].clock and finished[-1].clock["host"] == "here"


def test_a_run_that_never_finished_a_stage_has_what_run_json_says(tmp_path: Path) -> None:
    run = Run(FileStore(tmp_path), "new")
    run.describe({"generations": 2}, {}, {})
    description = run.history.description()
    assert description is not None and planned_generations(description, run.history.newest_stages()) == 2
    assert RunTables(run).look().newest_stages() == []
