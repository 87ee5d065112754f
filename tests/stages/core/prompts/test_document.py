"""Document prompts show what is to be continued, and readers take the first document of a completion."""

import ast

import pytest

from stages.core.prompts.document import _CALLED, _EXAMPLES, _INDUCED, SHOWN, SPARE, DocumentPrompts
from stages.core.prompts.labelled import MAX_MESSAGE
from stages.core.prompts.styles import Kind, Proposed, Triplet, Unparsed
from stages.core.suites.problems import Form, Problem
from stages.core.suites.prompts import wording
from tests.support.counted import lines_run

STYLE = DocumentPrompts()
IDENTITY = Triplet("def f(a):\n    return a", "'Hello world'", "'Hello world'")
OTHER = Triplet("def f(a, b):\n    return a + b", "1, 2", "3")
BODY = "(a):\n    return a + 1"
PROGRAM = "def f" + BODY
HELPER = "\n\ndef g(a):\n    return f(a)"


@pytest.mark.parametrize("kind", [Kind.DEDUCTION, Kind.ABDUCTION])
@pytest.mark.parametrize("references", [0, 1, 2, 3, 6])
def test_a_proposal_continues_at_least_three_puzzles_and_the_references_come_last(kind: Kind, references: int) -> None:
    shown = (IDENTITY, OTHER, IDENTITY, OTHER, IDENTITY, OTHER)[:references]
    prompt = STYLE.propose(kind, shown)
    assert prompt.count("```python\n") == max(SHOWN, references) + 1 and prompt.count("\n\nf(") == max(SHOWN, references)
    assert prompt.endswith("\n```\n\n```python\ndef f")
    documents = prompt.split("\n\n```python\n")[1:-1]
    assert documents[len(documents) - references :] == [f"{one.program}\n\nf({one.input})\n```" for one in shown]


def test_kinds_are_told_apart_and_induction_shows_a_program() -> None:
    assert STYLE.propose(Kind.DEDUCTION, (OTHER,) * 3) != STYLE.propose(Kind.ABDUCTION, (OTHER,) * 3)
    with pytest.raises(ValueError, match="propose_inputs"):
        STYLE.propose(Kind.INDUCTION, ())
    with pytest.raises(ValueError, match="num_inputs"):
        STYLE.propose_inputs(PROGRAM, 0)


@pytest.mark.parametrize("num_inputs", [2, 10, 20])
def test_inputs_are_asked_for_with_examples_of_as_many_calls(num_inputs: int) -> None:
    prompt = STYLE.propose_inputs(PROGRAM, num_inputs)
    assert prompt.endswith(f"```python\n{PROGRAM}\n```\n{num_inputs + SPARE} calls:\n1. f")
    last = min(num_inputs + SPARE, 20)
    assert prompt.count(f"```\n{last} calls:\n1. f(") == len(_CALLED)
    assert prompt.count(f"\n{last}. f(") == len(_CALLED) == prompt.count("\nHint: ") and f"\n{last + 1}. f(" not in prompt


def test_the_examples_are_programs_that_accept_their_inputs() -> None:
    """Ours, so they may be run here; the readers of the style read them back."""
    for program, arguments in [*_EXAMPLES[Kind.DEDUCTION], *_EXAMPLES[Kind.ABDUCTION]]:
        read = STYLE.read_proposal(Kind.DEDUCTION, f"{program.removeprefix('def f')}\n\nf({arguments})\n```")
        assert read == Proposed(program, (arguments,))
        returned(program, arguments)
    for program, calls, _ in _CALLED:
        assert len(calls) == 20 == len({repr(ast.literal_eval(f"({one},)")) for one in calls})
        assert len({repr(returned(program, one)) for one in calls}) > 5
    for pairs, _, program in _INDUCED:
        assert [returned(program, given) for given, _ in pairs] == [ast.literal_eval(got) for _, got in pairs]


def returned(program: str, arguments: str) -> object:
    """What our own example returns."""
    names: dict[str, object] = {}
    exec(program, names)
    return eval(f"f({arguments})", names)


def test_a_solver_continues_an_assert_or_a_program() -> None:
    assert STYLE.solve(Kind.DEDUCTION, PROGRAM, ("41",), ("42",), "secret") == f"{PROGRAM}\n\nassert f(41) =="
    assert STYLE.solve(Kind.ABDUCTION, PROGRAM, ("41",), ("42",), "secret") == f"{PROGRAM}\n\nassert 42 == f"
    induction = STYLE.solve(Kind.INDUCTION, PROGRAM, ("41", "1"), ("42", "2"), "add one,\n\nnot two")
    asked = "```tests\n# add one,\n# not two\nassert f(41) == 42\nassert f(1) == 2\n```\n```python\ndef f"
    assert induction.endswith(asked) and PROGRAM not in induction


