"""Read problems from the rows of a publisher's file, one function per file format. Pure; raises BadSuite naming the row."""

import base64
import io
import json
import pickle
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stages.core.suites.math_answers import last_boxed
from stages.core.suites.mbpp_inputs import typed
from stages.core.suites.problems import BadSuite, Form, Problem, checked, field
from stages.core.values.canonical import arguments_wire, parse_value

Row = dict[str, Any]
MAX_TESTS = 1 << 29  # bytes that the tests of one problem may unpack to
_UNREADABLE = (
    *(BadSuite, KeyError, TypeError, ValueError, IndexError, AttributeError, EOFError, OverflowError, SyntaxError),
    *(RecursionError, MemoryError, pickle.UnpicklingError, zlib.error),
)


def read(reader: Callable[[Row, int], Sequence[Problem]], rows: Iterable[Row]) -> list[Problem]:
    """Return all problems of the rows, in order. Raise BadSuite naming the row."""
    problems: list[Problem] = []
    for number, row in enumerate(rows, 1):
        try:
            problems += reader(row, number)
        except _UNREADABLE as error:
            raise BadSuite(f"row {number}: {error or type(error).__name__}") from error
    return checked(problems)


# --- programs


def evalplus(row: Row, number: int) -> list[Problem]:
    """A row of HumanEval+ or MBPP+ as EvalPlus releases them: task_id, prompt, entry_point, canonical_solution, inputs, atol."""
    if "base_input" not in row:
        return _evalplus_hub(row)
    task_id = str(field(row, "task_id"))
    mbpp = task_id.startswith("Mbpp/")
    inputs = {name: _arguments(task_id, field(row, name), mbpp) for name in ("base_input", "plus_input")}
    prompt = str(field(row, "prompt"))
    problem = Problem(
        problem_id=task_id,
        form=Form.FUNCTION,
        group="mbpp" if mbpp else "humaneval",
        question=prompt.strip().strip('"').strip() if mbpp else prompt,
        program="" if mbpp else prompt,
        entry_point=str(field(row, "entry_point")),
        reference=prompt + str(field(row, "canonical_solution")),
        inputs=inputs["base_input"],
        plus_inputs=inputs["plus_input"],
        tolerance=float(row.get("atol") or 0.0),
    )
    return [problem]


# what is called, and the tolerance; some rows compare with the reference's value, and one (a root) with zero
_TESTED = re.compile(
    r"(?:assertion\((\w+)\(\*inp\), (?:exp|ref_func\(\*inp\)), |assert _poly\(\*\w+\(\*inp\), inp\) <= )([\d.e+-]+)"
)
_INPUTS = re.compile(r"^[ \t]*inputs = (\[.*\])[ \t]*$", re.M)


def _evalplus_hub(row: Row) -> list[Problem]:
    """A row as the hub has it: the inputs of base and plus tests together, as a line of the test program (a publisher's text)."""
    inputs, tested = _INPUTS.search(str(field(row, "test"))), _TESTED.search(str(row["test"]))
    if not inputs or not tested:
        raise BadSuite("the test program has no line `inputs = [...]`, or no assertion on it")
    task_id, mbpp = str(field(row, "task_id")), "entry_point" not in row
    prompt = str(field(row, "prompt"))
    reference = str(row["code"]) if mbpp else prompt + str(field(row, "canonical_solution"))
    problem = Problem(
        problem_id=f"Mbpp/{task_id}" if mbpp else task_id,
        form=Form.FUNCTION,
        group="mbpp" if mbpp else "humaneval",
        question=f"{prompt.strip()}\n{_shown_test(row)}".strip() if mbpp else prompt,
        program="" if mbpp else prompt,
        entry_point=tested[1] if mbpp else str(row["entry_point"]),
        reference=reference,
        inputs=tuple(arguments_wire(tuple(given)) for given in _listed(inputs[1])),
        tolerance=float(tested[2]),
    )
    return [problem]


def _listed(text: str) -> list[Any]:
    """Return the argument lists of a row; `inf` and `nan` occur in them. Raises BadSuite, or ValueError."""
    found = parse_value(text, len(text))
    if not isinstance(found, list) or not all(isinstance(given, list | tuple) for given in found):
        raise BadSuite("`inputs` is not a list of argument lists")
    return found


def _shown_test(row: Row) -> str:
    """Return the test that a prompt of MBPP+ shows, as EvalPlus's own prompts do: nothing else in it names the function."""
    tests = row.get("test_list")
    return str(tests[0]).strip() if tests is not None and len(tests) else ""


def _arguments(task_id: str, listed: Any, mbpp: bool) -> tuple[str, ...]:
    if not isinstance(listed, list):
        return ()  # EvalPlus writes {} where a task has no plus inputs
    return tuple(arguments_wire(typed(task_id, given) if mbpp else tuple(given)) for given in listed)


