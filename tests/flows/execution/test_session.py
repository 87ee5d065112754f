"""What a flow process checks before it works on a run, and what it tries again."""

import threading
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prefect
import pytest

from flows import train
from flows.audit.fsck import fsck
from flows.backend import Backend
from flows.config import ConfigError, dump, load
from flows.execution import session
from flows.execution.recorded import versions
from flows.execution.run_stage import Reference, Spec
from flows.execution.session import check_resumable, open_session
from flows.monitoring.progress import Display
from flows.run.fork import fork
from flows.run.history import PLACEMENT, kept_out, placement_of
from flows.run.lease import hold
from flows.run.manifest import digest
from flows.run.run import Run
from flows.storage import Damaged, StoreRefused, StoreUnavailable, open_store
from flows.suites.own_suites import STORED
from tests.support import example_run
from tests.support.example_run import CLOCK


def test_a_run_that_another_process_made_while_we_waited_for_the_lease_is_not_ours(tmp_path: Path) -> None:
    store, config = open_store(str(tmp_path)), load("chaos")
    raised: list[ConfigError] = []

    def begin() -> None:
        try:
            with open_session(config, "r", str(tmp_path)):
                pass
        except ConfigError as error:
            raised.append(error)

    ours = threading.Thread(target=begin)
    with hold(store, "r", beat_seconds=3600) as epoch:  # no beat: whoever waits looks only whether the lease is gone
        ours.start()
        time.sleep(0.5)  # it reads the store and finds no run, then waits
        Run(store, "r", epoch).describe(dump(load("chaos", ["seed=7"])), {}, {})
    ours.join()
    expected = "run r exists with another configuration: seed; fork the run, or start another with --run-id"
    assert [str(error) for error in raised] == [expected]


def test_a_run_records_the_style_that_auto_means_and_resumes_with_it(tmp_path: Path) -> None:
    def began(run_id: str, style: str) -> dict[str, Any]:
        with open_session(load("chaos", [f"model.style={style}"]), run_id, str(tmp_path)) as current:
            described = current.run.history.description()
        assert described is not None
        return described

    described = began("a", "auto")
    assert described["config"]["model"]["style"] == "compact" and "prompts" not in described["versions"]
    assert began("a", "auto") == began("a", "compact") == described
    assert began("d", "document")["versions"]["prompts"] != began("z", "azr")["versions"]["prompts"]


def test_a_run_records_where_it_sent_its_stages_as_it_began(tmp_path: Path) -> None:
    for placement in ({"sandbox": "cpu"}, {"gpu": "gpu"}, None):
        with open_session(load("chaos"), "placed", str(tmp_path), placement=placement) as current:
            assert placement_of(current.run.history.description()) == {"sandbox": "cpu"}
    with open_session(load("chaos"), "here", str(tmp_path)) as current:
        described = current.run.history.description()
        assert described is not None and PLACEMENT not in described["clock"] and placement_of(described) == {}


