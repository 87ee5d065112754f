"""Prompts that are documents to continue, for base models of any size, and for small instruct models.

    deduction   program, `assert f(input) ==`                      → the rest of the line
    abduction   program, `assert output == f`                      → the call's arguments in their parentheses
    induction   worked examples, pairs as asserts, `def f`         → the rest of the program, up to the closing fence
    propose     three or more programs with a call, `def f`        → the rest of the program, and a call of f
    inputs      worked examples, a program, `N calls:`, `1. f`     → a numbered list of calls, then a hint

Nothing is explained: a small model follows what it sees more often than what it is told. Where the buffer has fewer than three
references, worked examples of this file come first. An answer is short and direct, with no room for a thought.

Readers take the first document of a completion: what follows is the model's next one. Where the model ended the text itself, the
end also closes an open fence or line; where the length limit did, only what is closed counts.
"""

import re
from collections.abc import Sequence

from stages.core.prompts.labelled import DEFINES_F, MAX_MESSAGE, fence
from stages.core.prompts.styles import CUT_OFF, Kind, Proposed, Triplet, Unparsed, cut_off
from stages.core.values.leading import call_arguments, leading_arguments, leading_value

SHOWN = 3
"""Programs in a proposal's prompt, at least."""
SPARE = 2
"""Calls that are asked for beyond those needed: one that does not close is left out."""

_HINT = "Hint:"
_TITLES = {
    Kind.DEDUCTION: "Python puzzles: predict the value that f returns for the input.",
    Kind.ABDUCTION: "Python puzzles: the value that f returns is given, find an input that gives it.",
    Kind.INDUCTION: "Python puzzles: calls of f with varied arguments, and a hint for those who must write f from the results.",
}
_EXAMPLES = {
    Kind.DEDUCTION: (
        (
            "def f(words, limit):\n"
            "    kept = {}\n"
            "    for index, word in enumerate(words):\n"
            "        if len(word) <= limit:\n"
            "            kept[word[::-1]] = index * limit\n"
            "    return sorted(kept.items(), key=lambda pair: -pair[1])",
            "['oak', 'willow', 'fir', 'elm', 'maple'], 3",
        ),
        (
            "def f(n, base):\n"
            "    digits = []\n"
            "    while n > 0:\n"
            "        n, rest = divmod(n, base)\n"
            "        digits.append(rest)\n"
            "    return sum(d if i % 2 == 0 else -d for i, d in enumerate(digits))",
            "4821, 7",
        ),
        (
            "def f(text):\n"
            "    stack, depth = [], 0\n"
            "    for char in text:\n"
            "        if char == '(':\n"
            "            stack.append(depth)\n"
            "            depth = 0\n"
            "        elif char == ')' and stack:\n"
            "            depth = max(stack.pop(), depth + 1)\n"
            "    return depth + len(stack)",
            "'(a(b)(c(d)))('",
        ),
    ),
    Kind.ABDUCTION: (
        (
            "def f(numbers):\n"
            "    total = 0\n"
            "    for left, right in zip(numbers, numbers[1:]):\n"
            "        total += abs(left - right) if left > right else 1\n"
            "    return total, max(numbers)",
            "[3, 9, 4, 4, 12, 7]",
        ),
        (
            "def f(text, shift):\n"
            "    letters = 'abcdefghijklmnopqrstuvwxyz'\n"
            "    moved = [letters[(letters.index(c) + shift) % 26] if c in letters else c for c in text]\n"
            "    return ''.join(moved[1::2] + moved[::2])",
            "'garden path', 5",
        ),
        (
            "def f(stock, orders):\n"
            "    for name, wanted in orders:\n"
            "        if stock.get(name, 0) >= wanted:\n"
            "            stock[name] -= wanted\n"
            "    return {name: left for name, left in stock.items() if left}",
            "{'pen': 4, 'ink': 2}, [('pen', 3), ('ink', 5), ('cap', 1)]",
        ),
    ),
}
# (program, arguments of its calls, hint)
_CALLED = (
    (
        "def f(text, n):\n    parts = text.split()\n    return [part[:n] for part in parts if len(part) > n]",
        (
            *("'the quick brown fox', 3", "'a bb ccc dddd', 2", "'', 4", "'one', 1", "'north south east west', 4"),
            *("'hello   world', 0", "'tiny big enormous', 5", "'x y z', 1", "'apple pie and tea', 3", "'10 200 3000', 2"),
            *("'Mixed CASE Words', 4", "'a-b c-d-e', 3", "'repeat repeat', 5", "'tab\\tand\\nline', 2", "'short', 10"),
            *("'end. of, line!', 2", "'aa aaa aaaa', 2", "'solo', 3", "'up down left right', 4", "'one two', 9"),
        ),
        "Long words are cut.",
    ),
    (
        "def f(numbers, k):\n    kept = sorted(x for x in numbers if x % k)\n    return sum(kept[:k]) - len(kept)",
        (
            *("[5, 8, 12, 7], 3", "[], 2", "[2, 4, 6], 2", "[1], 5", "[9, -3, 14, 0, 22], 4"),
            *("[10, 11, 12, 13], 10", "[-1, -2, -3], 2", "[100, 7, 55], 6", "[3, 3, 3], 3", "[1, 2, 3, 4, 5, 6], 4"),
            *("[0, 0], 1", "[17, 23], 9", "[-8, 8], 3", "[6, 5, 4, 3, 2, 1], 5", "[1000], 7"),
            *("[2, 9, 16], 7", "[12, 15], 8", "[4], 4", "[31, 28, 31], 30", "[1, -1, 1, -1], 2"),
        ),
        "What matters is what is left over when you divide, and only a few of the smallest are added.",
    ),
)
# (shown pairs, hint, program)
_INDUCED = (
    (
        (("'level'", "True"), ("'Anna'", "True"), ("'python'", "False"), ("''", "True"), ("'ab'", "False")),
        "Read it from both ends.",
        "def f(text):\n    text = text.lower()\n    return text == text[::-1]",
    ),
    (
        (
            ("[1, 5, 2], 2", "[2, 10, 4]"),
            ("[], 7", "[]"),
            ("[0, -3], 5", "[0, -15]"),
            ("[4], 0", "[0]"),
            ("[2, 2], -1", "[-2, -2]"),
        ),
        "",
        "def f(numbers, k):\n    return [x * k for x in numbers]",
    ),
)


