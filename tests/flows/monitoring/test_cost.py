"""The cost of a run agrees with its manifests and tables; what is estimated, unpriced, borrowed or not recorded is said."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from flows.browser.app import make_app
from flows.cli import main
from flows.config import ConfigError, RunConfig, dump
from flows.monitoring.cost import PointCost, cost_so_far, run_cost
from flows.monitoring.cost_text import NOT_COUNTED, cost_line, gain_text, measured_text, money_text, point_text, remarks
from flows.monitoring.prices import of_machine
from flows.monitoring.run_tables import RunTables
from flows.monitoring.spending import Spent
from flows.monitoring.start_score import unscored_start
from flows.monitoring.status import status
from flows.notes.note_data import NoteBuilder
from flows.notes.note_writer import written
from flows.report.report import changes_table, report
from flows.run.fork import fork
from flows.run.lease import hold
from flows.run.run import Run
from flows.settings import Cost
from flows.store.file_store import FileStore
from stages.core import tables
from stages.core.suites.scores import Contestant, probe_scores
from tests.support import example_run
from tests.support.report_run import made

HOSTILE = '<b>x</b>"\\\x1b'
CLOCK = {
    "seconds": 36.0,
    "host": "one",
    "tokens": {"prompt": 10, "generated": 20},
    "watts": 100.0,
    "price": {"machine_hour": 2.0, "kwh": 0.5, "currency": HOSTILE},
}


def with_clocks(root: Path, run_id: str, more: dict) -> None:
    """Change the clock of every stage of a run, which no digest covers. Each stage begins when the one before has ended."""
    for number, path in enumerate(sorted((root / run_id).rglob("*.json"))):
        found = json.loads(path.read_text())
        if "stage" in found:
            path.unlink()
            path.write_text(json.dumps(found | {"clock": {"started": 100.0 * number} | more}))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A run of two generations, every stage of which took 36 s."""
    files = FileStore(tmp_path)
    with hold(files, "r") as epoch:
        example_run.build(Run(files, "r", epoch), 2)
    with_clocks(tmp_path, "r", CLOCK)
    return files


@pytest.fixture(autouse=True)
def no_prices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Cost.model_fields:
        monkeypatch.delenv(f"POPULORA_COST_{name.upper()}", raising=False)


# --- sums -----------------------------------------------------------------------------------------------------------------------


def test_sums_agree_with_the_manifests(store: FileStore) -> None:
    run = Run(store, "r")
    cost, steps = run_cost(run), [*run.history.walk()]
    assert len(steps) == 1 + 2 * 9
    used = cost.total
    assert used.seconds == used.machine_seconds == pytest.approx(36 * len(steps))
    assert (used.prompt_tokens, used.generated_tokens) == (10 * len(steps), 20 * len(steps))
    assert used.joules == {"estimate": pytest.approx(3600 * len(steps))} and used.energy_source == "estimated"
    assert used.money == {HOSTILE: pytest.approx(len(steps) * (0.02 + 0.001 * 0.5))}
    by_stage = sum(cost.stages.values(), Spent())
    by_generation = sum((one.total for one in cost.generations), Spent())
    assert by_stage.money == pytest.approx(dict(used.money)) == by_generation.money
    assert [one.generation for one in cost.generations] == [None, 0, 1] and all(one.done for one in cost.generations)
    assert set(cost.stages) == {"start", *(step.stage for step in steps)}


def test_a_run_of_an_older_version_has_seconds_and_the_tokens_of_its_metrics(tmp_path: Path) -> None:
    with made(tmp_path, "old", 2, until="grade") as run:
        cost = run_cost(run)
        completions = run.read_table(0, "rollouts")["completion_ids"].to_pylist()
        seconds = sum(step.clock["seconds"] for step in run.history.walk())
    used = cost.total
    assert used.seconds == used.machine_seconds == pytest.approx(seconds)
    assert cost.generations[1].stages["solve"].generated_tokens == sum(map(len, completions))
    assert (used.prompt_tokens, used.joules, used.money) == (None, {}, {})
    assert not cost.generations[-1].done and "grade" in cost.generations[-1].stages
    assert [text.split(":")[0] for text in remarks(cost)] == ["No energy", "No money", "Not counted"]
    assert "No energy" not in cost_line(used) and "money" not in cost_line(used)


