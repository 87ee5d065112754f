import ast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flows.report.report_data import gather
from flows.report.report_figures import EVERY
from stages.core.statistics.condensed import condense, joined
from stages.core.statistics.estimates import Series, estimate, series
from stages.figures import diversity as diversity_figures
from stages.figures import figures
from stages.figures import population as population_figures
from stages.figures import tasks as task_figures
from stages.figures.difficulty import difficulty, difficulty_of_arms
from stages.figures.outlines import valid_share as valid_share_outline
from stages.figures.panels import ROLE
from stages.figures.plates import canvas, curve, end_labels, svg
from tests.support.report_run import made


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    with made(tmp_path_factory.mktemp("store"), "run", 6) as run:
        yield gather(run)


@pytest.fixture(scope="module")
def plates(gathered):
    return [draw(gathered) for draw in EVERY.values()]


def test_clusters_count_once():
    table = pa.table(
        {
            "generation": [0, 0, 0, 0, 3],
            "task": ["a", "a", "a", "b", "a"],
            "correct": [True, True, False, False, None],
        }
    )
    found = series(table, "correct", "task")
    np.testing.assert_allclose(found.mean, [1 / 3])
    np.testing.assert_allclose(found.stderr, [np.std([2 / 3, 0], ddof=1) / np.sqrt(2)])
    assert (found.generations.tolist(), found.clusters.tolist(), found.clusters_text()) == ([0], [2], "2")
    overall = estimate(table, "correct", ["generation", "task"])
    np.testing.assert_allclose(
        (overall.mean, overall.stderr, overall.clusters), (1 / 3, np.std([2 / 3, 0], ddof=1) / np.sqrt(2), 2)
    )


def test_one_cluster_has_no_error_and_none_no_series():
    table = pa.table({"generation": [1], "task": ["a"], "value": [2.0]})
    assert np.isnan(series(table, "value", "task").stderr[0])
    assert not series(table.slice(0, 0), "value", "task")
    assert estimate(table.slice(0, 0), "value", "task").clusters == 0


def test_every_figure_says_when_there_is_nothing_to_draw():
    empty = joined([])
    found = [
        figures.solve_rate(empty["grades"]),
        figures.rewards(empty["samples"]),
        figures.reward_distribution(empty["samples"]),
        difficulty(pa.table({"measure": pa.array([], pa.string())})),
        figures.zero_variance(empty["samples"]),
        figures.exploration(empty["completions"]),
        figures.lengths(empty["completions"]),
        population_figures.rating_curves(empty["ratings"]),
        population_figures.heat_map(empty["matches"], empty["grades"]),
        population_figures.calibration(empty["ratings"]),
        population_figures.family_tree(empty["ratings"], empty["offspring"]),
        population_figures.recovery(empty["samples"], empty["offspring"]),
        task_figures.valid_share(empty["tasks"]),
        task_figures.reasons(empty["tasks"]),
        task_figures.program_complexity(empty["tasks"]),
        task_figures.coverage(empty["tasks"]),
        task_figures.seconds(pa.table({"generation": pa.array([], pa.int64()), "stage": [], "seconds": []})),
        task_figures.drift(empty["metrics"]),
        diversity_figures.novelty(empty["metrics"]),
        diversity_figures.differences(empty["metrics"]),
    ]
    assert [plate.figure for plate in found] == [None] * len(found)
    assert all(plate.caption.startswith("No ") and plate.caption.endswith(".") for plate in found)


def test_every_figure_asks_a_question_and_has_axes_units_n_and_errors(plates):
    drawn = [plate for plate in plates if plate.figure is not None]
    assert {plate.name for plate in plates} - {plate.name for plate in drawn} == {
        "benchmark",
        "difficulty",
    }  # none in six generations
    for plate in drawn:
        assert plate.question.endswith("?") and len(plate.question) <= 46, plate.question
        assert plate.figure.get_suptitle() == plate.question
        assert "n = " in plate.caption, plate.caption
        assert any(word in plate.caption.lower() for word in ("standard error", "sampl", "error bars")), plate.caption
        for ax in plate.figure.axes:
            assert ax.get_xlabel() or ax.get_subplotspec().is_last_row() is False, plate.name
            assert ax.get_ylabel() or plate.name == "family", plate.name
    assert len({plate.name for plate in plates}) == len(plates)


