"""Who is scored on a benchmark, and SCORES from ANSWERS: pass@1, avg@n and pass@k with standard errors over problems' programs.

The probe and the public suites differ in their slices and in which k they report; everything else is one computation.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stages.core import tables
from stages.core.suites.statistics import ScoreEstimate, average, cluster_of, passing, powers

Row = dict[str, Any]
LITERALS = {"input", "output"}
"""The kinds of CRUXEval, whose answers are literals."""
Slices = Callable[[list[Row]], Iterator[tuple[str, list[Row]]]]


@dataclass(frozen=True)
class Contestant:
    """A scored member or model: an adapter, the base model alone (`adapter_id` None), or an external model."""

    member_id: str
    role: str
    adapter_id: str | None
    adapter_sha256: str


def probe_scores(answers: pa.Table, contestants: Sequence[Contestant]) -> pa.Table:
    """Return SCORES of the project's probe: overall, by kind, and by kind and band; sampled attempts as avg@1 and pass@n."""
    return _scores(answers, contestants, by_band, lambda fewest: ("avg@1", [fewest]))


def suite_scores(answers: pa.Table, contestants: Sequence[Contestant]) -> pa.Table:
    """Return SCORES of a public suite: overall, by slice, and under another rule; avg@n, pass@k for powers of two.

    The other rules: `base` counts the base tests alone, `strict` a literal only where nothing but it was written.
    """
    return _scores(answers, contestants, by_slice, lambda fewest: (f"avg@{fewest}", powers(fewest)))


def _scores(
    answers: pa.Table, contestants: Sequence[Contestant], slices: Slices, sampled: Callable[[int], tuple[str, list[int]]]
) -> pa.Table:
    rows = []
    listed = scored_rows(answers)
    for who in contestants:
        adapter = who.adapter_id or "base"  # of a member, several adapters may be scored
        own = [row for row in listed if (row["member_id"], row["adapter_id"]) == (who.member_id, adapter)]
        for group, chosen in slices(own):
            for measure, found, attempts in _measures(chosen, sampled):
                rows.append(_score_row(answers["suite"][0].as_py(), who, group, measure, found, attempts))
    return tables.table(rows, tables.SCORES)


def scored_rows(answers: pa.Table) -> list[Row]:
    """Return ANSWERS as rows without their texts, which `alone` replaces: whether a literal stands on its line alone."""
    written = zip(answers["kind"], answers["text"], answers["answer"], strict=True)
    alone = pa.array(
        [kind.as_py() not in LITERALS or _alone(text.as_py(), answer.as_py()) for kind, text, answer in written], pa.bool_()
    )
    return list(answers.drop_columns(["text", "answer"]).append_column("alone", alone).to_pylist())


