"""Think/answer prompts say what they must, and the readers hold out against ugly completions."""

import pytest

from stages.core.prompts.azr import AzrPrompts
from stages.core.prompts.labelled import MAX_MESSAGE
from stages.core.prompts.styles import Kind, Proposed, Triplet, Unparsed
from tests.support.counted import lines_run

STYLE = AzrPrompts()
PROGRAM = "def f(a):\n    return a + 1"
NESTED = "class Node:\n    def f(self):\n        return 1\n\n\ndef f(a):\n    def g(b):\n        return b\n    return g(a)"
TICKS = 'def f(a):\n    s = """\n```\n"""  # don\'t stop at ```here\n    return s + "```" + a'


def said(answer: str, thought: str = "hm") -> str:
    return f" {thought} </think>\n<answer>\n{answer}\n</answer>"


def fence(label: str, text: str) -> str:
    return f"```{label}\n{text}\n```"


def proposal(program: str = PROGRAM, given: str = "1") -> str:
    return fence("python", program) + "\n" + fence("input", given)


PROPOSALS = {
    "plain": (said(proposal()), PROGRAM, "1"),
    "nothing between the tags but space": ("x</think><answer>" + proposal() + "</answer>", PROGRAM, "1"),
    "think is opened once more": ("<think>" + said(proposal()), PROGRAM, "1"),
    "carriage returns": (said(proposal(given="'a', 2")).replace("\n", "\r\n"), PROGRAM, "'a', 2"),
    "old Mac line ends": (said(proposal()).replace("\n", "\r"), PROGRAM, "1"),
    "input before program": (said(fence("input", "2") + "\n" + fence("python", PROGRAM)), PROGRAM, "2"),
    "prose around the fences": (said(f"Here:\n{proposal()}\nHave fun!"), PROGRAM, "1"),
    "text after the answer": (said(proposal()) + "\nDone. ```python\ndef f(): pass\n```", PROGRAM, "1"),
    "a draft in the thought": (said(proposal(given="3"), thought=proposal(given="9")), PROGRAM, "3"),
    "an open fence in the thought": (said(proposal(), thought="first\n```python\ndef g(): 0\n"), PROGRAM, "1"),
    "tags named in the thought": (said(proposal(), thought="I must write <think> and <answer> here"), PROGRAM, "1"),
    "two answers, the last counts": (said(proposal(given="1")) + said(proposal(given="2")), PROGRAM, "2"),
    "a second bare answer": (
        said(proposal(given="1")) + "<answer>" + proposal(given="2") + "</answer>",
        PROGRAM,
        "2",
    ),
    "the model plays on as the user": (
        said(proposal(given="1")) + "\nUser: more\nAssistant: <think> ok </think><answer>" + proposal(given="2") + "</answer>",
        PROGRAM,
        "1",
    ),
    "a draft and a final program": (said(fence("python", "def f(a):\n    return a") + "\n" + proposal()), PROGRAM, "1"),
    "a usage example after the program": (said(proposal() + "\n" + fence("python", "print(f(1))")), PROGRAM, "1"),
    "an empty line label": (said(fence("", PROGRAM) + "\n" + fence("input", "1")), PROGRAM, "1"),
    "capital labels": (said(fence("Python", PROGRAM) + "\n" + fence("INPUT", "1")), PROGRAM, "1"),
    "py as a label": (said(fence("py", PROGRAM) + "\n" + fence("input", "1")), PROGRAM, "1"),
    "spaces around fences": (said(f"```python  \n{PROGRAM}\n```  \n``` input\n1\n ```"), PROGRAM, "1"),
    "an input on the fence's own line": (said(fence("python", PROGRAM) + "\n```input 'x', [1]```"), PROGRAM, "'x', [1]"),
    "a list item indents the fences": (
        said("- program\n  ```python\n  def f(a):\n      return a + 1\n  ```\n- input\n  ```input\n  1\n  ```"),
        PROGRAM,
        "1",
    ),
    "backticks in strings and comments": (said(proposal(TICKS, "'```'")), TICKS, "'```'"),
    "tags in strings": (
        said(proposal("def f(a):\n    return '</answer><answer>' + a", "'</answer>'")),
        "def f(a):\n    return '</answer><answer>' + a",
        "'</answer>'",
    ),
    "nested functions and a class": (said(proposal(NESTED)), NESTED, "1"),
    "helpers, imports and globals stay": (
        said(proposal("import math\nK = 2\n\ndef f(a):\n    return math.pi * K * a")),
        "import math\nK = 2\n\ndef f(a):\n    return math.pi * K * a",
        "1",
    ),
    "an input over several lines": (said(proposal(given="[1,\n 2],\n'x'")), PROGRAM, "[1,\n 2],\n'x'"),
    "words outside ASCII": (
        said(proposal("def f(a):\n    return 'héé' + a", "'日本'")),
        "def f(a):\n    return 'héé' + a",
        "'日本'",
    ),
    "Assistant: inside the program": (
        said(proposal("def f(a):\n    return 'Assistant: <think>'", "'User:'")),
        "def f(a):\n    return 'Assistant: <think>'",
        "'User:'",
    ),
}

