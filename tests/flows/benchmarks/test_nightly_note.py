"""The note of a scheduled benchmark: one line per measure of a population."""

import pyarrow as pa

from flows.benchmarks.nightly import ScoredRun, Summary, population_scores
from stages.core.tables import SCORES, table

ROW = {
    "suite": "probe-dev",
    "attempts": 1,
    "adapter_sha256": "0" * 64,
    "role": "student",
    "group": "all",
    "measure": "pass@1 greedy",
    "problems": 4,
}


def test_a_population_is_one_line_with_its_change_and_its_error() -> None:
    def scores(first: float, error: float | None) -> pa.Table:
        rows = [("s0", first, error), ("s1", 0.5, 0.1)]
        return table(
            [ROW | {"member_id": name, "adapter_id": name, "score": score, "stderr": stderr} for name, score, stderr in rows],
            SCORES,
        )

    (found,) = population_scores(scores(1.0, 0.2))
    assert found["stderr"] == (0.2 + 0.1) / 2 and (found["mean"], found["min"], found["max"]) == (0.75, 0.5, 1.0)
    assert (found["measure"], found["members"], found["problems"]) == ("pass@1 greedy", 2, 4)
    one = ScoredRun("r", "probe-dev", 3, scores(1.0, None), scores(0.5, 0.2), True)
    assert Summary((one,), ()).markdown().splitlines()[2:] == [
        "| r | probe-dev | 3 | pass@1 greedy | 75.00 |  | 50.00 | 100.00 | 2 | +25.00 |"
    ]
    named = ScoredRun("r", "probe-dev", None, scores(1.0, None), None, True)
    assert Summary((named,), ()).markdown().splitlines()[2:] == [
        "| r | probe-dev | named | pass@1 greedy | 75.00 |  | 50.00 | 100.00 | 2 | – |"
    ]


def test_why_a_run_could_not_be_scored_stays_text() -> None:
    reason = "x/run.json: <script>alert(1)</script> | [here](http://e) ![p](http://e/p.png) `c`"
    (line,) = Summary((), (("x|y", "probe-dev", reason),)).markdown().splitlines()[2:]
    said = r"x/run.json: \<script\>alert(1)\</script\> \| \[here\](http://e) \!\[p\](http://e/p.png) \`c\`"
    assert line == rf"| x\|y | probe-dev | not scored: {said} |" + " |" * 7
    assert line.replace(r"\|", "").count("|") == 11, "as many cells as the head"
