"""Benchmark: score adapters on fixed problems that no generation trains on."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Engine, Request
from stages.core.judging.judge import AnswerItem, judge_answers
from stages.core.progress import Progress, counted, silent
from stages.core.prompts.styles import Kind, PromptStyle, Unparsed, solver_prompt
from stages.core.randomness import completion_seed
from stages.core.row_errors import reading, rows_named
from stages.core.sandbox.protocol import Sandbox
from stages.core.values.canonical import canonical, parse_value


@dataclass(frozen=True)
class BenchmarkPlan:
    """One greedy attempt per problem, and `attempts` sampled ones."""

    suite: str
    attempts: int
    max_new_tokens: int
    temperature: float


@dataclass(frozen=True)
class Player:
    """A scored member with its current weights."""

    member_id: str
    role: str
    adapter_id: str
    adapter_sha256: str


def chosen_problems(problems: pa.Table, limit: int) -> pa.Table:
    """Return the first `limit` problems (0: all), taken in turn over kinds and bands so that all slices shrink evenly."""
    if not limit or limit >= problems.num_rows:
        return problems
    slices: dict[tuple[str, int], list[int]] = {}
    for index, (kind, band) in enumerate(zip(problems["kind"].to_pylist(), problems["band"].to_pylist(), strict=True)):
        slices.setdefault((kind, band), []).append(index)
    turns = max(len(indices) for indices in slices.values())
    order = [indices[turn] for turn in range(turns) for indices in slices.values() if turn < len(indices)]
    return problems.take(sorted(order[:limit]))


def answer(
    players: Sequence[Player],
    problems: pa.Table,
    engine: Engine,
    style: PromptStyle,
    sandbox: Sandbox,
    plan: BenchmarkPlan,
    seed: int,
    progress: Progress = silent,
) -> pa.Table:
    """Return ANSWERS: every player's greedy and sampled completions on every problem, judged as in a run."""
    listed = problems.to_pylist()
    prompts = [tuple(engine.encode(_prompt(style, problem))) for problem in listed]
    stops = [style.solve_stops(Kind(problem["kind"])) for problem in listed]
    asked = [
        (player, number, attempt) for player in players for number in range(len(listed)) for attempt in range(plan.attempts + 1)
    ]
    greedy = [item for item in asked if item[2] == 0]
    sampled = [item for item in asked if item[2] > 0]
    rows = []
    for items, temperature in ((greedy, 0.0), (sampled, plan.temperature)):
        requests = [
            Request(prompts[number], player.adapter_id, _seed(seed, listed[number], attempt), plan.max_new_tokens, stops[number])
            for player, number, attempt in items
        ]
        completions = engine.generate(requests, temperature) if requests else []
        for (player, number, attempt), completion in zip(items, completions, strict=True):
            rows.append(
                _row(
                    plan.suite, player, listed[number], attempt, engine.decode(completion.token_ids), completion.truncated, style
                )
            )
    judged = _judged(rows, {row["problem_id"]: row for row in listed}, sandbox)
    return tables.table(counted(judged, "answers", len(rows), progress), tables.ANSWERS)


def _prompt(style: PromptStyle, problem: dict) -> str:
    return solver_prompt(style, Kind(problem["kind"]), problem["program"], problem["inputs"], problem["outputs"], "")


def _seed(seed: int, problem: dict, attempt: int) -> int:
    # The same for every player and generation: scores are compared in pairs on common random numbers.
    return completion_seed(seed, 0, "benchmark", problem["problem_id"], attempt)


def _row(suite: str, player: Player, problem: dict, attempt: int, text: str, truncated: bool, style: PromptStyle) -> dict:
    with reading(f"{player.member_id} {problem['problem_id']} {attempt}", text):
        try:
            read = style.read_answer(Kind(problem["kind"]), text, truncated)
        except Unparsed:
            read = None
    return {
        "suite": suite,
        "problem_id": problem["problem_id"],
        "member_id": player.member_id,
        "kind": problem["kind"],
        "band": problem["band"],
        "attempt": attempt,
        "greedy": attempt == 0,
        "adapter_id": player.adapter_id,
        "adapter_sha256": player.adapter_sha256,
        "text": text,
        "answer": read,
    }


def _judged(rows: list[dict], problems: Mapping[str, dict], sandbox: Sandbox) -> Iterator[dict]:
    items = (
        AnswerItem(
            kind=Kind(row["kind"]),
            program=problems[row["problem_id"]]["program"],
            inputs=tuple(problems[row["problem_id"]]["inputs"]),
            values=tuple(canonical(parse_value(output)) for output in problems[row["problem_id"]]["outputs"]),
            answer=row["answer"],
        )
        for row in rows
    )
    ids = [f"{row['member_id']} {row['problem_id']} {row['attempt']}, whose answer is {row['answer']!r:.200}" for row in rows]
    with rows_named("", ids):
        judged = list(judge_answers(sandbox, items))
    for row, judgement in zip(rows, judged, strict=True):
        yield row | {"status": judgement.status, "correct": judgement.correct}


