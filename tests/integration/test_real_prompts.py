"""A pretrained model through the prompts of a run: its proposals become tasks and its answers can be read, style by style."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.backend import Backend
from flows.config import apply
from stages.core.method.proposing import ProposalPlan
from stages.core.prompts.styles import Kind
from stages.trial import StyleAttempt, TrialPlan, best_style, stored_tasks, try_style

pytestmark = [pytest.mark.real, pytest.mark.docker]

NUM_INPUTS, TOKENS = 10, 192


@pytest.fixture(scope="module")
def backend(real_model: Path) -> Iterator[Backend]:
    model = {"name": str(real_model), "rank": 1, "targets": ["q_proj"], "device": "cpu"}
    made = Backend(apply({"model": model, "sandbox": {"containers": 1}}, []))
    yield made
    made.close()


def tried(backend: Backend, name: str, rows: int) -> list[StyleAttempt]:
    plan = TrialPlan(ProposalPlan(1, 4, 3, NUM_INPUTS, TOKENS, 1.0), rows, TOKENS, seed=0)
    stored = stored_tasks(backend.sandbox(), backend.shipped_tasks(), NUM_INPUTS)
    return try_style(backend.engine({}), backend.sandbox(), backend.style_named(name), name, stored, plan)


def share(attempts: list[StyleAttempt], part: str, *kinds: Kind, readable: bool = False) -> float:
    own = [one for one in attempts if one.part == part and one.kind in kinds]
    return sum(one.readable if readable else one.good for one in own) / len(own)


def test_a_model_writes_tasks_and_readable_answers(backend: Backend) -> None:
    attempts = tried(backend, "document", 4)
    assert share(attempts, "propose", *Kind) > 0
    assert share(attempts, "solve", *Kind, readable=True) >= 0.5
    assert not any("<|endoftext|>" in one.text for one in attempts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_documents_are_the_style_of_a_small_model(backend: Backend) -> None:
    attempts = tried(backend, "document", 48)
    assert share(attempts, "propose", Kind.DEDUCTION, Kind.ABDUCTION) >= 0.4
    assert share(attempts, "propose", Kind.INDUCTION) >= 0.25
    assert share(attempts, "solve", *Kind, readable=True) >= 0.85
    assert best_style([*attempts, *tried(backend, "chat", 48)]) == "document"
