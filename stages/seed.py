"""Seed: fill the buffers before generation 0 with tasks that the base model writes, as in Absolute Zero Reasoner.

Starting from one identity triplet, the base model (no adapter) proposes tasks. Valid, new tasks enter the buffer and become
references in the next round, until every kind has its rows. The same triplets seed the deduction and the abduction buffer.
Differences from AZR: duplicates are also dropped within a round, programs of the probe are left out, and every row's own gold
answer has been graded correct; as in `verify`, a row is dropped whose prompt or output is too long for a student.

A model with a low yield strands no run: what it has not written when its rounds are over, or when their yield shows that they
will not suffice, is topped up with rows that the project ships. A model whose first rounds hold nothing readable ends the run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from stages.core import tables
from stages.core.engines.protocol import Engine, Request
from stages.core.judging.judge import TaskItem, judge_tasks
from stages.core.method.proposing import PromptTooLong, ProposalPlan, draw_prompt, read_proposal
from stages.core.population import Member
from stages.core.progress import Progress, silent
from stages.core.prompts.room import control_token, too_long
from stages.core.prompts.styles import Kind, PromptStyle, Proposed
from stages.core.randomness import completion_seed, generator
from stages.core.row_errors import reading, rows_named
from stages.core.sandbox.protocol import Sandbox
from stages.core.values.canonical import respelled_arguments

IDENTITY = Proposed("def f(a):\n    return a", ("'Hello world'",))
PAIRED = (Kind.DEDUCTION, Kind.ABDUCTION)  # a program with one input is both
TRIED = 4  # rounds of one buffer whose yield decides whether more are worth it


class UnreadableProposals(ValueError):
    """The base model does not follow the prompt style: nothing that it wrote in the first rounds could be read."""


@dataclass(frozen=True)
class SeedPlan:
    """Rows of each kind, proposals of one round, and rounds of each buffer at most."""

    rows: int
    max_rounds: int
    round: int = 32


def seed(
    engine: Engine,
    sandbox: Sandbox,
    style: PromptStyle,
    plan: ProposalPlan,
    wanted: SeedPlan,
    run_seed: int,
    probe_keys: frozenset[str],
    fits: Callable[[str], bool],
    shipped: Sequence[Proposed] = (),
    progress: Progress = silent,
    answerable: Callable[[str], bool] | None = None,
    markers: Sequence[str] = (),
) -> tuple[pa.Table, dict[str, int]]:
    """Return SEEDS with `wanted.rows` tasks of each kind, and the counts on the way. Deductions and abductions are the same.

    Both are made whatever the kinds of `plan`: inductions are about their programs. Inductions are made if `plan` has them.

    A row is stored only if `fits` and `answerable` say that each of its kinds can be posed, and if it writes out none of
    `markers` (`prompts.room`).
    `shipped` are the project's own tasks, those with several inputs for induction. There are fewer rows where they run out.
    Raise `UnreadableProposals` if the first rounds hold nothing readable, `PromptTooLong` if nothing leaves room for a
    completion, ValueError if a buffer stays empty.
    """
    check = partial(too_long, style, fits=fits, answerable=answerable)
    steers = partial(control_token, markers=markers)
    buffers = _Buffers(engine, sandbox, style, plan, wanted, run_seed, probe_keys, check, steers, progress)
    programs = buffers.programs([one for one in shipped if len(one.inputs) == 1])
    pairs = [row | {"kind": kind, "task_id": f"seed-{kind[0]}{row['task_id']}"} for kind in PAIRED for row in programs]
    if Kind.INDUCTION not in plan.kinds:
        return tables.table(pairs, tables.SEEDS), buffers.counts
    inductions = buffers.inductions(programs, [one for one in shipped if len(one.inputs) >= plan.num_inputs > 1])
    return tables.table(pairs + inductions, tables.SEEDS), buffers.counts


@dataclass
class _Buffers:
    """What fills the buffers, and the counts collected on the way."""

    engine: Engine
    sandbox: Sandbox
    style: PromptStyle
    plan: ProposalPlan
    wanted: SeedPlan
    run_seed: int
    probe_keys: frozenset[str]
    too_long: Callable[[dict], str]
    control_token: Callable[[dict], str]
    progress: Progress
    counts: dict[str, int] = field(
        default_factory=lambda: {"seed_proposals": 0, "seed_probe_overlap": 0, "seed_duplicates": 0, "seed_too_long": 0}
    )
    readable: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def programs(self, shipped: Sequence[Proposed]) -> list[dict]:
        """Return distinct valid programs with one input, the identity first."""
        rows, rounds = self.wanted.rows, self.wanted.max_rounds
        stored = _judged(self.sandbox, [(Kind.DEDUCTION, IDENTITY)])
        seen, sizes = {_key(row) for row in stored}, [len(stored)]
        told = "seed programs (1 of 2)" if Kind.INDUCTION in self.plan.kinds else "seed programs"
        for number in range(rounds):
            self.progress(told, min(len(stored), rows), rows)
            if len(stored) >= rows or self._hopeless(sizes, len(shipped)):
                break
            kind = PAIRED[number % 2]
            buffers = {kind: [row | {"task_id": f"{index:04d}"} for index, row in enumerate(stored)] for kind in Kind}
            read = self._round(replace(self.plan, group_size=1), kind, buffers, f"programs{number}")
            self._add(_judged(self.sandbox, [(kind, proposed) for proposed in read]), stored, seen, PAIRED)
            self._check_readable(number)
            sizes.append(len(stored))
        self._top_up(rows, stored, lambda: self._add(self._shipped(shipped, Kind.DEDUCTION), stored, seen, PAIRED))
        return [row | {"task_id": f"{index:04d}"} for index, row in enumerate(stored[:rows])]

    def inductions(self, programs: list[dict], shipped: Sequence[Proposed]) -> list[dict]:
        """Return seed programs with `num_inputs` inputs each, drawn over the programs until there are enough."""
        rows, rounds = self.wanted.rows, self.wanted.max_rounds
        stored: list[dict] = []
        seen: set[tuple[str, tuple[str, ...]]] = set()
        sizes, dropped = [0], self.counts["seed_too_long"]
        for number in range(rounds):
            self.progress("seed inductions (2 of 2)", min(len(stored), rows), rows)
            if len(stored) >= rows or self._hopeless(sizes, len(shipped)):
                break
            buffers = {Kind.DEDUCTION: programs, Kind.ABDUCTION: [], Kind.INDUCTION: []}
            read = self._round(self.plan, Kind.INDUCTION, buffers, f"inputs{number}")
            self._add(_judged(self.sandbox, [(Kind.INDUCTION, proposed) for proposed in read]), stored, seen, [Kind.INDUCTION])
            sizes.append(len(stored))
        cut = [replace(one, inputs=one.inputs[: self.plan.num_inputs]) for one in shipped]
        self._top_up(rows, stored, lambda: self._add(self._shipped(cut, Kind.INDUCTION), stored, seen, [Kind.INDUCTION]))
        if not stored and self.counts["seed_too_long"] > dropped:
            raise PromptTooLong(f"no induction task leaves room for an answer in a window of {self.engine.window} tokens")
        if not stored:
            raise ValueError(f"the base model wrote inputs for none of its seed programs in {rounds} rounds")
        return [row | {"kind": Kind.INDUCTION, "task_id": f"seed-i{index:04d}"} for index, row in enumerate(stored[:rows])]

    def _hopeless(self, sizes: Sequence[int], shipped: int) -> bool:
        """Return whether the rounds left will not fill the buffer at the yield of the last ones, where there is a top-up.

        `sizes` are the buffer's sizes before the first round and after each.
        """
        if not shipped or len(sizes) <= TRIED:
            return False
        gained, left = sizes[-1] - sizes[-1 - TRIED], self.wanted.max_rounds - len(sizes) + 1
        return gained * left < (self.wanted.rows - sizes[-1]) * TRIED

    def _add(
        self, found: Sequence[dict], stored: list[dict], seen: set[tuple[str, tuple[str, ...]]], kinds: Sequence[Kind]
    ) -> None:
        """Add the new rows that can be posed as every one of `kinds`, and count the others."""
        for row in found:
            if row["program_key"] in self.probe_keys:
                self.counts["seed_probe_overlap"] += 1
            elif _key(row) in seen:
                self.counts["seed_duplicates"] += 1
            elif self.control_token(row):
                self.counts["seed_control_token"] = self.counts.get("seed_control_token", 0) + 1
            elif any(self.too_long(row | {"kind": kind}) for kind in kinds):
                self.counts["seed_too_long"] += 1
            else:
                seen.add(_key(row))
                stored.append(row)

    def _top_up(self, rows: int, stored: list[dict], add: Callable[[], None]) -> None:
        """Add shipped rows to a buffer that is not full, and count those that are used."""
        before = len(stored)
        if before < rows:
            add()
            self.counts["seed_shipped"] = self.counts.get("seed_shipped", 0) + min(len(stored), rows) - before

    def _shipped(self, shipped: Sequence[Proposed], kind: Kind) -> list[dict]:
        """Return the rows of shipped tasks, judged like any other, in an order drawn from the run's seed."""
        order = generator(self.run_seed, 0, "seed", f"shipped {kind}").permutation(len(shipped))
        return _judged(self.sandbox, [(kind, shipped[int(place)]) for place in order])

    def _check_readable(self, number: int) -> None:
        """Raise `UnreadableProposals` after the first round of each kind if nothing in them could be read."""
        if number == 1 and not self.readable:
            reasons = ", ".join(f"{reason} {count}" for reason, count in self.refused.most_common(3))
            raise UnreadableProposals(
                f"none of the base model's first {self.counts['seed_proposals']} proposals could be read ({reasons})"
            )

    def _round(self, plan: ProposalPlan, kind: Kind, buffers: dict[Kind, list[dict]], name: str) -> list[Proposed]:
        """Return the readable proposals of one batch of prompts of one kind."""
        rng = generator(self.run_seed, 0, "seed", name)
        prompts = [
            draw_prompt(kind, f"{name}-{index}", buffers, self.engine, self.style, plan, rng)
            for index in range(self.wanted.round)
        ]
        stops = self.style.propose_stops(kind)
        requests = [
            Request(prompt.ids, None, completion_seed(self.run_seed, 0, "seed", name, index), plan.max_new_tokens, stops)
            for index, prompt in enumerate(prompts)
        ]
        self.counts["seed_proposals"] += len(requests)
        found = []
        for prompt, completion in zip(prompts, self.engine.generate(requests, plan.temperature), strict=True):
            text = self.engine.decode(completion.token_ids)
            with reading(f"{prompt.group_id} of the seed", text):
                read, status, detail = read_proposal(self.style, prompt, text, completion.truncated, plan.num_inputs)
            if status == "parsed":
                found.append(read)
            else:
                self.refused[detail.partition(":")[0]] += 1
        self.readable += len(found)
        return found


