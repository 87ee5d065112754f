"""Runs side by side: paired scores against arithmetic, costs, lines of descent, unfinished and unlike runs."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flows.compare.best_members import Ancestor, BestMember, best_members, descent, rank_text
from flows.compare.costs import SideCost, cost_of, cost_rows
from flows.compare.side_by_side import Comparer, SideBySide, as_json
from flows.compare.text import bars, blocks
from flows.config import dump
from flows.monitoring.cost import run_cost
from flows.monitoring.run_state import RunState
from flows.monitoring.run_tables import RunTables
from flows.monitoring.spending import Spent
from flows.monitoring.start_score import unscored_start
from flows.run.fork import fork
from flows.run.lease import BEATEN, hold
from flows.run.run import Run
from flows.storage import NotStored
from flows.store.file_store import FileStore
from stages.core import tables
from tests.support import compared_runs, example_run
from tests.support.report_run import HOSTILE, made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    """Two whole runs that share two scored generations, one that stopped in its second generation, and a single agent."""
    root = tmp_path_factory.mktemp("store")
    store = FileStore(root)
    compared_runs.build(store, "first", 3, {0: lambda number: number < 2, 2: lambda number: number < 4})
    other = compared_runs.configured(learning={"learning_rate": 0.5})
    compared_runs.build(store, "second", 3, {0: lambda number: number in (1, 2, 3)}, other)
    with made(root, "half", 4, until="solve"):
        pass
    with made(root, "alone", 2, mode="single"):
        pass
    return store


def compared(store: FileStore, *names: str) -> SideBySide:
    return Comparer(store).compare([RunTables(Run(store, name)).look() for name in names])


def test_settings_that_differ_are_listed_with_their_values(store: FileStore) -> None:
    found = compared(store, "first", "second")
    (one,) = found.settings.differing
    assert (one.key, one.values[1]) == ("learning.learning_rate", "0.5")
    assert found.settings.equal > 80 and found.versions.differing == ()


def test_scores_are_paired_by_problem_at_the_newest_and_at_equal_ages(store: FileStore) -> None:
    newest, equal = compared(store, "first", "second").pairs
    assert (newest.first, newest.second, newest.first_trained, newest.second_trained) == ("first", "second", 3, 1)
    assert (equal.first_trained, equal.second_trained) == (1, 1)
    (whole,) = [change for change in equal.changes if change.group == "all"]
    # Right: problems 0, 1 against 1, 2, 3 of 8: differences -1, 0, +1, +1 and four zeros.
    assert (whole.measure, whole.before, whole.after) == ("pass@1 greedy", 0.25, 0.375)
    assert (whole.found.better, whole.found.worse, whole.found.problems) == (2, 1, 8)
    assert whole.found.difference == pytest.approx(1 / 8)
    assert whole.found.stderr == pytest.approx((((3 - 8 / 64) / 7) / 8) ** 0.5)
    assert {change.group for change in equal.changes} == {"all", "deduction", "abduction"}


def test_a_benchmark_scored_later_is_paired_like_the_runs_own(store: FileStore, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first = compared_runs.build(store, "first", 2, {1: lambda number: True})
    second = compared_runs.build(store, "second", 2, {})
    compared_runs.score_later(second, 1, lambda number: number > 0)
    (pair,) = compared(store, "first", "second").pairs
    assert [(one.found.worse, one.found.better) for one in pair.changes if one.group == "all"] == [(1, 0)]
    assert first.run_id == pair.first


def test_the_start_that_a_run_scored_itself_has_trained_for_no_generation(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name in ("first", "second"):
        compared_runs.build(store, name, 1, {})
        with hold(store, name) as epoch:
            compared_runs.score(Run(store, name, epoch), 0, lambda number: number == 0, scores_start=True)
    found = compared(store, "first", "second")
    assert [(score.trained, score.members) for score in found.runs[0].scores] == [(0, 2), (1, 2)]
    first = found.runs[0].score_curves[0]
    assert (first["generation"], first["seconds"]) == (-1, 0.0)
    (pair,) = found.pairs
    assert (pair.first_trained, pair.second_trained) == (1, 1)


def test_a_curve_of_scores_is_of_one_set_of_problems(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first = compared_runs.build(store, "first", 3, {})
    for generation, limit in ((0, 0), (1, 0), (2, 0), (2, 4)):
        compared_runs.score_later(first, generation, lambda number: number < 2, limit)
    second = compared_runs.build(store, "second", 3, {})
    compared_runs.score_later(second, 1, lambda number: number < 2, 4)
    compared_runs.score_later(second, 2, lambda number: number < 6)
    found = compared(store, "first", "second")
    ours, theirs = ([(one.trained, one.problems, one.score) for one in run.scores] for run in found.runs)
    assert ours == [(1, 8, 0.25), (2, 8, 0.25), (3, 8, 0.25)], "without the part of the suite at the end"
    assert theirs == [(3, 8, 0.75)], "of as many states, the newest"
    newest = found.pairs[0]
    assert [change.found.problems for change in newest.changes if change.group == "all"] == [8], "the whole, not the part"
    third = compared_runs.build(store, "third", 3, {})
    compared_runs.score_later(third, 2, lambda number: number < 6, 4)
    (pair,) = compared(store, "first", "third").pairs
    assert [change.found.problems for change in pair.changes if change.group == "all"] == [4], "those that both answered"


def test_a_curve_of_scores_is_of_one_version_of_the_suite(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name, versions in (("first", "aab"), ("second", "bbb")):
        run = compared_runs.build(store, name, 3, {})
        for generation, version in enumerate(versions):
            compared_runs.score_later(run, generation, lambda number: number < 2, suite_sha256=version * 64)
    found = compared(store, "first", "second")
    assert [[score.trained for score in run.scores] for run in found.runs] == [[1, 2], [1, 2, 3]]
    assert [note for note in found.notes if "versions" in note] == [
        "The curves and mean scores on probe-dev do not compare: they are of different versions of the suite."
    ]


def test_how_often_a_suite_was_asked_does_not_keep_scores_apart(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first, second = (compared_runs.build(store, name, 2, {}) for name in ("first", "second"))
    compared_runs.score_public(first, 0, lambda number: number < 1, "chat", "aaa")
    compared_runs.score_public(first, 1, lambda number: number < 1, "chat", "bbb", attempts=8)
    compared_runs.score_public(second, 1, lambda number: number < 3, "chat", "ccc")
    found = compared(store, "first", "second")
    assert [one.trained for one in found.runs[0].scores] == [1, 2] and not [note for note in found.notes if "cruxeval" in note]
    (pair,) = found.pairs
    (whole,) = [change for change in pair.changes if change.group == "all"]
    assert (whole.before, whole.after) == (0.125, 0.375)


def test_sampled_answers_of_other_temperatures_are_not_paired(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first, second, third = (compared_runs.build(store, name, 1, {}) for name in ("first", "second", "third"))
    for run, right, temperature in ((first, 1, 1.0), (second, 3, 0.2), (third, 3, 1.0)):
        compared_runs.score_public(
            run, 0, lambda number, right=right: number < right, "chat", "aaa", attempts=2, temperature=temperature
        )
    found = {pair.second: {one.measure for one in pair.changes} for pair in compared(store, "first", "second", "third").pairs}
    assert found == {"second": {"pass@1 greedy"}, "third": {"pass@1 greedy", "pass@1", "pass@2"}}


def test_a_suite_asked_in_part_does_not_hide_the_whole(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first, second = (compared_runs.build(store, name, 1, {}) for name in ("first", "second"))
    for run, right in ((first, 2), (second, 6)):
        compared_runs.score_public(run, 0, lambda number, right=right: number < right, "chat", "aaa")
    compared_runs.score_public(first, 0, lambda number: True, "chat", "zzz", attempts=8, limit=2)
    (pair,) = compared(store, "first", "second").pairs
    (whole,) = [change for change in pair.changes if change.group == "all"]
    assert (whole.found.problems, whole.before, whole.after) == (8, 0.25, 0.75)
    first, second = (
        compared_runs.build(store, name, 1, {0: lambda number, right=right: number < right})
        for name, right in (("a", 2), ("b", 6))
    )
    compared_runs.score_later(first, 0, lambda number: True, 2)
    (pair,) = compared(store, "a", "b").pairs
    assert [(one.found.problems, one.before) for one in pair.changes if one.group == "all"] == [(8, 0.25)], "the run's own"


def test_scores_of_other_prompts_form_neither_a_curve_nor_a_pair(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first, second = (compared_runs.build(store, name, 2, {}) for name in ("first", "second"))
    compared_runs.score_public(first, 0, lambda number: number < 1, "chat", "aaa")
    compared_runs.score_public(first, 1, lambda number: number < 1, "chat", "aaa")
    compared_runs.score_public(first, 1, lambda number: number < 6, "completion", "bbb")
    compared_runs.score_public(second, 1, lambda number: number < 2, "chat", "ccc")
    found = compared(store, "first", "second")
    assert [(one.trained, one.score, one.question) for one in found.runs[0].scores] == [
        (1, 0.125, "chat, 96 tokens"),
        (2, 0.125, "chat, 96 tokens"),
    ]
    (pair,) = found.pairs
    (whole,) = [change for change in pair.changes if change.group == "all"]
    assert (whole.before, whole.after, pair.question) == (0.125, 0.25, "chat, 96 tokens")
    assert not [note for note in found.notes if "cruxeval" in note]
    third = compared_runs.build(store, "third", 2, {})
    compared_runs.score_public(third, 1, lambda number: number < 2, "azr", "ddd")
    (note,) = [note for note in compared(store, "first", "second", "third").notes if "cruxeval" in note]
    assert note == (
        "The curves and mean scores on cruxeval do not compare, since the runs were asked in different ways "
        "(azr, 96 tokens: third; chat, 96 tokens: first, second); only scores asked alike are paired."
    )
    found = compared(store, "second", "third")
    (pair,) = found.pairs
    said = "asked in different ways (chat, 96 tokens; azr, 96 tokens)"
    assert pair.changes == () and pair.said == f"not paired: {said}"
    (note,) = [note for note in found.notes if "cruxeval" in note]
    assert "(azr, 96 tokens: third; chat, 96 tokens: second)" in note


def test_what_cannot_be_paired_says_why(store: FileStore, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    compared_runs.build(store, "first", 1, {0: lambda number: True})
    with hold(store, "other") as epoch:
        run = Run(store, "other", epoch)
        compared_runs.example_run.build(run, 1)
        compared_runs.score(run, 0, lambda number: True, suite_sha256="2" * 64)
    (pair,) = compared(store, "first", "other").pairs
    assert pair.changes == () and pair.said == "not paired: the runs used different versions of the suite"
    later = compared_runs.build(store, "later", 1, {})
    compared_runs.score_later(later, 0, lambda number: True, suite_sha256="2" * 64)
    (pair,) = compared(store, "first", "later").pairs
    assert pair.changes == () and pair.said == "not paired: the runs used different versions of the suite"
    (tmp_path / "first" / "benchmarks" / "probe-dev" / "generation=0000" / "answers.parquet").write_bytes(b"damaged")
    compared_runs.build(store, "third", 1, {0: lambda number: True})
    (pair,) = compared(store, "first", "third").pairs
    assert pair.changes == () and pair.said.startswith("not paired: first/benchmarks/probe-dev/generation=0000/answers.parquet")


def test_costs_are_those_of_the_cost_command(store: FileStore) -> None:
    watch = RunTables(Run(store, "half")).look()
    cost, asked = cost_of(watch), run_cost(Run(store, "half"))
    assert cost.generations == 3 and cost.stages == asked.stages and "start" in cost.stages
    rows = {row.name: row for row in cost_rows([cost, cost])}
    assert rows["all stages"].values == (pytest.approx(asked.total.machine_seconds),) * 2
    assert rows["tokens generated"].values == (asked.total.generated_tokens,) * 2
    assert rows["solve stage"].values[0] == asked.stages["solve"].machine_seconds and rows["optimizer steps"].values == (
        None,
        None,
    )
    assert "taken over, not counted above" not in rows
    finished = [one for one in asked.generations if one.generation is not None and one.done]
    seconds = sum(one.total.machine_seconds for one in finished)
    assert rows["a generation, without benchmark"].values[0] == pytest.approx(seconds / 3)
    used = cost.stages["propose"] + cost.stages["solve"]
    speed = rows["tokens generated per second of propose and solve"].values[0]
    assert speed == pytest.approx((used.generated_tokens or 0) / used.machine_seconds)


def test_updates_beside_the_rollouts_have_no_rate() -> None:
    used = Spent(machine_seconds=2.0, trained_tokens=100)
    cost = SideCost(1, {"update": used}, None, used, 3.0, off_policy=False)
    rows = {row.name: row.values for row in cost_rows([cost, replace(cost, off_policy=True)])}
    assert rows["tokens trained on per second of update"] == (50.0, None)
    assert rows["tokens trained on"] == (100, 100)


def test_a_fork_is_charged_for_what_it_computed_and_no_version_differs(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    compared_runs.build(store, "first", 2, {0: lambda number: True})
    with hold(store, "first") as epoch:
        fork(Run(store, "first", epoch), "child", 0, [], lambda config: {}, {})
    with hold(store, "child") as epoch:
        run = Run(store, "child", epoch)
        example_run.one_generation(run, example_run.population_of(run, 0), 1, last=True)
    for number, path in enumerate(sorted((tmp_path / "child").rglob("*.json"))):
        stored = json.loads(path.read_text())
        if "stage" in stored:  # a clock is in no digest
            path.unlink()
            clock = {"started": 100.0 * number, "seconds": 36.0, "tokens": {"generated": 20}}
            path.write_text(json.dumps(stored | {"clock": clock}))
    found, asked = compared(store, "first", "child"), run_cost(Run(store, "child"))
    rows = {row.name: row.values[1] for row in found.costs}
    assert (rows["generations computed"], rows["start stage"]) == (1.0, None)
    assert rows["all stages"] == asked.total.machine_seconds == 36.0 * 9
    assert rows["taken over, not counted above"] == asked.inherited.machine_seconds == 36.0 * 11
    assert (rows["tokens generated"], rows["tokens generated for it"]) == (20 * 9, 20 * 11)
    assert not [one for one in found.versions.differing if one.key.startswith("forked_from")]
    head = str(found.runs[1].versions["forked_from.head"])[:12]
    assert f"child was forked from first after generation 0 (head {head}): it shares what came before." in found.notes


def test_the_best_member_of_each_role_has_its_line_of_descent(store: FileStore) -> None:
    watch = RunTables(Run(store, "first")).look()
    teacher, student = best_members(watch)
    assert (teacher.role, student.role, student.generation, student.rivals) == ("teacher", "student", 2, 2)
    rated = {row["member_id"]: row for row in watch.of(2, "ratings").to_pylist()}
    assert student.fitness == max(row["fitness"] for row in rated.values() if row["role"] == "student")
    assert student.adapter_id == rated[student.member_id]["next_adapter_id"]
    births = {row["member_id"]: row for row in watch.table("offspring").to_pylist()}
    for one in (teacher, student):
        assert one.line[-1] == Ancestor(one.line[-1].member_id, None)
        for child, parent in zip(one.line, one.line[1:], strict=False):
            row = births[child.member_id]
            assert child == Ancestor(child.member_id, row["generation"], row["operator"], tuple(row["parents"]), row["replaces"])
            assert parent.member_id == row["parents"][0]
    assert descent(teacher).endswith(", a founder")


def test_members_of_equal_fitness_share_their_place() -> None:
    best = BestMember("student", "s0", "s0-g0000", 0, 25.0, 8.0, 1.0, 3, (), ("s1", "s2"))
    assert rank_text(best) == "level with s1, s2 as the best of 3 in generation 0"
    assert rank_text(replace(best, equals=())) == "best of 3 in generation 0"


def test_a_run_without_scores_of_its_start_names_the_command_that_makes_them(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first = compared_runs.build(store, "first", 1, {0: lambda number: True})
    compared_runs.build(store, "second", 1, {})
    limit = example_run.CONFIG.benchmark.limit
    command = f"populora benchmark first --suite probe-dev{f' --limit {limit}' if limit else ''} --generation -1"
    said = f"The start of first is not scored, so nothing says what its members gained since then. To score it: {command}"
    assert unscored_start(RunTables(first).look()) == said
    assert unscored_start(RunTables(Run(store, "second")).look()) == ""
    assert said in compared(store, "first", "second").notes
    folder = "benchmarks/probe-dev/asked/start-n0-k0"
    (own,) = [ref for ref in first.manifest("benchmark", 0).outputs if ref.uri.endswith("answers.parquet")]
    written = first.write_table_at(f"{folder}/answers.parquet", first.read_table(own, "answers"), tables.ANSWERS)
    first.commit_benchmark("probe-dev/asked/start-n0-k0", [], [written], {}, {}, {})
    assert unscored_start(RunTables(first).look()) == ""


def test_a_run_that_scored_its_start_itself_is_not_told_to(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    first = compared_runs.build(store, "first", 2, {1: lambda number: True})
    assert unscored_start(RunTables(first).look())
    with hold(store, "first") as epoch:
        compared_runs.score(Run(store, "first", epoch), 0, lambda number: number == 0, scores_start=True)
    assert unscored_start(RunTables(first).look()) == ""


@pytest.mark.parametrize(
    ("rules", "said"),
    [((1, 1), "The runs have different base models."), ((1, 2), "Whether the runs have the same base model is not known: ")],
)
def test_base_models_are_compared_within_one_rule(rules: tuple[int, int], said: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name, rule in zip(("first", "second"), rules, strict=True):
        with hold(store, name) as epoch:
            run = Run(store, name, epoch)
            run.describe(dump(example_run.CONFIG), {}, {})
            run.commit("start", None, [], [], {}, {"base_model": name, **({"base_model_rule": rule} if rule > 1 else {})})
    assert len([note for note in compared(store, "first", "second").notes if note.startswith(said)]) == 1


def test_a_run_without_heartbeat_is_noted(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with made(tmp_path, "one", 2, until="solve"):
        lease = json.loads(store.read("one/.lease"))
    store.replace("one/.lease", json.dumps(lease | {BEATEN: time.monotonic() - 300.0}).encode())
    with made(tmp_path, "two", 1):
        pass
    noted = "one has no heartbeat: 1 of 2 generations are done; next: grade of generation 1."
    assert noted in compared(store, "one", "two").notes


def test_runs_of_other_kinds_and_half_finished_ones_stand_side_by_side(store: FileStore) -> None:
    found = compared(store, "first", "half", "alone")
    first, half, alone = found.runs
    assert (half.state, half.done, half.planned, half.upcoming) == (RunState.STOPPED, 3, 4, "grade of generation 3")
    assert (first.population, alone.population) == ("2 teachers and 2 students", "a single agent in both roles")
    assert [best.role for best in first.best] == ["teacher", "student"] and alone.best == (), (
        "a single agent's rating is constant"
    )
    assert "half is stopped: 3 of 4 generations are done; next: grade of generation 3." in found.notes
    assert {row["generation"] for row in half.curves if row["name"] == "solve.rate"} == {0, 1, 2}
    assert first.head == Run(store, "first").history.head() and half.head == Run(store, "half").history.head()


def test_a_run_that_is_growing_is_seen_as_far_as_it_has_come(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    compared_runs.build(store, "first", 1, {})
    with hold(store, "new") as epoch:
        Run(store, "new", epoch).describe({"generations": 3}, {}, {})
        found = compared(store, "first", "new")
        assert (found.runs[1].state, found.runs[1].upcoming, found.runs[1].best) == (RunState.RUNNING, "start", ())
        assert found.pairs == () and found.costs[0].values == (1.0, 0.0)


def test_damage_is_a_note_and_the_rest_is_shown(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    compared_runs.build(store, "first", 2, {1: lambda number: True})
    compared_runs.build(store, "second", 2, {1: lambda number: False})
    (tmp_path / "second" / "generation=0000" / "metrics.parquet").write_bytes(b"damaged")
    (tmp_path / "second" / "benchmarks" / "probe-dev" / "generation=0001" / "scores.parquet").unlink()
    found = compared(store, "first", "second")
    assert any(note.startswith("second: second/generation=0000/metrics.parquet") for note in found.notes)
    assert any("scores.parquet" in note for note in found.notes)
    assert [row["generation"] for row in found.runs[1].curves] == [1]


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with pytest.raises(NotStored, match="There is no run nobody"):
        compared(store, "nobody")


def test_json_has_everything_and_no_number_that_json_lacks(store: FileStore) -> None:
    found = json.loads(json.dumps(as_json(compared(store, "first", "second", "half")), allow_nan=False))
    assert [run["run_id"] for run in found["runs"]] == ["first", "second", "half"]
    assert found["runs"][0]["state"] == "stopped" or found["runs"][0]["state"] == "finished"
    assert found["settings"]["differing"]["learning.learning_rate"]["second"] == "0.5"
    assert found["pairs"][0]["changes"][0]["found"]["problems"] == 8
    assert found["runs"][0]["best"][0]["line"] and found["costs"][0]["name"] == "generations computed"


def test_tables_for_the_terminal_write_hidden_characters_out(tmp_path: Path) -> None:
    from rich.console import Console

    store = FileStore(tmp_path)
    compared_runs.build(store, "first", 1, {0: lambda number: True})
    with hold(store, "hostile") as epoch:
        run = Run(store, "hostile", epoch)
        run.describe({"generations": 1, "model": {"name": HOSTILE}, "[red]key[/red]": HOSTILE}, {"code": HOSTILE}, {})
        row = {"name": "solve.rate", "value": 0.5, "member_id": None, "role": None, "kind": None}
        run.commit("update", 0, [], [run.write_table(0, "metrics", tables.table([row], tables.METRICS))])
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w", encoding="utf-8"), highlight=False)
    for block in blocks(compared(store, "first", "hostile"), str):
        console.print(block)
    text = console.export_text()
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[31mred\\u202e" in "".join(text.split("\n"))
    assert "[red]key[/red]" in text and "paired by problem" not in text and "benchmark" in text.lower()


def test_a_curve_as_bars() -> None:
    assert bars([0.0, 1.0]) == "▁█" and bars([2.0]) == "▁" and bars([1.0, 1.0]) == "▁▁"
    assert len(bars([float(number) for number in range(1000)])) == 16
