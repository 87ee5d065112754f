"""Programs of graded depth, their traces, the documents made of them, and the suite `staircase`."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from stages.core.prompts.compact import INPUT, OUTPUT
from stages.core.prompts.styles import Kind
from stages.core.prompts.trace import TracePrompts
from stages.core.seed_model import probe, staircase
from stages.core.seed_model.chains import MOST_STEPS, Chain, draw_chain
from stages.core.seed_model.pretraining_data import FORMS, ROW
from stages.core.seed_model.program_grammar import ScalarDraws
from stages.core.seed_model.programs import ProgramKeys, compile_own, program_key, run_own
from stages.core.seed_model.reasoning_data import (
    LESSONS,
    MIX,
    SPAN,
    VOCABULARY,
    ReasoningSource,
    answer,
    lesson_at,
    make_reasoning_rows,
)
from stages.core.seed_model.steps import is_small
from tests.sandbox.test_keys import program_keys

BENCHMARKS = Path(__file__).parents[4] / "infra" / "benchmarks"
NOTHING = ProgramKeys(frozenset(), frozenset())


def drawn(seed: int, depth: int, count: int, num_inputs: int = 3) -> list[Chain]:
    draw = ScalarDraws(np.random.default_rng(seed))
    return [draw_chain(draw, depth, num_inputs) for _ in range(count)]


def traced(source: str, given: str) -> list[tuple[str, str]]:
    """Names and values of a chain's steps on one input, by running its lines one at a time."""
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    names: dict[str, Any] = dict(zip((each.arg for each in tree.args.args), ast.literal_eval(f"({given},)"), strict=True))
    found = []
    for line in tree.body[:-1]:
        assert isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        names[line.targets[0].id] = eval(compile(ast.Expression(line.value), "", "eval"), names)  # our own generator's text
        found.append((line.targets[0].id, repr(names[line.targets[0].id])))
    return found


@pytest.mark.parametrize("depth", range(1, MOST_STEPS + 1))
def test_a_chain_does_what_its_trace_and_pairs_say(depth: int) -> None:
    for chain in drawn(1, depth, 20):
        function = compile_own(chain.source)
        for place, (given, got) in enumerate(zip(chain.inputs, chain.outputs, strict=True)):
            assert run_own(function, list(ast.literal_eval(f"({given},)"))) == got
            lines = traced(chain.source, given)
            assert chain.trace(place) == "\n".join(f"{name}={value}" for name, value in lines)
            assert len(lines) == depth and lines[-1][1] == got
            assert all(is_small(ast.literal_eval(value)) for _, value in lines)
        assert len(set(chain.inputs)) == 3


def test_every_step_works_on_the_one_before_and_every_argument_is_used() -> None:
    for chain in drawn(2, 6, 60):
        tree = ast.parse(chain.source).body[0]
        assert isinstance(tree, ast.FunctionDef)
        before, used = tree.args.args[0].arg, set()
        for line in tree.body[:-1]:
            assert isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
            names = {node.id for node in ast.walk(line.value) if isinstance(node, ast.Name)}
            assert before in names
            before, used = line.targets[0].id, used | names
        assert {each.arg for each in tree.args.args} <= used


def test_equal_seeds_give_equal_chains_and_a_wrong_depth_is_refused() -> None:
    assert drawn(3, 4, 10) == drawn(3, 4, 10) != drawn(4, 4, 10)
    with pytest.raises(ValueError, match="1 to 10, not 11"):
        drawn(0, 11, 1)


def test_answers_can_be_read_and_are_right() -> None:
    style = TracePrompts()
    for chain in drawn(5, 4, 20):
        assert style.read_answer(Kind.DEDUCTION, answer(Kind.DEDUCTION, chain)) == chain.outputs[0]
        assert style.read_answer(Kind.ABDUCTION, answer(Kind.ABDUCTION, chain)) == chain.inputs[0]
        assert style.read_answer(Kind.INDUCTION, answer(Kind.INDUCTION, chain)) == chain.source
        forwards, backwards = chain.trace().splitlines(), chain.trace(backwards=True).splitlines()
        assert forwards[::-1] == backwards
        assert answer(Kind.DEDUCTION, chain).endswith(OUTPUT + chain.outputs[0])
        assert answer(Kind.ABDUCTION, chain).endswith(INPUT + chain.inputs[0])