def test_a_run_whose_update_began_early_counts_its_machine_once(store: FileStore, tmp_path: Path) -> None:
    before = run_cost(Run(store, "r"))
    update, propose = (tmp_path / "r" / "generation=0000" / f"{stage}.json" for stage in ("update", "propose"))
    found, began = json.loads(update.read_text()), json.loads(propose.read_text())["clock"]["started"]
    update.unlink()
    update.write_text(json.dumps(found | {"clock": found["clock"] | {"started": began - 6.0}}))
    after = run_cost(Run(store, "r"))
    one, other = (cost.generations[1].stages["update"] for cost in (before, after))
    assert (one.machine_seconds, other.machine_seconds, other.seconds) == (36.0, pytest.approx(6.0), 36.0)
    assert after.total.machine_seconds == pytest.approx(before.total.machine_seconds - 30.0)


def test_a_resumed_run_counts_no_stage_twice(store: FileStore) -> None:
    before = run_cost(Run(store, "r")).total
    with hold(store, "r") as epoch:
        run = Run(store, "r", epoch)
        matches = run.manifest("match", 0)
        assert matches is not None
        run.commit("match", 0, [], matches.outputs, clock={"seconds": 999.0})  # another attempt, too late
        again = example_run.CONFIG
        run.describe(dump(again), {}, {"started": 2.0})
    assert run_cost(Run(store, "r")).total == before


def test_a_fork_does_not_pay_again_for_what_it_shares(store: FileStore) -> None:
    with hold(store, "r") as epoch:
        fork(Run(store, "r", epoch), "child", 0, [], lambda config: {}, {})
    with hold(store, "child") as epoch:
        run = Run(store, "child", epoch)
        example_run.one_generation(run, example_run.population_of(run, 0), 1, last=True)
    with_clocks(store.root, "child", CLOCK)
    cost = run_cost(Run(store, "child"))
    assert [set(one.origins.values()) for one in cost.generations] == [{"r"}, {"r"}, set()]
    assert list(cost.by_generation) == [1] and cost.parents == ["r"]
    assert (cost.total.seconds, cost.inherited.seconds) == (36 * 9, 36 * 10)
    assert any(text.startswith("Taken over from r and not counted again") for text in remarks(cost))


# --- prices ---------------------------------------------------------------------------------------------------------------------


def test_the_recorded_price_comes_first_and_other_prices_replace_all(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPULORA_COST_MACHINE_HOUR", "1000")
    monkeypatch.setenv("POPULORA_COST_CURRENCY", "EUR")
    run = Run(store, "r")
    assert list(run_cost(run).total.money) == [HOSTILE]
    used = run_cost(run, Cost(machine_hour=10, currency="USD")).total
    assert used.money == {"USD": pytest.approx(19 * 0.1)} and used.joules == {"estimate": pytest.approx(19 * 3600)}
    assert run_cost(run, Cost(watts=50)).total.joules == {"estimate": pytest.approx(19 * 1800)}
    kept = run_cost(run, Cost(currency="EUR")).total.money
    assert kept == {"EUR": run_cost(run).total.money[HOSTILE]}, "a currency alone changes no price"
    with_clocks(store.root, "r", {"seconds": 36.0, "host": "one"})
    assert run_cost(Run(store, "r")).total.money == {"EUR": pytest.approx(19 * 10.0)}, "nothing recorded: this machine's price"


def test_a_machines_own_price_goes_over_the_runs() -> None:
    own = {"POPULORA_COST_MACHINE_HOUR": "3.5", "POPULORA_COST_WATTS": "", "PATH": "x"}
    assert of_machine(Cost(machine_hour=1, currency="EUR", watts=9), own) == Cost(machine_hour=3.5, currency="EUR", watts=9)
    for text in ("x", "-1"):
        with pytest.raises(ConfigError, match=rf"^POPULORA_COST_KWH={text}: Input should be"):
            of_machine(Cost(), {"POPULORA_COST_KWH": text})


def test_a_price_changes_neither_the_runs_identity_nor_its_configuration(tmp_path: Path) -> None:
    heads = []
    for name, price in (("a", 0.0), ("b", 7.5)):
        config = RunConfig.model_validate(dump(example_run.CONFIG) | {"cost": {"machine_hour": price}})
        files = FileStore(tmp_path / name)
        with hold(files, "r") as epoch:
            run = example_run.build(Run(files, "r", epoch), 1, config)
            heads.append(run.history.head())
            described = run.history.description()
        assert described is not None and "cost" not in described["config"]
    assert heads[0] == heads[1]
    assert described["clock"]["cost"]["machine_hour"] == 7.5


# --- a point gained -------------------------------------------------------------------------------------------------------------


def answers(right: int, problems: int = 200) -> pa.Table:
    """Greedy answers of one member, so many of them right."""
    row = {"suite": "probe-dev", "member_id": "s0", "kind": "deduction", "band": 1, "attempt": 0, "greedy": True}
    row |= {"adapter_id": "s0", "adapter_sha256": "0", "text": "", "status": "correct", "answer": "1"}
    rows = [row | {"problem_id": f"p{number}", "correct": number < right} for number in range(problems)]
    return tables.table(rows, tables.ANSWERS)


def score(run: Run, who: str, right: int, suite: str = "probe-dev", problems: int = 200, version: str = "") -> None:
    folder = f"{suite}/asked/{who}"
    ref = run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers(right, problems), tables.ANSWERS)
    run.commit_benchmark(folder, [], [ref], {}, {"suite": version} if version else {}, {})