def test_a_run_records_what_it_keeps_out_and_its_forks_inherit_that(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with open_session(load("chaos"), "new", str(tmp_path)):
        pass
    assert kept_out(Run(store, "new").history.description()) == STORED
    with hold(store, "old") as epoch:
        run = example_run.build(Run(store, "old", epoch), 2)
    made = fork(run, "fork", 0, ["generations=3"], versions, CLOCK, "verify")
    described = made.history.description()
    assert kept_out(run.history.description()) == kept_out(described) == ("probe-dev", "probe-test")
    assert described is not None and described["versions"]["kept_out"] == ["probe-dev", "probe-test"]


def test_a_run_with_more_shards_than_requests_says_in_one_line_how_many_it_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shards in (6, 7):
        with open_session(load("chaos", [f"engine.shards={shards}"]), f"r{shards}", str(tmp_path)):
            pass
    assert capsys.readouterr().out == (
        "engine.shards=7: propose and solve have 6 prompts per generation and use only 6 shards; the others stay idle\n"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_the_flow_reads_a_manifest_anew_that_a_worker_has_replaced(tmp_path: Path, fails: bool) -> None:
    """Also if the worker failed after that: a retry would believe the old one."""
    store = open_store(str(tmp_path))

    class Worker:
        """Run the step again, as a process of its own that finds its output damaged."""

        parallel = 1

        def leave(self) -> None:
            raise NotImplementedError

        def run(self, spec: Spec, python: str = "", told: object = None) -> Reference:
            work = Run(store, "r", spec.epoch)
            work.remove("generation=0000/evolve.json")
            work.remove("generation=0000/offspring.parquet")
            manifest = work.commit("evolve", 0, [], [work.write_blob("generation=0000/offspring.parquet", b"again")])
            if fails:
                raise StoreUnavailable("the worker was lost")
            return {"manifest": digest(manifest)}

    with hold(store, "r") as epoch, Display(lambda line: None) as display:
        run = example_run.build(Run(store, "r", epoch), 1)
        old = run.manifest("evolve", 0)
        (tmp_path / "r" / "generation=0000" / "offspring.parquet").write_bytes(b"damaged")
        current = session.Session(example_run.CONFIG, run, Worker(), display)
        with pytest.raises(StoreUnavailable) if fails else nullcontext():
            current.run_stage("evolve", 0)
        found = run.manifest("evolve", 0)
    assert old is not None and found == Run(store, "r").manifest("evolve", 0) != old


def test_prices_may_change_on_resume_and_are_known_to_every_step(tmp_path: Path) -> None:
    for settings, price in ((["cost.machine_hour=1.5"], 1.5), (["cost.machine_hour=2.5"], 2.5), ([], 1.5)):
        with open_session(load("chaos", settings), "r", str(tmp_path)) as current:
            described, spec = current.run.history.description(), current.spec("match", 0)
        assert spec.cost["machine_hour"] == price
        assert described is not None and "cost" not in described["config"]
        assert described["clock"]["cost"]["machine_hour"] == 1.5, "run.json is written once"
        assert Spec(**asdict(spec)) == spec


def test_generations_are_raised_but_never_lowered_below_what_run_json_says(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(load("chaos", ["generations=6"])), {"choices": {}}, {})
    said = "run r was started with generations=6, which generations=2 would lower; generations can only be raised"
    with pytest.raises(ConfigError, match=f"^{said}$"):
        check_resumable(run, load("chaos", ["generations=2"]))
    for number in (6, 7):
        check_resumable(run, load("chaos", [f"generations={number}"]))


def damaged_run(folder: Path, uri: str, generations: int = 2) -> str:
    """The store of a run that trained two generations of so many planned ones, of which this file is damaged."""
    store, config = open_store(str(folder)), load("chaos", [f"generations={generations}"])
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        run.describe(dump(config), {"choices": {}}, CLOCK)
        population = example_run.start(run, base_model=Backend(config).model_digest())
        for number in range(2):
            population = example_run.one_generation(run, population, number, number == 1)
    (folder / "r" / uri).write_text("{")
    return str(folder)


@pytest.mark.parametrize(
    ("uri", "again"), [("start/start.json", 0), ("generation=0000/evolve.json", 0), ("generation=0001/evolve.json", 1)]
)
def test_a_damaged_manifest_is_named_by_a_resume_and_made_again_once_fsck_has_marked_it(
    tmp_path: Path, uri: str, again: int
) -> None:
    """The checks before a resume read it, too, and keep no run from getting there."""
    url = damaged_run(tmp_path, uri)
    with open_session(load("chaos"), "r", url) as current, pytest.raises(Damaged, match=f"^r/{uri}: not a JSON object"):
        current.first_generation()
    assert fsck(Run(open_store(url), "r"))
    with open_session(load("chaos"), "r", url) as current:
        assert current.first_generation() == again
        assert not current.run.store.exists(f"r/{uri}"), "its stage runs again"


def test_a_generation_whose_last_manifest_is_damaged_counts_as_one_that_the_run_has(tmp_path: Path) -> None:
    run = Run(open_store(damaged_run(tmp_path, "generation=0001/evolve.json", generations=1)), "r")
    with pytest.raises(ConfigError, match=r"^run r has 2 generations already, which generations=1 would lower;"):
        check_resumable(run, load("chaos", ["generations=1"]))


def test_a_run_from_when_azr_was_called_chat_is_not_resumed_with_other_prompts(tmp_path: Path) -> None:
    config = load("chaos", ["model.style=chat"])
    with hold(open_store(str(tmp_path)), "r") as epoch:
        Run(open_store(str(tmp_path)), "r", epoch).describe(dump(config), {"choices": {}}, {})
    with (
        pytest.raises(
            ConfigError, match=r"run r began with prompts that are now called azr; start a new run with model.style=azr"
        ),
        open_session(config, "r", str(tmp_path)),
    ):
        pass
    with pytest.raises(ConfigError, match="run r began with prompts that are now called azr"):
        fork(Run(open_store(str(tmp_path)), "r"), "f", -1, [], lambda _: {}, {})


def test_a_step_is_named_by_the_number_that_files_and_options_use(tmp_path: Path) -> None:
    with open_session(load("chaos", ["generations=6"]), "r", str(tmp_path)) as current:
        names = [current._name(current.spec(*step)) for step in (("start", None), ("propose", 2), ("update", 2, "g0"))]
    assert names == ["start", "generation 2 (3 of 6) · propose", "generation 2 (3 of 6) · update g0"]


class FailingStart:
    """A session whose start fails so many times with an error."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.calls = error, times, 0

    def run_stage(self, stage: str, generation: int | None) -> dict[str, Any]:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return {"stage": stage, "generation": generation}


@pytest.mark.flow
@pytest.mark.parametrize(
    ("error", "times", "calls"), [(StoreUnavailable("gone for a while"), 3, 4), (RuntimeError("our own fault"), 1, 1)]
)
def test_the_start_is_tried_again_when_the_world_failed_and_only_then(error: Exception, times: int, calls: int) -> None:
    failing = FailingStart(error, times)

    @prefect.flow(persist_result=False)
    def begin() -> dict[str, Any]:
        found: dict[str, Any] = train.start.with_options(retry_delay_seconds=0)()
        return found

    with session.as_current(failing):  # type: ignore[arg-type]
        if calls > times:
            assert begin() == {"stage": "start", "generation": None}
        else:
            with pytest.raises(RuntimeError, match="our own fault"):
                begin()
    assert failing.calls == calls


def test_half_a_fork_is_recognized_before_it_gets_a_start_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfinished() -> int:
        raise StoreRefused("run again is an unfinished fork")

    begun: list[str] = []
    monkeypatch.setattr(train, "start", lambda: begun.append("start"))
    monkeypatch.setattr(train, "open_session", lambda *_: nullcontext(SimpleNamespace(first_generation=unfinished, run=None)))
    monkeypatch.setattr(train.ray_cluster, "connected", lambda *_: nullcontext())
    monkeypatch.setattr(train.notes, "publishing", lambda *_: nullcontext())
    monkeypatch.setattr(train, "log_line", lambda: print)
    monkeypatch.setattr(train, "bridged", lambda call: call())
    with pytest.raises(StoreRefused, match="unfinished fork"):
        train.train.fn("again", "/nowhere", load("chaos", []))
    assert begun == []