def test_rewards_of_one_task_are_one_observation_and_none_is_off_the_axis():
    """A deep format penalty of -3 is in the first bin; two attempts at a task that earn the same are no two observations."""
    rewards = {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (-3.0, -3.0), "d": (1.0, -3.0)}
    rows = [
        {"generation": 0, "role": "student", "cluster": task, "reward": reward} for task, own in rewards.items() for reward in own
    ]
    plate = figures.reward_distribution(pa.Table.from_pylist(rows))
    (line,) = plate.panels[0].lines
    error = 100 * np.std([1, 1, 0, 0.5], ddof=1) / np.sqrt(4)
    assert (line.y[0], line.y[-1]) == (37.5, 62.5) and sum(line.y) == 100 and set(line.n) == {4}
    np.testing.assert_allclose((line.error[0], line.error[-1]), (error, error))
    assert "rewards outside the axis are counted in the end bins" in plate.caption
    assert plate.caption.endswith("±1 standard error over prompts or tasks; n = 4 tasks (8 samples).")


def test_captions_say_no_temperature_and_no_part_of_a_cell_that_is_not_measured(plates):
    captions = " ".join(plate.caption for plate in plates)
    assert "temperature" not in captions and "length of the run" not in captions


@pytest.mark.parametrize(("authors", "over"), [(["generator"], "tasks"), (["t0", "t1"], "prompts")])
def test_the_outline_names_what_its_errors_are_over(authors, over):
    scope = {"generation": 0, "name": "propose.valid_share", "value": 0.5, "n": 256, "stderr": 0.1, "kind": None}
    metrics = pa.Table.from_pylist([scope | {"member_id": member} for member in (None, *authors)])
    assert f"over {over}; n = 256 {over} per generation" in valid_share_outline(metrics).caption


def test_roles_keep_their_colours(plates):
    for plate in plates:
        for ax in plate.figure.axes if plate.figure else []:
            for line in ax.get_lines():
                for role in ("teacher", "student"):
                    if str(line.get_label()).startswith(role):
                        assert line.get_color() == ROLE[role], plate.name


def test_lines_break_where_a_generation_is_missing():
    figure, (ax,) = canvas("Gap?")
    curve(
        ax,
        Series(np.array([0, 1, 5]), np.array([1.0, 2.0, 3.0]), np.array([0.1, np.nan, 0.1]), np.array([2, 1, 2])),
        "#000000",
        "x",
    )
    x = ax.get_lines()[0].get_xdata()
    assert np.isnan(x[2]) and x[[0, 1, 3]].tolist() == [0, 1, 5]
    assert figure.axes == [ax]


def test_labels_that_end_together_are_moved_apart():
    _, (ax,) = canvas("Labels?")
    ax.set_ylim(0, 10)
    end_labels(ax, [(5.0, 2.0, "a"), (5.0, 2.1, "b"), (3.0, 2.0, "c")], "#000000")
    places = {text.get_text(): text.xy for text in ax.texts}
    assert places["c"] == (3.0, 2.0)
    assert places["b"][1] - places["a"][1] == pytest.approx(0.9)
    assert (places["a"][1] + places["b"][1]) / 2 == pytest.approx(2.05)


def test_svg_for_a_page_refers_to_nothing_outside(plates):
    for plate in (plate for plate in plates if plate.figure is not None):
        text = svg(plate.figure, plate.name, themed=True)
        assert text.startswith("<svg viewBox=") and text.endswith("</svg>\n")
        assert "http" not in text and "<image" not in text and "data:" not in text, plate.name
        assert ROLE["teacher"] not in text, "colours are variables of the page"
    assert 'xmlns="http://www.w3.org/2000/svg"' in svg(plates[0].figure, "alone"), "a file of its own names its namespace"