def by_band(own: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the slices of the project's probe: everything, each kind, each kind's bands."""
    yield "all", own
    for kind in sorted({row["kind"] for row in own}):
        yield kind, [row for row in own if row["kind"] == kind]
    for kind, band in sorted({(row["kind"], row["band"]) for row in own}):
        yield f"{kind} band {band}", [row for row in own if (row["kind"], row["band"]) == (kind, band)]


def by_slice(own: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the slices of a public suite: everything, each kind, and everything or a kind under another rule."""
    yield "all", own
    if any(row["kind"] in ("humaneval", "mbpp") for row in own):
        yield "base", [row | {"correct": row["correct"] or row["status"] == "base_only"} for row in own]
    kinds = sorted({row["kind"] for row in own})
    for kind in kinds if len(kinds) > 1 else []:
        yield kind, [row for row in own if row["kind"] == kind]
    for kind in sorted(LITERALS & set(kinds)):
        yield f"{kind} strict", [row | {"correct": row["correct"] and row["alone"]} for row in own if row["kind"] == kind]


def _alone(text: str, answer: str | None) -> bool:
    """Whether a completed line ends where its answer does. An answer that was found in a longer text has a form of its own."""
    line = text.strip()
    if answer and not line.startswith(answer):
        line = line.removeprefix("(").lstrip()  # a call's parentheses are the model's own
    if not answer or "\n" in line or not line.startswith(answer):
        return True
    return line.removeprefix(answer).strip() in ("", ")")


def _measures(rows: Sequence[Row], sampled: Callable[[int], tuple[str, list[int]]]) -> Iterator[tuple[str, ScoreEstimate, int]]:
    if greedy := attempts_of(rows, greedy=True):
        yield "pass@1 greedy", average(greedy), 1
    if drawn := attempts_of(rows, greedy=False):
        fewest = min(map(len, drawn.values()))
        mean, ks = sampled(fewest)
        yield mean, average(drawn), fewest
        for k in ks:
            yield f"pass@{k}", passing(drawn, k), fewest


def attempts_of(rows: Sequence[Row], greedy: bool) -> dict[str, list[bool]]:
    """Return whether each attempt is correct, by problem."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row["greedy"] == greedy:
            found.setdefault(row["problem_id"], []).append(bool(row["correct"]))
    return found


def _score_row(suite: str, who: Contestant, group: str, measure: str, found: ScoreEstimate, attempts: int) -> Row:
    return {
        "suite": suite,
        "member_id": who.member_id,
        "role": who.role,
        "adapter_id": who.adapter_id or "base",
        "adapter_sha256": who.adapter_sha256,
        "group": group,
        "measure": measure,
        "score": found.mean,
        "stderr": found.stderr,
        "problems": found.problems,
        "attempts": attempts,
    }


@dataclass(frozen=True)
class FormShares:
    """One adapter's greedy or sampled answers: the share in the required format, and how many of those are correct.

    All attempts at problems with one program form a cluster of the standard errors. `right` is a linearized ratio of sums.
    """

    adapter_id: str
    greedy: bool
    formed: float
    formed_stderr: float | None
    right: float
    right_stderr: float | None
    problems: int


def is_formed(row: Row) -> bool:
    """Return whether a row of ANSWERS has an answer in the required format. One that is `too_long` may have none."""
    return row["status"] != "format" and row["answer"] is not None


def forms(answers: pa.Table) -> list[FormShares]:
    """Return how well every adapter's answers follow the required format, greedy before sampled."""
    found: dict[tuple[str, bool], dict[str, list[tuple[bool, bool]]]] = {}
    problems: dict[tuple[str, bool], set[str]] = {}
    for row in answers.select(["adapter_id", "greedy", "problem_id", "answer", "status", "correct"]).to_pylist():
        key, problem = (row["adapter_id"], row["greedy"]), row["problem_id"]
        found.setdefault(key, {}).setdefault(cluster_of(problem), []).append((is_formed(row), row["correct"]))
        problems.setdefault(key, set()).add(problem)
    return [_form(*key, list(own.values()), len(problems[key])) for key, own in found.items()]


def _form(adapter_id: str, greedy: bool, clusters: list[list[tuple[bool, bool]]], problems: int) -> FormShares:
    counts = [(len(own), sum(formed for formed, _ in own), sum(right for _, right in own)) for own in clusters]
    formed, formed_stderr = _ratio([(one[1], one[0]) for one in counts])
    right, right_stderr = _ratio([(one[2], one[1]) for one in counts])
    return FormShares(adapter_id, greedy, formed, formed_stderr, right, right_stderr, problems)


def _ratio(clusters: list[tuple[int, int]]) -> tuple[float, float | None]:
    """Return a ratio of sums over clusters and its standard error; NaN if the denominator is 0."""
    over, under, n = sum(top for top, _ in clusters), sum(bottom for _, bottom in clusters), len(clusters)
    if not under:
        return math.nan, None
    ratio = over / under
    spread = math.fsum((top - ratio * bottom) ** 2 for top, bottom in clusters)
    return ratio, math.sqrt(spread * n / (n - 1)) / under if n > 1 else None


def without_teachers(answers: pa.Table, scores: pa.Table) -> pa.Table:
    """Return ANSWERS without those of teachers; some runs score these, too. SCORES of the same benchmark name the roles."""
    teachers = pa.array({row["member_id"] for row in scores.to_pylist() if row["role"] == "teacher"}, pa.string())
    return answers.filter(pc.invert(pc.is_in(answers["member_id"], value_set=teachers)))
