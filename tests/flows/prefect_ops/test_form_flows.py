"""The flows behind the forms: forks and restarts handed to the deployment that trains, comparisons, and what they refuse."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.exceptions import ParameterTypeError

from flows import cli
from flows.config import ConfigError, dump
from flows.execution.pools import Placement
from flows.prefect_ops import deployments
from flows.prefect_ops.comparison_note import comparison_note
from flows.prefect_ops.flows import benchmark, benchmark_member, compare, existing, fork, restart
from flows.run.addresses import Addresses
from flows.run.history import PLACEMENT, placement_of
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import StoreRefused, open_store
from stages.core import tables
from tests.support import example_run

CONFIG = example_run.CONFIG.model_copy(update={"generations": 4})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    place = open_store(str(tmp_path))
    other = CONFIG.model_copy(update={"seed": 6, "generations": 9})
    for run_id, generations, config in (("one", 2, CONFIG), ("two", 1, other)):
        with hold(place, run_id) as epoch:
            example_run.build(Run(place, run_id, epoch), generations, config)
    return str(tmp_path)


@pytest.mark.flow
def test_a_fork_and_a_restart_are_handed_to_the_deployment_that_trains(store: str) -> None:
    deployments.deploy(store)
    assert fork("one", "forked", 0, store, ["learning.learning_rate=0.5"]) == "forked"
    assert restart("one", "restarted", 1, "solve", store, go_on=False) == "restarted"
    made = Run(open_store(store), "restarted")
    assert [one.stage for one in made.history.of_generation(1)] == ["match", "propose", "verify"]
    with get_client(sync_client=True) as client:
        wanted = FlowRunFilter(name=FlowRunFilterName(any_=["forked", "restarted"]))
        (begun,) = client.read_flow_runs(flow_run_filter=wanted)
        assert begun.deployment_id == client.read_deployment_by_name("train/train").id
        client.delete_flow_run(begun.id)
    description = Run(open_store(store), "forked").history.description()
    assert description is not None
    assert begun.parameters["config"] == description["config"] and begun.parameters["store"] == store
    assert begun.parameters["config"]["learning"]["learning_rate"] == 0.5


@pytest.mark.flow
def test_a_fork_is_placed_as_the_run_that_it_starts_from_or_as_the_form_says(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deployments.deploy(store)
    places, place = {"sandbox": "cpu", "gpu": "gpu"}, open_store(store)
    with hold(place, "placed") as epoch:
        run = Run(place, "placed", epoch)
        run.describe(dump(CONFIG), {"base_model": "0" * 64}, {"started": 1.0, PLACEMENT: places})
        example_run.build(run, 2, CONFIG)
    before = place.list("")
    with pytest.raises(ConfigError, match=r"placement\.gpu: the Prefect server has no work pool nowhere"):
        fork("placed", "refused", 0, store, placement=Placement(gpu="nowhere"))
    assert place.list("") == before
    fork("placed", "alike", 0, store)
    restart("alike", "again", 0, "solve", store)
    fork("placed", "elsewhere", 0, store, placement=Placement(gpu="cpu"))
    fork("one", "here", 0, store)
    with get_client(sync_client=True) as client:
        wanted = FlowRunFilter(name=FlowRunFilterName(any_=["alike", "again", "elsewhere", "here"]))
        begun = {one.name: one for one in client.read_flow_runs(flow_run_filter=wanted)}
        for one in begun.values():
            client.delete_flow_run(one.id)
    given = {name: Placement.model_validate(one.parameters["placement"]).named() for name, one in begun.items()}
    assert given == {"alike": places, "again": places, "elsewhere": {"gpu": "cpu"}, "here": {}}
    assert {name: placement_of(Run(place, name).history.description()) for name in given} == given
    assert cli.main(["fork", "placed", "--generation", "0", "--run-id", "by-hand", "--store", store]) == 0
    assert "run --detach --place gpu=gpu --place sandbox=cpu --store" in capsys.readouterr().out


@pytest.mark.flow
def test_wrong_values_are_refused_in_one_line_and_nothing_is_written(store: str) -> None:
    before = open_store(store).list("")
    for wrong, said in (
        (lambda: fork("nobody", "x", 0, store), "there is no run nobody"),
        (lambda: fork("one", "two", 0, store), "run two already exists"),
        (lambda: fork("one", "x", 7, store, ["generations=20"]), "has not finished generation 7"),
        (lambda: fork("one", "x", 0, store, ["model.name=/etc"]), "a fork shares artifacts"),
        (lambda: restart("one", "x", 1, "slove", store), "did you mean solve"),
        (lambda: benchmark(store, run_id="nobody"), "there is no run nobody"),
        (lambda: benchmark(store, ["nope"]), "suites: 'nope' is not one of probe-dev, "),
        (lambda: benchmark_member("one", "s0-g0001", store, ["nope"]), "suites: 'nope' is not one of probe-dev, "),
    ):
        with pytest.raises((ConfigError, StoreRefused), match=said) as refused:
            wrong()
        assert "\n" not in str(refused.value)
    for wrong in (
        lambda: fork("../one", "x", 0, store),
        lambda: fork("one", "a/b", 0, store),
        lambda: compare(["one", "../x"], store),
    ):
        with pytest.raises(ParameterTypeError, match="pattern"):
            wrong()
    assert open_store(store).list("") == before


@pytest.mark.flow
def test_another_store_is_refused(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deployments.deploy("/tmp/served")
    with get_client(sync_client=True) as client:
        monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(client.read_deployment_by_name("fork/fork").id))
    for wrong in (lambda: existing(store, "one"), lambda: benchmark(store), lambda: benchmark(store, run_id="one")):
        with pytest.raises(ConfigError, match="works on the runs in /tmp/served only"):
            wrong()


def test_the_best_member_is_the_best_after_all_its_matches(tmp_path: Path) -> None:
    """s0 was ahead after its first match and lost the second."""
    row = dict.fromkeys(tables.RATINGS.names, "x") | {"role": "student", "born": 0, "expected": 0.5, "observed": 0.5}
    played = [("s0", "m0", 40.0), ("s1", "m0", 20.0), ("s0", "m1", 10.0), ("s1", "m1", 30.0)]
    rows = [
        row
        | {"member_id": member, "match_id": match, "next_adapter_id": f"{member}-g0000", "mu": mu, "fitness": mu}
        | {"mu_before": 25.0, "sigma_before": 8.0, "sigma": 1.0}
        for member, match, mu in played
    ]
    with hold(open_store(str(tmp_path)), "r") as epoch:
        run = Run(open_store(str(tmp_path)), "r", epoch)
        run.describe(dump(CONFIG), {}, {})
        made = {"metrics": tables.METRICS.empty_table(), "ratings": tables.table(rows, tables.RATINGS)}
        run.commit("rate", 0, [], [run.write_table(0, name, table) for name, table in made.items()])
    assert "| best student | s1-g0000: 30.0 ± 1.0 |" in comparison_note([run])


@pytest.mark.flow
def test_a_comparison_is_a_note(store: str) -> None:
    note = compare(["one", "two", "one"], store)
    assert note.startswith("# one, two\n")
    assert "| generations | 2 of 4 | 1 of 9 |" in note and "| `seed` | `5` | `6` |" in note
    with get_client(sync_client=True) as client:
        assert [one.data for one in client.read_artifacts(limit=200) if one.key == "comparison"][-1] == note


def test_a_comparison_links_to_the_browser_and_shows_settings_as_text(store: str) -> None:
    runs = [Run(open_store(store), run_id) for run_id in ("one", "two")]
    at = Addresses("http://127.0.0.1:8750")
    note = comparison_note(runs, at)
    assert "[two](http://127.0.0.1:8750/runs/two)" in note and "(http://127.0.0.1:8750/compare?run=one&run=two)" in note
    nasty = CONFIG.model_copy(update={"reward": CONFIG.reward.model_copy(update={"rule": "a|`<script>`\n# x.py:f"})})
    with hold(open_store(store), "nasty") as epoch:
        example_run.build(Run(open_store(store), "nasty", epoch), 0, nasty)
    note = comparison_note([runs[0], Run(open_store(store), "nasty")])
    assert "| `reward.rule` | `populora` | `a/'<script>' # x.py:f` |" in note
