"""Scores of the suite `staircase` by kind and depth: greedy, given form, pass@k, and the share of groups without a signal. Pure.

A group is `GROUP` samples of one problem by one adapter, as a run attempts a task. Where all are right or all are wrong, the
advantages are zero and nothing is learned: at a depth without mixed groups, more steps do not help, more exposure does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from stages.core.suites.scores import Row, attempts_of, is_formed
from stages.core.suites.statistics import ScoreEstimate, average, passing

GROUP = 8
PASSES = (1, 8, 128)


@dataclass(frozen=True)
class DepthScore:
    """One adapter's scores at one kind and depth. `pass_at` has each k that there are attempts for."""

    adapter_id: str
    kind: str
    depth: int
    problems: int
    greedy: ScoreEstimate | None
    formed: float
    right_of_formed: float | None
    pass_at: dict[int, ScoreEstimate]
    all_wrong: float | None
    all_right: float | None


def depth_scores(answers: pa.Table) -> list[DepthScore]:
    """Return the scores of every adapter in ANSWERS, by kind and depth (the column `band`).

    Form is that of the greedy answers where there are any, else of the samples.
    """
    columns = ["adapter_id", "member_id", "kind", "band", "problem_id", "attempt", "greedy", "answer", "status", "correct"]
    slots: dict[tuple[str, str, int], list[Row]] = {}
    for row in answers.select(columns).to_pylist():
        slots.setdefault((row["adapter_id"], row["kind"], row["band"]), []).append(row)
    return [_score(*slot, rows) for slot, rows in sorted(slots.items())]


def _score(adapter_id: str, kind: str, depth: int, rows: Sequence[Row]) -> DepthScore:
    greedy, drawn = attempts_of(rows, greedy=True), attempts_of(rows, greedy=False)
    looked_at = [row for row in rows if row["greedy"]] or rows
    formed = [row["correct"] for row in looked_at if is_formed(row)]
    fewest = min(map(len, drawn.values()), default=0)
    groups = [own[start : start + GROUP] for own in drawn.values() for start in range(0, len(own) - GROUP + 1, GROUP)]
    return DepthScore(
        adapter_id=adapter_id,
        kind=kind,
        depth=depth,
        problems=len({row["problem_id"] for row in rows}),
        greedy=average(greedy) if greedy else None,
        formed=len(formed) / len(looked_at),
        right_of_formed=sum(formed) / len(formed) if formed else None,
        pass_at={k: passing(drawn, k) for k in PASSES if k <= fewest},
        all_wrong=sum(not any(group) for group in groups) / len(groups) if groups else None,
        all_right=sum(map(all, groups)) / len(groups) if groups else None,
    )