def _judged(sandbox: Sandbox, proposals: list[tuple[Kind, Proposed]]) -> list[dict]:
    """Return the rows of the valid proposals, without their ids."""
    items = [TaskItem(proposed.program, proposed.inputs) for _, proposed in proposals]
    ids = [f"{number} of a round of the seed, {proposed.program!r:.200}" for number, (_, proposed) in enumerate(proposals)]
    with rows_named("", ids):
        verdicts = list(judge_tasks(sandbox, items))
    rows = []
    for (kind, proposed), verdict in zip(proposals, verdicts, strict=True):
        if verdict.status == "valid":
            rows.append(
                {
                    "kind": kind,
                    "program": proposed.program,
                    "inputs": list(proposed.inputs),
                    "outputs": list(verdict.outputs),
                    "values": list(verdict.values),
                    "message": proposed.message,
                    "program_key": verdict.program_key,
                }
            )
    return rows


def _key(row: dict) -> tuple[str, tuple[str, ...]]:
    return row["program_key"], tuple(map(respelled_arguments, row["inputs"]))


def starting_ratings(members: Sequence[Member], kappa: float) -> pa.Table:
    """Return RATINGS before generation 0, one row per member. The first generation's population is read from it."""
    rows = [
        {
            "member_id": member.member_id,
            "role": member.role,
            "born": member.born,
            "adapter_id": member.adapter_id,
            "adapter_sha256": member.adapter_sha256,
            "result": "idle",
            "mu_before": member.rating.mu,
            "sigma_before": member.rating.sigma,
            "mu": member.rating.mu,
            "sigma": member.rating.sigma,
            "fitness": member.rating.fitness(kappa),
            "next_adapter_id": member.adapter_id,
            "next_adapter_sha256": member.adapter_sha256,
            "match_id": None,
            "opponent_id": None,
            "expected": None,
            "observed": None,
        }
        for member in members
    ]
    return tables.table(rows, tables.RATINGS)
