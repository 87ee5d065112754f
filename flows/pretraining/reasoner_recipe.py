"""`populora pretrain --recipe reasoner`: pretrain the seed model that shows its steps, score it and write its model card.

Two phases on one kind of document: at full rates, then falling to zero. The state of the first (weights, momenta, step) is kept
beside the model's folder, in `NAME.training`, so that a killed run resumes and more `--minutes` extend a finished one: only the
second phase is run anew. Chunks of data follow from the step, so a resumed run sees what an uninterrupted one sees.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from flows.config import ConfigError
from flows.pretraining.checkpoint import save
from flows.pretraining.scoring import Log, engine_of, judge_of, parameters_of, scored_proposals
from flows.pretraining.suites import halves, make_suite, stored_problems
from stages.core.prompts.styles import Kind, Triplet
from stages.core.prompts.trace import TracePrompts
from stages.core.sandbox.protocol import Sandbox
from stages.core.seed_model import pretraining, probe, staircase
from stages.core.seed_model.pretraining import REASONER, Optimisers, Recipe
from stages.core.seed_model.pretraining_data import ROW, Rows
from stages.core.seed_model.programs import ProgramKeys
from stages.core.seed_model.reasoner_card import TrainingFacts, reasoner_card
from stages.core.seed_model.reasoning_data import LESSONS, MIX, VOCABULARY, ReasoningSource, lesson_at, make_reasoning_rows
from stages.core.seed_model.seed_card import solving_table
from stages.core.seed_model.seed_scores import ProposalScores, Scores, SolvedTask, score_solving
from stages.core.training.cpu import use_cpu

CHUNK_STEPS = 32
TOKENS_PER_MINUTE = 600_000
"""Roughly what two cores take."""
SAVE_SECONDS = 240.0
ANSWER_TOKENS = dict.fromkeys(Kind, 224)
"""Room for the trace of ten steps."""


@dataclass
class Taken:
    """What the training has taken so far."""

    steps: int = 0
    documents: int = 0
    skipped: int = 0
    seconds: float = 0.0


class TrainingState:
    """The state of the first phase in a folder: written whole, replaced atomically, and of one seed and recipe only."""

    def __init__(self, out: Path, seed: int, recipe: str) -> None:
        self.folder = out.with_name(out.name + ".training")
        self._of = {"seed": str(seed), "recipe": recipe}

    def write(self, model: LlamaForCausalLM, optimisers: Optimisers, taken: Taken) -> None:
        """Keep weights, momenta and counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
        tensors |= {f"optimiser.{name}": tensor for name, tensor in optimisers.tensors().items()}
        part = self.folder / ".part"
        facts = {name: json.dumps(value) for name, value in asdict(taken).items()} | self._of
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part, facts)
        os.replace(part, self.folder / "state.safetensors")

    def read(self, model: LlamaForCausalLM, optimisers: Optimisers) -> Taken:
        """Put the kept state into both; nothing is kept before the first write. Raises ConfigError for another training's."""
        file = self.folder / "state.safetensors"
        if not file.is_file():
            return Taken()
        taken = self._facts(file)
        tensors = load_file(file)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        start = "optimiser."
        optimisers.restore({name.removeprefix(start): one for name, one in tensors.items() if name.startswith(start)})
        return taken

    def _facts(self, file: Path) -> Taken:
        with safe_open(file, "pt") as opened:
            kept = dict(opened.metadata() or {})
        if other := [name for name in self._of if kept.get(name) != self._of[name]]:
            raise ConfigError(
                f"{self.folder} belongs to a training with another {' and '.join(other)}; "
                "choose another --out, or remove that folder to begin anew"
            )
        return Taken(**{one.name: json.loads(kept[one.name]) for one in fields(Taken)})


def recipe_digest(model: LlamaForCausalLM, stable: Recipe) -> str:
    """Return a digest of what a kept state depends on besides the seed: data, vocabulary, sizes and rates, not the steps."""
    sizes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    values = [[asdict(lesson) for lesson in LESSONS], VOCABULARY.tokens, sizes, asdict(replace(stable, steps=0)), CHUNK_STEPS]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _batches(seed: int, phase: int, recipe: Recipe, held_out: ProgramKeys, taken: Taken, first_step: int) -> Iterator[Rows]:
    """Yield fresh batches without end, from a step that begins a chunk on; rows are made one chunk at a time and shuffled.

    The first phase follows the lessons; the second, whatever the first had reached, takes the last one.
    """
    chunk, rows_of_chunk = first_step // CHUNK_STEPS, CHUNK_STEPS * recipe.rows_per_step
    while True:
        mix = MIX if phase else lesson_at(chunk * rows_of_chunk * ROW)
        rows = make_reasoning_rows((seed, 1 + 2 * phase, chunk), rows_of_chunk, held_out, mix)
        taken.documents += rows.documents
        taken.skipped += rows.skipped
        order = np.random.default_rng([seed, 2 + 2 * phase, chunk]).permutation(rows_of_chunk)
        for chosen in order.reshape(-1, recipe.rows_per_step):
            yield rows.take(chosen)
        chunk += 1