READ = {
    "plain": (BODY + "\n\nf(1)\n```", PROGRAM, "1"),
    "the next document": (BODY + "\n\nf(1)\n```\n\n```python\ndef f(b):\n    return 2\n\nf(2)\n```", PROGRAM, "1"),
    "the model ended it": (BODY + "\n\nf(1, 'a')", PROGRAM, "1, 'a'"),
    "printed": (BODY + "\n\nprint(f(1, [2]))\n```", PROGRAM, "1, [2]"),
    "asserted": (BODY + "\nassert f(')') == 2  # why\n```", PROGRAM, "')'"),
    "several calls, the first counts": (BODY + "\n\nf(1)\nf(2)\n```", PROGRAM, "1"),
    "a call over several lines": (BODY + "\n\nf([1,\n   2],\n  3)\n```", PROGRAM, "[1,\n   2],\n  3"),
    "a helper behind f": (BODY + HELPER + "\n\nf(1)", PROGRAM + HELPER, "1"),
}


@pytest.mark.parametrize("case", READ)
def test_a_proposal_is_read(case: str) -> None:
    text, program, given = READ[case]
    assert STYLE.read_proposal(Kind.ABDUCTION, text) == Proposed(program, (given,))


REFUSED = {
    "nothing": ("", "no_program"),
    "another name": ("oo(a):\n    return a\n\nf(1)\n```", "no_program"),
    "no call": (BODY + "\n```\n\n", "no_input"),
    "a call inside only": (BODY + "\n    f(1)\n```", "no_input"),
    "a call that does not close": (BODY + "\n\nf([1, 2)\n```", "no_input"),
    "a call without arguments": (BODY + "\n\nf()\n```", "empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_proposal_has_its_reason(case: str) -> None:
    text, reason = REFUSED[case]
    with pytest.raises(Unparsed) as refused:
        STYLE.read_proposal(Kind.DEDUCTION, text)
    assert refused.value.reason == reason and refused.value.detail == f"{reason}: {refused.value}"


def test_at_the_length_limit_only_what_is_complete_in_form_counts() -> None:
    whole = BODY + "\n\nf(1)"
    assert STYLE.read_proposal(Kind.DEDUCTION, whole, truncated=True) == Proposed(PROGRAM, ("1",))
    assert STYLE.read_answer(Kind.INDUCTION, BODY + "\n```", truncated=True) == PROGRAM
    assert STYLE.read_answer(Kind.DEDUCTION, " [1, 2]\n", truncated=True) == "[1, 2]"
    assert STYLE.read_answer(Kind.DEDUCTION, " [1, 2] The list", truncated=True) == "[1, 2]"
    assert STYLE.read_answer(Kind.ABDUCTION, "([1, 2]) == [1, 2", truncated=True) == "[1, 2]"
    for text, read in (
        (whole.removesuffix(")"), lambda text: STYLE.read_proposal(Kind.DEDUCTION, text, truncated=True)),
        (BODY, lambda text: STYLE.read_answer(Kind.INDUCTION, text, truncated=True)),
        (" 12", lambda text: STYLE.read_answer(Kind.DEDUCTION, text, truncated=True)),
        (" [1, 2", lambda text: STYLE.read_answer(Kind.DEDUCTION, text, truncated=True)),
        ("([1, 2", lambda text: STYLE.read_answer(Kind.ABDUCTION, text, truncated=True)),
        ("(1)\n2. f(22)", lambda text: STYLE.read_inputs(text, PROGRAM, 2, truncated=True)),
    ):
        with pytest.raises(Unparsed) as refused:
            read(text)
        assert refused.value.reason == "cut_off"


CALLS = "(1, 'a)')\n2. f([2, (3)], b'x')  # two\n3. f([4)\n4. f()\nf({'k': 3})\nHint: add\n\n"


def test_inputs_and_the_message_are_read() -> None:
    assert STYLE.read_inputs(CALLS, PROGRAM, 3) == Proposed(PROGRAM, ("1, 'a)'", "[2, (3)], b'x'", "{'k': 3}"), "add")
    assert STYLE.read_inputs(CALLS, PROGRAM, 2, truncated=True).inputs == ("1, 'a)'", "[2, (3)], b'x'")
    assert STYLE.read_inputs(CALLS.partition("\nHint")[0] + "\n7. f(4", PROGRAM, 3, truncated=True).message == ""
    for telling in (PROGRAM.replace("\n", " "), "x" * (MAX_MESSAGE + 1)):
        assert STYLE.read_inputs(CALLS.replace("add", telling), PROGRAM, 3).message == ""


@pytest.mark.parametrize("text", [CALLS, "(1)\n\n2. f(2)\n3. f(3)\n4. f(4)", "", "(1), f(2), f(3), f(4)"])
def test_too_few_inputs_are_refused(text: str) -> None:
    with pytest.raises(Unparsed) as refused:
        STYLE.read_inputs(text, PROGRAM, 4)
    assert refused.value.reason == "too_few_inputs"


@pytest.mark.parametrize(
    ("kind", "text", "answer", "behind"),
    [
        (Kind.DEDUCTION, " {'a': [1, 2]}\n", "{'a': [1, 2]}", None),
        (Kind.DEDUCTION, " {'a': [1, 2]}  ", "{'a': [1, 2]}", None),
        (Kind.DEDUCTION, " 'a, b # c'  # yes\nassert f(2) == 3", "'a, b # c'", "  # yes\nassert f(2) == 3"),
        (Kind.DEDUCTION, " [1, 2], 'a message'\n", "[1, 2]", ", 'a message'\n"),
        (Kind.DEDUCTION, " 3; print(f(2))\n", "3", "; print(f(2))\n"),
        (Kind.DEDUCTION, "3,", "3", ","),
        (Kind.DEDUCTION, " 'never closed, 3\n", "'never closed, 3", None),
        (Kind.DEDUCTION, " [2, 4] Certainly! The function", "[2, 4]", " Certainly! The function"),
        (Kind.DEDUCTION, " True because a is", "True", " because a is"),
        (Kind.DEDUCTION, " 1 if a else 2", "1 if", " a else 2"),
        (Kind.ABDUCTION, "([1])\n", "[1]", None),
        (Kind.ABDUCTION, "('x)', (1, 2))\n", "'x)', (1, 2)", None),
        (Kind.ABDUCTION, "('x)')  # Test case 1\n", "'x)'", "  # Test case 1\n"),
        (Kind.ABDUCTION, " ([1], k=2), 'why'", "[1], k=2", ", 'why'"),
        (Kind.INDUCTION, BODY + "\n```", PROGRAM, None),
        (Kind.INDUCTION, BODY, PROGRAM, None),
        (Kind.INDUCTION, BODY + HELPER + "\n```\n```tests\n", PROGRAM + HELPER, None),
    ],
)
def test_an_answer_is_read_up_to_what_the_model_wrote_behind_it(kind: Kind, text: str, answer: str, behind: str | None) -> None:
    assert STYLE.read_answer(kind, text) == answer
    end = STYLE.answer_end(kind, text)
    assert (None if end is None else text[end:]) == behind
    assert STYLE.read_answer(kind, text[:end]) == answer


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Kind.DEDUCTION, "\n3", "empty"),
        (Kind.DEDUCTION, "\n3, 4", "empty"),
        (Kind.DEDUCTION, " # the output", "empty"),
        (Kind.ABDUCTION, "([1, 2", "no_input"),
        (Kind.ABDUCTION, "('a)", "no_input"),
        (Kind.ABDUCTION, "[1, 2])", "no_input"),
        (Kind.ABDUCTION, "()", "empty"),
        (Kind.ABDUCTION, "( )  # none", "empty"),
        (Kind.INDUCTION, " = lambda a: a", "no_program"),
    ],
)
def test_a_refused_answer_has_its_reason_and_nothing_behind_it(kind: Kind, text: str, reason: str) -> None:
    with pytest.raises(Unparsed) as refused:
        STYLE.read_answer(kind, text)
    assert refused.value.reason == reason
    assert STYLE.answer_end(kind, text) is None