class DocumentPrompts:
    """Writes and reads prompts for models that continue a text."""

    def propose(self, kind: Kind, references: tuple[Triplet, ...]) -> str:
        """Programs with an input each, and the beginning of one more."""
        if kind not in _EXAMPLES:
            raise ValueError(f"induction proposals show a program: use propose_inputs, not propose({kind!r})")
        filling = _EXAMPLES[kind][: max(0, SHOWN - len(references))]
        shown = [*filling, *((each.program, each.input) for each in references)]
        puzzles = (fence("python", f"{program.strip()}\n\nf({given.strip()})") for program, given in shown)
        return "\n\n".join([_TITLES[kind], *puzzles, "```python\ndef f"])

    def propose_inputs(self, program: str, num_inputs: int) -> str:
        """Programs with `num_inputs` calls each, and the given program with the beginning of its first call."""
        if num_inputs < 1:
            raise ValueError(f"num_inputs must be positive, not {num_inputs}")
        asked = num_inputs + SPARE
        shown = [
            f"{_headed(example, len(calls[:asked]))}\n{_calls(calls[:asked])}\n{_HINT} {hint}" for example, calls, hint in _CALLED
        ]
        return "\n\n".join([_TITLES[Kind.INDUCTION], *shown, f"{_headed(program, asked)}\n1. f"])

    def solve(self, kind: Kind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], message: str) -> str:
        """A program and an unfinished assert, or asserts and an unfinished program."""
        if kind is Kind.DEDUCTION:
            return f"{program.strip()}\n\nassert f({inputs[0].strip()}) =="
        if kind is Kind.ABDUCTION:
            return f"{program.strip()}\n\nassert {outputs[0].strip()} == f"
        shown = [f"{_tests(pairs, hint)}\n{fence('python', example)}" for pairs, hint, example in _INDUCED]
        asked = _tests(tuple(zip(inputs, outputs, strict=True)), message)
        return "\n\n".join([*shown, f"{asked}\n```python\ndef f"])

    def propose_stops(self, kind: Kind) -> tuple[str, ...]:
        """The end of the fence, or of the list of calls."""
        return ("\n\n",) if kind is Kind.INDUCTION else ("\n```",)

    def solve_stops(self, kind: Kind) -> tuple[str, ...]:
        """The end of the line, or of the fence."""
        return ("\n```",) if kind is Kind.INDUCTION else ("\n",)

    def answer_end(self, kind: Kind, completion: str) -> int | None:
        """The end of the value or of the call's parenthesis, where a message, a comment or prose follows on the line."""
        if kind is Kind.INDUCTION:
            return None
        line = completion.partition("\n")[0]
        if kind is Kind.ABDUCTION:
            end = call[1] if (call := call_arguments(line)) and call[0].strip() else None  # `()` is no answer
        else:
            start = len(line) - len(line.lstrip())
            found, ended = leading_value(line[start:])
            end = start + len(found.rstrip()) if ended and found else None
        return end if end and line[end:].strip() else None

    def read_proposal(self, kind: Kind, completion: str, truncated: bool = False) -> Proposed:
        """The program, and the arguments of the first call behind it, printed or asserted or alone."""
        with cut_off(truncated):
            text = "def f" + _inside(completion)
            call = _CALL.search(text)
            program = _program(text[: call.start()] if call else text)
            if call is None:
                raise Unparsed("no line behind the program starts with f(", "no_input")
            given = _arguments(text[call.end() :])
            if not given:
                raise Unparsed("the call has no arguments", "empty")
            return Proposed(program, (given,))

    def read_inputs(self, completion: str, program: str, num_inputs: int, truncated: bool = False) -> Proposed:
        """The arguments of the first `num_inputs` calls that are closed and not empty, and the hint if there is one."""
        document, ended, _ = ("1. f" + completion).partition("\n\n")
        lines = document.split("\n")
        if truncated and not ended:
            lines.pop()
        calls = (line[call.end() :] for line in lines if (call := _NUMBERED.match(line)))
        inputs = tuple(given for call in calls if (given := (leading_arguments(call) or "").strip()))[:num_inputs]
        with cut_off(truncated):
            if len(inputs) < num_inputs:
                raise Unparsed(f"wanted {num_inputs} calls, got {len(inputs)}", "too_few_inputs")
        hint = next((line.removeprefix(_HINT).strip() for line in lines if line.startswith(_HINT)), "")
        return Proposed(program, inputs, hint if len(hint) <= MAX_MESSAGE and not _TELLS.search(hint) else "")

    def read_answer(self, kind: Kind, completion: str, truncated: bool = False) -> str:
        """The value that the line begins with, the arguments of the call, or the program."""
        if kind is Kind.INDUCTION:
            if truncated and "\n```" not in completion:
                raise Unparsed(CUT_OFF, "cut_off")
            return _program("def f" + _inside(completion))
        line, newline, _ = completion.partition("\n")
        cut = truncated and not newline
        with cut_off(cut):
            found = _called(line) if kind is Kind.ABDUCTION else _value(line.strip(), cut)
            if not found:
                raise Unparsed("the line is empty", "empty")
            return found