def test_documents_are_shallow_with_one_in_a_hundred_a_little_deeper() -> None:
    assert sum(MIX.depths) == 1000 and len(MIX.depths) == 6 and sum(MIX.depths[4:]) == 10
    assert sum(MIX.forms) == sum(MIX.references) == 100 and len(MIX.forms) == len(MIX.answers) == len(FORMS)
    source = ReasoningSource((1,), NOTHING, MIX)
    depths = Counter(source.chain(1).depth for _ in range(3000))
    assert max(depths) <= 6 and 5 < depths[5] + depths[6] < 70
    assert min(depths[depth] for depth in range(1, 5)) > 500


def test_the_first_lesson_is_one_step_and_no_lesson_before_the_last_has_gaps() -> None:
    for lesson in LESSONS:
        assert sum(lesson.mix.depths) == 1000 and sum(lesson.mix.forms) == 100
        assert (lesson.mix.gapped > 0) == (lesson is LESSONS[-1])
    assert [lesson_at(tokens) for tokens in (0, LESSONS[0].until, 1e12)] == [LESSONS[0].mix, LESSONS[1].mix, MIX]
    source = ReasoningSource((1,), NOTHING, LESSONS[0].mix)
    assert {source.chain(1).depth for _ in range(50)} == {1}
    assert all(document.positions == list(range(len(document.ids))) for document in (source.document() for _ in range(20)))


def test_positions_are_consecutive_within_a_line_and_span_at_most_the_window() -> None:
    source = ReasoningSource((2,), NOTHING, MIX)
    gapped = 0
    for _ in range(100):
        document = source.document()
        assert document.positions[0] == 0 and document.positions[-1] < SPAN
        steps = np.diff(document.positions)
        gapped += bool((steps > 1).any())
        broken = [VOCABULARY.tokens[document.ids[place]] for place in np.flatnonzero(steps > 1)]
        assert (steps >= 1).all() and all("\n" in token or token.startswith("⟨") for token in broken)
    assert 20 < gapped < 60


def test_rows_repeat_and_keep_away_from_the_staircase() -> None:
    held_out = probe.probe_keys(*staircase.staircase_tables(3, per_depth=4).values())
    rows, again = (make_reasoning_rows((1, 2), 12, held_out, MIX) for _ in range(2))
    for name in ("ids", "weights", "segments", "positions"):
        assert np.array_equal(getattr(rows, name), getattr(again, name)), name
    assert rows.ids.shape == (12, ROW) and (rows.segments > 0).mean() > 0.9 and rows.skipped > 0
    text = VOCABULARY.decode(rows.ids.ravel().tolist())
    programs = {part.split("⟨")[0] for part in text.split("⟩") if part.startswith("def f(")}
    assert len(programs) > 30 and not held_out.syntax & {program_key(source) for source in programs}


@pytest.fixture(scope="module")
def shipped() -> dict[str, dict[str, list[Any]]]:
    return {half: pq.read_table(BENCHMARKS / f"staircase-{half}.parquet").to_pydict() for half in probe.HALVES}


def test_the_shipped_halves_are_full_and_disjoint(shipped: dict[str, dict[str, list[Any]]]) -> None:
    for column, count in (("problem_id", 6000), ("program", 2000), ("program_key", 2000), ("behaviour", 2000)):
        values = [set(shipped[half][column]) for half in probe.HALVES]
        assert [len(each) for each in values] == [count, count], column
        assert not values[0] & values[1], column
    for table in shipped.values():
        counted = Counter(zip(table["kind"], table["band"], strict=True))
        assert counted == {(kind.value, depth): 200 for kind in Kind for depth in staircase.DEPTHS}
    assert sum((BENCHMARKS / f"staircase-{half}.parquet").stat().st_size for half in probe.HALVES) < 1_000_000


def test_the_shipped_keys_are_the_sandbox_s_and_the_problems_are_right(shipped: dict[str, dict[str, list[Any]]]) -> None:
    for table in shipped.values():
        programs = table["program"][::9]
        assert program_keys(programs) == table["program_key"][::9]
    table = shipped["dev"]
    for source, inputs, outputs in list(zip(table["program"], table["inputs"], table["outputs"], strict=True))[::11]:
        function = compile_own(source)
        assert [run_own(function, list(ast.literal_eval(f"({given},)"))) for given in inputs] == outputs
