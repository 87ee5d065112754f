"""Trial: what a model makes of a prompt style, before any run: proposals and answers of each kind, judged as in a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stages.core.engines.protocol import Completion, Engine, Request
from stages.core.judging.judge import AnswerItem, TaskItem, judge_answers, judge_tasks
from stages.core.method.proposing import Prompt, ProposalPlan, draw_prompt, read_proposal
from stages.core.prompts.styles import Kind, PromptStyle, Proposed, Unparsed, solver_prompt
from stages.core.randomness import completion_seed, generator
from stages.core.row_errors import reading
from stages.core.sandbox.protocol import Sandbox


@dataclass(frozen=True)
class StyleAttempt:
    """One completion in a style: `part` is propose or solve, `status` the judge's, or the reason why it could not be read."""

    style: str
    part: str
    kind: Kind
    readable: bool
    status: str
    detail: str
    tokens: int
    prompt: int
    text: str

    @property
    def good(self) -> bool:
        """Whether it is a valid task or a correct answer."""
        return self.status in ("valid", "correct")


@dataclass(frozen=True)
class TrialPlan:
    """Proposals and answers of each kind; the prompts of proposals are shared as in a run."""

    proposals: ProposalPlan
    rows: int
    answer_tokens: int
    seed: int


def stored_tasks(sandbox: Sandbox, shipped: Sequence[Proposed], num_inputs: int) -> dict[Kind, list[dict]]:
    """Return shipped tasks as rows of a buffer, by kind: several inputs make an induction task, one both of the others."""
    cut = [one if len(one.inputs) == 1 else Proposed(one.program, one.inputs[:num_inputs], one.message) for one in shipped]
    found: dict[Kind, list[dict]] = {kind: [] for kind in Kind}
    judged = judge_tasks(sandbox, [TaskItem(one.program, one.inputs) for one in cut])
    for number, (one, verdict) in enumerate(zip(cut, judged, strict=True)):
        row = {"task_id": f"{number:03d}", "program": one.program, "inputs": list(one.inputs), "message": one.message}
        row |= {"outputs": list(verdict.outputs), "values": list(verdict.values)}
        kinds = (Kind.DEDUCTION, Kind.ABDUCTION) if len(one.inputs) == 1 else (Kind.INDUCTION,)
        for kind in kinds if verdict.status == "valid" else ():
            found[kind].append(row | {"kind": kind})
    return found


def try_style(
    engine: Engine, sandbox: Sandbox, style: PromptStyle, name: str, stored: dict[Kind, list[dict]], plan: TrialPlan
) -> list[StyleAttempt]:
    """Return `plan.rows` proposals and as many answers of each kind."""
    return [*_proposals(engine, sandbox, style, name, stored, plan), *_answers(engine, sandbox, style, name, stored, plan)]


def _proposals(
    engine: Engine, sandbox: Sandbox, style: PromptStyle, name: str, stored: dict[Kind, list[dict]], plan: TrialPlan
) -> list[StyleAttempt]:
    rule, work = plan.proposals, list[tuple[Prompt, Request]]()
    for kind in Kind:
        rng = generator(plan.seed, 0, "trial", f"propose {kind}")
        for number in range(plan.rows):
            if number % rule.group_size == 0:
                prompt = draw_prompt(kind, f"{kind}{number}", stored, engine, style, rule, rng)
            draw = completion_seed(plan.seed, 0, "trial", f"propose {kind}", number)
            work.append((prompt, Request(prompt.ids, None, draw, rule.max_new_tokens, style.propose_stops(kind))))
    read = []
    completions = engine.generate([request for _, request in work], rule.temperature)
    for (prompt, _), completion in zip(work, completions, strict=True):
        text = engine.decode(completion.token_ids)
        with reading(f"{prompt.group_id} in style {name}", text):
            read.append((text, *read_proposal(style, prompt, text, completion.truncated, rule.num_inputs)))
    items = [TaskItem(one.program, one.inputs) for _, one, status, _ in read if status == "parsed"]
    verdicts = iter(list(judge_tasks(sandbox, items)))
    rows = []
    for (prompt, request), completion, (text, _, status, detail) in zip(work, completions, read, strict=True):
        readable = status == "parsed"
        if readable:
            verdict = next(verdicts)
            status, detail = str(verdict.status), verdict.detail
        else:
            status = detail.partition(":")[0] if ":" in detail else status
        rows.append(_attempt(name, "propose", prompt.kind, readable, status, detail, request, completion, text))
    return rows


def _answers(
    engine: Engine, sandbox: Sandbox, style: PromptStyle, name: str, stored: dict[Kind, list[dict]], plan: TrialPlan
) -> list[StyleAttempt]:
    work: list[tuple[dict, Request]] = []
    for kind in Kind:
        rng = generator(plan.seed, 0, "trial", f"solve {kind}")
        for number in range(plan.rows):
            task = stored[kind][int(rng.integers(len(stored[kind])))]
            text = solver_prompt(style, kind, task["program"], task["inputs"], task["outputs"], task["message"])
            draw = completion_seed(plan.seed, 0, "trial", f"solve {kind}", number)
            work.append((task, Request(tuple(engine.encode(text)), None, draw, plan.answer_tokens, style.solve_stops(kind))))
    read, items = [], []
    completions = engine.generate([request for _, request in work], plan.proposals.temperature)
    for (task, _), completion in zip(work, completions, strict=True):
        text, answer, reason = engine.decode(completion.token_ids), None, ""
        with reading(f"task {task['task_id']} in style {name}", text):
            try:
                answer = style.read_answer(task["kind"], text, completion.truncated)
            except Unparsed as refused:
                reason = refused.reason or "format"
        read.append((text, answer, reason))
        items.append(AnswerItem(task["kind"], task["program"], tuple(task["inputs"]), tuple(task["values"]), answer))
    rows = []
    judged = list(judge_answers(sandbox, items))
    for (task, request), completion, (text, answer, reason), found in zip(work, completions, read, judged, strict=True):
        status = reason or str(found.status)
        rows.append(_attempt(name, "solve", task["kind"], answer is not None, status, found.detail, request, completion, text))
    return rows


def _attempt(
    name: str,
    part: str,
    kind: Kind,
    readable: bool,
    status: str,
    detail: str,
    request: Request,
    completion: Completion,
    text: str,
) -> StyleAttempt:
    lengths = len(completion.token_ids), len(request.prompt_ids)
    return StyleAttempt(name, part, kind, readable, status, detail, *lengths, text)


def reasons(attempts: Sequence[StyleAttempt]) -> list[tuple[str, int]]:
    """Return what kept attempts from being good, most frequent first."""
    found = Counter(one.status for one in attempts if not one.good)
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def best_style(attempts: Sequence[StyleAttempt]) -> str | None:
    """Return the style to use: the largest share of valid proposals times the share of readable answers; None if all are 0."""
    found = {}
    for name in dict.fromkeys(one.style for one in attempts):
        valid = [one.good for one in attempts if one.style == name and one.part == "propose"]
        readable = [one.readable for one in attempts if one.style == name and one.part == "solve"]
        found[name] = sum(valid) / len(valid) * sum(readable) / len(readable)
    best = max(found, key=lambda name: found[name], default=None)
    return best if best is not None and found[best] > 0 else None
