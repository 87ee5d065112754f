"""How differently members behave on problems that all of them answer."""

from itertools import combinations

import pyarrow as pa

from stages.core import tables
from stages.core.statistics.metric_rows import mean_row


def disagreement(answers: pa.Table) -> pa.Table:
    """Return METRICS: for each pair, the share of problems that exactly one of the two solves greedily, and the mean over pairs.

    Standard errors are over problems: in `disagreement`, over all pairs, each problem is one cluster. Members that solve the
    same problems are alike whatever their weights say.
    """
    solved: dict[str, dict[str, bool]] = {}
    for row in answers.select(["member_id", "problem_id", "greedy", "correct"]).to_pylist():
        if row["greedy"]:
            solved.setdefault(row["member_id"], {})[row["problem_id"]] = row["correct"]
    rows, every, problems = [], [], []
    for first, second in combinations(sorted(solved), 2):
        shared = sorted(solved[first].keys() & solved[second].keys())
        unlike = [solved[first][problem] != solved[second][problem] for problem in shared]
        rows.append(mean_row("pair.disagreement", unlike, shared, first, opponent_id=second))
        every += unlike
        problems += shared
    return tables.table([mean_row("disagreement", every, problems), *rows] if rows else [], tables.METRICS)