def livecodebench(row: Row, number: int) -> list[Problem]:
    """A row of LiveCodeBench's code_generation_lite: public and private tests, standard input or a method to call."""
    tests = _tests(field(row, "public_test_cases")) + _tests(row.get("private_test_cases") or "[]")
    kinds = {str(test.get("testtype", "stdin")) for test in tests}
    metadata = row.get("metadata") or "{}"
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    if kinds not in ({"stdin"}, {"functional"}):
        raise BadSuite(f"tests of the types {sorted(kinds)}")
    functional = kinds == {"functional"}
    problem = Problem(
        problem_id=str(field(row, "question_id")),
        form=Form.FUNCTION if functional else Form.STDIN,
        group=str(row.get("difficulty") or "unknown"),
        question=str(field(row, "question_content")),
        program=str(row.get("starter_code") or ""),
        entry_point="Solution." + str(metadata["func_name"]) if functional else "",
        inputs=tuple(_json_lines(test["input"]) if functional else str(test["input"]) for test in tests),
        outputs=tuple(_json_literal(test["output"]) if functional else str(test["output"]) for test in tests),
        released=str(field(row, "contest_date"))[:10],
    )
    return [problem]


class _TextOnly(pickle.Unpickler):
    """Reads the pickled text in which LiveCodeBench packs private tests; anything but text would need a class, and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadSuite(f"private_test_cases hold {module}.{name}, not text")


def _tests(packed: Any) -> list[Row]:
    if isinstance(packed, list):
        return packed
    try:
        found = json.loads(packed)
    except ValueError:
        text = _TextOnly(io.BytesIO(unpacked(base64.b64decode(packed)))).load()
        if not isinstance(text, str):
            raise BadSuite(f"private_test_cases hold a {type(text).__name__}, not text") from None
        found = json.loads(text)
    if not isinstance(found, list):
        raise BadSuite("tests are no list")
    return found


def unpacked(data: bytes, limit: int = MAX_TESTS) -> bytes:
    """Decompress zlib data. Raise BadSuite if it exceeds `limit` bytes or is truncated."""
    inflate = zlib.decompressobj()
    found = inflate.decompress(data, limit)
    if not inflate.eof:
        raise BadSuite(f"packed tests are cut off, or unpack to more than {limit} bytes")
    return found


def _json_lines(text: str) -> str:
    """Arguments as LiveCodeBench writes them, one JSON value a line."""
    return arguments_wire(tuple(json.loads(line) for line in text.split("\n") if line.strip()))


def _json_literal(text: str) -> str:
    return arguments_wire((json.loads(text),))[1:-2]


def cruxeval(row: Row, number: int) -> list[Problem]:
    """A row of CRUXEval as two problems: predict the output, find an input."""
    program, given, output = (str(field(row, name)) for name in ("code", "input", "output"))
    name = str(field(row, "id"))
    return [
        Problem(f"{name}/o", Form.DEDUCTION, "output", "", program, "f", inputs=(given,), outputs=(output,)),
        Problem(f"{name}/i", Form.ABDUCTION, "input", "", program, "f", inputs=(given,), outputs=(output,)),
    ]


# --- mathematics


def gsm8k(row: Row, number: int) -> list[Problem]:
    """Gold: what follows `####`, thousands separators removed."""
    solution = str(field(row, "answer"))
    if "####" not in solution:
        raise BadSuite("the answer has no ####")
    gold = solution.rpartition("####")[2].strip().replace(",", "")
    return [_mathematics(f"gsm8k/{row.get('idx', number - 1)}", "all", str(field(row, "question")), gold)]


def math500(row: Row, number: int) -> list[Problem]:
    """Gold: the field `answer`, which is what the solution boxes."""
    subject = f"{row.get('subject', 'all')}"
    return [
        _mathematics(str(row.get("unique_id") or f"math500/{number - 1}"), subject, str(field(row, "problem")), row["answer"])
    ]


def minerva(row: Row, number: int) -> list[Problem]:
    """Gold: the last `\\boxed` of the solution (the set has no answer field; mirrors that add one are read as they are)."""
    gold = str(row["answer"]) if row.get("answer") else last_boxed(str(field(row, "solution")))
    if not gold:
        raise BadSuite("the solution boxes nothing")
    group = re.sub(r"\s*\(.*", "", str(row.get("type") or "all"))
    return [_mathematics(f"minerva/{row.get('idx', number - 1)}", group, str(field(row, "problem", "question")), gold)]


def olympiadbench(row: Row, number: int) -> list[Problem]:
    """Gold: every value of `final_answer`. The context, if any, precedes the question."""
    listed = field(row, "final_answer", "answer")
    values = listed if isinstance(listed, list) else [listed]
    gold = ", ".join(str(value).replace("$", "").strip().rstrip(".") for value in values)
    question = "\n\n".join(part for part in (str(row.get("context") or ""), str(field(row, "question", "problem"))) if part)
    return [_mathematics(f"olympiadbench/{row.get('id', number - 1)}", str(row.get("subfield") or "all"), question, gold)]


def competition(row: Row, number: int) -> list[Problem]:
    """AIME, AMC and the like: a problem and its answer, integers sometimes written as floats ("27.0") or with zeros ("033")."""
    gold = str(field(row, "answer", "Answer")).strip().strip("$").strip()
    name = row.get("id", row.get("ID", row.get("problem_idx", number - 1)))
    return [_mathematics(str(name), "all", str(field(row, "problem", "Problem", "question")), _integer(gold))]


def _integer(gold: str) -> str:
    return str(int(float(gold))) if re.fullmatch(r"-?\d+(\.0+)?", gold) else gold


def _mathematics(problem_id: str, group: str, question: str, gold: Any) -> Problem:
    return Problem(problem_id, Form.MATHEMATICS, group, question, outputs=(str(gold).replace("$", "").strip(),))