def test_cruxeval_by_completion_asks_as_a_run_asks() -> None:
    """So that the scores of a run in this style on CRUXEval measure what it trains."""
    for form, kind in ((Form.DEDUCTION, Kind.DEDUCTION), (Form.ABDUCTION, Kind.ABDUCTION)):
        problem = Problem("p", form, "", "", program=PROGRAM, entry_point="f", inputs=("1",), outputs=("2",))
        words = wording(problem, "completion")
        assert (words.asked, words.opening) == (STYLE.solve(kind, PROGRAM, ("1",), ("2",), ""), "")
        assert words.stops == STYLE.solve_stops(kind)


def test_a_stop_sequence_ends_every_form_behind_what_is_read() -> None:
    (stop,) = STYLE.propose_stops(Kind.DEDUCTION)
    before, stopped, _ = READ["the next document"][0].partition(stop)
    assert STYLE.read_proposal(Kind.DEDUCTION, before + stopped) == STYLE.read_proposal(Kind.DEDUCTION, before)
    (stop,) = STYLE.propose_stops(Kind.INDUCTION)
    assert STYLE.read_inputs(CALLS.partition(stop)[0], PROGRAM, 3) == STYLE.read_inputs(CALLS + "9. f(9)", PROGRAM, 3)
    assert STYLE.solve_stops(Kind.INDUCTION) == ("\n```",)
    assert STYLE.solve_stops(Kind.DEDUCTION) == STYLE.solve_stops(Kind.ABDUCTION) == ("\n",)


def test_hostile_text_is_read_in_one_pass() -> None:
    for unit in ("'", "(", "'\\", '"#', "1. f(", "\n2. f(1)", "```python\n", "'''\n```\n"):
        short, long = (lines_run(lambda: STYLE.read_answer(Kind.ABDUCTION, unit * times), Unparsed) for times in (500, 2000))  # noqa: B023
        assert long < 5 * short + 1000, unit
