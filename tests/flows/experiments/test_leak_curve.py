"""The gate experiment on a comparison page: which arms make a curve, and what it shows."""

from pathlib import Path

import pytest

from flows.config import PROJECT, dump
from flows.experiments.comparison import gather
from flows.experiments.comparison_page import write_comparison
from flows.experiments.leak_curve import leak_curves, leak_table
from flows.experiments.spec import Planned, planned, read
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from stages.core.statistics.metric_rows import value_row
from stages.figures.comparison import leak

FILE = """
name = "tiny"
question = "Does it leak?"
seeds = [0, 1]

[settings]
generations = 3

[[arms]]
name = "many-00"
config = "chaos"

[[arms]]
name = "many-50"
config = "chaos"
settings = { experiment = { leak = 0.5 } }

[[arms]]
name = "other"
config = "chaos"
settings = { solve = { attempts = 3 } }

[primary]
contrast = ["many-50", "many-00"]
"""


def write(store: str, one: Planned, model: str = "m" * 64) -> None:
    """A finished run on a base model, whose skill and validity fall with its leak, and differ by its seed."""
    opened, share = open_store(store), one.config.experiment.leak
    with hold(opened, one.run_id) as epoch:
        run = Run(opened, one.run_id, epoch)
        run.describe(dump(one.config), {"code": "c0de"}, {"started": 1.0})
        start = run.write_table(None, "seeds", tables.SEEDS.empty_table())
        run.commit("start", None, [], [start], {}, {"base_model": model}, {})
        for generation in range(3):
            valid = 0.9 - share * (generation == 2) - one.seed / 10
            rows = [value_row("propose.valid_share", valid)]
            rows += [value_row("solve.rate", 0.5)] if generation < 2 or not one.seed else []  # seed 1 ends without a valid task
            rows += [value_row("leak.posed", 0.2)] if share else []
            metrics = run.write_table(generation, "metrics", tables.table(rows, tables.METRICS))
            run.commit("update", generation, [], [metrics], clock={"seconds": 2.0})
            score = {"suite": "probe-dev", "member_id": "s0", "role": "student", "adapter_id": f"s0-g{generation:04d}"}
            score |= {"adapter_sha256": "0", "group": "all", "measure": "pass@1 greedy", "problems": 12, "attempts": 1}
            score |= {"score": (0.6 - share) * (generation == 2) + one.seed / 10, "stderr": 0.1}
            place = f"benchmarks/probe-dev/generation={generation:04d}/scores.parquet"
            scores = run.write_table_at(place, tables.table([score], tables.SCORES), tables.SCORES)
            run.commit("benchmark", generation, [], [scores], clock={"seconds": 5.0})
            run.commit("evolve", generation, [], [run.write_table(generation, "offspring", tables.OFFSPRING.empty_table())])


def test_arms_that_differ_in_their_leak_only_make_a_curve(tmp_path: Path) -> None:
    file, store = tmp_path / "tiny.toml", str(tmp_path / "store")
    file.write_text(FILE)
    described = read(file)
    runs = planned(described)
    for one in runs:
        write(store, one)
    (curve,) = leak_curves(described, gather(open_store(store), runs))
    assert curve.name == "many" and list(curve.values) == [0.0, 0.5]
    assert curve.values[0.0]["skill"] == pytest.approx([0.6, 0.7])
    assert curve.values[0.5]["skill"] == pytest.approx([0.1, 0.2])
    assert curve.values[0.5]["propose.valid_share"] == pytest.approx([0.4, 0.3]), "of the last third"
    assert (curve.values[0.0]["leak.posed"], curve.values[0.5]["leak.posed"]) == ([], [0.2, 0.2])
    written = write_comparison(described, file, runs, open_store(store), tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert "Skill and validity against the leak" in page and "15.00 ± 5.00" in page and "35.00 ± 5.00" in page
    assert page.count("50.00 (1 of 2 seeds)") == 2
    assert any(path.endswith("/leak.svg") for path in written["figures"])


def test_runs_on_another_base_model_have_a_curve_of_their_own(tmp_path: Path) -> None:
    """Their scores do not compare, so that one mean over both would show a leak's effect where there is none."""
    file, store = tmp_path / "tiny.toml", str(tmp_path / "store")
    file.write_text(FILE)
    described = read(file)
    runs = planned(described)
    for one in runs:
        if (one.arm, one.seed) != ("many-00", 1):  # not started
            write(store, one, ("a" if one.seed == 0 else "b") * 64)
    curves = leak_curves(described, gather(open_store(store), runs))
    skill = {curve.name: {share: values["skill"] for share, values in curve.values.items()} for curve in curves}
    assert skill == {
        "many on aaaaaaaa": {0.0: [pytest.approx(0.6)], 0.5: [pytest.approx(0.1)]},
        "many on bbbbbbbb": {0.5: [pytest.approx(0.2)]},
    }
    page = str(leak_table(curves, 0.05))
    assert all(name in page for name in skill)


def test_the_table_of_runs_has_the_totals_of_those_that_have_started(tmp_path: Path) -> None:
    file, store = tmp_path / "tiny.toml", str(tmp_path / "store")
    file.write_text(FILE)
    described = read(file)
    runs = planned(described)
    write(store, runs[-1])
    write_comparison(described, file, runs, open_store(store), tmp_path / "out.html")
    header, *rows = (tmp_path / "out" / "runs.csv").read_text().splitlines()
    assert '"generated_tokens"' in header and '"seconds"' in header
    assert [len(row.split(",")) for row in rows] == [len(header.split(","))] * len(runs)
    assert "not started" in rows[0] and "finished" in rows[-1]


def test_an_experiment_without_a_leak_has_no_curve(tmp_path: Path) -> None:
    described = read(PROJECT / "infra" / "experiments" / "size.toml")
    assert leak_curves(described, gather(open_store(str(tmp_path)), planned(described))) == []


def test_the_gate_experiment_has_two_curves_of_four_leaks() -> None:
    runs = planned(read(PROJECT / "infra" / "experiments" / "gate.toml"))
    leaks = {one.arm: one.config.experiment.leak for one in runs}
    assert leaks == {f"{who}-{share:02d}": share / 100 for who in ("single", "quad") for share in (0, 5, 20, 50)}
    assert leak({"single": {}}, "pass@1", 0.05).figure is None
