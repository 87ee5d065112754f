"""docs/metrics.md names every number that a generation writes and every alarm, and nothing else."""

import re

import numpy as np
import pytest

from flows.config import PROJECT
from flows.monitoring import alarms
from stages.analysis.leaked import leaked
from stages.analysis.measure import OffspringRecord, costs, explore, measure, relate, replayed
from stages.analysis.paid_for import paid_for
from stages.analysis.traced import traced
from stages.analysis.trailing import trailing
from stages.core import tables
from stages.core.earlier_tasks import SeenTasks
from stages.core.method.rating import Rating
from stages.core.population import initial_members
from stages.core.statistics.condensed import with_clusters
from stages.core.statistics.disagreement import disagreement
from tests.support.example_run import adapter
from tests.support.report_run import made

DOC = (PROJECT / "docs" / "metrics.md").read_text(encoding="utf-8")
PREFIXES = "propose|program|solve|pair|reward|update|cost|coverage|adapter|rating|calibration|child|leak"
SETTINGS = {"solve.top_up", "solve.easy_share", "solve.mixed_share", "reward.trace_weight", "reward.trailing_text", "adapter.py"}
LISTED = set(re.findall(rf"`((?:{PREFIXES})\.[\w.*/]+|disagreement)`", DOC)) - SETTINGS


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The names of all metrics that the stages can write."""
    with made(tmp_path_factory.mktemp("store"), "run", 1) as run:
        names = ("matches", "proposals", "tasks", "rollouts", "grades", "samples")
        found = {name: run.read_table(0, name) for name in names}
    played = [found[name] for name in names[1:]]
    members = initial_members(
        3, 3, "population", dict.fromkeys((f"{r}{n}-start" for r in "ts" for n in range(3)), "0" * 64), Rating()
    )
    weights = {member.adapter_id: adapter(place, 0).weights for place, member in enumerate(members)}
    births = {"t0": OffspringRecord(("t1",), "M1", 0.0)}
    answers = [{"member_id": member, "problem_id": "p", "greedy": True, "correct": member == "s0"} for member in ("s0", "s1")]
    rewarded = with_clusters(found["samples"], found["proposals"])
    parts = [
        measure(*played),
        explore(found["proposals"], found["tasks"], SeenTasks(tables.SEEDS.empty_table())),
        relate(members, found["matches"], found["grades"], rewarded, weights, births, 1.0, 0),
        costs(found["samples"], {"t0": True}),
        paid_for(found["tasks"], found["rollouts"], found["samples"]),
        replayed(found["tasks"], found["grades"]),
        leaked(found["proposals"], found["tasks"], found["grades"], found["grades"]),
        traced(found["rollouts"].slice(0, 0), found["grades"].slice(0, 0), tables.TRACES.empty_table()),
        trailing(found["rollouts"]),
        disagreement(_answers(answers)),
    ]
    return {name for part in parts for name in part["name"].to_pylist()}


def _answers(rows):
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


def test_every_metric_is_on_the_page(written):
    families = [name.removesuffix("*") for name in LISTED if name.endswith("*")]
    unlisted = {name for name in written if name not in LISTED and not any(name.startswith(one) for one in families)}
    assert not unlisted and len(written) > 45


def test_nothing_on_the_page_is_invented(written):
    families = [name for name in LISTED if name.endswith("*")]
    assert {"propose.status.*", "propose.gate.*", "update.*"} == set(families)
    assert {name for name in LISTED - written if not name.endswith("*")} <= {"update.entropy"}


def test_every_alarm_is_on_the_page():
    section = DOC[DOC.index("## Alarms") :]
    told = set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE))
    source = (PROJECT / "flows" / "monitoring" / "alarms.py").read_text(encoding="utf-8")
    assert told == set(re.findall(r'Alarm\(generation, "([\w-]+)"', source))
    assert told == {name for name in re.findall(r"^\| ([\w-]+) \|", alarms.__doc__ or "", re.MULTILINE) if name != "alarm"}


def test_the_formula_of_novelty_and_of_a_distance_are_those_of_the_code():
    from stages.core.lora.distances import distances, inner_products
    from stages.core.statistics.novelty import compressed, novelty

    old, new = ["def f(x):\n    return x"] * 3, ["def f(y):\n    return [y] * 9"]
    past = "\n".join(old)
    expected = (compressed(past + "\n" + new[0]) - compressed(past)) / compressed(new[0])
    assert novelty(new, past) == expected
    one, other = adapter(1, 0).weights, adapter(2, 0).weights
    a, b = sorted(one)
    apart = distances(inner_products([one, other]))[1][0, 1]
    np.testing.assert_allclose(apart, np.linalg.norm(one[b] @ one[a] - other[b] @ other[a]), rtol=1e-6)
    assert tables.METRICS.names[:2] == ["name", "value"]
