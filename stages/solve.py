"""Solve: each matched student attempts every valid task of its teacher, and the tasks that fill up a short batch.

A replayed task (stages.core.method.top_up) keeps its id; its rollouts belong to this generation's match.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Completion, Engine, Request
from stages.core.judging.early import Early, handing
from stages.core.judging.judge import AnswerItem, answer_item
from stages.core.method.top_up import replay_id
from stages.core.prompts.styles import REASONS, Kind, PromptStyle, Unparsed, solver_prompt
from stages.core.randomness import completion_seed
from stages.core.row_errors import reading
from stages.core.shards import WHOLE, Shard


@dataclass(frozen=True)
class SolvePlan:
    """Attempts per task and per replayed task (only those that train), and their length limit."""

    attempts: int
    max_new_tokens: int
    temperature: float
    trained_attempts: int = 0  # 0: all of them


def solve(
    matches: pa.Table,
    digests: Mapping[str, str],
    tasks: pa.Table,
    engine: Engine,
    style: PromptStyle,
    plan: SolvePlan,
    seed: int,
    generation: int,
    replays: Mapping[str, Sequence[dict]] = MappingProxyType({}),
    shard: Shard = WHOLE,
    early: Early | None = None,
) -> pa.Table:
    """Return ROLLOUTS: `attempts` rows per valid task that no gate stopped, or a shard of them, all students in one batch.

    `replays` maps a match to the stored tasks that it poses again; their rollouts come last. `early` takes each answer when
    it ends.
    """
    work: list[tuple[dict, dict, str, int, Request]] = []
    for match, task, name, attempts in posed(matches, tasks, plan, replays, shard):
        text = solver_prompt(style, Kind(task["kind"]), task["program"], task["inputs"], task["outputs"], task["message"])
        ids, stops = tuple(engine.encode(text)), style.solve_stops(Kind(task["kind"]))
        for attempt in range(attempts):
            draw = completion_seed(seed, generation, "solve", match["student_id"], name, attempt)
            asked = Request(ids, match["student_adapter_id"], draw, plan.max_new_tokens, stops)
            work.append((match, task, name, attempt, asked))

    def read_early(place: int, completion: Completion) -> AnswerItem | None:
        task = work[place][1]
        answer = read_answer(style, Kind(task["kind"]), engine.decode(completion.token_ids), completion.truncated)
        return answer_item(task, answer) if task["values"] else None

    ended = None if early is None else handing(early, read_early)
    completions = engine.generate([request for *_, request in work], plan.temperature, ended)
    rows = []
    for (match, task, name, attempt, request), completion in zip(work, completions, strict=True):
        text = engine.decode(completion.token_ids)
        rollout_id = f"{name}-r{attempt:02d}"
        with reading(rollout_id, text):
            answer = read_answer(style, Kind(task["kind"]), text, completion.truncated)
        rows.append(
            {
                "rollout_id": rollout_id,
                "task_id": task["task_id"],
                "match_id": match["match_id"],
                "student_id": match["student_id"],
                "kind": task["kind"],
                "attempt": attempt,
                "adapter_id": request.adapter_id,
                "adapter_sha256": digests[match["student_adapter_id"]],
                "seed": request.seed,
                "prompt_ids": list(request.prompt_ids),
                "completion_ids": list(completion.token_ids),
                "logprobs": list(completion.logprobs),
                "text": text,
                "truncated": completion.truncated,
                "answer": answer,
                "answer_tokens": answer_tokens(engine, style, Kind(task["kind"]), completion.token_ids, text),
            }
        )
    return tables.table(rows, tables.ROLLOUTS)


def posed(
    matches: pa.Table, tasks: pa.Table, plan: SolvePlan, replays: Mapping[str, Sequence[dict]], shard: Shard = WHOLE
) -> list[tuple[dict, dict, str, int]]:
    """Return what a shard's students attempt: match, task, the name of the attempts, and how many; replayed tasks last."""
    match_of = {row["match_id"]: row for row in matches.to_pylist()}
    found = [
        (match_of[task["match_id"]], task, task["task_id"], plan.attempts)
        for task in tasks.to_pylist()
        if task["status"] == "valid" and task["gate"] is None
    ]
    found += [
        (match_of[match_id], task, replay_id(match_id, task["task_id"]), plan.trained_attempts or plan.attempts)
        for match_id, stored in replays.items()
        for task in stored
    ]
    return shard.of(found, [attempts for *_, attempts in found])


def refusals(style: PromptStyle, rollouts: pa.Table) -> dict[str, int]:
    """Return how many answers could not be read, by the style's reasons."""
    found: Counter[str] = Counter()
    columns = ("kind", "text", "truncated", "answer")
    for kind, text, truncated, answer in zip(*(rollouts[name].to_pylist() for name in columns), strict=True):
        if answer is not None:
            continue
        try:
            style.read_answer(Kind(kind), text, truncated)
        except Unparsed as refused:
            found[refused.reason] += 1
    return {reason: found[reason] for reason in REASONS if reason in found}


def answer_tokens(engine: Engine, style: PromptStyle, kind: Kind, token_ids: Sequence[int], text: str) -> int | None:
    """Return how many tokens reach beyond the answer, where the model wrote more behind it; None where it did not.

    The last of them is the first that holds some of what follows: the decision to write on. An attempt that stops keeps its
    decision too, so the gradients of both branches cancel where stopping and writing on earn the same.
    """
    end = style.answer_end(kind, text)
    if end is None:
        return None
    return bisect_left(range(len(token_ids)), end + 1, key=lambda count: len(engine.decode(token_ids[:count])))


def read_answer(style: PromptStyle, kind: Kind, text: str, truncated: bool) -> str | None:
    """Return the answer in a completion, or None if its format is wrong or was cut off."""
    try:
        return style.read_answer(kind, text, truncated)
    except Unparsed:
        return None
