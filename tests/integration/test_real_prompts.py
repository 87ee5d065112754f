"""A pretrained model through the prompts of a run: its proposals become tasks and its answers can be read, style by style."""

import pytest

from flows.backend import Backend
from stages.core.method.proposing import ProposalPlan
from stages.core.prompts.styles import Kind
from stages.trial import StyleAttempt, TrialPlan, best_style, stored_tasks, try_style

pytestmark = [pytest.mark.real, pytest.mark.docker]

NUM_INPUTS, TOKENS = 10, 192


def tried(real_backend: Backend, name: str, rows: int) -> list[StyleAttempt]:
    plan = TrialPlan(ProposalPlan(1, 4, 3, NUM_INPUTS, TOKENS, 1.0), rows, TOKENS, seed=0)
    stored = stored_tasks(real_backend.sandbox(), real_backend.shipped_tasks(), NUM_INPUTS)
    return try_style(real_backend.engine({}), real_backend.sandbox(), real_backend.style_named(name), name, stored, plan)


def share(attempts: list[StyleAttempt], part: str, *kinds: Kind, readable: bool = False) -> float:
    own = [one for one in attempts if one.part == part and one.kind in kinds]
    return sum(one.readable if readable else one.good for one in own) / len(own)


def test_a_model_writes_tasks_and_readable_answers(real_backend: Backend) -> None:
    attempts = tried(real_backend, "document", 2)
    assert share(attempts, "propose", *Kind) > 0
    assert share(attempts, "solve", *Kind, readable=True) >= 0.5
    assert not any("<|endoftext|>" in one.text for one in attempts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_documents_are_the_style_of_a_small_model(real_backend: Backend) -> None:
    attempts = tried(real_backend, "document", 48)
    assert share(attempts, "propose", Kind.DEDUCTION, Kind.ABDUCTION) >= 0.4
    assert share(attempts, "propose", Kind.INDUCTION) >= 0.25
    assert share(attempts, "solve", *Kind, readable=True) >= 0.85
    assert best_style([*attempts, *tried(real_backend, "chat", 48)]) == "document"
