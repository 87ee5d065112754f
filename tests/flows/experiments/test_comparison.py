"""Comparing arms: the statistics against SciPy's own, budgets by hand, and pages of experiments that are not whole."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.config import RunConfig
from flows.experiments.comparison import ComparedRun, problems
from flows.experiments.comparison_page import arms_by_model
from flows.experiments.comparison_text import differences_table, primary_line, primary_tiles
from flows.experiments.spec import Experiment, Planned
from stages.analysis.comparison import at_budget, changes, differences, gains
from stages.core.statistics.paired import SeedEstimate, detectable, over_runs, over_seeds, p_flip, p_paired
from stages.figures.comparison import forest, scores, training
from stages.figures.measures import CURVES

APART = [0.10, 0.20, -0.05, 0.12, 0.07]


def test_intervals_and_tests_are_scipys() -> None:
    found = over_seeds(APART, 0.05)
    interval = stats.t.interval(0.95, 4, np.mean(APART), stats.sem(APART))
    assert (found.n, found.mean, found.stderr) == (5, pytest.approx(np.mean(APART)), pytest.approx(stats.sem(APART)))
    assert (found.low, found.high) == (pytest.approx(interval[0]), pytest.approx(interval[1]))
    assert p_paired(found) == pytest.approx(stats.ttest_1samp(APART, 0).pvalue)
    flips = stats.permutation_test((APART,), lambda x, axis: x.mean(axis), permutation_type="samples", vectorized=True)
    assert p_flip(APART) == pytest.approx(flips.pvalue)


def test_the_observed_signs_count_whatever_the_size_of_the_values() -> None:
    assert p_flip([106911.68, 116432.36, 106608.74]) == 0.25
    assert p_flip([1e-7, 2e-7, 3e-7, -1e-7]) == p_flip([1.0, 2.0, 3.0, -1.0])


def test_values_of_one_run_count_as_one() -> None:
    found = over_runs([("a", 0.1), ("a", 0.3), ("b", 0.5), ("a", 0.2)], 0.05)
    assert (found.n, found.mean, found.stderr) == (2, pytest.approx(0.35), pytest.approx(0.15))
    assert over_runs([("a", 0.1), ("a", 0.3)], 0.05) == SeedEstimate(1, 0.2, None, None, None)
    assert over_runs([], 0.05).n == 0


def test_the_detectable_difference_has_the_power_that_was_asked_for() -> None:
    found = detectable(0.04, 5, 0.05, 0.8)
    assert found is not None
    assert 1 - stats.nct.cdf(stats.t.ppf(0.975, 4), 4, found / 0.04) == pytest.approx(0.8, abs=1e-6)


def test_one_seed_says_nothing_about_chance() -> None:
    assert over_seeds([0.3], 0.05) == SeedEstimate(1, 0.3, None, None, None)
    assert (p_paired(over_seeds([0.3], 0.05)), p_flip([0.3]), detectable(None, 1, 0.05, 0.8)) == (None, None, None)
    assert math.isnan(over_seeds([], 0.05).mean)


@pytest.mark.parametrize("apart", [[0.0, 0.0], [0.3 - 0.2, 0.1], [1 / 240] * 3, [-(0.1 + 0.2), -0.3], [1e8, 1e8 + 1e-7]])
def test_equal_seeds_say_nothing_about_chance_but_by_their_signs(apart: list[float]) -> None:
    """Two seeds that both gained one problem would otherwise be p = 0, an interval without width, and a perfect test."""
    found = over_seeds(apart, 0.05)
    assert found == SeedEstimate(len(apart), float(np.mean(apart)), 0.0, None, None)
    assert (p_paired(found), detectable(found.stderr, found.n, 0.05, 0.8)) == (None, None)
    assert p_flip(apart) == (1.0 if not any(apart) else 2 / 2 ** len(apart))
    assert over_seeds([0.1, 0.1 + 1e-9], 0.05).low is not None, "a small spread is one"


def point(arm: str, seed: int, tokens: float, score: float, model: str = "m") -> dict:
    scope = {
        "what": "score",
        "measure": "pass@1 greedy",
        "group": "all",
        "over": "mean",
        "arm": arm,
        "seed": seed,
        "model": model,
    }
    return scope | {"generations": tokens / 100, "generated_tokens": tokens, "score": score, "trained": int(tokens / 100)}


def test_runs_are_compared_at_the_largest_amount_that_both_reached() -> None:
    points = [point("one", 0, at, score) for at, score in ((0, 0.1), (1000, 0.3))]
    points += [point("many", 0, at, score) for at, score in ((0, 0.1), (500, 0.2), (4000, 0.9))]
    assert at_budget(points[2:], "generated_tokens", 1000) == pytest.approx(0.3)
    (row,) = differences(points, [("many", "one")], ["generated_tokens"], {"first": "many"}, 0.05, 0.8).to_pylist()
    assert (row["at"], row["first_mean"], row["second_mean"]) == (1000, pytest.approx(0.3), pytest.approx(0.3))
    assert (row["difference"], row["n"], row["stderr"], row["label"]) == (pytest.approx(0), 1, None, "confirmatory")


def test_nothing_is_read_off_a_line_from_the_untrained_start() -> None:
    """A population whose first score comes after all that the other spent may have learned as much by then."""
    one, start = [point("one", 0, at, score) for at, score in ((0, 0.1), (1000, 0.3))], point("many", 0, 0, 0.1)
    late, at_once = point("many", 0, 4000, 0.5), point("many", 0, 1000, 0.25)
    budgets = ["generated_tokens"]
    assert differences([*one, start, late], [("many", "one"), ("one", "many")], budgets, {}, 0.05, 0.8).num_rows == 0
    (row,) = differences([*one, start, at_once, late], [("many", "one")], budgets, {}, 0.05, 0.8).to_pylist()
    assert (row["at"], row["first_mean"]) == (1000, 0.25)


def test_a_run_without_scores_of_its_members_forms_no_pair_and_has_no_gain() -> None:
    scored = [point(arm, seed, at, 0.1 + at / 1e4) for arm in ("one", "many") for seed in (0, 1) for at in (0, 1000)]
    points = [one for one in scored if (one["arm"], one["seed"], one["trained"]) != ("many", 1, 10)]
    (row,) = differences(points, [("many", "one")], ["generations"], {}, 0.05, 0.8).to_pylist()
    assert row["seeds"] == [0]
    assert {row["arm"]: row["seeds"] for row in gains(points, 0.05).to_pylist()} == {"one": [0, 1], "many": [0]}


def test_runs_scored_on_different_problems_form_no_pair() -> None:
    for key, ours, theirs, pairs in (("problems", 12, 7, 0), ("suite_sha256", "a", "b", 0), ("suite_sha256", "a", "", 1)):
        points = [point("one", 0, 1000, 0.3) | {key: ours}, point("many", 0, 1000, 0.4) | {key: theirs}]
        assert differences(points, [("many", "one")], ["generations"], {}, 0.05, 0.8).num_rows == pairs


def test_a_pair_is_left_out_where_nothing_is_known_of_one_run() -> None:
    longer = [point("longer", 0, 213_000, 0.5)]  # one scored state, and no base model
    budgets = ["generations", "generated_tokens"]
    shorter = [point("shorter", seed, at, 0.1 + at / 1e6) for seed in (0, 1) for at in (0, 52_000)]
    assert differences([*longer, *shorter], [("longer", "shorter")], budgets, {}, 0.05, 0.8).num_rows == 0
    equal = point("longer", 1, 52_000, 0.5)
    rows = differences([*longer, equal, *shorter], [("longer", "shorter")], budgets, {}, 0.05, 0.8).to_pylist()
    assert [(row["at"], row["seeds"], row["first_mean"]) for row in rows] == [(520, [1], 0.5), (52_000, [1], 0.5)]


def test_the_ends_of_runs_of_unlike_length_are_no_pair() -> None:
    def end(arm: str, seed: int, generations: int, value: float) -> dict:
        scope = {"what": "metric", "measure": "solve.rate", "group": "", "over": "last third", "arm": arm, "seed": seed}
        return scope | {"model": "m", "trained": generations, "generations": float(generations), "score": value}

    unlike = [end("steps", 0, 240, 0.61), end("usual", 0, 60, 0.40)]
    assert differences(unlike, [("steps", "usual")], ["generations"], {}, 0.05, 0.8).num_rows == 0
    alike = [*unlike, end("steps", 1, 60, 0.5), end("usual", 1, 60, 0.4)]
    (row,) = differences(alike, [("steps", "usual")], ["generations"], {}, 0.05, 0.8).to_pylist()
    assert (row["at"], row["seeds"], row["difference"]) == (60, [1], pytest.approx(0.1))


def test_the_best_and_worst_of_unlike_numbers_of_members_are_not_compared() -> None:
    """Of equal members, the best of four is higher than the best of one by chance alone."""
    sizes = {"quad": 4, "other": 4, "single": 1}
    points = [
        point(arm, 0, at, 0.1 + at / 1e4) | {"over": over, "members": size if at else 1}
        for arm, size in sizes.items()
        for over in ("mean", "best", "worst")
        for at in (0, 500)
    ]
    rows = differences(points, [("quad", "single"), ("quad", "other")], ["generations"], {}, 0.05, 0.8).to_pylist()
    assert [(row["second"], row["over"]) for row in rows] == [
        ("single", "mean"),
        *(("other", over) for over in ("mean", "best", "worst")),
    ]
    found = [(row["arm"], row["over"]) for row in gains(points, 0.05).to_pylist()]
    assert found == [("quad", "mean"), ("other", "mean"), *(("single", over) for over in ("mean", "best", "worst"))]


def test_only_the_primary_row_is_confirmatory_and_unlike_models_are_no_pair() -> None:
    points = [point(arm, seed, at, 0.1 + at / 1e4 + seed / 100) for arm in ("a", "b") for seed in (0, 1) for at in (0, 500)]
    points += [point("a", 2, 500, 0.9, "another"), point("b", 2, 500, 0.2), point("a", 3, 500, 0.9)]
    primary = {"first": "a", "second": "b", "budget": "generations"}
    rows = differences(points, [("a", "b"), ("b", "a")], ["generations", "generated_tokens"], primary, 0.05, 0.8).to_pylist()
    assert [row["label"] for row in rows] == ["confirmatory", "exploratory", "exploratory", "exploratory"]
    assert all(row["seeds"] == [0, 1] and row["difference"] == 0 for row in rows)


SOME = {
    "name": "some",
    "question": "Which?",
    "seeds": [0, 1],
    "arms": [{"name": name, "config": "smoke"} for name in "ab"],
    "primary": {"contrast": ["a", "b"], "budget": "generations"},
}


def test_pairs_of_two_base_models_are_two_tests_and_none_is_confirmatory() -> None:
    models = {0: "1" * 64, 1: "1" * 64, 2: "2" * 64}
    better = {0: 0.1, 1: 0.2, 2: -0.5}
    points = [point(arm, seed, 500, 0.5 + better[seed] * (arm == "a"), models[seed]) for arm in "ab" for seed in models]
    table = differences(points, [("a", "b")], ["generations"], {"first": ""}, 0.05, 0.8)
    found = [(row["model"], row["seeds"], row["difference"], row["label"]) for row in table.to_pylist()]
    assert found == [
        ("1" * 64, [0, 1], pytest.approx(0.15), "exploratory"),
        ("2" * 64, [2], pytest.approx(-0.5), "exploratory"),
    ]
    described, rows = Experiment.model_validate(SOME), table.to_pylist()
    assert primary_line(described, rows) == (
        "a minus b, all problems, at equal generations: on 11111111: +15.00 ± 5.00 points over 2 seeds, p = 0.205 (exploratory); "
        "on 22222222: -50.00 points over 1 seed (exploratory)"
    )
    tiles, listed = primary_tiles(described, rows, []), differences_table(rows)
    assert tiles.count("each model is a test of its own") == 1 and "was not committed" not in tiles and "not final" not in tiles
    for name in ("a − b on 11111111", "a − b on 22222222"):
        assert name in tiles and name in listed
    marks = [text.get_text() for text in forest(table, 0.05).figure.axes[0].get_yticklabels()]
    assert marks == ["a − b on 22222222 (n=1)", "a − b on 11111111 (n=2)"]


def test_the_primary_result_is_one_line() -> None:
    described = Experiment.model_validate(SOME)
    asked = "a minus b, all problems, at equal generations: "
    assert primary_line(described, []) == asked + "no seed has scores of both arms at an equal amount yet"
    for seeds, said in ((1, "+10.00 points over 1 seed (exploratory)"), (2, "+10.00 ± 0.00 points over 2 seeds (exploratory)")):
        points = [point(arm, seed, 1000.0, score) for seed in range(seeds) for arm, score in (("a", 0.4), ("b", 0.3))]
        rows = differences(points, [("a", "b")], ["generations"], {"first": ""}, 0.05, 0.8).to_pylist()
        assert primary_line(described, rows) == asked + said
        why = "One pair of runs has" if seeds == 1 else "The differences of all 2 seeds are equal: they have"
        assert f"{why} no spread between seeds, so chance cannot be estimated." in primary_tiles(described, rows, [])
        caption = forest(differences(points, [("a", "b")], ["generations"], {"first": ""}, 0.05, 0.8), 0.05).caption
        assert "diamond" not in caption, "nothing is confirmatory"


def test_a_gain_is_from_the_scored_start_to_the_last_state_over_seeds() -> None:
    points = [point("a", seed, at, 0.1 + seed / 10 + at / 1e4) for seed in (0, 1) for at in (0, 500, 1000)]
    points += [point("a", 2, 1000, 0.9)] + [point("b", 0, at, 0.1) | {"group": "deduction band 7"} for at in (0, 500)]
    first, second = gains(points, 0.05).to_pylist()
    assert (first["arm"], first["seeds"], first["n"], first["group"]) == ("a", [0, 1], 2, "all")
    assert (first["start"], first["end"], first["gain"]) == tuple(map(pytest.approx, (0.15, 0.25, 0.1)))
    assert (second["group"], second["gain"], second["stderr"]) == ("deduction band 7", 0.0, None)
    assert gains([], 0.05).num_rows == 0


def curve(arm: str, seed: int, values: list[float], stderr: float | None = None) -> list[dict]:
    scope = {"arm": arm, "seed": seed, "name": "solve.rate", "stderr": stderr}
    return [scope | {"trained": at + 1, "value": value} for at, value in enumerate(values)]


def test_changes_are_from_the_first_third_to_the_last_over_seeds() -> None:
    rising, faster = curve("a", 0, [1, 2, 3, 4, 5, 6], 0.5), curve("a", 1, [1, 3, 5, 7, 9, 11], 0.5)
    (row,) = changes([*rising, *faster], 0.05).to_pylist()
    assert (row["early"], row["late"], row["change"], row["seeds"]) == (1.75, 7.75, 6.0, [0, 1])
    assert row["p_t"] == pytest.approx(stats.ttest_1samp([4, 8], 0).pvalue)
    assert (row["swing"], row["noise"]) == (pytest.approx(0, abs=1e-9), 0.5)


def test_a_metric_that_ends_early_has_no_last_third() -> None:
    """A run whose teachers write no valid task from generation 40 on has no solve rate at its end, and must not look stable."""
    valid = [row | {"name": "propose.valid_share"} for row in curve("a", 0, [0.9] * 40 + [0.0] * 80)]
    (row,) = changes([*curve("a", 0, [0.8] * 40), *valid, *curve("a", 1, [0.8] * 120)], 0.05).to_pylist()[1:]
    assert (row["measure"], row["seeds"], row["late"]) == ("solve.rate", [1], pytest.approx(0.8))


def test_a_swing_is_about_the_line_and_runs_without_a_third_are_left_out() -> None:
    zigzag = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    rows = [*curve("a", 0, zigzag), *curve("a", 1, zigzag)[2:4], *curve("b", 0, zigzag)[:1]]
    (row,) = changes(rows, 0.05).to_pylist()
    fitted = stats.linregress(range(6), zigzag)
    rest = np.array(zigzag) - fitted.intercept - fitted.slope * np.arange(6)
    assert row["swing"] == pytest.approx(np.sqrt((rest**2).sum() / 4))
    assert (row["arm"], row["seeds"], row["p_t"], row["noise"]) == ("a", [0], None, None)
    assert changes([], 0.05).num_rows == 0


def test_figures_have_axes_units_and_n() -> None:
    points = [point(arm, seed, at, 0.1 + at / 1e4) for arm in ("a", "b") for seed in (0, 1) for at in (0, 500, 900)]
    rows = [{"arm": "a", "seed": seed, "trained": at, "name": "solve.rate", "value": 0.5} for seed in (0, 1) for at in (1, 2)]
    compared = differences(points, [("a", "b")], ["generations"], {"first": "a"}, 0.05, 0.8)
    for plate in (
        scores(points, ["a", "b"], "generated_tokens", "score", 0.05),
        training(rows, ["a", "b"], "solve.rate", 0.05),
        forest(compared, 0.05),
    ):
        (ax,) = plate.figure.axes
        assert ax.get_xlabel() and "n" in plate.caption
    empty = [scores([], ["a"], "seconds", "score", 0.05), *(training([], ["a"], name, 0.05) for name in CURVES)]
    assert all(plate.figure is None and plate.caption for plate in empty)
    assert forest(compared.slice(0, 0), 0.05).figure is None


def test_a_figure_averages_scores_of_one_age_over_the_seeds() -> None:
    points = [point("a", 0, at, 0.1 + at / 1e4) for at in (0, 2000, 4000, 6000)]
    points += [point("a", 1, at, 0.3 + at / 1e4) for at in (2000, 4000)]
    plate = scores(points, ["a"], "generations", "score", 0.05)
    (ax,) = plate.figure.axes
    mean, first, second = ([line.get_xdata().tolist(), line.get_ydata().tolist()] for line in ax.get_lines())
    assert mean == [[20, 40], pytest.approx([40, 60])]
    assert (first[0], second[0]) == ([0, 20, 40, 60], [20, 40])
    assert "n = seeds: a 2" in plate.caption
    apart = scores([point("a", 0, 100, 0.1), point("a", 1, 200, 0.1)], ["a"], "generations", "score", 0.05)
    assert apart.figure.axes[0].get_xlabel(), "runs without a common age have no mean"


def ran(arm: str, seed: int, model: str) -> ComparedRun:
    planned = Planned(arm, seed, f"x-{arm}-s{seed}", RunConfig.model_validate({}))
    return ComparedRun(planned, "finished", 3, model, "start", "adapters", {}, "head", {}, (), (), ())


def test_runs_on_unlike_base_models_are_said_and_never_averaged() -> None:
    found = [ran("a", 0, "1" * 64), ran("a", 1, "2" * 64), ran("b", 0, "1" * 64), ran("b", 1, "1" * 64)]
    assert arms_by_model(found) == {"x-a-s0": "a on 11111111", "x-a-s1": "a on 22222222", "x-b-s0": "b", "x-b-s1": "b"}
    assert problems(found) == [
        "The runs have 2 different base models and are compared only within each. "
        "11111111: x-a-s0, x-b-s0, x-b-s1; 22222222: x-a-s1"
    ]
    assert problems(found[2:]) == []