BROKEN = {
    "empty": ("", "no </think>"),
    "no thought": ("<answer>" + proposal() + "</answer>", "no </think>"),
    "no answer": (" hm </think>\n" + proposal(), "no <answer>"),
    "words between the blocks": (" hm </think> so: <answer>" + proposal() + "</answer>", "does not follow directly"),
    "answer before thought": ("<answer>" + proposal() + "</answer></think>", "does not follow directly"),
    "the answer never ends": (" hm </think><answer>" + proposal(), "no </answer>"),
    "the end tag is in a string only": (" hm </think><answer>" + proposal(given="'</answer>'"), "no </answer>"),
    "an empty answer": (said(""), "no closed ```python fence"),
    "no fences": (said(PROGRAM + "\n1"), "no closed ```python fence"),
    "the program's fence is open": (said("```python\n" + PROGRAM), "no closed ```python fence"),
    "no input": (said(fence("python", PROGRAM)), "no closed ```input fence"),
    "input as a comment": (said(fence("python", PROGRAM) + "\n# Input: 1"), "no closed ```input fence"),
    "an empty input": (said(proposal(given="  ")), "the ```input fence is empty"),
    "another name": (said(proposal("def g(a):\n    return a")), "does not define f"),
    "a method only": (said(proposal("class A:\n    def f(self):\n        return 1")), "does not define f"),
    "a lambda": (said(proposal("f = lambda a: a")), "does not define f"),
    "an async function": (said(proposal("async def f(a):\n    return a")), "does not define f"),
    "a longer name": (said(proposal("def ff(a):\n    return a")), "does not define f"),
    "the program in an input fence": (said(fence("input", PROGRAM)), "no closed ```python fence"),
    "another language": (said(fence("javascript", "function f(a) {}") + fence("input", "1")), "no closed ```python fence"),
}


@pytest.mark.parametrize("case", PROPOSALS)
def test_a_proposal_is_read(case):
    text, program, given = PROPOSALS[case]
    assert STYLE.read_proposal(Kind.DEDUCTION, text) == Proposed(program, (given,))


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_proposal_says_what_is_missing(case):
    text, reason = BROKEN[case]
    with pytest.raises(Unparsed, match=reason.replace("(", r"\(")):
        STYLE.read_proposal(Kind.ABDUCTION, text)


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        (Kind.DEDUCTION, said(fence("output", "[1, 2]")), "[1, 2]"),
        (Kind.DEDUCTION, said(fence("input", "1") + "\n" + fence("output", "'a\\n'")), "'a\\n'"),
        (Kind.DEDUCTION, said(fence("output", "1") + "\nor rather\n" + fence("output", "2")), "2"),
        (Kind.DEDUCTION, said(fence("", "{'a': 1}")), "{'a': 1}"),
        (Kind.DEDUCTION, said("```output\n3```"), "3"),
        (Kind.DEDUCTION, said(fence("output", "'''\n```\n'''")), "'''\n```\n'''"),
        (Kind.ABDUCTION, said(fence("python", PROGRAM) + "\n" + fence("input", "'x', 1")), "'x', 1"),
        (Kind.INDUCTION, said(fence("python", PROGRAM)), PROGRAM),
        (Kind.INDUCTION, said(fence("", NESTED)), NESTED),
        (Kind.INDUCTION, said(fence("python", "def f(a):\n    return 0") + "\nbetter:\n" + fence("python", PROGRAM)), PROGRAM),
    ],
)
def test_an_answer_is_read(kind, text, answer):
    assert STYLE.read_answer(kind, text) == answer


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Kind.DEDUCTION, said("The output is 3."), "no closed ```output fence"),
        (Kind.DEDUCTION, said(fence("input", "3")), "no closed ```output fence"),
        (Kind.DEDUCTION, said(fence("", "1") + "\n" + fence("", "2")), "no closed ```output fence"),
        (Kind.DEDUCTION, fence("output", "3"), "no </think>"),
        (Kind.ABDUCTION, said(fence("output", "3")), "no closed ```input fence"),
        (Kind.INDUCTION, said(fence("python", "return 1")), "does not define f"),
    ],
)
def test_a_broken_answer_is_a_format_error(kind, text, reason):
    with pytest.raises(Unparsed, match=reason):
        STYLE.read_answer(kind, text)


def inputs(*values: str, message: str | None = "what does it do?") -> str:
    return said("\n".join([*(fence("input", value) for value in values), *([fence("message", message)] if message else [])]))


def test_the_last_inputs_and_the_message_are_read():
    read = STYLE.read_inputs(inputs("9", "1", "'a', {}", "[2]"), PROGRAM, 3)
    assert read == Proposed(PROGRAM, ("1", "'a', {}", "[2]"), "what does it do?")