def test_surprise_is_the_mean_of_minus_log_p(gathered):
    generation = gathered.run.read_table(2, "proposals")
    condensed = condense(2, {"proposals": generation})["completions"]
    expected = [-np.mean(row) for row in generation["logprobs"].to_pylist()]
    np.testing.assert_allclose(condensed["surprise"].to_numpy(), expected, rtol=1e-6)
    assert condensed["tokens"].to_pylist() == [len(ids) for ids in generation["completion_ids"].to_pylist()]


def test_complexity_columns_are_those_of_valid_programs(gathered):
    for row in gathered.tables["tasks"].to_pylist():
        if row["status"] == "valid":
            assert row["lines"] == len(row["program"].splitlines())
            assert ast.parse(row["program"])
        else:
            assert row["depth"] is None


def test_scores_of_different_problems_are_in_panels_of_their_own():
    def score(suite: str, problems: int, trained: int, value: float, question: str = "") -> dict[str, object]:
        own = {"suite": suite, "problems": problems, "trained": trained, "score": value, "stderr": 0.01, "question": question}
        return own | {"member_id": "s0", "role": "student", "group": "all", "measure": "pass@1 greedy"}

    once = [score("gsm8k", 900, 60, 0.3)]
    rows = [
        *once,
        score("probe", 120, 0, 0.1),
        score("probe", 120, 60, 0.1),
        *(score("cruxeval", 800, trained, 0.2 + trained / 1000) for trained in (0, 20, 60)),
    ]
    plate = figures.benchmark(pa.Table.from_pylist(rows))
    first, second = plate.figure.axes
    assert (first.get_ylabel(), second.get_ylabel()) == ("cruxeval: solved of 800 (%)", "probe: solved of 120 (%)")
    assert [list(line[0].get_xdata()) for ax in (first, second) for line in ax.containers] == [[0, 20, 60], [0, 60]]
    assert "n = 800 (cruxeval), 120 (probe)." in plate.caption
    assert figures.benchmark(pa.Table.from_pylist(once)).figure is not None
    ways = {"chat, 1,024 tokens": 0.3, "completion, 512 tokens": 0.1}
    asked = [score("humaneval", 164, trained, at + trained / 1000, way) for way, at in ways.items() for trained in (0, 60)]
    plate = figures.benchmark(pa.Table.from_pylist(asked))
    assert [ax.get_title(loc="right") for ax in plate.figure.axes] == list(ways) == [panel.title for panel in plate.panels]
    assert [panel.lines[0].y for panel in plate.panels] == [(30.0, 36.0), (10.0, 16.0)]
    assert "n = 164 (humaneval; chat, 1,024 tokens), 164 (humaneval; completion, 512 tokens)." in plate.caption