def test_a_point_costs_the_training_between_two_scores(store: FileStore) -> None:
    run = Run(store, "r")
    score(run, "generation=0000-n0-k0", 20)
    assert run_cost(run).points == (), "one score is no gain"
    score(run, "start-n0-k0", 0)
    score(run, "generation=0001-n0-k0", 40)
    score(run, "generation=0001-n9-k0", 3, problems=9)  # another request
    score(run, "s0-g0001-n0-k0", 50)  # adapters by name
    (point,) = run_cost(run).points
    assert (point.suite, point.first, point.last, point.problems) == ("probe-dev", -1, 1, 200)
    error = 100 * math.sqrt(0.2 * 0.8 / 199)
    assert point.gain == pytest.approx(20.0) and point.stderr == pytest.approx(error)
    assert point.spent.seconds == 36 * 18, "both generations, without the start"
    each = point.of_a_point(point.spent.machine_seconds)
    assert each == (pytest.approx(36 * 18 / 20), pytest.approx(36 * 18 / 20 * error / 20))
    said = point_text(point)
    assert said.startswith("probe-dev: +20.00 ± 2.84 points from the start to generation 1 (200 problems); a point cost ")
    assert "Wh (estimated)" in said and "\x1b" not in said


def test_a_change_says_how_its_suite_was_asked_and_is_in_the_status_and_the_report(store: FileStore) -> None:
    run = Run(store, "r")
    for who, right in (("start-0123456789ab", 0), ("generation=0001-0123456789ab", 40)):
        folder = f"cruxeval/asked/{who}"
        ref = run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers(right), tables.ANSWERS)
        asked = {"question": {"style": "completion", "max_new_tokens": 1024}}
        run.commit_benchmark(folder, [], [ref], {}, asked, {})
    said = "cruxeval (completion, 1,024 tokens): +20.00 ± 2.84 points from the start to generation 1 (200 problems)"
    (point,) = run_cost(Run(store, "r")).points
    assert gain_text(point) == said and point_text(point).startswith(f"{said}; a point cost ")
    assert f"change     {said}" in status(Run(store, "r")).splitlines()
    shown = str(changes_table([point]))
    for cell in ("cruxeval", "completion, 1,024 tokens", "the start to generation 1", "+20.00 ± 2.84 points", "200"):
        assert f"<td>{cell}</td>" in shown or f">{cell}<" in shown, cell
    assert changes_table([]) == ""