class _Watch:
    """Counts what a phase takes, logs every 32 steps, and calls `keep` at chunk ends, every four minutes and at the end."""

    def __init__(self, recipe: Recipe, taken: Taken, log: Log, keep: Callable[[], None]) -> None:
        self._recipe, self._taken, self._log, self._keep = recipe, taken, log, keep
        self._last = self._kept = time.monotonic()
        self._losses: list[float] = []

    def __call__(self, done: int, loss: float) -> None:
        """Handle the end of a step."""
        now, taken, recipe = time.monotonic(), self._taken, self._recipe
        taken.seconds += now - self._last
        taken.steps += 1
        self._last = now
        self._losses.append(loss)
        if done % CHUNK_STEPS and done != recipe.steps:
            return
        recent = sum(self._losses) / len(self._losses)
        tokens = taken.steps * recipe.tokens / recipe.steps / 1e6
        self._log(f"{done}/{recipe.steps} steps  {tokens:.2f} M tokens  {taken.seconds / 60:.1f} min  loss {recent:.3f}")
        self._losses.clear()
        if now - self._kept >= SAVE_SECONDS or done == recipe.steps:
            self._keep()
            self._kept = self._last = time.monotonic()


def train(out: Path, minutes: float, seed: int, threads: int, benchmarks: Path, log: Log) -> Taken:
    """Pretrain for `minutes` worth of tokens from the kept state on; save the model into `out`. Return what it took in all."""
    use_cpu(threads)
    held_out = held_out_keys(benchmarks)
    log(f"kept out: {len(held_out.syntax)} programs and {len(held_out.behaviour)} behaviours")
    stable, falling = pretraining.reasoner_phases(round(minutes * TOKENS_PER_MINUTE))
    model = pretraining.new_model(seed, REASONER)
    optimisers, state = Optimisers(model), TrainingState(out, seed, recipe_digest(model, stable))
    taken = state.read(model, optimisers)
    first = taken.steps

    def keep() -> None:
        state.write(model, optimisers, taken)
        save(model, out, VOCABULARY)
        log(f"saved at step {taken.steps}")

    whole = -(-stable.steps // CHUNK_STEPS) * CHUNK_STEPS  # a state inside a chunk could not be continued on the same data
    stable = replace(stable, steps=max(first, whole))
    log(f"full rates: {stable.steps} steps, from step {first} on")
    pretraining.train(
        model,
        _batches(seed, 0, stable, held_out, taken, first),
        stable,
        _Watch(stable, taken, log, keep),
        optimisers,
        first,
    )
    log(f"falling rates: {falling.steps} steps")
    pretraining.train(
        model, _batches(seed, 1, falling, held_out, taken, 0), falling, _Watch(falling, taken, log, lambda: None), optimisers
    )
    save(model, out, VOCABULARY)
    return taken


def held_out_keys(benchmarks: Path) -> ProgramKeys:
    """What pretraining keeps away from: both halves of the staircase."""
    return probe.probe_keys(*halves(benchmarks, "staircase").values())


def sample_of(table: pa.Table, per_depth: int) -> list[SolvedTask]:
    """The first problems of each kind and depth of a half."""
    found: dict[tuple[Kind, int], list[SolvedTask]] = {}
    for each in stored_problems(table):
        found.setdefault((each.kind, each.band), []).append(each)
    return [each for own in found.values() for each in own[:per_depth]]


def score(
    folder: Path, sandbox: Sandbox, benchmarks: Path, seed: int, per_depth: int, log: Log
) -> tuple[Scores, dict[str, ProposalScores]]:
    """Score a checkpoint: greedy answers to the staircase's `dev` half, and sampled proposals. Logs the tables."""
    engine, style = engine_of(folder), TracePrompts()
    solving = score_solving(engine, sandbox, style, sample_of(halves(benchmarks, "staircase")["dev"], per_depth), ANSWER_TOKENS)
    log(solving_table(solving, "depth"))
    source = ReasoningSource((seed, 5), held_out_keys(benchmarks), MIX)

    def drawn() -> Triplet:
        chain = source.chain(1)
        return Triplet(chain.source, chain.inputs[0], chain.outputs[0])

    return solving, scored_proposals(engine, sandbox, style, drawn, 2 * per_depth, log)


def pretrain(
    out: Path,
    minutes: float,
    seed: int,
    threads: int,
    benchmarks: Path,
    log: Log = print,
    sandbox: Sandbox | None = None,
    per_depth: int = 100,
) -> None:
    """Run the whole recipe: suite, training, scores, model card.

    The sandbox runs what the model writes during scoring; it defaults to the local sandbox.
    """
    with judge_of(sandbox) as judge:
        make_suite(benchmarks, "staircase", staircase.staircase_tables, judge)
        taken = train(out, minutes, seed, threads, benchmarks, log)
        solving, proposals = score(out, judge, benchmarks, seed, per_depth, log)
    facts = TrainingFacts(
        f"populora pretrain --recipe reasoner --minutes {minutes:g} --seed {seed} --threads {threads}",
        threads,
        parameters_of(out),
        len(held_out_keys(benchmarks).syntax),
        taken.steps,
        taken.documents,
        taken.skipped,
    )
    (out / "README.md").write_text(reasoner_card(facts, solving, proposals), encoding="utf-8")