def test_a_message_may_hold_quotes_and_apostrophes():
    message = """don't '''guess''', "think" ` twice"""
    assert STYLE.read_inputs(inputs("1", message=message), PROGRAM, 1).message == message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (inputs("1", "2"), "wanted 3 ```input fences, found 2"),
        (inputs("1", "", "3"), "an ```input fence is empty"),
        (inputs("1", "2", "3", message=None), "no closed ```message fence"),
        (inputs("1", "2", "3", message="   "), "no closed ```message fence"),
        (inputs("1", "2", "3", message=f"like this: {PROGRAM}"), "the message defines f"),
        (inputs("1", "2", "3", message="</think><answer>"), "holds a fence or a tag"),
        (inputs("1", "2", "3", message="x" * (MAX_MESSAGE + 1)), f"more than {MAX_MESSAGE}"),
    ],
)
def test_broken_inputs_say_what_is_missing(text, reason):
    with pytest.raises(Unparsed, match=reason):
        STYLE.read_inputs(text, PROGRAM, 3)


@pytest.mark.parametrize(
    "text",
    [
        said("```python\n" * 4000),
        said('```python\n"""\n' * 3000 + "```"),
        said("```\n" * 10_000),
        said("'" * 40_000 + "\n```"),
        said("```python\n" + "\"'" * 20_000 + "\n```"),
        "</think>\n" * 5000 + "<answer>" * 5000,
        said(fence("input", "1") * 3000),
        said("```python\n" * 4000 + "# ```\n"),
        said("```python\n" + "\\'''\n" * 4000 + "\n# ```\n"),
        said('"""' + '```python\n\\"""\n' * 3000 + '"""\n# ```'),
        said("```python\n" + '\\"' * 20_000 + "\n# ```"),
        said("```" + " " * 20_000 + "x y"),
        said("</answer>" + " " * 20_000),
    ],
)
def test_hostile_text_is_read_in_one_pass(text):
    with pytest.raises(Unparsed):
        STYLE.read_proposal(Kind.DEDUCTION, text)
    assert lines_run(lambda: STYLE.read_proposal(Kind.DEDUCTION, text), Unparsed) < 20 * len(text)


REFERENCE = Triplet("def f(b):\n    return b * 2", "[1]", "[1, 1]")


@pytest.mark.parametrize(
    "prompt",
    [
        STYLE.propose(Kind.DEDUCTION, (REFERENCE,)),
        STYLE.propose_inputs(PROGRAM, 10),
        STYLE.solve(Kind.DEDUCTION, PROGRAM, ("1",), (), ""),
        STYLE.solve(Kind.ABDUCTION, PROGRAM, (), ("2",), ""),
        STYLE.solve(Kind.INDUCTION, "", ("1", "2"), ("2", "3"), "add"),
    ],
)
def test_every_prompt_opens_the_thought(prompt):
    assert prompt.endswith("\nAssistant: <think>")
    assert prompt.count("\nUser: ") == 1 and not prompt[:-8].endswith(" ")
    assert prompt.count("```") % 2 == 0


def test_a_propose_prompt_shows_its_references_in_order():
    other = Triplet(PROGRAM, "1", "2")
    prompt = STYLE.propose(Kind.ABDUCTION, (REFERENCE, other))
    first = prompt.index("Example 1, written earlier:\n" + fence("python", REFERENCE.program))
    assert first < prompt.index("Example 2, written earlier:\n" + fence("python", PROGRAM))
    assert fence("input", "[1]") in prompt and fence("output", "[1, 1]") in prompt
    assert "Example" not in STYLE.propose(Kind.ABDUCTION, ())


def test_the_hardness_asked_for_is_that_of_the_kind():
    assert "hard to predict the output" in STYLE.propose(Kind.DEDUCTION, ())
    assert "hard to find an input" in STYLE.propose(Kind.ABDUCTION, ())
    with pytest.raises(ValueError, match="propose_inputs"):
        STYLE.propose(Kind.INDUCTION, ())


def test_a_solver_is_shown_what_its_kind_gives_and_no_more():
    deduction = STYLE.solve(Kind.DEDUCTION, PROGRAM, ("41",), ("42",), "secret")
    abduction = STYLE.solve(Kind.ABDUCTION, PROGRAM, ("41",), ("42",), "secret")
    induction = STYLE.solve(Kind.INDUCTION, PROGRAM, ("41",), ("42",), "add one")
    assert fence("python", PROGRAM) in deduction and fence("input", "41") in deduction and "42" not in deduction
    assert fence("python", PROGRAM) in abduction and fence("output", "42") in abduction and "41" not in abduction
    assert PROGRAM not in induction and fence("input", "41") in induction and fence("output", "42") in induction
    assert "add one" in induction and "secret" not in deduction + abduction
    assert "message" not in STYLE.solve(Kind.INDUCTION, "", ("1",), ("2",), "")


def test_the_example_of_a_prompt_is_itself_readable():
    for prompt in (STYLE.propose(Kind.DEDUCTION, ()), STYLE.propose(Kind.ABDUCTION, ())):
        example = prompt[prompt.index("```python") :]
        read = STYLE.read_proposal(Kind.DEDUCTION, said(example[: example.index("\n\n")]))
        assert read.program.startswith("def f(name, scores):") and read.inputs == ("'ada', {'x': 3, 'y': 7}",)