def test_scores_of_different_versions_of_a_suite_are_never_joined(store: FileStore, tmp_path: Path) -> None:
    """The suite's file was replaced under the same ids."""
    run, old, new = Run(store, "r"), "a" * 64, "b" * 64
    score(run, "start-n0-k0", 0, version=old)
    score(run, "generation=0001-n0-k0", 40, version=new)
    cost = run_cost(Run(store, "r"))
    assert cost.points == () and cost.unpaired == ()
    said = (
        "probe-dev: no change from the start to generation 1 can be given: the two were scored on different versions of the suite"
    )
    assert f"{said}." in remarks(cost) and f"change     {said}" in status(Run(store, "r")).splitlines()
    assert said in report(Run(store, "r"), tmp_path / "report.html").read_text()
    hint = unscored_start(RunTables(Run(store, "r")).look())
    assert hint.startswith("The start of r is scored on another version of the suite only, so nothing says")
    score(run, f"start-n0-k0-s{new[:8]}", 30, version=new)  # as `probe_folder` names it
    again = RunTables(Run(store, "r")).look()
    assert unscored_start(again) == "" and cost_so_far(again).changed == ()
    (point,) = cost_so_far(again).points
    assert (point.first, point.last, point.gain) == (-1, 1, pytest.approx(5.0))
    assert gain_text(point).startswith("probe-dev (version bbbbbbbb): +5.00 ± ")
    score(run, "generation=0000-n0-k0", 20, version=old)
    assert [gain_text(one).partition(" points")[0] for one in run_cost(Run(store, "r")).points] == [
        "probe-dev (version aaaaaaaa): +10.00 ± 2.13",
        "probe-dev (version bbbbbbbb): +5.00 ± 1.54",
    ]


def test_greedy_answers_to_one_question_are_one_line_however_many_samples_were_drawn(store: FileStore) -> None:
    run = Run(store, "r")
    for who, right in (("start-n0-k0", 0), ("start-n0-k8", 2), ("generation=0000-all-n0-k0", 9), ("generation=0001-n0-k8", 40)):
        score(run, who, right)
    for who, right in (("start-n9-k0", 0), ("generation=0001-n9-k0", 3)):
        score(run, who, right, problems=9)
    for who, right in (("start-top2-n0-k0", 0), ("generation=0001-top2-n0-k0", 60)):
        score(run, who, right)
    assert [gain_text(point) for point in run_cost(run).points] == [
        "probe-dev: +19.00 ± 2.78 points from the start to generation 1 (200 problems)",  # of the same request
        "probe-dev: +33.33 ± 16.67 points from the start to generation 1 (9 problems)",
        "probe-dev (top 2 members): +30.00 ± 3.25 points from the start to generation 1 (200 problems)",
    ]
    for name, attempts, right in (("0" * 12, 0, 10), ("1" * 12, 8, 12)):
        for who, gained in (("start", 0), ("generation=0001", right)):
            folder = f"cruxeval/asked/{who}-{name}"
            ref = run.write_table_at(f"benchmarks/{folder}/answers.parquet", answers(gained), tables.ANSWERS)
            asked = {"question": {"style": "chat", "max_new_tokens": 96, "attempts": attempts}, "suite": "c", "prompt": "d"}
            run.commit_benchmark(folder, [], [ref], {"problems": 200}, asked, {})
    assert [point.suite for point in run_cost(Run(store, "r")).points] == ["cruxeval", *["probe-dev"] * 3]


def test_a_gain_is_that_of_students_where_teachers_are_scored_too(store: FileStore) -> None:
    run = Run(store, "r")
    for who, taught, teaches in (("start-all-n0-k0", 20, 20), ("generation=0001-all-n0-k0", 60, 0)):
        both = pa.concat_tables([answers(taught), renamed(answers(teaches), "t0")])
        members = [Contestant("s0", "student", "s0", "0"), Contestant("t0", "teacher", "t0", "0")]
        made = {"answers": (both, tables.ANSWERS), "scores": (probe_scores(both, members), tables.SCORES)}
        place = f"benchmarks/probe-dev/asked/{who}"
        refs = [run.write_table_at(f"{place}/{name}.parquet", table, schema) for name, (table, schema) in made.items()]
        run.commit_benchmark(f"probe-dev/asked/{who}", [], refs, {}, {}, {})
    (point,) = run_cost(run).points
    assert (point.gain, point.problems) == (pytest.approx(20.0), 200)


def renamed(table: pa.Table, member: str) -> pa.Table:
    """Return the answers as those of a member whose adapter has its name."""
    for name in ("member_id", "adapter_id"):
        table = table.set_column(
            table.schema.get_field_index(name), table.schema.field(name), pa.array([member] * table.num_rows)
        )
    return table


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (12728980.0, 6385250.0, "12,700,000 ± 6,400,000"),
        (124.59, 62.5, "125 ± 62"),
        (1.6204, 0.0996, "1.620 ± 0.100"),
        (0.5, 0.0, "0.5 ± 0"),
    ],
)
def test_an_amount_has_the_digits_that_its_error_leaves_it(value: float, error: float, text: str) -> None:
    assert measured_text(value, error) == text


