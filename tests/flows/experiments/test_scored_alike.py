"""Runs of an experiment are compared only on the same problems, each from its own start."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows import cli
from flows.config import ConfigError, apply, dump
from flows.experiments.comparison import gather, problems
from flows.experiments.cost import check
from flows.experiments.spec import planned, read
from flows.storage import open_store
from tests.flows.experiments.test_experiments import FILE, compared, write


def experiment_file(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(FILE)
    return path


def test_runs_of_different_versions_of_a_suite_are_not_averaged(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, suite="a" if one.seed == 0 or one.arm == "many" else "b")
    text, folder = compared(file, store)
    assert "The runs of seed 1 were scored on different problems; such runs are not compared." in text
    assert "The runs of seed 0 were scored" not in text
    rows = pq.read_table(folder / "differences.parquet").to_pylist()
    assert {tuple(row["seeds"]) for row in rows if row["what"] == "score"} == {(0,)}


def test_scores_before_a_change_of_the_suite_are_left_out(tmp_path: Path) -> None:
    store, one = str(tmp_path / "runs"), planned(read(experiment_file(tmp_path)))[0]
    write(store, one, gain=0.1, suite="ab")
    (found,) = gather(open_store(store), [one])
    scored = {(row["trained"], row["suite_sha256"]) for row in found.points if row["what"] == "score"}
    assert scored == {(trained, "b") for trained in range(2, one.config.generations + 1)}
    assert problems([found]) == [f"{one.run_id}: its suite has changed: scores on earlier versions are left out."]


def test_arms_that_are_asked_in_other_ways_are_named(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one)
    assert "asked in different ways" not in compared(file, store)[0]
    file.write_text(
        FILE.replace('config = "chaos"\n', 'config = "chaos"\nsettings = { benchmark = { max_new_tokens = 24 } }\n', 1)
    )
    store = str(tmp_path / "others")
    for one in planned(read(file)):
        write(store, one)
    text, _ = compared(file, store)
    assert "The arms were asked in different ways, and their differences include that: " in text and " prompts, 24 tokens" in text


def test_a_run_that_scored_its_own_start_is_measured_from_it(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, gain=0.05, start=0.5 if one.arm == "one" else 0.1)
    _, folder = compared(file, store)
    gains = {row["arm"]: row for row in pq.read_table(folder / "gains.parquet").to_pylist() if row["over"] == "mean"}
    assert (gains["many"]["start"], gains["one"]["start"]) == (pytest.approx(0.1), pytest.approx(0.5))


def test_a_start_scored_on_another_version_of_the_suite_is_not_that_of_others(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, gain=0.05, suite="b" if one.arm == "many" else "a", start=None if one.arm == "many" else 0.5)
    _, folder = compared(file, store)
    assert {row["arm"] for row in pq.read_table(folder / "gains.parquet").to_pylist()} == {"one"}


def test_arms_that_are_compared_are_scored_on_the_same_problems_whoever_else_is_scored(tmp_path: Path) -> None:
    file, arm = experiment_file(tmp_path), 'config = "chaos"\n'
    file.write_text(FILE.replace(arm, f'{arm}settings = {{ benchmark = {{ members = "all" }} }}\n', 1))
    assert planned(read(file))
    file.write_text(FILE.replace(arm, f"{arm}settings = {{ benchmark = {{ limit = 7 }} }}\n", 1))
    with pytest.raises(ConfigError, match=r"benchmark.limit is 7 for many .*; arms that are compared must be scored alike"):
        planned(read(file))


@pytest.mark.parametrize("over", ["best", "worst"])
def test_an_extreme_is_primary_only_between_as_many_students(tmp_path: Path, over: str) -> None:
    file = experiment_file(tmp_path)
    file.write_text(f'{FILE}over = "{over}"\n')
    with pytest.raises(ConfigError, match=f"primary.over is '{over}', but many has 2 students and one 1; use 'mean', or arms"):
        planned(read(file))
    single = 'settings = { mode = "single", population = { teachers = 1, students = 1 }, evolution = { every = 0 } }'
    file.write_text(FILE.replace(single, "settings = { evolution = { every = 0 } }") + f'over = "{over}"\n')
    assert len(planned(read(file))) == 5


def hotter(attempts: int) -> str:
    """The experiment with samples, one arm at another temperature."""
    sampled = FILE.replace("every = 1\n", f"every = 1\nattempts = {attempts}\n", 1)
    return sampled.replace('config = "chaos"\n', 'config = "chaos"\nsettings = { engine = { temperature = 0.7 } }\n', 1)


def test_arms_whose_samples_have_another_temperature_are_named(tmp_path: Path) -> None:
    for attempts in (0, 2):
        file = experiment_file(tmp_path)
        file.write_text(hotter(attempts))
        store = str(tmp_path / f"runs-{attempts}")
        for one in planned(read(file)):
            write(store, one)
        text, _ = compared(file, store)
        assert ("asked in different ways" in text) == bool(attempts), "greedy answers have no temperature"
    assert "tokens, samples at temperature 0.7; " in text and "tokens, samples at temperature 1." in text


def test_a_sampled_measure_is_primary_only_at_one_temperature(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    file.write_text(hotter(2))
    assert planned(read(file)), "the greedy measure may be compared"
    file.write_text(hotter(2) + 'measure = "pass@2"\n')
    with pytest.raises(ConfigError, match=r"engine.temperature is 0.7 for many and 1.0 for one; arms that are compared must be"):
        planned(read(file))
    file.write_text(FILE.replace("every = 1\n", "every = 1\nattempts = 2\n") + 'measure = "pass@2"\n')
    assert planned(read(file))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('measure = "pass@1"', r"primary\.measure: 'pass@1', but .* has 'pass@1 greedy'; benchmark\.attempts draws samples"),
        ('group = "deducton"', r"primary\.group: 'deducton'; choose all, deduction, abduction, induction"),
    ],
)
def test_a_primary_comparison_that_no_score_could_answer_is_refused(line: str, said: str, tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    file.write_text(FILE.replace("[primary]\n", f"[primary]\n{line}\n"))
    with pytest.raises(ConfigError, match=said):
        planned(read(file))


def test_a_kind_that_is_not_scored_cannot_be_primary(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    scored = FILE.replace("every = 1\n", 'every = 1\nsuite = "staircase-dev-deduction"\n', 1)
    file.write_text(f'{scored}group = "deduction band 3"\n')
    assert planned(read(file))
    file.write_text(f'{scored}group = "abduction"\n')
    with pytest.raises(ConfigError, match=r"primary.group: 'abduction', but .* is scored on staircase-dev-deduction"):
        planned(read(file))


@pytest.mark.parametrize(
    ("group", "over", "said"),
    [
        (
            "deduction band 99",
            "mean",
            r"primary\.group: 'deduction band 99', but probe-dev has the bands 1, 2, 3, 4 of deduction",
        ),
        (
            "deduction band 03",
            "mean",
            r"primary\.group: 'deduction band 03', but probe-dev has the bands 1, 2, 3, 4 of deduction",
        ),
        ("deduction band 3", "best", r"primary\.over: 'best', but 'deduction band 3' is one band; use 'mean', or a kind"),
        ("deduction band 3", "worst", r"primary\.over: 'worst', but 'deduction band 3' is one band"),
    ],
)
def test_a_band_is_primary_only_if_the_suite_has_it_and_as_a_mean(group: str, over: str, said: str, tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    single = 'settings = { mode = "single", population = { teachers = 1, students = 1 }, evolution = { every = 0 } }'
    scored = FILE.replace(single, "settings = { evolution = { every = 0 } }")  # as many students in both arms
    scored = scored.replace("every = 1\n", 'every = 1\nsuite = "probe-dev"\n', 1)
    file.write_text(f'{scored}group = "{group}"\nover = "{over}"\n')
    with pytest.raises(ConfigError, match=said):
        planned(read(file))
    file.write_text(f'{scored}group = "deduction band 3"\n')
    assert planned(read(file))
    file.write_text(f'{scored}group = "deduction"\nover = "best"\n')
    assert planned(read(file))


def test_arms_without_a_common_seed_cannot_be_the_primary_pair(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    file.write_text(FILE.replace('config = "chaos"\n', 'config = "chaos"\nseeds = [7]\n', 1))
    with pytest.raises(ConfigError, match=r"primary\.contrast: .* share no seed"):
        planned(read(file))
    file.write_text(FILE.replace('config = "chaos"\n', 'config = "chaos"\nseeds = []\n', 1))
    with pytest.raises(ConfigError, match="seeds"):
        planned(read(file))


def test_the_commit_and_the_style_that_a_run_chose_are_its_own(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    file.write_text(
        FILE.replace("[settings.benchmark]\n", '[settings.model]\nname = "acme/none"\nstyle = "auto"\n\n[settings.benchmark]\n')
    )
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, replace(one, config=apply(dump(one.config), ["model.revision=c0ffee", "model.style=document"])), gain=0.1)
    text, folder = compared(file, store)
    assert "left out: " not in text
    rows = pq.read_table(folder / "differences.parquet").to_pylist()
    assert {tuple(row["seeds"]) for row in rows if row["what"] == "score"} == {(0, 1)}


def test_gains_are_not_averaged_over_base_models(tmp_path: Path) -> None:
    file = experiment_file(tmp_path)
    store = str(tmp_path / "runs")
    for one in planned(read(file)):
        write(store, one, gain=0.1 if one.seed else 0.3, model="n" if one.seed and one.arm == "many" else "m")
    _, folder = compared(file, store)
    rows = pq.read_table(folder / "gains.parquet").to_pylist()
    found = {(row["arm"], tuple(row["seeds"])) for row in rows if row["arm"].startswith("many") and row["over"] == "mean"}
    assert {seeds for _, seeds in found} == {(0,), (1,)} and len({arm for arm, _ in found}) == 2


def test_digests_of_two_rules_do_not_keep_runs_of_one_model_apart(tmp_path: Path) -> None:
    """As after an upgrade in the middle of an experiment: nobody knows whether the model has changed, and the page says so."""
    store, runs = open_store(str(tmp_path / "runs")), planned(read(experiment_file(tmp_path)))
    for number, one in enumerate(runs):
        new = number % 2
        write(str(tmp_path / "runs"), one, model="n" if new else "m", rule={"base_model_rule": 2} if new else None)
    found = gather(store, runs)
    assert {one.model for one in found} == {"n" * 64} and {row["model"] for one in found for row in one.points} == {"n" * 64}
    (said,) = [text for text in problems(found) if "base model" in text]
    assert said.startswith("Whether the runs have the same base model is not known: ")
    third = replace(runs[0], run_id="third")
    write(str(tmp_path / "runs"), third, model="o", rule={"base_model_rule": 2})
    found = gather(store, [*runs, third])
    assert len({one.model for one in found}) == 3 and any("have 3 different base models" in text for text in problems(found))


@pytest.mark.parametrize("out", ["page", "page.htm", "folder.html"])
def test_a_page_that_could_not_be_written_is_refused_before_the_runs(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.html").mkdir()
    arguments = ["experiment", str(experiment_file(tmp_path)), "--out", str(tmp_path / out), "--store", str(tmp_path / "runs")]
    assert cli.main(arguments) == 2
    assert "name a file that ends in .html" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_operators_that_make_no_child_are_refused_for_runs_that_have_not_begun(tmp_path: Path) -> None:
    file, store = experiment_file(tmp_path), str(tmp_path / "runs")
    file.write_text(FILE.replace("every = 1\n", 'every = 1\n\n[settings.evolution]\nmutations = ["X1"]\nevery = 1\n', 1))
    runs = [one for one in planned(read(file)) if one.arm == "many"]
    with pytest.raises(ConfigError, match=r"evolution\.mutations: X1 does not make a child of one parent"):
        check(runs, open_store(store), lambda _: None)
    for one in runs:
        write(store, one, generations=0)
    with pytest.raises(ConfigError, match="have changed since run"):  # what comes next: the double's base model is another
        check(runs, open_store(store), lambda _: None)


@pytest.mark.parametrize("uri", ["start/start.json", "generation=0001/evolve.json"])
def test_a_run_with_a_damaged_manifest_is_left_out_and_the_others_are_compared(uri: str, tmp_path: Path) -> None:
    store, runs = str(tmp_path / "runs"), planned(read(experiment_file(tmp_path)))
    for one in runs[:2]:
        write(store, one)
    (tmp_path / "runs" / runs[0].run_id / uri).write_bytes(b"{")
    hurt, sound = gather(open_store(store), runs[:2])
    assert (hurt.state, sound.state) == ("unlike", "finished")
    assert "left out: " in problems([hurt])[0] and uri in problems([hurt])[0]
