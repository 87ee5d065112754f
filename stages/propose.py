"""Propose: each matched teacher writes tasks of each kind, conditioned on past tasks.

For deduction and abduction, a teacher sees up to `references` past triplets of that kind and writes a new program with one input.
For induction, it sees one stored program and writes inputs (and a message) for it, as in Absolute Zero Reasoner. All prompts of
a generation come from one snapshot of the buffer, so no teacher sees another's proposals of the same generation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Completion, Engine, Request
from stages.core.judging.early import Early, handing
from stages.core.judging.judge import TaskItem
from stages.core.method.proposing import Prompt, ProposalPlan, draw_prompt, read_proposal
from stages.core.prompts.styles import REASONS, Kind, PromptStyle
from stages.core.randomness import completion_seed, generator
from stages.core.row_errors import reading
from stages.core.shards import WHOLE, Shard


def propose(
    matches: pa.Table,
    digests: Mapping[str, str],
    buffers: Mapping[str, Mapping[Kind, Sequence[dict]]],
    engine: Engine,
    style: PromptStyle,
    plan: ProposalPlan,
    seed: int,
    generation: int,
    shard: Shard = WHOLE,
    early: Early | None = None,
) -> pa.Table:
    """Return PROPOSALS: `kinds * groups * group_size` rows per match, or a shard of them, all teachers in one batch.

    `digests` maps an adapter id to the sha256 of its weights; `buffers` maps a teacher to its snapshot by kind. A shard needs
    those of its own matches only, see `own_matches`. `early` takes each proposal when it ends.
    """
    work: list[tuple[dict, int, Prompt, Request]] = []
    own = _own_prompts(matches, plan, shard)
    for match in own_matches(matches, plan, shard).to_pylist():
        teacher = match["teacher_id"]
        rng = generator(seed, generation, "propose", teacher)
        prompts = [
            draw_prompt(kind, f"{match['match_id']}-{kind[0]}{group}", buffers[teacher], engine, style, plan, rng)
            for kind in plan.kinds
            for group in range(plan.groups)
        ]
        for number, prompt in enumerate(prompt for prompt in prompts for _ in range(plan.group_size)):
            if (match["match_id"], number // plan.group_size) not in own:
                continue
            draw = completion_seed(seed, generation, "propose", teacher, number)
            stops = style.propose_stops(prompt.kind)
            asked = Request(prompt.ids, match["teacher_adapter_id"], draw, plan.max_new_tokens, stops)
            work.append((match, number, prompt, asked))

    def read_task(place: int, completion: Completion) -> TaskItem | None:
        text = engine.decode(completion.token_ids)
        read, status, _ = read_proposal(style, work[place][2], text, completion.truncated, plan.num_inputs)
        return TaskItem(read.program, tuple(read.inputs)) if status == "parsed" else None

    ended = None if early is None else handing(early, read_task)
    completions = engine.generate([request for *_, request in work], plan.temperature, ended)
    rows = []
    for (match, number, prompt, request), completion in zip(work, completions, strict=True):
        text = engine.decode(completion.token_ids)
        proposal_id = f"{match['match_id']}-p{number:03d}"
        with reading(proposal_id, text):
            read, status, detail = read_proposal(style, prompt, text, completion.truncated, plan.num_inputs)
        rows.append(
            {
                "proposal_id": proposal_id,
                "match_id": match["match_id"],
                "teacher_id": match["teacher_id"],
                "kind": prompt.kind,
                "group_id": prompt.group_id,
                "reference_ids": list(prompt.reference_ids),
                "program": read.program,
                "inputs": list(read.inputs),
                "message": read.message,
                "status": status,
                "detail": detail,
                "adapter_id": request.adapter_id,
                "adapter_sha256": digests[match["teacher_adapter_id"]],
                "seed": request.seed,
                "prompt_ids": list(request.prompt_ids),
                "completion_ids": list(completion.token_ids),
                "logprobs": list(completion.logprobs),
                "text": text,
                "truncated": completion.truncated,
            }
        )
    return tables.table(rows, tables.PROPOSALS)


def own_matches(matches: pa.Table, plan: ProposalPlan, shard: Shard) -> pa.Table:
    """Return the matches whose teachers write in a shard."""
    own = {match_id for match_id, _ in _own_prompts(matches, plan, shard)}
    return matches.filter(pa.array([match_id in own for match_id in matches["match_id"].to_pylist()], pa.bool_()))


def _own_prompts(matches: pa.Table, plan: ProposalPlan, shard: Shard) -> set[tuple[str, int]]:
    """Return the prompts of a shard, each as its match and its place there. All cost the same: as many completions."""
    places = range(len(plan.kinds) * plan.groups)
    prompts = [(match_id, place) for match_id in matches["match_id"].to_pylist() for place in places]
    return set(shard.of(prompts, [1] * len(prompts)))


def refusals(proposals: pa.Table) -> dict[str, int]:
    """Return how many proposals could not be read, by the style's reasons, which begin the details."""
    reasons = Counter(detail.partition(":")[0] for detail in proposals["detail"].to_pylist())
    return {reason: reasons[reason] for reason in REASONS if reason in reasons}