def test_difficulty_shows_the_first_and_the_last_scores_of_the_suite_that_was_scored_most():
    def score(suite: str, trained: int, group: str, value: float, problems: int = 50) -> dict[str, object]:
        own = {"suite": suite, "trained": trained, "group": group, "score": value, "problems": problems, "stderr": 0.01}
        named = {"member_id": "s0", "role": "student", "adapter_id": f"s0-{trained}", "uri": f"{suite}/{trained}"}
        return own | named | {"measure": "pass@1 greedy", "population": True}

    rows = [score("probe", 0, f"{kind} band 1", 0.9) for kind in ("abduction", "deduction")]
    for trained in (0, 20, 40):
        rows.append(score("staircase-dev", trained, "all", 0.5))
        rows += [score("staircase-dev", trained, f"deduction band {depth}", 0.5 / depth + trained / 100) for depth in (10, 2, 1)]
    assert difficulty(pa.Table.from_pylist(rows[:2])).figure is not None
    assert difficulty(pa.Table.from_pylist([score("cruxeval", 0, "input", 0.2)])).figure is None
    again = [row | {"uri": "staircase-dev/asked"} for row in rows[-3:]]
    other = [row | {"adapter_id": "s1-40", "member_id": "s1", "score": 0.0, "stderr": None} for row in rows[-3:]]
    teachers = [row | {"adapter_id": "t0-40", "role": "teacher"} for row in rows[-3:]]
    others = [
        row | {"adapter_id": "s2-start", "population": False, "score": 0.0, "trained": trained}
        for row in rows[-3:]
        for trained in (40, 60)
    ]
    assert difficulty(pa.Table.from_pylist(others)).figure is None, "newborns and chosen adapters are not the students"
    plate = difficulty(pa.Table.from_pylist(rows + again + other + teachers + others))
    (panel,) = plate.panels
    assert (panel.x, panel.y) == ("depth", "deduction: solved (%)")
    assert [(line.name, line.x) for line in panel.lines] == [
        ("0 generations trained", (1.0, 2.0, 10.0)),
        ("40 generations trained", (1.0, 2.0, 10.0)),
    ]
    np.testing.assert_allclose(panel.lines[1].y, [45, 32.5, 22.5])
    assert np.isnan(panel.lines[1].error).all(), "of s1 no error is known"
    assert "at most 2" in plate.caption
    assert "n = 50 problems per kind and depth" in plate.caption


def test_a_role_without_rewards_has_no_panel(gathered):
    students = gathered.tables["samples"].filter(pc.equal(gathered.tables["samples"]["role"], "student"))
    assert len(figures.reward_distribution(gathered.tables["samples"]).panels) == 2
    assert len(figures.reward_distribution(students).panels) == 1


def test_difficulty_of_arms_averages_the_last_scores_over_seeds_and_counts_a_shared_start_once():
    def point(arm: str, seed: int, trained: int, depth: int, score: float, kind: str = "deduction") -> dict[str, object]:
        own = {"arm": arm, "seed": seed, "model": "m", "trained": trained, "group": f"{kind} band {depth}"}
        return own | {"score": score, "problems": 50}

    starts = [point(arm, seed, 0, 7, 0.1 + 0.02 * seed) for arm in ("mixed", "frozen") for seed in (0, 1)]
    middle = [point("mixed", seed, 50, 7, 0.9) for seed in (0, 1)]
    ends = [point("mixed", seed, 100 + seed, depth, 0.3 + 0.1 * seed) for seed in (0, 1) for depth in (7, 6)]
    alone = [point("frozen", 0, 100, 7, 0.2), point("frozen", 0, 100, 1, 0.5, "abduction")]
    assert difficulty_of_arms([], ["mixed"]).figure is None
    plate = difficulty_of_arms([*starts, *middle, *ends, *alone], ["mixed", "frozen", "never"])
    deduction, abduction = sorted(plate.panels, key=lambda panel: panel.y, reverse=True)
    assert (deduction.y, abduction.y) == ("deduction: solved (%)", "abduction: solved (%)")
    found = {line.name: dict(zip(line.x, line.y, strict=True)) for line in deduction.lines}
    assert {name: {x: round(y, 6) for x, y in line.items()} for name, line in found.items()} == {
        "before training": {7.0: 11.0},
        "mixed": {6.0: 35.0, 7.0: 35.0},
        "frozen": {7.0: 20.0},
    }
    assert [line.name for line in abduction.lines] == ["frozen"]
    assert "n = 50 problems per kind and band; seeds: mixed 2, frozen 1." in plate.caption
    other = starts[0] | {"model": "another", "arm": "frozen on another", "score": 0.4}
    (panel,) = difficulty_of_arms([*starts, other, *ends], ["mixed"]).panels
    assert [(line.name, line.y) for line in panel.lines[:2]] == [
        ("before training, another", (40.0,)),
        ("before training, m", (11.0,)),
    ]
