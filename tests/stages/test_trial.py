"""A trial of prompts: completions of every kind, read and judged as in a run, and the style to use."""

from stages.core.method.proposing import ProposalPlan
from stages.core.prompts.compact import CompactPrompts
from stages.core.prompts.styles import Kind, Proposed
from stages.trial import TrialPlan, best_style, reasons, stored_tasks, try_style
from tests.support.fakes import PlainStyle, ScriptedEngine, TableSandbox

PLAN = TrialPlan(ProposalPlan(1, 2, 1, 2, 8, 1.0), rows=2, answer_tokens=8, seed=0)
SHIPPED = (Proposed("one", ("1",)), Proposed("broken", ("1",)), Proposed("many", ("1", "2", "3"), "hint"))
KNOWN = {("one", "1"): "7", ("broken", "1"): "error", ("p", "1"): "timeout", ("one", "4"): "7"}


def test_stored_tasks_are_the_shipped_ones_that_are_valid_cut_to_the_inputs_asked_for() -> None:
    found = stored_tasks(TableSandbox(KNOWN), SHIPPED, 2)
    assert {kind: [row["program"] for row in rows] for kind, rows in found.items()} == {
        Kind.DEDUCTION: ["one"],
        Kind.ABDUCTION: ["one"],
        Kind.INDUCTION: ["many"],
    }
    assert found[Kind.INDUCTION][0]["inputs"] == ["1", "2"] and found[Kind.DEDUCTION][0]["outputs"] == ["7"]


def test_every_completion_has_its_status_and_the_best_style_is_named() -> None:
    stored = stored_tasks(TableSandbox(KNOWN), SHIPPED, 2)
    texts = ("p|1", "no bar", "q|1", "q|2", "1|2", "1", "7", "8", "4", "", "many", "x")
    found = try_style(ScriptedEngine(*texts), TableSandbox(KNOWN), PlainStyle(), "plain", stored, PLAN)
    assert [(one.part, one.kind, one.text) for one in found] == [
        (part, kind, text)
        for (part, kind), pair in zip(
            ((part, kind) for part in ("propose", "solve") for kind in Kind),
            zip(texts[::2], texts[1::2], strict=True),
            strict=True,
        )
        for text in pair
    ]
    assert [one.status for one in found] == [
        *("timeout", "unparsed", "valid", "valid", "valid", "unparsed"),
        *("correct", "wrong", "correct", "format", "correct", "correct"),
    ]
    assert [one.readable for one in found] == [True, False, True, True, True, False, True, True, True, False, True, True]
    assert [one.tokens for one in found] == [len(text) for text in texts]
    assert reasons(found) == [("unparsed", 2), ("format", 1), ("timeout", 1), ("wrong", 1)]
    silent = try_style(ScriptedEngine(""), TableSandbox(KNOWN), CompactPrompts(), "compact", stored, PLAN)
    assert {one.status for one in silent} == {"unparsed", "format"}
    assert best_style([*silent, *found]) == "plain" and best_style(silent) is None
