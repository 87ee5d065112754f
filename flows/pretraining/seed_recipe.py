"""`populora pretrain`: make the probe if it is missing, pretrain the seed model, score it and write its model card.

The length is a number of tokens, so that a recipe repeats exactly; `minutes` is what that takes on the two-core machine on which
`TOKENS_PER_MINUTE` was measured.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import LlamaForCausalLM

from flows.pretraining.checkpoint import save
from flows.pretraining.scoring import Log, engine_of, judge_of, parameters_of, scored_proposals
from flows.pretraining.suites import halves, make_suite, stored_problems
from stages.core.prompts.compact import CompactPrompts
from stages.core.prompts.styles import Triplet
from stages.core.sandbox.protocol import Sandbox
from stages.core.seed_model import pretraining, probe
from stages.core.seed_model.pretraining_data import BROAD, ROW, DocumentSource, Rows, make_rows
from stages.core.seed_model.programs import ProgramKeys
from stages.core.seed_model.seed_card import Phase, Training, model_card, solving_table
from stages.core.seed_model.seed_scores import ProposalScores, Scores, fresh_problems, score_solving
from stages.core.training.cpu import use_cpu

TOKENS_PER_MINUTE = 550_000
CHUNK_ROWS = 256
FIRST_SAVE_SECONDS, SAVE_SECONDS = 420.0, 240.0


@dataclass
class _Counts:
    """Counts of the data, updated as it is made."""

    documents: int = 0
    skipped: int = 0


def _batches(seed: int, phase: int, recipe: pretraining.Recipe, held_out: ProgramKeys, counts: _Counts) -> Iterator[Rows]:
    """Yield fresh batches without end; rows are made one chunk at a time and shuffled."""
    chunk = 0
    while True:
        rows = make_rows((seed, 1 + 2 * phase, chunk), CHUNK_ROWS, held_out, recipe.mix)
        counts.documents += rows.documents
        counts.skipped += rows.skipped
        order = np.random.default_rng([seed, 2 + 2 * phase, chunk]).permutation(CHUNK_ROWS).reshape(-1, recipe.rows_per_step)
        for chosen in order:
            yield rows.take(chosen)
        chunk += 1


class _Progress:
    """Callback that logs every 25 steps and saves after seven minutes, then every four, and at the end."""

    def __init__(self, model: LlamaForCausalLM, out: Path, recipe: pretraining.Recipe, log: Log) -> None:
        self._model, self._out, self._recipe, self._log = model, out, recipe, log
        self._start = time.monotonic()
        self._next_save = self._start + FIRST_SAVE_SECONDS
        self._losses: list[float] = []

    @property
    def minutes(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self._start) / 60

    def __call__(self, done: int, loss: float) -> None:
        """Handle the end of a step."""
        self._losses.append(loss)
        if done % 25 == 0:
            tokens = done * self._recipe.rows_per_step * ROW
            recent = sum(self._losses[-25:]) / 25
            self._log(
                f"{done}/{self._recipe.steps} steps  {tokens / 1e6:.2f} M tokens  {self.minutes:.1f} min  loss {recent:.3f}"
            )
        if time.monotonic() >= self._next_save or done == self._recipe.steps:
            save(self._model, self._out)
            self._next_save = time.monotonic() + SAVE_SECONDS
            self._log(f"saved at step {done}")


def train(
    out: Path, minutes: float, seed: int, threads: int, probe_folder: Path, log: Log, first_phase: int = 0
) -> tuple[Phase, ...]:
    """Pretrain for `minutes` worth of tokens, saving into `out` at intervals. Return what each phase took.

    A later phase starts from the checkpoint in `out`, so it can also run alone.
    """
    use_cpu(threads)
    held_out = probe.probe_keys(*halves(probe_folder, "probe").values())
    log(f"probe: {len(held_out.syntax)} programs and {len(held_out.behaviour)} behaviours are kept out")
    taken = []
    for phase, recipe in list(enumerate(pretraining.phases(round(minutes * TOKENS_PER_MINUTE))))[first_phase:]:
        model = pretraining.read_model(str(out)) if phase else pretraining.new_model(seed)
        counts, progress = _Counts(), _Progress(model, out, recipe, log)
        pretraining.train(model, _batches(seed, phase, recipe, held_out, counts), recipe, progress)
        taken.append(Phase(recipe, counts.documents, counts.skipped, progress.minutes))
        log(f"phase {phase + 1}: {recipe.tokens:,} tokens, {counts.documents:,} documents, {progress.minutes:.1f} minutes")
        log(f"probe overlap: {counts.skipped} drawn programs equalled a probe program and were left out; 0 were trained on")
    return tuple(taken)


def score(
    folder: Path, sandbox: Sandbox, probe_folder: Path, seed: int, per_band: int, log: Log
) -> tuple[dict[str, Scores], dict[str, ProposalScores]]:
    """Score a checkpoint: its solving of fresh problems and the probe's `dev` half, and its proposals. Logs the tables."""
    engine, style = engine_of(folder), CompactPrompts()
    sets = {
        "Fresh problems of the training distribution's generator": fresh_problems(np.random.default_rng([seed, 7]), per_band),
        "Suite `probe`, half `dev` (programs and behaviours kept out of training)": stored_problems(
            halves(probe_folder, "probe")["dev"]
        ),
    }
    solving = {}
    for name, problems in sets.items():
        solving[name] = score_solving(engine, sandbox, style, problems)
        log(f"{name}\n{solving_table(solving[name])}")
    source = DocumentSource((seed, 5), ProgramKeys(frozenset(), frozenset()), BROAD)

    def drawn() -> Triplet:
        program = source.program(BROAD.levels, 1)
        return Triplet(program.source, program.inputs[0], program.outputs[0])

    return solving, scored_proposals(engine, sandbox, style, drawn, 2 * per_band, log)


def pretrain(
    out: Path,
    minutes: float,
    seed: int,
    threads: int,
    probe_folder: Path,
    log: Log = print,
    sandbox: Sandbox | None = None,
    per_band: int = 200,
) -> None:
    """Run the whole recipe: probe, training, scores, model card. The first checkpoint is in `out` after seven minutes.

    The sandbox runs what the model writes during scoring; it defaults to the local sandbox.
    """
    with judge_of(sandbox) as judge:
        make_suite(probe_folder, "probe", probe.probe_tables, judge)
        taken = train(out, minutes, seed, threads, probe_folder, log)
        solving, proposals = score(out, judge, probe_folder, seed, per_band, log)
    training = Training(
        f"populora pretrain --minutes {minutes:g} --seed {seed} --threads {threads}",
        threads,
        parameters_of(out),
        len(probe.probe_keys(*halves(probe_folder, "probe").values()).syntax),
        taken,
    )
    (out / "README.md").write_text(model_card(training, solving, proposals), encoding="utf-8")
