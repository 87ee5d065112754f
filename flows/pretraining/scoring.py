"""What every recipe does with a finished checkpoint: it asks the checkpoint, judges the answers, and counts its parameters."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.core.engines.hf_engine import HFEngine, load_model, load_tokenizer
from stages.core.prompts.styles import Kind, PromptStyle, Triplet
from stages.core.sandbox.local import LocalSandbox
from stages.core.sandbox.protocol import Sandbox
from stages.core.seed_model import pretraining
from stages.core.seed_model.seed_card import proposal_table
from stages.core.seed_model.seed_scores import ProposalScores, proposal_prompts, score_proposals
from stages.core.training.grouped_lora import attach

Log = Callable[[str], None]


@contextmanager
def judge_of(sandbox: Sandbox | None) -> Iterator[Sandbox]:
    """Yield the sandbox, or a local one that is closed at the end."""
    if sandbox is not None:
        yield sandbox
        return
    local = LocalSandbox()
    try:
        yield local
    finally:
        local.close()


def engine_of(folder: Path) -> HFEngine:
    """Open a checkpoint to be asked. Its one adapter changes nothing."""
    return HFEngine(attach(load_model(str(folder), "cpu"), ("q_proj",), 1, 1.0, 1), load_tokenizer(str(folder)), {})


def parameters_of(folder: Path) -> int:
    """Return how many parameters a checkpoint has."""
    return sum(parameter.numel() for parameter in pretraining.read_model(str(folder)).parameters())


def scored_proposals(
    engine: HFEngine, sandbox: Sandbox, style: PromptStyle, drawn: Callable[[], Triplet], count: int, log: Log
) -> dict[str, ProposalScores]:
    """Score `count` proposals with and without references from `drawn`, and as many inputs. Logs the table."""
    plans = {
        "deduction, 6 references": (Kind.DEDUCTION, 6),
        "abduction, 6 references": (Kind.ABDUCTION, 6),
        "deduction, no references": (Kind.DEDUCTION, 0),
        "inputs for induction": (Kind.INDUCTION, 0),
    }
    found = {
        name: score_proposals(engine, sandbox, style, kind, proposal_prompts(style, drawn, kind, count, references))
        for name, (kind, references) in plans.items()
    }
    log(proposal_table(found))
    return found
