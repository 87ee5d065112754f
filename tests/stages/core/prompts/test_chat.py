"""Chat prompts hold what a solver may see and nothing more, and readers take the last fitting fence of free text."""

import pytest

from stages.core.prompts.chat import ChatPrompts
from stages.core.prompts.styles import Kind, Proposed, Triplet, Unparsed

STYLE = ChatPrompts(lambda said: f"<user>{said}</user>")
PROGRAM = "def f(a):\n    return a + 1"
REFERENCE = Triplet("def f(b):\n    return b * 7", "3", "21")


def fence(label: str, text: str) -> str:
    return f"```{label}\n{text}\n```"


PROPOSALS = {
    "plain": (fence("python", PROGRAM) + "\n" + fence("input", "1"), "1"),
    "a thought before and a wish behind": (f"I add one.\n{fence('python', PROGRAM)}\n{fence('input', '1, 2')}\nEnjoy!", "1, 2"),
    "a draft first": (
        fence("python", "def f(a):\n    pass") + fence("input", "9").join(["\n"] * 2) + fence("python", PROGRAM),
        "9",
    ),
    "two inputs, the last counts": ("\n".join([fence("python", PROGRAM), fence("input", "1"), fence("input", "2")]), "2"),
    "the input's fence is called Python": (fence("python", PROGRAM) + "\n" + fence("python", "'x', 3"), "'x', 3"),
    "carriage returns": ((fence("python", PROGRAM) + "\n" + fence("input", "1")).replace("\n", "\r\n"), "1"),
    "the last fence is closed by the end": (fence("python", PROGRAM) + "\n```input\n5", "5"),
}


@pytest.mark.parametrize("case", PROPOSALS)
def test_a_proposal_is_read_from_free_text(case: str) -> None:
    text, given = PROPOSALS[case]
    assert STYLE.read_proposal(Kind.DEDUCTION, text) == Proposed(PROGRAM, (given,))


BROKEN = {
    "prose alone": ("The function adds one.", "no_program"),
    "no input": (fence("python", PROGRAM), "no_input"),
    "another name": (fence("python", "def g(a):\n    return a") + "\n" + fence("input", "1"), "no_program"),
    "an empty input": (fence("python", PROGRAM) + "\n" + fence("input", " "), "empty"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_proposal_is_refused_with_a_reason(case: str) -> None:
    text, reason = BROKEN[case]
    with pytest.raises(Unparsed) as refused:
        STYLE.read_proposal(Kind.ABDUCTION, text)
    assert refused.value.reason == reason


def test_a_proposal_that_the_limit_cut_off_is_refused_as_cut_off() -> None:
    with pytest.raises(Unparsed) as refused:
        STYLE.read_proposal(Kind.DEDUCTION, fence("python", PROGRAM) + "\n```input\n5", truncated=True)
    assert refused.value.reason == "cut_off"


ANSWERS = {
    "output": (Kind.DEDUCTION, f"It adds.\n{fence('output', '[1, 2]')}", "[1, 2]"),
    "without a label": (Kind.DEDUCTION, fence("", "4"), "4"),
    "labelled Python": (Kind.DEDUCTION, f"{fence('python', PROGRAM)}\nso\n{fence('python', '4')}", "4"),
    "labelled Python behind a program without a label": (
        Kind.DEDUCTION,
        f"{fence('', PROGRAM)}\nso\n{fence('python', '4')}",
        "4",
    ),
    "behind prose": (Kind.DEDUCTION, f"The output is: {fence('output', '4')}", "4"),
    "in prose": (Kind.DEDUCTION, f"It goes into ```output fences.\n{fence('output', '4')}", "4"),
    "corrected": (Kind.DEDUCTION, f"{fence('output', '3')}\nNo:\n{fence('output', '4')}", "4"),
    "input": (Kind.ABDUCTION, fence("input", "'a', {}"), "'a', {}"),
    "program": (Kind.INDUCTION, f"{fence('python', PROGRAM)}\n{fence('python', 'print(f(1))')}", PROGRAM),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_the_last_fitting_fence(case: str) -> None:
    kind, text, answer = ANSWERS[case]
    assert STYLE.read_answer(kind, text) == answer


@pytest.mark.parametrize("kind", [Kind.DEDUCTION, Kind.ABDUCTION, Kind.INDUCTION])
def test_prose_is_no_answer(kind: Kind) -> None:
    with pytest.raises(Unparsed):
        STYLE.read_answer(kind, "The answer is 4.")


def test_inputs_and_a_hint_are_read_and_too_few_are_named() -> None:
    inputs = [fence("input", "1"), fence("input", "2"), fence("input", "3")]
    text = "\n".join([*inputs, fence("message", "What is added?")])
    assert STYLE.read_inputs(text, PROGRAM, 2) == Proposed(PROGRAM, ("1", "2"), "What is added?")
    with pytest.raises(Unparsed, match="wanted 4 ```input fences, found 3") as refused:
        STYLE.read_inputs(text, PROGRAM, 4)
    assert refused.value.reason == "too_few_inputs"


def test_prompts_go_through_the_template_and_hide_the_answer() -> None:
    deduction = STYLE.solve(Kind.DEDUCTION, REFERENCE.program, (REFERENCE.input,), (REFERENCE.output,), "")
    assert deduction.startswith("<user>") and deduction.endswith("</user>")
    assert "f(3)" in deduction and "21" not in deduction
    abduction = STYLE.solve(Kind.ABDUCTION, REFERENCE.program, (REFERENCE.input,), (REFERENCE.output,), "")
    assert fence("output", "21") in abduction and "f(3)" not in abduction
    induction = STYLE.solve(Kind.INDUCTION, REFERENCE.program, ("3", "4"), ("21", "28"), "A multiple?")
    assert REFERENCE.program not in induction and "f(4) == 28" in induction and "A hint: A multiple?" in induction
    assert REFERENCE.program in STYLE.propose(Kind.DEDUCTION, (REFERENCE,))
    with pytest.raises(ValueError, match="use propose_inputs"):
        STYLE.propose(Kind.INDUCTION, ())