def score(answers: pa.Table, players: Sequence[Player]) -> pa.Table:
    """Return SCORES: greedy pass@1 and unbiased pass@n of each player, overall, by kind, and by kind and band.

    pass@k = 1 - C(n - c, k) / C(n, k) for n attempts of which c are correct (Chen et al. 2021). Standard errors are over
    problems, each problem one cluster; they are undefined (absent) for fewer than two problems.
    """
    rows = []
    listed = answers.select(["member_id", "problem_id", "kind", "band", "greedy", "correct"]).to_pylist()
    for player in players:
        own = [row for row in listed if row["member_id"] == player.member_id]
        groups = [("all", own)]
        groups += [(kind, [row for row in own if row["kind"] == kind]) for kind in sorted({row["kind"] for row in own})]
        bands = sorted({(row["kind"], row["band"]) for row in own})
        groups += [
            (f"{kind} band {band}", [row for row in own if (row["kind"], row["band"]) == (kind, band)]) for kind, band in bands
        ]
        for group, members in groups:
            for measure, values, attempts in _measures(members):
                rows.append(_score_row(answers["suite"][0].as_py(), player, group, measure, values, attempts))
    return tables.table(rows, tables.SCORES)


@dataclass(frozen=True)
class FormShares:
    """One adapter's greedy or sampled answers: the share in the required format, and how many of those are correct.

    Standard errors are over problems; all attempts at one problem form a cluster. `right` is a linearized ratio of sums.
    """

    adapter_id: str
    greedy: bool
    formed: float
    formed_stderr: float | None
    right: float
    right_stderr: float | None
    problems: int


def forms(answers: pa.Table) -> list[FormShares]:
    """Return how well every adapter's answers follow the required format, greedy before sampled."""
    found: dict[tuple[str, bool], dict[str, list[tuple[bool, bool]]]] = {}
    for row in answers.select(["adapter_id", "greedy", "problem_id", "status", "correct"]).to_pylist():
        own = found.setdefault((row["adapter_id"], row["greedy"]), {})
        own.setdefault(row["problem_id"], []).append((row["status"] != "format", row["correct"]))
    return [_form(adapter, greedy, list(own.values())) for (adapter, greedy), own in found.items()]


def _form(adapter_id: str, greedy: bool, problems: list[list[tuple[bool, bool]]]) -> FormShares:
    counts = [(len(own), sum(formed for formed, _ in own), sum(right for _, right in own)) for own in problems]
    formed, formed_stderr = _ratio([(one[1], one[0]) for one in counts])
    right, right_stderr = _ratio([(one[2], one[1]) for one in counts])
    return FormShares(adapter_id, greedy, formed, formed_stderr, right, right_stderr, len(problems))


def _ratio(clusters: list[tuple[int, int]]) -> tuple[float, float | None]:
    """Return a ratio of sums over clusters and its standard error; NaN if the denominator is 0."""
    over, under, n = sum(top for top, _ in clusters), sum(bottom for _, bottom in clusters), len(clusters)
    if not under:
        return math.nan, None
    ratio = over / under
    spread = math.fsum((top - ratio * bottom) ** 2 for top, bottom in clusters)
    return ratio, math.sqrt(spread * n / (n - 1)) / under if n > 1 else None


def _measures(rows: list[dict]) -> Iterator[tuple[str, list[float], int]]:
    yield "pass@1 greedy", [float(row["correct"]) for row in rows if row["greedy"]], 1
    sampled: dict[str, list[bool]] = {}
    for row in rows:
        if not row["greedy"]:
            sampled.setdefault(row["problem_id"], []).append(row["correct"])
    attempts = min(map(len, sampled.values()), default=0)
    if attempts:
        yield "avg@1", [sum(correct) / len(correct) for correct in sampled.values()], attempts
        yield f"pass@{attempts}", [pass_at_k(len(c), sum(c), attempts) for c in sampled.values()], attempts


def pass_at_k(attempts: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k (Chen et al. 2021). Raise ValueError if it is undefined (attempts < k)."""
    if attempts < k:
        raise ValueError(f"pass@{k} is undefined for {attempts} attempts")
    return 1.0 - math.comb(attempts - correct, k) / math.comb(attempts, k)


def _score_row(suite: str, player: Player, group: str, measure: str, values: list[float], attempts: int) -> dict:
    mean = math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values)
    stderr = math.sqrt(spread / (len(values) - 1) / len(values)) if len(values) > 1 else None
    return {
        "suite": suite,
        "member_id": player.member_id,
        "role": player.role,
        "adapter_id": player.adapter_id,
        "adapter_sha256": player.adapter_sha256,
        "group": group,
        "measure": measure,
        "score": mean,
        "stderr": stderr,
        "problems": len(values),
        "attempts": attempts,
    }