_CALL = re.compile(r"^(?:print\(|assert )?+f\(", re.M)
_NUMBERED = re.compile(r"(?:[0-9]++[.:)] *+)?+f\(")
_TELLS = re.compile(r"\bdef\s++f\s*+\(|```")


def _arguments(line: str) -> str:
    """The arguments of a call. Raises Unparsed if the call does not close."""
    found = leading_arguments(line)
    if found is None:
        raise Unparsed("the call's parenthesis is not closed", "no_input")
    return found.strip()


def _called(line: str) -> str:
    """The arguments of the call that the line begins with. Raises Unparsed if there is none, or if it does not close."""
    call = call_arguments(line)
    if call is None:
        raise Unparsed("the line does not begin with a call's parentheses, or they are not closed", "no_input")
    return call[0].strip()


def _value(line: str, cut: bool) -> str:
    """The value that the line begins with. Raises Unparsed if a line that is cut off ends within it."""
    found, ended = leading_value(line)
    if cut and not ended:
        raise Unparsed(CUT_OFF, "cut_off")
    return found.strip()


def _inside(completion: str) -> str:
    """The completion up to the line that closes its fence."""
    return completion.partition("\n```")[0]


def _program(text: str) -> str:
    if not DEFINES_F.match(text):
        raise Unparsed("the program does not continue `def f`", "no_program")
    return text.rstrip()


def _headed(program: str, num_calls: int) -> str:
    """A program, and how many calls follow: a model that is told the number stops short of it less often."""
    return f"{fence('python', program)}\n{num_calls} calls:"


def _calls(arguments: Sequence[str]) -> str:
    return "\n".join(f"{number}. f({each})" for number, each in enumerate(arguments, 1))


def _tests(pairs: tuple[tuple[str, str], ...], message: str) -> str:
    hint = [f"# {line}" for line in message.splitlines() if line.strip()]
    return fence("tests", "\n".join([*hint, *(f"assert f({given.strip()}) == {got.strip()}" for given, got in pairs)]))
