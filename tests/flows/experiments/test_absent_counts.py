"""Verdicts that a run's stored metrics have no row of are 0 in a comparison, for every seed and arm."""

from pathlib import Path

import pytest

from flows.config import dump
from flows.experiments.comparison import gather
from flows.experiments.spec import planned, read
from flows.run.lease import hold
from flows.run.run import Run
from flows.storage import open_store
from stages.core import tables
from stages.core.statistics.metric_rows import value_row
from tests.flows.experiments.test_experiments import FILE

TIMEOUT, VALID = "propose.status.timeout", "propose.status.valid"


def test_a_seed_without_a_verdict_is_averaged_as_0(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(FILE)
    store = open_store(str(tmp_path / "runs"))
    runs = [one for one in planned(read(file)) if one.arm == "many"]
    for one in runs:
        with hold(store, one.run_id) as epoch:
            run = Run(store, one.run_id, epoch)
            run.describe(dump(one.config), {}, {})
            run.commit(
                "start", None, [], [run.write_table(None, "seeds", tables.SEEDS.empty_table())], {}, {"base_model": "m"}, {}
            )
            for generation in range(2):
                timeouts = 2 if (one.seed, generation) == (0, 0) else 0
                rows = [value_row(VALID, 8 - timeouts, 8)] + ([value_row(TIMEOUT, timeouts, 8)] if timeouts else [])
                run.commit("update", generation, [], [run.write_table(generation, "metrics", tables.table(rows, tables.METRICS))])
                offspring = run.write_table(generation, "offspring", tables.OFFSPRING.empty_table())
                run.commit("evolve", generation, [], [offspring])
    found = gather(store, runs)
    assert [one.state for one in found] == ["finished", "finished"]
    counts = {(row["seed"], row["trained"]): row["value"] for one in found for row in one.curves if row["name"] == TIMEOUT}
    assert counts == {(0, 1): 2.0, (0, 2): 0.0, (1, 1): 0.0, (1, 2): 0.0}
    ends = {point["seed"]: point["score"] for one in found for point in one.points if point["measure"] == TIMEOUT}
    assert ends == {0: 0.0, 1: 0.0}
    whole = [row["value"] for one in found for row in one.curves if row["name"] == VALID]
    assert sum(counts.values()) + sum(whole) == pytest.approx(4 * 8)
