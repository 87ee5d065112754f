"""Lineage backwards and forwards, as values and as text."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.config import RunConfig
from flows.run.inspection import _text as text_lines
from flows.run.inspection import inspect, rows, run_summary
from flows.run.lease import hold
from flows.run.lineage import generation_of_row
from flows.run.run import Run
from flows.storage import Damaged, NotStored, StoreRefused, open_store
from flows.store.file_store import FileStore
from stages.core import tables
from tests.support import compared_runs, example_run
from tests.support.rewarded_run import BEHIND, DOCUMENT, HALF, RIGHT, TASK, TRACED, WHOLE, build

SCORE = {
    "suite": "probe",
    "member_id": "s0",
    "role": "student",
    "adapter_id": "s0-g0001",
    "adapter_sha256": "0",
    "group": "all",
    "measure": "pass@1",
    "score": 0.5,
    "problems": 4,
    "attempts": 1,
    "stderr": 0.25,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = open_store(str(tmp_path_factory.mktemp("store")))
    with hold(store, "smoke") as epoch:
        made = example_run.build(Run(store, "smoke", epoch), 3)
        scores = made.write_table_at("benchmarks/probe/n/scores.parquet", tables.table([SCORE], tables.SCORES), tables.SCORES)
        made.commit_benchmark("probe/n", [], [scores], {}, {}, {})
    return Run(store, "smoke")


def test_an_adapter_leads_back_through_births_to_the_start(run: Run) -> None:
    found = json.loads(inspect(run, adapter="s2-g0001", as_json=True))
    steps = [(step["adapter_id"], step["made_by"], step["generation"]) for step in found["backwards"]]
    assert steps == [
        ("s2-g0001", "update", 1),
        ("s2-start", "evolve", 0),
        ("s0-g0000", "update", 0),
        ("s0-start", "start", None),
    ]
    assert found["backwards"][1]["birth"]["operator"] == "M1"
    samples = found["backwards"][0]["samples"]
    assert samples["count"] == 10 and samples["tasks"] == [f"g0001-m01-p{n:03d}" for n in range(5)]
    assert samples["written_by"] == ["t1-g0000"]
    assert found["sha256"] == run.history.find("adapters/s2-g0001/adapter_model.safetensors").sha256


def test_an_adapter_leads_forward_to_its_games_children_and_scores(run: Run) -> None:
    found = json.loads(inspect(run, adapter="s0-g0001", as_json=True))["forwards"]
    assert [(row["generation"], row["match_id"], row["next_adapter_id"]) for row in found["played"]] == [
        (2, "g0002-m00", "s0-g0002")
    ]
    assert [(row["generation"], row["adapter_id"]) for row in found["offspring"]] == [(1, "s3-start")]
    assert [(row["suite"], row["score"], row["stderr"]) for row in found["scores"]] == [("probe", 0.5, 0.25)]


def test_a_task_leads_back_to_its_teacher_and_forward_to_the_weights_it_moved(run: Run) -> None:
    for task_id in ("g0001-m00-p001", "g0001-m00-p001-r01"):
        found = json.loads(inspect(run, task=task_id, as_json=True))
        assert found["task"]["program"] == "def f(x):\n    return x + 1"
        assert [step["adapter_id"] for step in found["backwards"]["teacher_weights"]] == ["t0-g0000", "t0-start"]
        assert found["backwards"]["proposal"]["reference_ids"] == ["seed-deduction"]
        answers = found["forwards"]["rollouts"]
        assert [(row["rollout_id"], row["status"], row["sample"]["reward"]) for row in answers] == [
            ("g0001-m00-p001-r00", "wrong", -0.5),
            ("g0001-m00-p001-r01", "correct", 1.0),
        ]
        moved = [(row["from"], row["to"]) for row in found["forwards"]["weights_moved"]]
        assert moved == [("s0-g0000", "s0-g0001"), ("t0-g0000", "t0-g0001")]


def test_a_seed_leads_forward_to_the_prompts_that_showed_it(run: Run) -> None:
    found = json.loads(inspect(run, task="seed-abduction", as_json=True))
    assert len(found["forwards"]["shown_in"]) == 12
    assert found["forwards"]["shown_in"][0]["proposal_id"] == "g0000-m00-p002"


def test_text_says_the_same_for_people(run: Run) -> None:
    text = inspect(run, task="g0001-m00-p001")
    assert "    | def f(x):\n    |     return x + 1" in text and "member_id=s0  from=s0-g0000  to=s0-g0001" in text
    assert max(map(len, inspect(run).split("\n"))) < 140
    assert f"head              {run.history.head()}" in inspect(run)
    generation = inspect(run, generation=1)
    assert "stage=solve  outputs=1  rows={rollouts.parquet=20}" in generation and "correct  7" in generation


@pytest.mark.parametrize(
    ("config", "written", "shown"),
    [
        (DOCUMENT, (BEHIND, WHOLE), "correct False detail - trained_tokens 2 behind_answer | , 'a message' sample group_id"),
        (TRACED, (HALF, RIGHT), "trace steps_right 2 steps 3 added_to_reward 0.3333 sample group_id"),
        (DOCUMENT, (BEHIND, {}), "tokens 10 status wrong correct False detail - sample group_id"),
    ],
    ids=["behind the answer", "trace", "a table without the column"],
)
def test_a_task_tells_what_was_trained_and_what_a_trace_added(
    tmp_path: Path, config: RunConfig, written: tuple[dict[str, Any], dict[str, Any]], shown: str
) -> None:
    store = open_store(str(tmp_path))
    with hold(store, "r") as epoch:
        build(Run(store, "r", epoch), config, written, ("wrong", "correct"))
    text = inspect(Run(store, "r"), task=TASK)
    assert shown in " ".join(text.split())
    first, second = json.loads(inspect(Run(store, "r"), task=TASK, as_json=True))["forwards"]["rollouts"]
    assert first.get("trained_tokens", first["tokens"]) == first["sample"]["tokens"]
    assert not second.keys() & {"trained_tokens", "behind_answer", "trace"}


def test_rows_are_a_slice_that_parquet_can_hold(run: Run, tmp_path: Path) -> None:
    found = rows(run, "rollouts", task_id="g0001-m00-p002")
    assert found["rollout_id"].to_pylist() == ["g0001-m00-p002-r00", "g0001-m00-p002-r01"]
    assert found["generation"].to_pylist() == [1, 1]
    pq.write_table(found, tmp_path / "slice.parquet")
    assert rows(run, "ratings", [0, 2], member_id="t0").num_rows == 2
    assert rows(run, "offspring").num_rows == 2


def test_what_is_not_there_is_a_clear_error(run: Run) -> None:
    with pytest.raises(NotStored, match="there is no run other in file://"):
        inspect(Run(run.store, "other"))
    for wanted in ({"task": "g0001-m00-p099"}, {"task": "nonsense"}, {"adapter": "t9-g0000"}, {"generation": 7}):
        with pytest.raises(StoreRefused, match="run smoke has no"):
            inspect(run, **wanted)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"task": "g0001-m00-p099"}, "run smoke has no task g0001-m00-p099; did you mean g0001-m00-p005?"),
        ({"task": "g0009-m00-p000"}, "run smoke has no task g0009-m00-p000; its generations are 0 to 2"),
        ({"task": "nothing"}, "run smoke has no task nothing; there are seed-deduction, seed-abduction, seed-induction"),
        ({"adapter": "s0-g0009"}, "run smoke has no adapter s0-g0009; did you mean s0-g0002?"),
        ({"adapter": "nothing"}, "run smoke has no adapter nothing; the newest are s0-g0002, s3-g0002, t0-g0002, t1-g0002"),
        ({"generation": 7}, "run smoke has no generation 7; its generations are 0 to 2"),
    ],
)
def test_an_unknown_name_comes_with_what_there_is(run: Run, wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(StoreRefused) as raised:
        inspect(run, **wanted)
    assert str(raised.value) == said


def test_a_run_lists_the_adapters_of_its_newest_generation(run: Run) -> None:
    assert json.loads(inspect(run, as_json=True))["newest_adapters"] == "s0-g0002, s3-g0002, t0-g0002, t1-g0002"


def test_a_damaged_table_is_not_shown_as_if_it_were_sound(run: Run, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for uri in run.store.list("smoke/"):
        store.create(uri, b"?" if uri.endswith("0001/tasks.parquet") else run.store.read(uri))
    with pytest.raises(Damaged, match=r"generation=0001/tasks\.parquet"):
        inspect(Run(store, "smoke"), task="g0001-m00-p001")


def test_ids_tell_their_generation() -> None:
    assert [generation_of_row(name) for name in ("g0007-m00-p003", "g12345-m00", "seed-1", "t0-g0007")] == [7, 12345, None, None]


def test_a_run_lists_the_benchmarks_that_it_made_itself_and_those_asked_for(tmp_path):
    run = compared_runs.build(FileStore(tmp_path), "one", 1, {0: lambda number: True})
    compared_runs.score_later(run, 0, lambda number: True)
    folders = ("generation=0000", "asked/generation=0000-n0-k0")
    expected = [f"benchmarks/probe-dev/{folder}/{name}.parquet" for folder in folders for name in ("answers", "scores")]
    assert run_summary(run)["benchmarks"] == expected


def test_no_text_of_a_model_reaches_the_terminal_as_an_order() -> None:
    hostile = {
        "program": "# \x1b]52;c;cm0=\x07\x1b[2J\n\x9b1m",
        "answer": "\x1b[1A\x1b[2Kright",
        "\x1b[31m": [{"text": "\u202e"}],
    }
    shown = "\n".join(text_lines(hostile))
    assert "\\x1b[1A\\x1b[2Kright" in shown and "\\x9b1m" in shown and "\\u202e" in shown
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