def test_a_gain_within_its_error_has_no_price(store: FileStore) -> None:
    run = Run(store, "r")
    score(run, "start-n0-k0", 20)
    score(run, "generation=0001-n0-k0", 21)
    (point,) = run_cost(run).points
    assert point.gain > 0 and not point.sure and point.of_a_point(1.0) is None
    assert point_text(point).endswith("no cost of a point: no gain beyond the error (95 %)")
    worse = PointCost("probe-dev", 0, 1, -3.0, 0.1, 200, Spent())
    assert not worse.sure
    score(run, "generation=0001-x", 21, problems=7)
    score(run, "start-x", 20)
    cost = run_cost(run)
    assert len(cost.points) == 1 and cost.unpaired == ("probe-dev",), "other problems are not compared"
    assert "probe-dev: no cost of a point: its first and last scores are not of the same readable problems." in remarks(cost)


# --- where it is shown ----------------------------------------------------------------------------------------------------------


def test_every_page_shows_it_and_escapes_the_currency(store: FileStore, tmp_path: Path) -> None:
    run = Run(store, "r")
    score(run, "start-n0-k0", 0)
    score(run, "generation=0001-n0-k0", 40)
    shown = "&lt;b&gt;x&lt;/b&gt;"
    with TestClient(make_app(str(store.root)), base_url="http://127.0.0.1") as pages:
        for address in ("/runs/r", "/runs/r/generations/1", "/runs/r/generations/start"):
            text = pages.get(address).text
            assert shown in text and HOSTILE not in text and "<b>x" not in text and "Wh (estimated)" in text, address
        metrics = pages.get("/metrics").text
    found = {
        (
            one.name,
            one.labels.get("stage"),
            one.labels.get("currency") or one.labels.get("source") or one.labels.get("kind"),
        ): one.value
        for family in text_string_to_metric_families(metrics)
        for one in family.samples
    }
    assert found["populora_machine_seconds_total", "solve", None] == 72.0
    assert found["populora_cost_tokens_total", "solve", "generated"] == 40
    assert found["populora_energy_joules_total", "solve", "estimate"] == pytest.approx(7200.0)
    assert found["populora_money_total", "solve", HOSTILE] == pytest.approx(0.041)
    page = report(run, tmp_path / "report.html").read_text()
    assert shown in page and HOSTILE not in page and "<b>x" not in page and NOT_COUNTED in page
    notes = written(NoteBuilder(run, 2), 1)
    assert r"\<b\>x\</b\>" in notes.generation and r"\<b\>x\</b\>" in notes.run
    assert HOSTILE not in notes.generation + notes.run
    assert "\ncost       11 min of machine time, 380 tokens generated, 19.00 Wh (estimated), 0.39 " in status(run)
    assert "\x1b" not in status(run) + money_text({HOSTILE: 1.0})


def test_the_command_prints_tables_and_json(store: FileStore, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["cost", "r", "--store", str(store.root)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["machine", "time", "prompt", "tokens", "generated", "trained", "energy", "money"]
    assert [text.split()[0] for text in lines[1:12]] == [
        *("start", "match", "propose", "verify", "solve", "grade", "reward", "update", "rate", "evolve", "total"),
    ]
    assert main([*arguments, "--by", "generation", "--set", "machine_hour=100", "--set", "currency=EUR"]) == 0
    told = capsys.readouterr().out
    assert "\ngeneration 1 " in told and "19.00 EUR" in told and HOSTILE not in told
    assert main([*arguments, "--generation", "0"]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[1].startswith("match ") and "\nstart " not in told
    assert main([*arguments, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["total"]["energy"] == "estimated" and values["total"]["money"][HOSTILE] == pytest.approx(0.3895)
    assert [one["generation"] for one in values["generations"]] == [None, 0, 1] and values["points"] == []
    for unknown in ("9", "-5"):
        assert main([*arguments, "--generation", unknown]) == 2
        assert (
            capsys.readouterr().err
            == f"populora: run r has no generation {unknown}; its generations are -1 to 1; -1 is the start\n"
        )
    assert main([*arguments[:3], f"{store.root}/nowhere"]) == 2
    assert capsys.readouterr().err == f"populora: no run r: there is no folder {store.root}/nowhere\n"
    assert main([*arguments, "--set", "machine_hour=dear"]) == 2
    assert capsys.readouterr().err.startswith("populora: cost.machine_hour: ")
